from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qualab.model.items import Item
from tests.app.fakes import reply
from tests.harness.conftest import TASKS_DIR, Load, LoadedTasks, load_named, shared_data, tiny_data

__all__ = ["TASKS_DIR", "shared_data", "tiny_data"]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def demo(name: str) -> list[dict[str, Any]]:
    return read_jsonl(TASKS_DIR / f"demo/{name}.jsonl")


@pytest.fixture(scope="session")
def load() -> Load:
    return load_named


def scores(loaded: LoadedTasks, task: str, items: list[Item], answer: Callable[[Item], str]) -> list[Any]:
    """lm-eval's values of one answer an item, in the order of `items`."""
    return loaded.score(task, [(item, [reply(answer(item))]) for item in items])
