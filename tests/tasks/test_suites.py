"""The suites and tasks that the catalog names, on small data in the hub's columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from qualab.model.names import MetricKind, RequestKind
from tests.harness.conftest import LoadedTasks, by_task
from tests.tasks.conftest import TASKS_DIR, Load, scores

CATALOG = yaml.safe_load((TASKS_DIR / "catalog.yaml").read_text(encoding="utf-8"))

KEY = "exact_match,answer"

WRONG = dict(zip("ABCDE", "BCDAA", strict=True)) | {"예": "아니오", "아니오": "예", "긍정": "부정", "부정": "긍정"}


@pytest.fixture(scope="module")
def release(load: Load, tiny_data: Path) -> LoadedTasks:
    return load("haerae_gen", "kobest_gen", "belebele_kor_Hang_gen", data_dir=tiny_data)


@pytest.fixture(scope="module")
def items(release: LoadedTasks) -> Any:
    return by_task(release)


def test_the_catalog_names_every_task_and_pins_every_revision_but_the_one_that_nobody_publishes() -> None:
    hub = {name: entry for name, entry in CATALOG["datasets"].items() if not entry.get("bundled")}
    assert [name for name, entry in hub.items() if "revision" not in entry] == ["HAERAE-HUB/HAE_RAE_BENCH"]
    known = {name for entry in CATALOG["benchmarks"].values() for name in (*entry.get("groups", ()), *entry["tasks"])}
    assert list(CATALOG["suites"]) == ["release", "published-34", "demo", "stress", "long"]
    assert all(set(suite["tasks"]) <= known for suite in CATALOG["suites"].values())
    files = [
        file for folder in ("korean", "demo", "stress", "long") for file in sorted((TASKS_DIR / folder).glob("*.yaml"))
    ]
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    names = [line.split(": ")[1] for line in lines if line.startswith(("task: ", "group: "))]
    assert len(names) == len(files) == 23
    assert set(names) <= known


def test_every_metric_has_a_kind_and_the_release_suite_drafts_in_every_request_and_decides_by_five(
    load: Load, tiny_data: Path
) -> None:
    loaded = load("release", data_dir=tiny_data)
    metrics = (*loaded.metrics, *load("published-34", data_dir=tiny_data).metrics)
    assert MetricKind.OTHER not in {metric.kind for metric in metrics}
    assert {task.kind for task in loaded.tasks} == {RequestKind.GENERATION}
    assert [metric.id for metric in loaded.metrics if metric.is_primary] == [
        "haerae_gen/exact_match,answer",
        "kobest_gen/exact_match,answer",
        "belebele_kor_Hang_gen/exact_match,answer",
        "gsm8k/exact_match,flexible-extract",
        "ifeval/prompt_level_strict_acc,none",
    ]
    groups = {metric.task: (metric.kind, len(metric.members)) for metric in loaded.metrics if metric.members}
    assert groups == dict.fromkeys(("haerae_gen", "kobest_gen"), (MetricKind.GROUP_MEAN, 5))


def test_the_korean_forms_ask_for_a_short_greedy_answer(release: LoadedTasks) -> None:
    for item in release.render():
        kwargs = item.prompts[0].gen_kwargs or {}
        assert 48 <= kwargs["max_gen_toks"] <= 128
        assert kwargs["temperature"] == 0.0
        assert len(kwargs["until"]) <= 4, "servers take four stop strings"
        assert "쓰" in item.prompts[0].text.split("\n")[0], "the first line says how to answer"
        assert item.prompts[0].text.endswith("답:")


@pytest.mark.parametrize("form", ["{}", "정답: {}", "정답은 {}입니다.", "**{}**", "답은 '{}'입니다."])
def test_right_and_wrong_answers_score_so(release: LoadedTasks, items: Any, form: str) -> None:
    for task, own in items.items():
        right = scores(release, task, own, lambda item: form.format(item.target))
        wrong = scores(release, task, own, lambda item: form.format(WRONG[item.target]))
        assert [score[KEY] for score in right] == [1.0] * len(own), task
        assert [score[KEY] for score in wrong] == [0.0] * len(own), task
        aside = scores(release, task, own, lambda _: "잘 모르겠습니다.")
        assert {score[KEY] for score in aside} == {0.0}, task
