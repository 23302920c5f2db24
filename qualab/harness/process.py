"""lm-eval in a process of its own: what hangs there is killed, and its memory goes back when it ends.

A task's filters and metrics are foreign code over foreign text: one backtracking regular expression never returns, and
no thread can interrupt it. The process notes each step before it begins, in shared memory: where the note stands still
for longer than an item may take, the process is killed, and the note tells which item and step it was.
"""

from __future__ import annotations

import gc
import json
import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualab.errors import HarnessError, QualabError, ScoringTimedOut, error_class
from qualab.harness.catalog import check_names, read_catalog
from qualab.model.items import Item, JsonObject, Reply
from qualab.model.plan import NO_TASKS, MetricSpec, TaskSpec
from qualab.model.ports import TaskOptions

if TYPE_CHECKING:
    from qualab.harness.tasks import LmEvalTasks

ITEM_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 600.0
"""For loading, which may download, and for other calls that score nothing."""
LOOK_S = 0.2
"""Seconds between two looks at the note."""
IDLE_S = 60.0
"""Seconds that a process without tasks waits for others: the next load need not import lm-eval again."""
RENDERED_AT_ONCE = 500
NOTE_BYTES = 512
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from qualab.harness.process import main; main(*sys.argv[2:])"
)
"""The process imports what this one does, whatever the current directory holds."""
Answered = Sequence[tuple[Item, Sequence[Reply]]]
log = logging.getLogger("qualab.harness")


class Harness:
    """Loads tasks of lm-eval, of `tasks_dir` and of include paths, each time in a process. Thread-safe."""

    def __init__(self, *, tasks_dir: Path, item_timeout_s: float = ITEM_TIMEOUT_S) -> None:
        self._tasks_dir = tasks_dir
        self._item_timeout_s = item_timeout_s
        self._busy = weakref.WeakSet[_Process]()

    def load(self, options: TaskOptions) -> LoadedTasks:
        """Load tasks. Raises as `load_tasks`, and HarnessError where the process ends or takes too long."""
        if options.names == NO_TASKS:
            is_chat = options.apply_chat_template is not False
            none = {"suite": NO_TASKS[0], "tasks": (), "metrics": (), "applies_chat_template": is_chat}
            return LoadedTasks(_NoProcess(), {**none, "harness_version": version("lm_eval")}, self._item_timeout_s)
        catalog = read_catalog(self._tasks_dir)  # what is unknown shows before lm-eval is loaded
        names = catalog.expand(options.names, only=options.only)
        check_names(names, catalog, (self._tasks_dir, *options.include_paths))
        process = _idle_process() or _Process()
        self._busy.add(process)
        here = os.sep  # data files are looked for in the current directory; in the root where that is gone
        with suppress(FileNotFoundError):
            here = os.getcwd()
        try:
            facts = process.call("load", self._tasks_dir, here, self._item_timeout_s, options)
        except BaseException:
            _give_back(self._busy, process)
            raise
        tasks = LoadedTasks(process, facts, self._item_timeout_s)
        weakref.finalize(tasks, _give_back, self._busy, process)  # at exit, too
        return tasks

    def stop(self) -> None:
        """End what is under way, from any thread: who waits for it gets HarnessError."""
        for process in list(self._busy):
            process.end(HarnessError("lm-eval was stopped"))


