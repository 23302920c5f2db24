"""lm-eval in a process of its own: it scores as it does in this one, and what hangs there is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qualab.errors import HarnessError, InvalidValue, ScoringTimedOut, UnknownTask
from qualab.harness import process
from qualab.harness.process import Harness
from qualab.model.items import Item, Reply
from qualab.model.names import RequestKind
from qualab.model.ports import TaskOptions
from tests.app.fakes import reply
from tests.harness.conftest import TASKS_DIR, load_here
from tests.harness.test_own_tasks import PLAIN, own
from tests.pair.conftest import eventually, lives

HANGING = """
    filter_list:
      - name: strict
        filter: [{function: regex, regex_pattern: "#### (.+)"}, {function: take_first}]
      - name: backtracking
        filter: [{function: regex, regex_pattern: "(a+)+ ####"}, {function: take_first}]
"""
ENDLESS = "a" * 60
LIMIT_S = 1.0
SCORE_FOR_EVER = """
import sys
from pathlib import Path
from qualab.harness.process import Harness
from qualab.model.ports import TaskOptions
from tests.harness.test_process import ENDLESS, entries
folder = Path(sys.argv[1])
tasks = Harness(tasks_dir=Path(sys.argv[2]), item_timeout_s=0.5).load(
    TaskOptions(names=("mine",), include_paths=(folder,)))
