"""Values that a broken scorer has too, and what guessing gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qualab.analysis.analyse import chances_of
from qualab.analysis.ruling import suspicions
from qualab.bootstrap import share
from qualab.harness.catalog import Catalog, read_catalog
from qualab.model.names import MetricKind
from tests.app.fakes import metric_spec, task_spec
from tests.said import english
from tests.store.samples import make_analysis, make_choices, make_comparison, make_item


@pytest.mark.parametrize(
    ("baseline", "candidate", "chance", "said"),
    [
        (0.0, 0.0, None, "at 0"),
        (1.0, 1.0, 0.25, "at 1"),
        (0.2, 0.24, 0.25, "below chance (25.0 %)"),
        (0.2, 0.25, 0.25, ""),
        (0.0, 0.1, None, ""),
        (1.0, 0.99, None, ""),
        (None, None, 0.25, ""),
    ],
)
def test_what_a_broken_scorer_looks_like(
    baseline: float | None, candidate: float | None, chance: float | None, said: str
) -> None:
    row = replace(
        make_analysis("c-1").metrics[0],
        id="a/b", is_primary=True, baseline=baseline, candidate=candidate, chance=chance,
    )  # fmt: skip
    expected = [f"a/b: both arms are {said}, as a broken scorer or filter would have them"] if said else []
    assert list(english(suspicions([row]))) == expected
    assert list(suspicions([replace(row, is_primary=False)])) == []


def test_chance_is_declared_or_counted_and_pooled_over_a_groups_items() -> None:
    tasks = (task_spec("counted"), task_spec("declared", n_choices=2), task_spec("open"))
    both = metric_spec("both", kind=MetricKind.GROUP_MEAN, members=("counted", "declared"))
    rows = (
        *(metric_spec(task.name) for task in tasks),
        both,
        metric_spec("declared", name="f1", kind=MetricKind.MACRO_F1),
    )
    plan = replace(make_comparison().plan, tasks=tasks, metrics=rows)
    items = [make_choices(0), make_choices(1), make_item(2), make_item(3)]
    named = zip(items, ("counted", "counted", "declared", "open"), strict=True)
    assert chances_of(plan, [replace(item, task=task) for item, task in named]) == {
        "counted/exact_match,none": pytest.approx(1 / 3),
        "declared/exact_match,none": 0.5,
        "both/exact_match,none": pytest.approx((2 / 3 + 0.5) / 3),
    }


def test_the_catalog_tells_choices_by_benchmark_and_by_task() -> None:
    catalog: Catalog = read_catalog(share("tasks"))
    found = {
        task: catalog.hints(task).choices for task in ("haerae_history_gen", "kobest_hellaswag", "kobest_wic", "gsm8k")
    }
    assert found == {"haerae_history_gen": 5, "kobest_hellaswag": 4, "kobest_wic": 2, "gsm8k": None}