class _Process:
    """The caller's side of a process. A call after its end raises what ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended_by: QualabError | None = None
        here, there = socket.socketpair()
        with there, tempfile.TemporaryFile() as note:
            note.truncate(NOTE_BYTES)
            self._note = mmap.mmap(note.fileno(), NOTE_BYTES)
            passed = (there.fileno(), note.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", START, json.dumps(sys.path), *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,  # Ctrl-C is for the command, which ends this process itself
            )
        self._connection = Connection(here.detach())

    def call(self, name: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        # `timeout_s` is for each item that is scored; raises what the call raises there, ScoringTimedOut, HarnessError
        with self._lock:
            try:
                if self._ended_by is not None:
                    raise self._ended_by
                self._connection.send((name, arguments))
                self._wait(name, timeout_s or CALL_TIMEOUT_S)
                is_value, value = self._connection.recv()
            except (EOFError, OSError):
                raise self.end(self._lost()) from None
            except BaseException as exc:  # after KeyboardInterrupt its answer would be taken for that of the next call
                self.end(exc if isinstance(exc, QualabError) else None)
                raise
        if is_value:
            return value
        code, message, hint, details = value
        raise error_class(code, HarnessError)(message, hint=hint, **details)

    def drop_tasks(self) -> bool:
        # whether it can be given others: not where it is in a call, which nobody waits for as the command ends
        with suppress(EOFError, OSError):
            if self._ended_by is None and self._process.poll() is None and not self._lock.locked():
                self._connection.send(("drop", ()))
                return True
        return False

    def end(self, error: QualabError | None = None) -> QualabError:
        # who waits for it, or calls it later, gets the error that ended it first
        if self._ended_by is None:
            self._ended_by = error or HarnessError("lm-eval's process has ended")
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        return self._ended_by

    def _wait(self, name: str, timeout_s: float) -> None:
        seen, since = b"", time.monotonic()
        while not self._connection.poll(LOOK_S):
            now, note = time.monotonic(), bytes(self._note)
            if note != seen:
                seen, since = note, now
            elif now - since > timeout_s:
                item, step = _read(note)
                if not item:
                    hint = "Look for a function, template or download of the task that does not end"
                    raise HarnessError(f"lm-eval took more than {timeout_s:g} s to {name} tasks", hint=hint)
                raise ScoringTimedOut(
                    f"Scoring item {item} took more than {timeout_s:g} s in {step}",
                    hint="The answers are kept. Correct the expression or function that does not end; "
                    "QUALAB_SCORING_TIMEOUT gives an item more seconds",
                )

    def _lost(self) -> HarnessError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        item, step = _read(bytes(self._note))
        at = f" at item {item}, in {step}" if item else ""
        code = self._process.poll()
        return HarnessError(f"lm-eval's process ended with code {code}{at}", hint="The answers are kept")


class _NoProcess:
    """Answers for no tasks: with nothing."""

    def call(self, *_: object, **__: object) -> Any:
        return {}


_idle: list[tuple[float, _Process]] = []
"""A process without tasks, for the next load, and since when it waits. Methods of a list need no lock."""


def _idle_process() -> _Process | None:
    with suppress(IndexError):
        since, process = _idle.pop()
        if time.monotonic() - since < IDLE_S / 2 and process.drop_tasks():
            return process
        process.end()
    return None


def _give_back(busy: weakref.WeakSet[_Process], process: _Process) -> None:
    busy.discard(process)
    if not _idle and process.drop_tasks():
        _idle.append((time.monotonic(), process))
    else:
        process.end()


class LoadedTasks:
    """Tasks with their documents, ready to render and to score, in another process."""

    suite: str
    applies_chat_template: bool
    tasks: tuple[TaskSpec, ...]
    metrics: tuple[MetricSpec, ...]
    harness_version: str

    def __init__(self, process: _Process | _NoProcess, facts: Mapping[str, Any], item_timeout_s: float) -> None:
        vars(self).update(facts)
        self._process = process
        self._scoring = partial(process.call, timeout_s=item_timeout_s)

    def render(self) -> Iterator[Item]:
        """Yield every item with its prompts, in task and document order; one rendering at a time."""
        n_rendered = 0
        while items := self._process.call("render", n_rendered, RENDERED_AT_ONCE):
            yield from items
            n_rendered += len(items)

    def score(self, task: str, answered: Answered) -> list[dict[str, Any]]:
        """Score as `ScoredTasks`. Raises HarnessError, ScoringTimedOut; so do the next but `aggregate`."""
        return self._scoring("score", task, _without_prompts(answered))  # type: ignore[no-any-return]

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        """Aggregate as `ScoredTasks`."""
        return self._process.call("aggregate", values)  # type: ignore[no-any-return]

    def extracted(self, task: str, answered: Answered) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield each filter's name and what it extracts from every entry's answers, without scoring."""
        yield from self._scoring("extracted", task, _without_prompts(answered))

    def samples(self, task: str, answered: Answered) -> Iterator[JsonObject]:
        """Yield the rows that lm-eval's --log_samples writes of these answers."""
        yield from self._scoring("samples", task, answered)

    def results(self, answered: Mapping[str, Answered]) -> JsonObject:
        """Return lm-eval's results document of these answers by task."""
        return self._scoring("results", answered)  # type: ignore[no-any-return]


