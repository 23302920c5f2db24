"""Machines without network, without a hub, without NLTK's data: what happens there, in processes of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qualab.errors import ScoringUnavailable
from qualab.harness.loading import NEEDS_SENTENCES
from qualab.model.ports import TaskOptions
from tests.harness.conftest import TASKS_DIR
from tests.harness.in_process import LmEvalHarness
from tests.harness.tiny_data import IFEVAL, instruction, write_jsonl

LOAD = """
import json, sys, time
from pathlib import Path
from qualab.harness.loading import load_tasks
from qualab.errors import QualabError
from qualab.model.ports import TaskOptions
tasks_dir, loads = sys.argv[1:]
for data_dir, names in json.loads(loads):
    before, hashes = time.monotonic(), {}
    try:
        options = TaskOptions(names=tuple(names), data_dir=Path(data_dir) if data_dir else None)
        loaded = load_tasks(options, tasks_dir=Path(tasks_dir))
        hashes = {task.name: [task.config_hash, task.data_hash] for task in loaded.tasks}
        said = f"loaded {len(list(loaded.render()))}"
    except QualabError as exc:
        said = f"{exc.code} {exc}"
    print(json.dumps([said, time.monotonic() - before, hashes]))
"""

NO_SOCKETS = """
import socket
def refuse(*args, **kwargs):
    raise AssertionError("the network was touched")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
"""

NO_NLTK_DATA = "import nltk; nltk.data.path.clear()\n"


def load_in_process(
    folder: Path, *loads: tuple[Path | None, tuple[str, ...]], before: str = "", **environment: str
) -> list[tuple[str, float, dict[str, list[str]]]]:
    """What each load came to, its seconds, and the tasks' hashes. Nothing is found in the user's own caches."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "NLTK_"))}
    asked = json.dumps([(str(data_dir or ""), names) for data_dir, names in loads])
    done = subprocess.run(
        [sys.executable, "-c", before + LOAD, str(TASKS_DIR), asked],
        capture_output=True,
        text=True,
        check=False,
        env={**clean, "HOME": str(folder), "HF_HOME": str(folder / "hf"), **environment},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return lines[-len(loads) :]  # what lm-eval prints comes before


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def check_unavailable(said: str, seconds: float, _: object) -> None:
    assert said.startswith("dataset-unavailable")
    for named in ("openai/gsm8k", "gsm8k/test.jsonl", "--data-dir", "QUALAB_DATA_DIR"):
        assert named in said
    assert seconds < 10


@pytest.mark.parametrize("port", ["closed_port", "silent_port"])
def test_a_silent_hub_is_given_up_within_10_s(tmp_path: Path, request: pytest.FixtureRequest, port: str) -> None:
    endpoint = f"http://127.0.0.1:{request.getfixturevalue(port)}"
    check_unavailable(*load_in_process(tmp_path, (None, ("gsm8k",)), HF_ENDPOINT=endpoint)[0])


def test_without_a_network_data_directories_serve_and_what_is_missing_is_named(
    harness: LmEvalHarness, tmp_path: Path, tiny_data: Path
) -> None:
    (tmp_path / "hf").write_text("a file where a cache directory would be")
    checks = ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"})
    data = tmp_path / "data"
    write_jsonl(data / "ifeval/train.jsonl", [*IFEVAL, instruction(9, "Write.", checks)])
    shared = os.environ.get("QUALAB_SHARED")
    offline, whole, few, sentences, *real = load_in_process(
        tmp_path,
        (None, ("gsm8k",)),
        (tiny_data, ("published-34", "release")),
        (tiny_data, ("ifeval", "demo")),  # no item needs NLTK's sentences
        (data, ("ifeval",)),
        *([(Path(shared) / "data", ("ifeval",))] if shared else []),  # which has NLTK's data
        before=NO_SOCKETS + NO_NLTK_DATA,
        HF_HUB_OFFLINE="1",
        PYTHONHASHSEED="7",
    )
    check_unavailable(*offline)
    assert whole[0].startswith("loaded ")
    assert few[0].startswith("loaded ")
    here = harness.load(TaskOptions(names=("published-34", "release"), data_dir=tiny_data)).tasks
    assert whole[2] == {task.name: [task.config_hash, task.data_hash] for task in here}, "the same in any process"
    assert sentences[0].startswith("scoring-unavailable")
    assert all(named in sentences[0] for named in ("ifeval", "punkt_tab", str(data / "nltk_data")))
    assert [said for said, *_ in real] == ["loaded 541"] * len(real)


def test_no_other_check_of_ifeval_reads_sentence_data(monkeypatch: pytest.MonkeyPatch) -> None:
    import nltk
    from lm_eval.tasks.ifeval import instructions, instructions_registry, instructions_util

    instructions_util._get_sentence_tokenizer.cache_clear()

    def missing(*_: object, **__: object) -> None:
        raise LookupError("no data")

    monkeypatch.setattr(nltk.data, "find", missing)
    monkeypatch.setattr(nltk.data, "load", missing)
    monkeypatch.setattr(nltk, "word_tokenize", missing)
    settings = {"keywords:existence": {"keywords": ["a"]}, "combination:repeat_prompt": {"prompt_to_repeat": "a"}}
    needing = set()
    for name, check in instructions_registry.INSTRUCTION_DICT.items():
        one = check(name)
        one.build_description(**settings.get(name, {}))
        try:
            one.check_following("One line. Another, of some words.\n\nAnd a third: (yes)! * a\n P.S. end")
        except LookupError:
            needing.add(name)
    assert instructions is not None
    assert needing == NEEDS_SENTENCES


def test_no_language_detector(harness: LmEvalHarness, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("lm_eval.tasks.ifeval")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langdetect", None)
    before = time.monotonic()
    for name in ("ifeval", "demo_instructions"):
        with pytest.raises(ScoringUnavailable, match=f"{name} needs the Python package langdetect"):
            harness.load(TaskOptions(names=(name,), data_dir=tiny_data))
    assert time.monotonic() - before < 10
