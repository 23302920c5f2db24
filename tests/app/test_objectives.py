"""Non-inferiority beside equivalence, and metrics with margins of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qualab.analysis.bounds import with_items_needed
from qualab.analysis.judge import conclude, judge
from qualab.model.names import ArmName, MissingPolicy, Objective, Verdict
from qualab.model.plan import DecisionRule
from qualab.planning.calculators import paired_test
from qualab.run.prepare import make_plan
from qualab.run.run import start
from qualab.stats.counts import PairedCounts
from tests.app.fakes import Bench, FakeHarness, FakeTasks, QuietProgress, echo_number, experiment, failure, reply
from tests.app.test_analyse import PAIRS, arm, evidence_of, row, sample
from tests.said import english
from tests.stats.reference import non_inferiority

BETTER = DecisionRule(margin=0.02, objective=Objective.NON_INFERIORITY)


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
    evidence = evidence_of(sample(n_items, gains, losses), BETTER)
    assert evidence is not None
    found = non_inferiority(PairedCounts(n_items=n_items, gains=gains, losses=losses), margin=0.02)
    assert (evidence.pvalue_equivalence, evidence.pvalue_equivalence_exact) == (found.pvalue, found.pvalue_exact)
    assert judge(evidence, (), BETTER)[0] is verdict
    both = judge(evidence_of(sample(n_items, gains, losses)), (), DecisionRule(margin=0.02))[0]
    assert (both is Verdict.EQUIVALENT) <= (verdict is Verdict.NON_INFERIOR)


def test_what_a_loss_bound_proves_and_needs_is_one_sided() -> None:
    one, two = (evidence_of(sample(600, 17, 19), rule) for rule in (BETTER, DecisionRule(margin=0.02)))
    assert one is not None
    assert two is not None
    assert one.provable_margin == two.provable_margin  # the loss is the farther side here
    needed = [with_items_needed(*both).items_needed for both in ((one, BETTER), (two, DecisionRule(margin=0.02)))]
    assert needed[0] < needed[1]  # type: ignore[operator]
    reason = english(judge(one, (), BETTER)[1])
    assert "prove −2.0" in reason or "prove −1." in reason
    assert "−2.00 pp needs about" in reason


def test_where_less_is_better_the_loss_is_a_rise() -> None:
    import numpy as np

    from qualab.analysis.means import mean_evidence

    risen = sample(800, 12, 22).under(MissingPolicy.COMPLETE, right=1.0)
    for higher_is_better, verdict in ((True, Verdict.INCONCLUSIVE), (False, Verdict.NON_INFERIOR)):
        evidence = mean_evidence(risen, BETTER, np.random.default_rng(1), higher_is_better=higher_is_better)
        assert judge(evidence, (), BETTER, higher_is_better=higher_is_better)[0] is verdict


@pytest.mark.parametrize(
    ("objective", "of_rows", "verdict"),
    [
        (Objective.NON_INFERIORITY, [Verdict.NON_INFERIOR, Verdict.IMPROVEMENT], Verdict.NON_INFERIOR),
        (Objective.NON_INFERIORITY, [Verdict.NON_INFERIOR, Verdict.INCONCLUSIVE], Verdict.INCONCLUSIVE),
        (Objective.NON_INFERIORITY, [Verdict.NON_INFERIOR, Verdict.REGRESSION], Verdict.REGRESSION),
        (Objective.EQUIVALENCE, [Verdict.EQUIVALENT, Verdict.IMPROVEMENT], Verdict.INCONCLUSIVE),
    ],
)
def test_an_improvement_passes_a_non_inferiority_plan_alone(
    objective: Objective, of_rows: list[Verdict], verdict: Verdict
) -> None:
    plan = make_plan(experiment(rule=DecisionRule(objective=objective)), FakeTasks())
    found, reasons = conclude(plan, [row(one) for one in of_rows], [arm(name) for name in ArmName], PAIRS)
    assert found is verdict
    assert reasons


async def test_missing_answers_that_could_hide_a_loss_keep_non_inferiority_open() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=600)))
    bench.candidate.answer = lambda p, s: failure() if int(p[4:]) < 20 else echo_number(p, s)
    rule = replace(BETTER, max_missing_share=0.05)
    analysis = await start(bench.services, experiment(rule=rule), keys={}, progress=QuietProgress())
    assert analysis.verdict is Verdict.INCONCLUSIVE
    assert "missing counted as wrong" in english(analysis.reasons)[-1]


async def test_missing_answers_that_could_hide_a_gain_do_not_matter_to_it() -> None:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=600)))
    bench.baseline.answer = lambda p, s: failure() if int(p[4:]) < 20 else echo_number(p, s)
    rule = replace(BETTER, max_missing_share=0.1)
    verdicts = {
        objective: (
            await start(
                bench.services, experiment(rule=replace(rule, objective=objective)), keys={}, progress=QuietProgress()
            )
        ).metrics[0]
        for objective in Objective
    }
    assert verdicts[Objective.EQUIVALENCE].verdict is Verdict.INCONCLUSIVE
    worst = {one.policy: one.is_equivalent for one in verdicts[Objective.NON_INFERIORITY].policies}
    assert worst[MissingPolicy.AGAINST_BASELINE]


async def test_a_metric_is_judged_by_its_own_margin() -> None:
    for margins, verdict in (({}, Verdict.INCONCLUSIVE), ({"sums": 0.1}, Verdict.EQUIVALENT)):
        bench = Bench(harness=FakeHarness(FakeTasks(n_items=100)))
        bench.candidate.answer = lambda p, s: reply("wrong") if p == "say 3" else echo_number(p, s)
        wanted = experiment(rule=DecisionRule(margins=margins))
        analysis = await start(bench.services, wanted, keys={}, progress=QuietProgress())
        assert analysis.verdict is verdict
        assert analysis.metrics[0].margin == margins.get("sums", 0.02)
        assert f"±{100 * analysis.metrics[0].margin:.2f} pp" in english(analysis.reasons)[0]


@pytest.mark.parametrize(
    ("gains", "losses", "n_items"),
    [(0, 0, 149), (0, 0, 148), (7, 12, 600), (22, 5, 600), (2, 30, 600), (0, 5, 1000), (0, 4, 80), (30, 60, 10_000)],
)
@pytest.mark.parametrize("strict", [False, True])
def test_a_terminal_and_a_comparison_judge_alike(gains: int, losses: int, n_items: int, strict: bool) -> None:
    rule = DecisionRule(margin=0.02, strict=strict)
    at_terminal = paired_test(gains=gains, losses=losses, n_items=n_items, margin=0.02, is_strict=strict)
    evidence = evidence_of(sample(n_items, gains, losses), rule)
    assert evidence is not None
    assert judge(evidence, (), rule) == (at_terminal.verdict, at_terminal.reason)
    for here, there in (
        (evidence.interval, at_terminal.interval),
        (evidence.equivalence_interval, at_terminal.equivalence_interval),
    ):
        assert here is not None
        assert (here.low, here.high, here.confidence_level) == pytest.approx(
            (there.low, there.high, there.confidence_level)
        )
    names = ("pvalue", "pvalue_exact", "pvalue_equivalence", "pvalue_equivalence_exact", "provable_margin")
    assert [getattr(evidence, name) for name in names] == [getattr(at_terminal, name) for name in names]


def test_a_real_gain_is_said_beside_non_inferiority_without_a_margin_that_it_has_not() -> None:
    evidence = evidence_of(sample(800, 40, 12), BETTER)
    assert evidence is not None
    assert english(judge(evidence, (), BETTER)[1]).startswith("a gain of 3.50 pp (")
    assert english(judge(evidence, (), BETTER)[1]).endswith(" is real")
    assert judge(evidence, (), replace(BETTER, strict=True))[0] is Verdict.IMPROVEMENT


def test_where_less_is_better_a_rise_is_the_loss_inside_the_margin() -> None:
    evidence = evidence_of(sample(5000, 40, 10))
    assert evidence is not None
    rule = DecisionRule(margin=0.02)
    said = "a loss of 0.60 pp (0.38 to 0.85) is real and inside the margin"
    found, reason = judge(evidence, (), rule, higher_is_better=False)
    assert (found, english(reason)) == (Verdict.EQUIVALENT, said)
    strict = judge(evidence, (), replace(rule, strict=True), higher_is_better=False)
    assert strict[0] is Verdict.REGRESSION
    assert "the plan is strict" in english(strict[1])
