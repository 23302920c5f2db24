"""From outcomes to verdicts: every row of the verdict table, and the ways of treating missing answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qualab.app.analyse import conclude, judge
from qualab.app.evidence import Outcomes, adjust, binary_evidence, dissenting_policy, is_equivalent
from qualab.app.experiment import make_plan
from qualab.domain.comparison import ArmSummary, MetricResult, PairSummary
from qualab.domain.names import ArmName, MetricKind, Verdict
from qualab.domain.plan import DecisionRule
from tests.app.fakes import FakeTasks, experiment

RULE = DecisionRule(margin=0.02)
PLAN = make_plan(experiment(rule=RULE), FakeTasks())


def outcomes(n: int, gains: int = 0, losses: int = 0, *, lost_off: int = 0, lost_on: int = 0) -> Outcomes:
    both = n - gains - losses - lost_off - lost_on
    return Outcomes(
        baseline=(False,) * gains + (True,) * (losses + both) + (None,) * lost_off + (True,) * lost_on,
        candidate=(True,) * gains + (False,) * losses + (True,) * (both + lost_off) + (None,) * lost_on,
    )


def verdict_of(found: Outcomes) -> tuple[Verdict, str]:
    evidence = binary_evidence(found, RULE)
    return judge(found, evidence, PLAN)


@pytest.mark.parametrize(
    ("found", "verdict", "says"),
    [
        (outcomes(1319, 5, 6), Verdict.EQUIVALENT, "inside ±2.00 pp"),
        (outcomes(600, 17, 19), Verdict.INCONCLUSIVE, "these 600 items prove"),
        (outcomes(600, 2, 30), Verdict.REGRESSION, "below −2.00 pp"),
        (outcomes(5000, 10, 40), Verdict.REGRESSION, "within the margin"),
        (outcomes(600, 5, 22), Verdict.REGRESSION, "candidate is worse"),
        (outcomes(600, 22, 5), Verdict.IMPROVEMENT, "candidate is better"),
        (outcomes(1319, lost_on=40), Verdict.INCONCLUSIVE, "missing counted as wrong"),
        (outcomes(0), Verdict.INCONCLUSIVE, "no item was answered"),
        (outcomes(30, lost_off=15, lost_on=15), Verdict.INCONCLUSIVE, "no item was answered"),
        (outcomes(1), Verdict.INCONCLUSIVE, "prove"),
    ],
)
def test_a_metric_gets_the_verdict_of_the_table(found: Outcomes, verdict: Verdict, says: str) -> None:
    given, reason = verdict_of(found)
    assert given is verdict
    assert says in reason


def test_a_metric_that_is_no_mean_of_items_is_not_tested() -> None:
    assert judge(None, None, PLAN)[0] is Verdict.NOT_TESTED


def test_few_missing_answers_leave_equivalence_standing() -> None:
    assert verdict_of(outcomes(1319, lost_on=2, lost_off=1))[0] is Verdict.EQUIVALENT


def test_the_policies_disagree_in_the_direction_of_the_missing_arm() -> None:
    assert dissenting_policy(outcomes(1319, lost_off=40), RULE) == "missing counted as wrong"
    assert dissenting_policy(outcomes(1319), RULE) == ""


def test_the_exact_guard_can_veto_the_interval() -> None:
    rule = DecisionRule(margin=0.1)
    evidence = binary_evidence(outcomes(44, 0, 1), rule)
    assert evidence is not None
    assert evidence.equivalence_interval.low > -0.1
    assert evidence.pvalue_equivalence_exact == pytest.approx(0.0571, abs=2e-4)
    assert not is_equivalent(evidence, rule)


def test_swapping_the_arms_negates_the_difference_and_keeps_the_p_values() -> None:
    there, back = binary_evidence(outcomes(300, 4, 9), RULE), binary_evidence(outcomes(300, 9, 4), RULE)
    assert there is not None
    assert back is not None
    assert there.difference == -back.difference
    assert there.interval.low == pytest.approx(-back.interval.high)
    assert there.pvalue == back.pvalue
    assert there.pvalue_equivalence == pytest.approx(back.pvalue_equivalence)


def test_adjusted_p_values_are_holms() -> None:
    evidence = [binary_evidence(outcomes(600, *counts), RULE) for counts in ((0, 10), (0, 8), (5, 5))]
    plain = [one.pvalue for one in evidence if one]
    adjusted = [one.pvalue_adjusted for one in adjust([one for one in evidence if one])]
    assert adjusted[0] == pytest.approx(3 * plain[0])
    assert adjusted[1] == pytest.approx(2 * plain[1])
    assert adjusted[2] == pytest.approx(plain[2])


def arm(name: ArmName, n_answers: int = 10) -> ArmSummary:
    return ArmSummary(
        arm=name,
        n_requests=10,
        n_answers=n_answers,
        statuses={},
        finish_reasons={},
        truncated_share=None,
        empty_answers=0,
        stop_string_answers=0,
        retries=0,
        prompt_tokens=0,
        completion_tokens=0,
        latency_p50_s=None,
        latency_p99_s=None,
        fingerprints={},
    )


def row(verdict: Verdict, *, is_primary: bool = True, n_missing: int = 0) -> MetricResult:
    return MetricResult(
        id=f"t/{verdict}",
        task="t",
        metric="m",
        kind=MetricKind.BINARY_MEAN,
        is_primary=is_primary,
        exercises_drafter=True,
        baseline=0.5,
        candidate=0.5,
        n_items=100,
        n_missing=n_missing,
        verdict=verdict,
        reason="because",
        evidence=None,
    )


PAIRS = PairSummary(n_pairs=10, same_text=10, finish_reasons_differ=0, prompt_tokens_differ=0, request_hashes_differ=0)
EQUAL = row(Verdict.EQUIVALENT)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([EQUAL, EQUAL], Verdict.EQUIVALENT),
        ([EQUAL, row(Verdict.NOT_TESTED, is_primary=False)], Verdict.EQUIVALENT),
        ([EQUAL, row(Verdict.INCONCLUSIVE, is_primary=False)], Verdict.EQUIVALENT),
        ([EQUAL, row(Verdict.INCONCLUSIVE)], Verdict.INCONCLUSIVE),
        ([EQUAL, row(Verdict.NOT_TESTED)], Verdict.INCONCLUSIVE),
        ([EQUAL, row(Verdict.IMPROVEMENT)], Verdict.INCONCLUSIVE),
        ([EQUAL, row(Verdict.REGRESSION)], Verdict.REGRESSION),
        ([EQUAL, row(Verdict.REGRESSION, is_primary=False)], Verdict.REGRESSION),
        ([row(Verdict.REGRESSION), row(Verdict.EQUIVALENT, n_missing=6)], Verdict.INVALID),
        ([row(Verdict.EQUIVALENT, is_primary=False)], Verdict.INCONCLUSIVE),
        ([], Verdict.INCONCLUSIVE),
    ],
)
def test_a_comparison_gets_the_verdict_of_the_table(rows: list[MetricResult], verdict: Verdict) -> None:
    arms = [arm(name) for name in ArmName]
    given, reasons = conclude(PLAN, rows, arms, PAIRS)
    assert given is verdict
    assert reasons


def test_different_bytes_or_a_silent_arm_make_a_comparison_invalid() -> None:
    arms = [arm(name) for name in ArmName]
    assert conclude(PLAN, [EQUAL], arms, replace(PAIRS, request_hashes_differ=1))[0] is Verdict.INVALID
    verdict, reasons = conclude(PLAN, [EQUAL], [arms[0], arm(ArmName.CANDIDATE, 0)], PAIRS)
    assert verdict is Verdict.INVALID
    assert reasons == ("the candidate answered nothing",)