def _without_prompts(answered: Answered) -> Answered:
    return [(replace(item, prompts=()), replies) for item, replies in answered]  # scoring reads none


def _read(note: bytes) -> tuple[str, str]:
    _, item, step = (note.rstrip(b"\0").decode(errors="replace") + "\n\n").split("\n", 2)
    return item, step.strip()


class _Server:
    """The process's side: one set of tasks, one call at a time."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page
        self._n_notes = 0
        self._item_timeout_s = 0.0
        self.tasks: LmEvalTasks | None = None
        self._rendering: Iterator[Item] = iter(())

    def answer(self, name: str, arguments: Sequence[Any]) -> tuple[bool, Any]:
        """Return True and the value, or False and the error's parts."""
        try:
            owner = self if name in ("load", "render") else self.tasks
            value = getattr(owner, name)(*arguments)
            return True, list(value) if isinstance(value, Iterator) else value
        except QualabError as error:
            return False, (error.code, error.message, error.hint, error.details)
        except Exception as error:
            log.exception("%s failed", name)
            reason = " ".join(str(error).split())
            return False, (HarnessError.code, f"lm-eval failed: {type(error).__name__}: {reason}", "", {})

    def drop(self) -> None:
        self.tasks, self._rendering = None, iter(())
        gc.unfreeze()
        gc.collect()

    def note(self, item: str, step: str) -> None:
        """Note the next step; without anybody to read it, the system ends what takes too long."""
        signal.setitimer(signal.ITIMER_PROF, 2 * (self._item_timeout_s if item else CALL_TIMEOUT_S))
        self._n_notes += 1
        text = f"{self._n_notes}\n{item}\n{step}".encode()[:NOTE_BYTES]
        self._page[:] = text.ljust(NOTE_BYTES, b"\0")

    def load(self, tasks_dir: Path, here: str, item_timeout_s: float, options: TaskOptions) -> dict[str, Any]:
        os.chdir(here)
        self._item_timeout_s = item_timeout_s
        from qualab.harness.loading import load_tasks  # noqa: PLC0415  (lm-eval takes seconds to import)

        self.tasks = load_tasks(options, tasks_dir=tasks_dir, note=self.note)
        gc.freeze()
        return {name: getattr(self.tasks, name) for name in LoadedTasks.__annotations__}

    def render(self, start: int, most: int) -> list[Item]:
        """Render items from `start` on, which is 0 or where the last call ended."""
        assert self.tasks is not None
        if start == 0:
            self._rendering = self.tasks.render()
        return list(islice(self._rendering, most))


def main(connection: str, note: str) -> None:
    """Answer calls until the caller is gone, or has given no tasks for a while."""
    gc.set_threshold(300_000, 20, 20)
    link, server = Connection(int(connection)), _Server(mmap.mmap(int(note), NOTE_BYTES))
    with suppress(EOFError, OSError):  # the caller is gone
        while link.poll(None if server.tasks else IDLE_S):
            name, arguments = link.recv()
            if name == "drop":
                server.drop()
                continue
            server.note("", "")
            answer = server.answer(name, arguments)
            server.note("", "")
            link.send(answer)
