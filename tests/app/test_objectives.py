"""Non-inferiority beside equivalence, and metrics with margins of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qualab.analysis.judge import judge
from qualab.model.names import Objective, Verdict
from qualab.model.plan import DecisionRule, MetricRule
from qualab.planning.calculators import paired_test
from qualab.run.prepare import make_plan
from qualab.stats.counts import PairedCounts
from tests.app.fakes import Bench, FakeTasks, experiment, other_for
from tests.app.test_analyse import RULE, concluded, evidence, judged, row, sample
from tests.said import english
from tests.stats.reference import non_inferiority

BETTER = MetricRule(margin=0.02, objective=Objective.NON_INFERIORITY)


@pytest.mark.parametrize(
    ("gains", "losses", "n_items", "verdict"),
    [
        (5, 6, 1319, Verdict.NON_INFERIOR),
        (22, 12, 800, Verdict.NON_INFERIOR),  # the upper limit sticks out of +2 pp
        (40, 12, 800, Verdict.NON_INFERIOR),  # a real gain, said in its reason
        (17, 19, 600, Verdict.INCONCLUSIVE),
        (2, 30, 600, Verdict.REGRESSION),
        (10, 40, 5000, Verdict.NON_INFERIOR),
    ],
)
def test_non_inferiority_looks_at_a_loss_alone(gains: int, losses: int, n_items: int, verdict: Verdict) -> None:
    own = evidence(sample(n_items, gains, losses), BETTER)
    expected = non_inferiority(PairedCounts(n_items=n_items, gains=gains, losses=losses), margin=0.02)
    assert (own.pvalue_equivalence, own.pvalue_equivalence_exact) == expected
    assert judge(own, (), BETTER).verdict is verdict
    both = judged(sample(n_items, gains, losses)).verdict
    assert (both is Verdict.EQUIVALENT) <= (verdict is Verdict.NON_INFERIOR)


def test_what_a_loss_bound_proves_and_needs_is_one_sided() -> None:
    one, two = (judged(sample(600, 17, 19), rule) for rule in (BETTER, RULE))
    assert one.evidence.provable_margin == two.evidence.provable_margin  # the loss is the farther side here
    assert one.evidence.items_needed < two.evidence.items_needed
    reason = english(one.reason)
    assert "prove −2.0" in reason or "prove −1." in reason
    assert "−2.00 pp needs about" in reason


@pytest.mark.parametrize(
    ("of_rows", "verdict"),
    [
        ([Verdict.NON_INFERIOR, Verdict.IMPROVEMENT], Verdict.NON_INFERIOR),
        ([Verdict.NON_INFERIOR, Verdict.INCONCLUSIVE], Verdict.INCONCLUSIVE),
        ([Verdict.NON_INFERIOR, Verdict.REGRESSION], Verdict.REGRESSION),
    ],
)
def test_an_improvement_passes_a_non_inferiority_plan(of_rows: list[Verdict], verdict: Verdict) -> None:
    plan = make_plan(experiment(rule=DecisionRule(objective=Objective.NON_INFERIORITY)), FakeTasks())
    assert concluded(*map(row, of_rows), plan=plan)[0] is verdict


def test_missing_answers_that_could_hide_a_gain_do_not_matter_to_it() -> None:
    found = sample(600, lost_off=20)
    assert judged(found).verdict is Verdict.INCONCLUSIVE
    assert judged(found, BETTER).verdict is Verdict.NON_INFERIOR
    assert judged(sample(600, lost_on=20), BETTER).verdict is Verdict.INCONCLUSIVE


async def test_a_metric_is_judged_by_its_own_margin() -> None:
    for margins, verdict in (({}, Verdict.INCONCLUSIVE), ({"sums": 0.1}, Verdict.EQUIVALENT)):
        analysis = await Bench.of(100, on=other_for({3})).run(rule=DecisionRule(margins=margins))
        assert analysis.verdict is verdict
        assert analysis.metrics[0].margin == margins.get("sums", 0.02)
        assert f"±{100 * analysis.metrics[0].margin:.2f} pp" in english(analysis.reasons)[0]


@pytest.mark.parametrize(
    ("gains", "losses", "n_items"),
    [(0, 0, 149), (0, 0, 148), (7, 12, 600), (22, 5, 600), (2, 30, 600), (0, 5, 1000), (0, 4, 80), (30, 60, 10_000)],
)
@pytest.mark.parametrize("strict", [False, True])
def test_a_terminal_and_a_comparison_judge_alike(gains: int, losses: int, n_items: int, strict: bool) -> None:
    rule = MetricRule(margin=0.02, strict=strict)
    at_terminal = paired_test(gains=gains, losses=losses, n_items=n_items, margin=0.02, is_strict=strict)
    own = evidence(sample(n_items, gains, losses), rule)
    assert judge(own, (), rule)[:2] == (at_terminal.verdict, at_terminal.reason)
    names = ("pvalue", "pvalue_exact", "pvalue_equivalence", "pvalue_equivalence_exact", "provable_margin")
    assert [getattr(own, name) for name in names] == [getattr(at_terminal, name) for name in names]
    for name in ("interval", "equivalence_interval"):
        here, there = getattr(own, name), getattr(at_terminal, name)
        assert (here.low, here.high, here.confidence_level) == pytest.approx(
            (there.low, there.high, there.confidence_level)
        )


def test_a_real_gain_is_said_beside_non_inferiority_without_a_margin_that_it_has_not() -> None:
    found = sample(800, 40, 12)
    reason = english(judged(found, BETTER).reason)
    assert reason.startswith("a gain of 3.50 pp (")
    assert reason.endswith(" is real")
    assert judged(found, replace(BETTER, strict=True)).verdict is Verdict.IMPROVEMENT


def test_where_less_is_better_a_rise_is_the_loss_inside_the_margin() -> None:
    rule = MetricRule(margin=0.02, higher_is_better=False)
    verdict, reason, _ = judged(sample(5000, 40, 10), rule)
    said = "a loss of 0.60 pp (0.38 to 0.85) is real and inside the margin"
    assert (verdict, english(reason)) == (Verdict.EQUIVALENT, said)
    verdict, reason, _ = judged(sample(5000, 40, 10), replace(rule, strict=True))
    assert verdict is Verdict.REGRESSION
    assert "the plan is strict" in english(reason)
