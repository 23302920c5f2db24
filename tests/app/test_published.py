"""The whole analysis of the 34 published metrics, on made-up scores at a part of the real sizes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.made_up import GROUPS, MadeUp, stored
from qualab.model.canonical import canonical_json
from qualab.model.comparison import Analysis
from qualab.model.items import Item
from qualab.model.names import ArmName, MetricKind, Verdict
from qualab.model.plan import DecisionRule
from qualab.report.scores import metric_table
from qualab.report.terminal import print_analysis
from qualab.report.words import ENGLISH
from qualab.run.stored import compare_again
from tests.app.fakes import Bench, FakeTasks, other_for
from tests.said import english

SMALL = 0.12


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return stored(MadeUp(scale=SMALL, missing={ArmName.CANDIDATE: 0.01})).analyse()


def test_metrics_that_are_the_same_are_counted_once(analysis: Analysis) -> None:
    equals = {row.id: row.equals for row in analysis.metrics if row.equals}
    assert {
        "kobest/acc_norm,none": "kobest_hellaswag/acc_norm,none",
        "haerae/acc_norm,none": "haerae/acc,none",
        "belebele_kor_Hang/acc_norm,none": "belebele_kor_Hang/acc,none",
    }.items() <= equals.items()
    assert "kobest_hellaswag/acc_norm,none" not in equals
    assert analysis.suite.n_family == 34 - len(equals) == analysis.suite.n_max_t + 6


def test_adjusted_p_values_are_no_smaller_than_plain_ones_and_follow_their_order(analysis: Analysis) -> None:
    rows = [row.evidence for row in analysis.metrics if row.evidence]
    assert all(one.pvalue <= one.pvalue_adjusted <= 1.0 for one in rows)
    assert all(one.pvalue <= one.pvalue_holm <= 1.0 for one in rows)
    smallest = min(rows, key=lambda one: one.pvalue)
    assert smallest.pvalue_holm == pytest.approx(min(1.0, analysis.suite.n_family * smallest.pvalue))


def test_the_same_scores_give_the_same_bytes_in_any_order_of_asking() -> None:
    again = [stored(MadeUp(scale=SMALL)).analyse() for _ in range(2)]
    assert canonical_json(again[0]) == canonical_json(again[1])
    other = stored(MadeUp(scale=SMALL, order=2)).analyse()
    assert other.metrics == again[0].metrics
    assert other.suite == again[0].suite


def test_a_real_loss_is_a_regression_and_names_where() -> None:
    found = stored(MadeUp(scale=0.5, changed=0.01, loss=0.05)).analyse()
    assert found.verdict is Verdict.REGRESSION
    assert any(reason.startswith("kobest/acc,none") for reason in english(found.reasons))
    assert "over all" in english(found.reasons)[-1]
    assert found.suite.global_test.difference < 0


def test_a_table_has_34_rows_with_every_cell_filled(analysis: Analysis) -> None:
    table = metric_table(analysis.metrics, ENGLISH)
    assert len(table.rows) == 34
    assert [column.id for column in table.columns][1:4] == ["n", "clusters", "missing"]
    for row in table.rows:
        cells = {column.id: cell.text.strip() for column, cell in zip(table.columns, row.cells, strict=True)}
        assert {"", "no test"}.isdisjoint(cells.values())
        assert {name for name, text in cells.items() if text == "–"} <= {"clusters", "missing", "unpaired"}
        assert cells["clusters"] == "–" or int(cells["clusters"]) < int(cells["n"])


def test_a_terminal_says_what_the_cells_cannot() -> None:
    one = stored(MadeUp(scale=SMALL, missing={ArmName.CANDIDATE: 0.02}))
    console = Console(width=170, record=True, file=io.StringIO())
    print_analysis(console, one.comparison, one.analyse())
    text = " ".join(console.export_text().split())
    assert "counted once: haerae/acc_norm,none = acc,none" in text
    assert "kobest/acc_norm,none = kobest_hellaswag/acc_norm,none" in text
    assert "global sign-flip test" in text
    assert "0 in the baseline alone" in text


def test_an_empty_comparison_is_invalid_and_does_not_fail() -> None:
    one = stored(MadeUp(scale=SMALL), scores=[])
    found = one.analyse()
    assert found.verdict is Verdict.INVALID
    assert all(row.evidence is None and row.baseline is None for row in found.metrics)
    assert found.suite.global_test is None
    assert found.suite.missing.both == found.suite.missing.n_asked == len(one.items)


def test_rows_have_the_differences_of_their_values_and_groups_the_sizes_of_their_members(analysis: Analysis) -> None:
    for row in analysis.metrics:
        assert row.evidence.difference == pytest.approx(row.candidate - row.baseline, abs=1e-12), row.id
    members = [row.n_items for row in analysis.metrics if row.id.startswith("kobest_") and row.metric == "f1,none"]
    assert sum(members) == next(row.n_items for row in analysis.metrics if row.id == "kobest/f1,none")
    assert set(GROUPS) == {row.task for row in analysis.metrics if row.kind is MetricKind.GROUP_MEAN}


class Clustered(FakeTasks):
    def render(self) -> Iterator[Item]:
        yield from (replace(item, cluster=f"passage {item.doc_id // 4}") for item in super().render())


async def test_a_run_honours_clusters_and_is_analysed_again_the_same() -> None:
    bench = Bench.of(400, Clustered, on=other_for(range(12)))
    analysis = await bench.run()
    evidence = analysis.metrics[0].evidence
    assert (evidence.n_items, evidence.n_clusters, evidence.losses) == (400, 100, 12)
    assert evidence.pvalue == pytest.approx(1 / 2**3)  # three passages of four questions, mid-p
    assert analysis.verdict is Verdict.INCONCLUSIVE
    assert compare_again(bench.services, analysis.comparison_id).is_as_stored


@pytest.mark.simulation
# so wide and strict that only the adjusted p can say REGRESSION; and one that intervals below −margin could
@pytest.mark.parametrize("rule", [{"margin": 0.5, "strict": True}, {"margin": 0.02}])
def test_false_alarms_over_34_correlated_metrics_stay_below_alpha(rule: dict[str, Any]) -> None:
    """Items are drawn in pairs of exchangeable answers, so that no metric differs in truth."""
    n_simulations = 300
    rule = DecisionRule(max_missing_share=1.0, **rule)
    alarms = losses = 0
    for seed in range(n_simulations):
        rows = stored(MadeUp(seed=seed, scale=0.06, changed=0.2, rule=rule)).analyse().metrics
        alarms += any(row.evidence.pvalue_adjusted <= rule.alpha for row in rows if row.evidence)
        losses += any(row.verdict is Verdict.REGRESSION for row in rows)
    # 5 % of 300 is 15; more than 25 has a probability below 1 % at a true 5 %
    assert max(alarms, losses) <= 25
    assert alarms >= np.ceil(0.005 * n_simulations)
