"""Data sets from a hub: the commit that a branch is at is found once, read, and kept with the plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qualab.harness.catalog import read_catalog
from tests.harness.conftest import TASKS_DIR
from tests.harness.scripted_hub import ScriptedHub
from tests.harness.tiny_data import gsm8k, haerae

LOADS = """
import json, sys
from pathlib import Path
from tests.harness.in_process import LmEvalHarness
from qualab.errors import QualabError
from qualab.model.ports import TaskOptions
harness = LmEvalHarness(tasks_dir=Path(sys.argv[1]))
for line in sys.stdin:
    names, folder, revisions = json.loads(line)
    options = TaskOptions(names=tuple(names), include_paths=(Path(folder),), revisions=revisions)
    try:
        said = [[task.revision, task.n_items] for task in harness.load(options).tasks]
    except QualabError as exc:
        said = str(exc)
    print(json.dumps(said), flush=True)
"""

TASK = """\
task: {name}
dataset_path: {path}
dataset_name: {config}
output_type: generate_until
test_split: test
doc_to_text: "{{{{query}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: exact_match}}]
"""


class Loader:
    """Loads in a process of its own, as the libraries read the hub's address when they are imported."""

    def __init__(self, process: subprocess.Popen[str], tasks: Path) -> None:
        self._process = process
        self._tasks = tasks

    def task(self, name: str, path: str, config: str = "default", more: str = "") -> str:
        text = TASK.format(name=name, path=path, config=config) + more
        (self._tasks / f"{name}.yaml").write_text(text, encoding="utf-8")
        return name

    def __call__(self, *names: str, **revisions: str) -> Any:
        """[commit, items] of each task, or the error's text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([names, str(self._tasks), revisions]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def hub() -> Iterator[ScriptedHub]:
    with ScriptedHub() as hub:
        yield hub


@pytest.fixture(scope="module")
def load(hub: ScriptedHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "tasks").mkdir()
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env = {**clean, "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf")}
    command = [sys.executable, "-c", LOADS, str(TASKS_DIR)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Loader(process, folder / "tasks")
        assert process.stdin is not None
        process.stdin.close()


def jsonl(n_rows: int) -> bytes:
    return "\n".join(json.dumps(row) for row in haerae(n_rows)).encode()


def resolutions(hub: ScriptedHub, path: str) -> int:
    return hub.asked.count(f"GET /api/datasets/{path}/revision/main")


def test_a_branch_is_recorded_at_its_commit_and_read_there_again_for_a_plan(hub: ScriptedHub, load: Loader) -> None:
    first = hub.push("o/moves", {"test.jsonl": jsonl(3)})
    name = load.task("moves", "o/moves")
    assert load(name) == [[first, 3]]
    second = hub.push("o/moves", {"test.jsonl": jsonl(5)})
    assert load(name) == [[second, 5]]
    read = [one for one in hub.asked if one.startswith("GET /datasets/o/moves/resolve/")]
    assert len(read) == 2
    assert all("/main/" not in one for one in read)
    n_asked = resolutions(hub, "o/moves")
    assert load(name, moves=first) == [[first, 3]]
    assert resolutions(hub, "o/moves") == n_asked


def test_tasks_of_one_load_read_one_commit(hub: ScriptedHub, load: Loader) -> None:
    splits = "".join(f"- config_name: {one}\n  data_files:\n  - {{split: test, path: {one}.jsonl}}\n" for one in "ab")
    files = {"README.md": f"---\nconfigs:\n{splits}---\n".encode(), "a.jsonl": jsonl(2), "b.jsonl": jsonl(4)}
    commit = hub.push("o/two", files)
    names = [load.task(f"two_{one}", "o/two", one) for one in "ab"]
    assert load(*names) == [[commit, 2], [commit, 4]]
    assert resolutions(hub, "o/two") == 1


def test_a_pin_of_the_catalog_is_read(hub: ScriptedHub, load: Loader) -> None:
    pin = str(read_catalog(TASKS_DIR).datasets["openai/gsm8k"].revision)
    splits = "".join(f"  - {{split: {split}, path: {split}.jsonl}}\n" for split in ("train", "test"))
    card = f"---\nconfigs:\n- config_name: main\n  data_files:\n{splits}---\n"
    train, test = ("\n".join(map(json.dumps, gsm8k(n))).encode() for n in (9, 2))
    hub.repositories["openai/gsm8k"] = {pin: {"README.md": card.encode(), "train.jsonl": train, "test.jsonl": test}}
    hub.push("openai/gsm8k", {})
    assert load("gsm8k") == [[pin, 2]]


def test_a_branch_or_data_set_that_is_not_there_is_said(hub: ScriptedHub, load: Loader) -> None:
    hub.push("o/here", {"test.jsonl": jsonl(3)})
    absent = load.task("absent", "o/absent")
    assert load(absent).startswith("Data set o/absent is not on the hub, or not open to you, and there is no data dir")
    gone = load.task("gone", "o/here", more="dataset_kwargs: {revision: v2}\n")
    assert load(gone).startswith("Data set o/here has no revision v2 on the hub, and there is no data directory")


def test_without_the_hub_the_cache_serves_what_it_holds_and_only_that(hub: ScriptedHub, load: Loader) -> None:
    first = hub.push("o/cached", {"test.jsonl": jsonl(3)})
    name = load.task("cached", "o/cached")
    assert load(name) == [[first, 3]]
    hub.is_down = True
    try:
        assert load(name) == [[first, 3]]
        assert load(name, cached=first) == [[first, 3]]
        other = "0" * 40
        said = load(name, cached=other)
    finally:
        hub.is_down = False
    assert said.startswith(f"Data set o/cached is in the cache at commit {first}, not at {other}, and the hub cannot")
