"""`qualab report` writes what its file's name says, and clear errors."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.made_up import START, MadeUp, stored
from qualab.bootstrap import store_at
from qualab.model.names import Verdict
from qualab.model.reason import Reason
from tests.cli.conftest import Command


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "qualab.db"
    one = stored(MadeUp(scale=0.05, changed=0.2))
    store = store_at(str(path))
    store.create(one.comparison, one.items)
    store.put_scores(one.comparison.id, list(one.store.scores(one.comparison.id)))
    store.put_analysis(one.analyse(), now=START)
    return path


BEGINNINGS = {".pdf": b"%PDF", ".html": b"<!doctype html>", ".md": b"# ", ".json": b"{"}


@pytest.mark.parametrize("suffix", BEGINNINGS)
def test_the_files_name_says_the_format(qualab: Command, database: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    done = qualab("report", "made", "-o", path, "--lang", "ko", "--db", database)
    assert done.code == 0, done.err
    assert done.out == f"Wrote {path}\n"
    assert path.read_bytes().lstrip().startswith(BEGINNINGS[suffix])
    qualab("report", "made-up", "-o", path, "--format", "json", "--db", database)  # goes before the name
    assert json.loads(path.read_bytes())["comparison_id"] == "made-up"


def test_without_a_file_a_pdf_is_written_here(
    qualab: Command, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert qualab("report", "made-up", "--db", database).out == "Wrote qualab-made-up.pdf\n"
    (path,) = (path for path in tmp_path.iterdir() if "made-up" in path.name)
    assert (path.name, path.read_bytes()[:4]) == ("qualab-made-up.pdf", b"%PDF")


def test_a_dash_is_the_standard_output(database: Path) -> None:
    command = [sys.executable, "-m", "qualab", "report", "made-up", "-o", "-", "--format", "md", "--db", str(database)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout.decode().startswith("# Baseline and candidate: ")


def test_a_plan_after_the_data_has_a_report_and_a_name_of_its_own(
    qualab: Command, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store, name = store_at(str(database)), "qualab-made-up-5ec05ec05ec0.md"
    own = store.analysis("made-up")
    assert own is not None
    why = Reason("after-data", {"changes": (Reason("changed", {"part": "margin", "before": 0.02, "after": 0.05}),)})
    rows = tuple(replace(row, margin=0.05) for row in own.metrics)
    changes: Any = {
        "plan_hash": "5ec0" * 16,
        "verdict": Verdict.INVALID,
        "reasons": (why, *own.reasons),
        "metrics": rows,
    }
    store.put_analysis(replace(own, **changes), now=START)
    done = qualab("report", "made-up", "--plan", "5ec", "--format", "md", "--db", database)
    assert done.out == f"Wrote {name}\n"
    text = (tmp_path / name).read_text()
    assert "this plan was made after the data" in text
    assert "±5.00 pp" in text
    qualab("report", "made-up", "--format", "md", "--db", database)
    assert "after the data" not in (tmp_path / "qualab-made-up.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "made-up", "--plan", "zz"], "No plans of this comparison's analyses begin with zz"),
        (["report", "nothing"], "There is no comparison 'nothing'"),
        (["report", "made-up", "-o", "no/such/folder/x.pdf"], "Cannot write no/such/folder/x.pdf"),
    ],
)
def test_errors_are_one_line_with_a_hint(qualab: Command, database: Path, arguments: list[str], said: str) -> None:
    done = qualab(*arguments, "--db", database)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