items = list(tasks.render())
print(tasks._process._process.pid, flush=True)
tasks._scoring = tasks._process.call  # nobody watches
tasks.score("mine", entries(items, ENDLESS))
"""


def entries(items: list[Item], text: str) -> list[tuple[Item, list[Reply]]]:
    def replies(item: Item) -> list[Reply]:
        if item.kind is RequestKind.GENERATION:
            return [reply(text)]
        scored = enumerate(-1.0 - choice * (item.doc_id % 3) for choice in range(len(item.prompts)))
        return [reply(text=None, loglikelihood=value, is_greedy=not choice) for choice, value in scored]

    return [(item, replies(item)) for item in items]


@pytest.fixture
def separate() -> Iterator[Harness]:
    harness = Harness(tasks_dir=TASKS_DIR, item_timeout_s=LIMIT_S)
    yield harness
    harness.stop()


@pytest.fixture
def mine(tmp_path: Path) -> TaskOptions:
    return TaskOptions(names=("mine",), include_paths=(own(tmp_path, f"{PLAIN.rstrip()}{HANGING}"),))


def test_a_process_changes_nothing(separate: Harness, tiny_data: Path, mine: TaskOptions) -> None:
    names = ("mine", "kobest_copa", "ifeval", "gsm8k")
    options = replace(mine, names=names, data_dir=tiny_data, seed=3)
    here, there = load_here(options), separate.load(options)
    for name in ("suite", "applies_chat_template", "tasks", "metrics", "harness_version"):
        assert getattr(there, name) == getattr(here, name)
    items = list(there.render())
    assert items == list(here.render())
    answered = {name: entries([one for one in items if one.task == name], "2 #### 18\n") for name in names}
    for name, own_entries in answered.items():
        assert own_entries
        assert there.score(name, own_entries) == here.score(name, own_entries)
        assert list(there.extracted(name, own_entries)) == list(here.extracted(name, own_entries))
        assert list(there.samples(name, own_entries)) == list(here.samples(name, own_entries))
    documents = [tasks.results(answered) for tasks in (here, there)]
    for document in documents:
        del document["configs"]  # functions stand there with their addresses
    assert documents[0] == documents[1]
    columns = {"mine": {"exact_match,strict": [1.0, 0.0, 1.0]}}
    assert there.aggregate(columns) == here.aggregate(columns)


def test_a_hanging_filter_is_named_and_killed(separate: Harness, mine: TaskOptions) -> None:
    hanging = separate.load(mine)
    items = list(hanging.render())
    answered = [*entries(items[:3], "#### 1"), *entries(items[3:4], ENDLESS), *entries(items[4:], "#### 1")]
    pid = hanging._process._process.pid
    began = time.monotonic()
    with pytest.raises(ScoringTimedOut, match=r"item mine/3 took more than 1 s in filter backtracking of task mine"):
        hanging.score("mine", answered)
    assert time.monotonic() - began < LIMIT_S + 5.0
    assert not lives(pid)
    with pytest.raises(ScoringTimedOut, match="mine/3"):  # for whoever asks it next, too
        hanging.score("mine", answered[:1])
    assert len(separate.load(mine).score("mine", answered[:3])) == 3


def test_an_endless_load_is_given_up(
    separate: Harness, mine: TaskOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate.load(mine)  # lm-eval is imported
    own(tmp_path, PLAIN + "    process_docs: !function helpers.wait\n", code="while True: pass\n")
    monkeypatch.setattr(process, "CALL_TIMEOUT_S", 2.0)
    with pytest.raises(HarnessError, match="lm-eval took more than 2 s to load tasks"):
        separate.load(mine)


@pytest.mark.parametrize(
    ("is_killed", "reason"),
    [(False, "was stopped"), (True, r"ended with code -9 at item mine/0, in filter backtracking of task mine")],
)
def test_what_hangs_can_be_stopped_or_killed_at_any_moment(
    separate: Harness, mine: TaskOptions, is_killed: bool, reason: str
) -> None:
    hanging = separate.load(mine)
    answered = entries(list(hanging.render()), ENDLESS)
    hanging._scoring = hanging._process.call  # type: ignore[assignment]  # without an item's limit
    pid = hanging._process._process.pid
    timer = threading.Timer(0.5, *((os.kill, (pid, signal.SIGKILL)) if is_killed else (separate.stop,)))
    timer.start()
    with pytest.raises(HarnessError, match=reason):
        hanging.score("mine", answered)
    timer.join()
    assert not lives(pid)


@pytest.mark.usefixtures("mine")
def test_a_process_whose_caller_was_killed_ends_by_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCORE_FOR_EVER, str(tmp_path), str(TASKS_DIR)]
    with subprocess.Popen(command, cwd=TASKS_DIR.parent, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        time.sleep(0.3)
        caller.kill()
    assert lives(pid), "it hangs"
    assert eventually(lambda: not lives(pid), within_s=60.0)


def test_a_process_without_tasks_is_used_again_while_it_is_young(
    separate: Harness, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, other = TaskOptions(names=("gsm8k",), data_dir=tiny_data), Harness(tasks_dir=TASKS_DIR)
    first = other.load(options)
    pid = first._process._process.pid
    second = separate.load(options)
    assert second._process._process.pid != pid, "the first is in use"
    del first
    again = separate.load(options)
    assert again._process._process.pid == pid
    other.stop()  # it has given that process back
    assert len(list(again.render())) == again.tasks[0].n_items
    del again
    monkeypatch.setattr(process, "IDLE_S", 0.0)
    assert separate.load(options)._process._process.pid != pid
    assert not lives(pid)


def test_more_tasks_than_the_bound_are_refused(separate: Harness, tiny_data: Path) -> None:
    for names in (("*",), ("kobest",), ("kobest_*",), ("gsm8k", "kobest_copa", "ifeval")):
        with pytest.raises(InvalidValue, match="more than 2 tasks") as refused:
            separate.load(TaskOptions(names=names, data_dir=tiny_data, most_tasks=2))
        assert refused.value.details == {"fields": {"tasks": "must be at most 2 tasks"}}
    with pytest.raises(UnknownTask) as unknown:
        separate.load(TaskOptions(names=("gsm8",), data_dir=tiny_data))
    assert "gsm8k" in unknown.value.details["nearest"]  # type: ignore[operator]
    assert len(separate.load(TaskOptions(names=("kobest",), data_dir=tiny_data, most_tasks=5)).tasks) == 5
