from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from lm_eval.api.instance import Instance
from lm_eval.filters import build_filter_ensemble

from qualab.model.ports import TaskOptions
from tests.harness.in_process import LmEvalHarness, LoadedTasks
from tests.harness.tiny_data import write_all

TASKS_DIR = Path(__file__).parents[2] / "tasks"

Extract = Callable[[str], str]
Load = Callable[..., LoadedTasks]


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def demo(name: str) -> list[dict[str, Any]]:
    return read_jsonl(TASKS_DIR / f"demo/{name}.jsonl")


def ensembles(config: dict[str, Any]) -> Sequence[Any]:
    """lm-eval's own filters of a task's configuration."""
    return [
        build_filter_ensemble(
            one["name"],
            [(step["function"], {key: step[key] for key in step if key != "function"}) for step in one["filter"]],
        )
        for one in config["filter_list"]
    ]


def extractor(file: str) -> Extract:
    """The answer that the filters of a file of tasks/korean take from a text."""
    (ensemble,) = ensembles(yaml.safe_load((TASKS_DIR / "korean" / file).read_text(encoding="utf-8")))

    def extract(text: str) -> str:
        instance = Instance(request_type="generate_until", doc={}, arguments=("", {}), idx=0)
        instance.resps = [text]
        ensemble.apply([instance])
        return str(instance.filtered_resps[ensemble.name])

    return extract


@pytest.fixture(scope="session")
def letter() -> Extract:
    return extractor("_letter_yaml")


@pytest.fixture(scope="session")
def yes_no() -> Extract:
    return extractor("_yes_no_yaml")


@pytest.fixture(scope="session")
def sentiment() -> Extract:
    return extractor("_sentiment_yaml")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data sets. Skips where they are not there."""
    shared = os.environ.get("QUALAB_SHARED")
    if not shared:
        pytest.skip("QUALAB_SHARED names no directory with the real data sets")
    return Path(shared) / "data"


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def load() -> Load:
    harness = LmEvalHarness(tasks_dir=TASKS_DIR)

    def load_named(*names: str, data_dir: Path | None = None) -> LoadedTasks:
        return harness.load(TaskOptions(names=names, data_dir=data_dir))

    return load_named
