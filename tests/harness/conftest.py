"""lm-eval's tasks loaded into the test's own process: quicker, and open to monkeypatching."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qualab.harness.loading import load_tasks
from qualab.harness.tasks import LmEvalTasks
from qualab.model.items import Item
from qualab.model.ports import TaskOptions
from tests.harness.tiny_data import KOBEST, write_all, write_jsonl

TASKS_DIR = Path(__file__).parents[2] / "tasks"
LoadedTasks = LmEvalTasks
Load = Callable[..., LmEvalTasks]


@dataclass(frozen=True, kw_only=True)
class LmEvalHarness:
    tasks_dir: Path = TASKS_DIR

    def load(self, options: TaskOptions) -> LmEvalTasks:
        return load_tasks(options, tasks_dir=self.tasks_dir, note=lambda _item, _step: None)


def load_named(*names: str, **options: Any) -> LmEvalTasks:
    return LmEvalHarness().load(TaskOptions(names=names, **options))


def by_task(loaded: LmEvalTasks) -> dict[str, list[Item]]:
    items: dict[str, list[Item]] = {}
    for item in loaded.render():
        items.setdefault(item.task, []).append(item)
    return items


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data sets. Skips where they are not there."""
    shared = os.environ.get("QUALAB_SHARED")
    if not shared:
        pytest.skip("QUALAB_SHARED names no directory with the real data sets")
    return Path(shared) / "data"


@pytest.fixture(scope="session")
def harness() -> LmEvalHarness:
    return LmEvalHarness()


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets under every path that the official tasks read, with splits for few-shot examples."""
    folder = write_all(tmp_path_factory.mktemp("data"))
    for name, rows in KOBEST.items():
        write_jsonl(folder / f"kobest/{name}/train.jsonl", [dict(row) for row in reversed(rows)])
    return folder


@pytest.fixture(scope="session")
def load(tiny_data: Path) -> Load:
    """Loads tasks by name, from the small data sets unless told otherwise."""
    return lambda *names, **options: load_named(*names, **{"data_dir": tiny_data, **options})
