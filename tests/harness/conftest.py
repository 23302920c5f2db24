from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness.in_process import LmEvalHarness
from tests.harness.tiny_data import KOBEST, write_all, write_jsonl

TASKS_DIR = Path(__file__).parents[2] / "tasks"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data sets. Skips where they are not there."""
    shared = os.environ.get("QUALAB_SHARED")
    if not shared:
        pytest.skip("QUALAB_SHARED names no directory with the real data sets")
    return Path(shared) / "data"


@pytest.fixture(scope="session")
def harness() -> LmEvalHarness:
    return LmEvalHarness(tasks_dir=TASKS_DIR)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets under every path that the official tasks read."""
    return write_all(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def tiny_data_with_shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the splits that few-shot examples come from."""
    folder = write_all(tmp_path_factory.mktemp("shots"))
    for name, rows in KOBEST.items():
        write_jsonl(folder / f"kobest/{name}/train.jsonl", [dict(row) for row in reversed(rows)])
    return folder
