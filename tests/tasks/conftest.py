from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qualab.model.items import Item
from qualab.model.ports import TaskOptions
from tests.harness.conftest import TASKS_DIR, shared_data, tiny_data
from tests.harness.in_process import LmEvalHarness, LoadedTasks, reply

__all__ = ["TASKS_DIR", "shared_data", "tiny_data"]

Load = Callable[..., LoadedTasks]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def demo(name: str) -> list[dict[str, Any]]:
    return read_jsonl(TASKS_DIR / f"demo/{name}.jsonl")


@pytest.fixture(scope="session")
def load() -> Load:
    harness = LmEvalHarness(tasks_dir=TASKS_DIR)

    def load_named(*names: str, data_dir: Path | None = None) -> LoadedTasks:
        return harness.load(TaskOptions(names=names, data_dir=data_dir))

    return load_named


def scores(loaded: LoadedTasks, task: str, items: list[Item], answer: Callable[[Item], str]) -> list[Any]:
    """lm-eval's values of one answer an item, in the order of `items`."""
    return loaded.score(task, [(item, [reply(answer(item))]) for item in items])
