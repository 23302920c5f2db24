"""From evidence to verdicts: the verdict table, missing answers, loss bounds, suspicious values."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from qualab.analysis.analyse import chances_of
from qualab.analysis.evidence import evidence_of, is_equivalent, pairs_of
from qualab.analysis.judge import Judgement, conclude, judge, policy_results
from qualab.analysis.missing import lost_pairs
from qualab.analysis.ruling import suspicions
from qualab.analysis.samples import MeanSample, MissingCount, Streams
from qualab.model.comparison import Evidence, GlobalTest, MetricResult, MissingSummary, PolicyResult
from qualab.model.names import MetricKind, MissingPolicy, Objective, Verdict
from qualab.model.plan import DecisionRule, MetricRule, Plan
from qualab.model.reason import Reason
from qualab.planning.calculators import paired_test
from qualab.run.prepare import make_plan
from qualab.stats.interval import clopper_pearson
from qualab.stats.sizing import items_needed
from tests.app.fakes import Bench, FakeTasks, experiment, metric_spec, other_for, task_spec
from tests.said import english
from tests.stats.reference import counts_of, non_inferiority
from tests.store.samples import make_analysis, make_choices, make_comparison, make_item

RULE = MetricRule(margin=0.02)
PLAN = make_plan(experiment(), FakeTasks())
LOSS_ALONE = replace(PLAN, rule=replace(PLAN.rule, objective=Objective.NON_INFERIORITY))
BETTER = replace(RULE, objective=Objective.NON_INFERIORITY)


def sample(n: int, gains: int = 0, losses: int = 0, *, lost_off: int = 0, lost_on: int = 0) -> MeanSample:
    both = n - gains - losses - lost_off - lost_on
    baseline = [0.0] * gains + [1.0] * (losses + both) + [np.nan] * lost_off + [1.0] * lost_on
    candidate = [1.0] * gains + [0.0] * losses + [1.0] * (both + lost_off) + [np.nan] * lost_on
    numbers = np.arange(n)
    return MeanSample(number=numbers, unit=numbers, baseline=np.array(baseline), candidate=np.array(candidate))


def evidence(found: MeanSample, rule: MetricRule = RULE) -> Evidence:
    complete = found.under(MissingPolicy.COMPLETE, right=1.0)
    return evidence_of(pairs_of(complete), rule, Streams(seed=1), "metric")


def policies_of(found: MeanSample, rule: MetricRule = RULE) -> list[PolicyResult]:
    rng = np.random.default_rng(1)
    return list(policy_results(found, rule, lambda policy: rng, policies=tuple(MissingPolicy)))


def judged(found: MeanSample, rule: MetricRule = RULE) -> Judgement:
    if not found.under(MissingPolicy.COMPLETE, right=1.0).n_items:
        return judge(None, (), rule)
    return judge(evidence(found, rule), policies_of(found, rule), rule)


@pytest.mark.parametrize(
    ("found", "verdict", "says"),
    [
        (sample(1319, 5, 6), Verdict.EQUIVALENT, "inside ±2.00 pp and the exact test agrees"),
        (sample(600, 17, 19), Verdict.INCONCLUSIVE, "these 600 items prove"),
        (sample(600, 2, 30), Verdict.REGRESSION, "the candidate is worse by more than 2.00 pp (adjusted p"),
        (sample(5000, 10, 40), Verdict.EQUIVALENT, "a loss of 0.60 pp (0.38 to 0.85) is real and inside the margin"),
        (sample(5000, 40, 10), Verdict.EQUIVALENT, "a gain of 0.60 pp (0.38 to 0.85) is real and inside the margin"),
        (sample(600, 5, 22), Verdict.REGRESSION, "the candidate is worse (adjusted p"),
        (sample(600, 22, 5), Verdict.IMPROVEMENT, "candidate is better"),
        (sample(5000, 10, 40, lost_on=90), Verdict.REGRESSION, "the candidate is worse (adjusted p"),
        (sample(1319, lost_on=2, lost_off=1), Verdict.EQUIVALENT, "the exact test agrees"),
        (sample(1319, lost_on=40), Verdict.INCONCLUSIVE, "missing counted as wrong"),
        (sample(0), Verdict.INCONCLUSIVE, "no item was answered"),
        (sample(30, lost_off=15, lost_on=15), Verdict.INCONCLUSIVE, "no item was answered"),
        (sample(1), Verdict.INCONCLUSIVE, "prove"),
    ],
)
def test_a_metric_gets_the_verdict_of_the_table(found: MeanSample, verdict: Verdict, says: str) -> None:
    judgement = judged(found)
    assert judgement.verdict is verdict
    assert says in english(judgement.reason)


def test_each_policy_treats_a_missing_answer_as_its_name_says() -> None:
    policies = (MissingPolicy.COMPLETE, MissingPolicy.WRONG)
    policies += (MissingPolicy.AGAINST_CANDIDATE, MissingPolicy.AGAINST_BASELINE)
    for rule, lost_off, lost_on, differences in (
        (RULE, 4, 1, (0.0, 0.03, -0.01, 0.04)),
        (replace(RULE, higher_is_better=False), 0, 5, (0.0, 0.0, 0.0, -0.05)),  # missing scores the most, as the others
    ):
        results = policies_of(sample(100, lost_off=lost_off, lost_on=lost_on), rule)
        found = {one.policy: one.difference for one in results}
        assert [found[policy] for policy in policies] == pytest.approx(differences)


@pytest.mark.parametrize(("n_lost", "lost", "gained"), [(0, 0, 0), (2, 2, 2), (4, 4, 2), (9, 4, 2), (None, 4, 2)])
def test_a_worst_case_takes_so_many_of_the_missing_answers_as_lost(n_lost: int | None, lost: int, gained: int) -> None:
    """Of six pairs without an answer, four may be losses (the baseline is right), two gains (the candidate is)."""
    found = sample(100, lost_on=4, lost_off=2)
    policies = (MissingPolicy.AGAINST_CANDIDATE, MissingPolicy.AGAINST_BASELINE, MissingPolicy.WRONG)
    sums = [found.under(policy, right=1.0, n_lost=n_lost).differences.sum() for policy in policies]
    assert sums == [-lost, gained, -2]
    number, right = np.array([0, 0, 0, 1, 1, 2]), np.array([1.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    several = MeanSample(number=number, unit=number, baseline=right, candidate=np.full(6, np.nan))
    worst = several.under(MissingPolicy.AGAINST_CANDIDATE, right=1.0, n_lost=1)
    assert worst.differences.tolist() == [-1.0, -1.0, -1.0, 0.0, 0.0, 0.0]  # an answer of three scores goes as a whole


def test_the_exact_guard_can_veto_the_interval() -> None:
    rule = MetricRule(margin=0.1)
    found = evidence(sample(44, 0, 1), rule)
    assert found.equivalence_interval.low > -0.1
    assert found.pvalue_equivalence_exact == pytest.approx(0.0571, abs=2e-4)
    assert not is_equivalent(found, rule)


ANALYSIS = make_analysis()
ARMS = [replace(one, finish_reasons={}) for one in ANALYSIS.arms]


def row(verdict: Verdict, **changes: Any) -> MetricResult:
    base = replace(ANALYSIS.metrics[1], id=f"t/{verdict}", verdict=verdict, n_items=100, equals="", policies=())
    return replace(base, **{"reason": Reason("no-primary"), **changes})


EQUAL = row(Verdict.EQUIVALENT)


def concluded(*rows: MetricResult, plan: Plan = PLAN, **changes: Any) -> tuple[Verdict, tuple[str, ...]]:
    changes = {"arms": ARMS, "pairs": ANALYSIS.pairs} | changes
    verdict, reasons = conclude(plan, rows, changes.pop("arms"), changes.pop("pairs"), **changes)
    return verdict, english(reasons)


@pytest.mark.parametrize(
    ("rows", "changes", "verdict"),
    [
        ([EQUAL, EQUAL], {}, Verdict.EQUIVALENT),
        ([EQUAL, row(Verdict.NOT_TESTED, is_primary=False)], {}, Verdict.EQUIVALENT),
        ([EQUAL, row(Verdict.INCONCLUSIVE, is_primary=False)], {}, Verdict.EQUIVALENT),
        ([EQUAL, row(Verdict.INCONCLUSIVE)], {}, Verdict.INCONCLUSIVE),
        ([EQUAL, row(Verdict.NOT_TESTED)], {}, Verdict.INCONCLUSIVE),
        ([EQUAL, row(Verdict.IMPROVEMENT)], {}, Verdict.INCONCLUSIVE),
        ([EQUAL, row(Verdict.REGRESSION)], {}, Verdict.REGRESSION),
        ([EQUAL, row(Verdict.REGRESSION, is_primary=False)], {}, Verdict.REGRESSION),
        ([row(Verdict.REGRESSION), row(Verdict.EQUIVALENT, n_missing=6)], {}, Verdict.INVALID),
        ([row(Verdict.EQUIVALENT, is_primary=False)], {}, Verdict.INCONCLUSIVE),
        ([], {}, Verdict.INCONCLUSIVE),
        ([row(Verdict.NON_INFERIOR), row(Verdict.IMPROVEMENT)], {"plan": LOSS_ALONE}, Verdict.NON_INFERIOR),
        ([row(Verdict.NON_INFERIOR), row(Verdict.INCONCLUSIVE)], {"plan": LOSS_ALONE}, Verdict.INCONCLUSIVE),
        ([row(Verdict.NON_INFERIOR), row(Verdict.REGRESSION)], {"plan": LOSS_ALONE}, Verdict.REGRESSION),
        ([EQUAL], {"pairs": replace(ANALYSIS.pairs, request_hashes_differ=1)}, Verdict.INVALID),
        ([EQUAL], {"arms": [ARMS[0], replace(ARMS[1], n_answers=0)]}, Verdict.INVALID),
    ],
)
def test_a_comparison_gets_the_verdict_of_the_table(rows: list[MetricResult], changes: Any, verdict: Verdict) -> None:
    given, reasons = concluded(*rows, **changes)
    assert given is verdict
    assert reasons
    assert (reasons == ("the candidate answered nothing",)) is ("arms" in changes)


@pytest.mark.parametrize(
    ("rule", "is_primary", "n_missing", "repeats", "is_valid"),
    [
        ({}, True, 5, 1, True),
        ({}, True, 6, 1, False),
        ({"margin": 0.04}, True, 10, 1, True),
        ({}, False, 50, 1, True),
        ({}, False, 51, 1, False),
        ({"max_missing_share": 0.01}, True, 10, 1, True),
        ({"max_missing_share": 0.01}, False, 11, 1, False),
        ({"max_missing_share": 0.0}, True, 1, 1, False),
        ({"max_missing_share": 0.05}, True, 200, 4, True),
        ({"max_missing_share": 0.05}, True, 201, 4, False),
    ],
)
def test_a_primary_metric_may_lack_a_quarter_of_its_margin(
    rule: dict[str, float], is_primary: bool, n_missing: int, repeats: int, is_valid: bool
) -> None:
    plan = replace(PLAN, rule=replace(PLAN.rule, **rule), sampling=replace(PLAN.sampling, repeats=repeats))
    one = row(Verdict.EQUIVALENT, id="a", is_primary=is_primary, n_items=1000, n_missing=n_missing)
    verdict, reasons = concluded(EQUAL, one, plan=plan)
    assert (verdict is not Verdict.INVALID) is is_valid, reasons


def test_missing_lost_is_overruled_where_the_arms_missing_shares_differ() -> None:
    alike, other = (MissingSummary(n_asked=9, baseline_only=0, candidate_only=0, both=0, pvalue=p) for p in (1.0, 0.04))
    even, uneven = MissingCount(baseline=6, candidate=7, either=13), MissingCount(baseline=0, candidate=13, either=13)
    for share, count, missing, n_lost in (
        *((0.25, even, alike, 4), (0.25, even, other, None), (0.25, uneven, alike, None)),
        *((None, even, alike, None), (0.0, even, alike, 0)),
    ):
        assert lost_pairs(replace(RULE, missing_lost=share), count, missing) == n_lost


def test_reasons_come_primaries_first_then_by_adjusted_p() -> None:
    base = evidence(sample(600, 5, 22))
    rows = [
        row(Verdict.REGRESSION, id=name, is_primary=name == "primary", evidence=replace(base, pvalue_adjusted=p))
        for name, p in (("weak", 0.04), ("strong", 0.001), ("primary", 0.03))
    ]
    assert [reason.split(":")[0] for reason in concluded(*rows)[1]] == ["primary", "strong", "weak"]


def test_a_change_inside_the_margin_is_the_first_sentence_of_the_comparison() -> None:
    base = evidence(sample(10_000, 30, 60))
    verdict, reason, _ = judge(base, (), RULE)
    said = "a loss of 0.30 pp (0.15 to 0.46) is real and inside the margin"
    assert (verdict, english(reason)) == (Verdict.EQUIVALENT, said)
    other, main = (
        row(verdict, id=name, is_primary=name == "main", evidence=base, reason=reason) for name in ("other", "main")
    )
    assert concluded(replace(EQUAL, id="even"), other, main) == (
        Verdict.EQUIVALENT,
        (f"main: {said}", f"other: {said}", "all 2 primary metrics are equivalent within ±2.00 pp"),
    )
    assert concluded(EQUAL)[1] == ("the primary metric is equivalent within ±2.00 pp",)


def test_items_needed_come_with_their_range_and_at_the_observed_difference() -> None:
    def needed(discordance: float, difference: float = 0.0) -> int:
        return items_needed(discordance=discordance, difference=difference, margin=0.02, power=0.8, is_guarded=True)

    judgement = judged(sample(900, 24, 33))
    sized, (low, high) = judgement.evidence, clopper_pearson(57, 900, confidence_level=0.9)
    assert (sized.items_needed, sized.items_needed_observed) == (needed(57 / 900), needed(57 / 900, -0.01))
    assert (sized.items_needed_range.low, sized.items_needed_range.high) == (needed(low), needed(high))
    said = english(judgement.reason)
    assert "needs about 1,397 (1,128 to 1,706) items at this discordance and no true difference, about 3,9" in said
    assert said.endswith(" if the difference of −1.00 pp is real")
    lost = judged(sample(80, 0, 4))
    assert lost.evidence.items_needed_observed is None
    vast = judged(sample(100, 30, 30), MetricRule(margin=0.001))
    assert vast.evidence.items_needed is None
    assert "needs more than 200,000 items" in english(vast.reason)
    assert english(lost.reason).endswith("; more items will not prove it if the difference of −5.00 pp is real")


def test_a_small_loss_everywhere_is_a_reason_beside_the_verdict() -> None:
    for difference, pvalue, is_said in ((-0.003, 0.01, True), (-0.003, 0.2, False), (0.003, 0.01, False)):
        test = GlobalTest(n_metrics=3, difference=difference, pvalue=pvalue, n_resamples=0)
        verdict, reasons = concluded(EQUAL, suite=replace(ANALYSIS.suite, global_test=test))
        assert verdict is Verdict.EQUIVALENT
        said = "over all 3 metrics together the candidate is worse by 0.30 pp"
        assert any(said in one for one in reasons) is is_said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0.0, 0.0, None), "at 0"),
        ((1.0, 1.0, 0.25), "at 1"),
        ((0.2, 0.24, 0.25), "below chance (25.0 %)"),
        *((values, "") for values in ((0.2, 0.25, 0.25), (0.0, 0.1, None), (1.0, 0.99, None), (None, None, 0.25))),
    ],
)
def test_what_a_broken_scorer_looks_like(values: tuple[float | None, ...], said: str) -> None:
    own = dict(zip(("baseline", "candidate", "chance"), values, strict=True))
    row = replace(ANALYSIS.metrics[0], id="a/b", is_primary=True, **own)
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
    expected = non_inferiority(counts_of(n_items, gains, losses), margin=0.02)
    assert (own.pvalue_equivalence, own.pvalue_equivalence_exact) == expected
    assert judge(own, (), BETTER).verdict is verdict
    both = judged(sample(n_items, gains, losses)).verdict
    assert (both is Verdict.EQUIVALENT) <= (verdict is Verdict.NON_INFERIOR)


def test_a_loss_alone_minds_no_answer_that_could_hide_a_gain_and_says_a_real_gain_without_a_margin_it_has_not() -> None:
    one, two = (judged(sample(600, 17, 19), rule) for rule in (BETTER, RULE))
    assert one.evidence.provable_margin == two.evidence.provable_margin  # the loss is the farther side here
    assert one.evidence.items_needed < two.evidence.items_needed
    assert "−2.00 pp needs about" in english(one.reason)
    assert judged(sample(600, lost_off=20)).verdict is Verdict.INCONCLUSIVE
    assert judged(sample(600, lost_off=20), BETTER).verdict is Verdict.NON_INFERIOR
    assert judged(sample(600, lost_on=20), BETTER).verdict is Verdict.INCONCLUSIVE
    found = sample(800, 40, 12)
    reason = english(judged(found, BETTER).reason)
    assert reason.startswith("a gain of 3.50 pp (")
    assert reason.endswith(" is real")
    assert judged(found, replace(BETTER, strict=True)).verdict is Verdict.IMPROVEMENT


async def test_a_metric_is_judged_by_its_own_margin() -> None:
    for margins, verdict in (({}, Verdict.INCONCLUSIVE), ({"sums": 0.1}, Verdict.EQUIVALENT)):
        analysis = await Bench.of(100, on=other_for({3})).run(rule=DecisionRule(margins=margins))
        assert analysis.verdict is verdict
        assert analysis.metrics[0].margin == margins.get("sums", 0.02)
        assert f"±{100 * analysis.metrics[0].margin:.2f} pp" in english(analysis.reasons)[0]


@pytest.mark.parametrize(
    ("gains", "losses", "n_items", "changes", "verdict"),
    [
        (17, 19, 600, {}, Verdict.INCONCLUSIVE),
        (2, 30, 600, {}, Verdict.REGRESSION),
        (1, 8, 200, {}, Verdict.REGRESSION),
        (10, 40, 5000, {"strict": True}, Verdict.REGRESSION),
        (40, 10, 5000, {"strict": True}, Verdict.IMPROVEMENT),
        (30, 2, 600, {}, Verdict.IMPROVEMENT),
        (0, 0, 148, {}, Verdict.INCONCLUSIVE),
        (0, 0, 149, {}, Verdict.EQUIVALENT),
        (0, 0, 149, {"strict": True}, Verdict.EQUIVALENT),
        (0, 4, 80, {}, Verdict.INCONCLUSIVE),
        (0, 5, 1000, {}, Verdict.EQUIVALENT),
        (30, 60, 10_000, {}, Verdict.EQUIVALENT),
        (24, 33, 1123, {}, Verdict.EQUIVALENT),
        (0, 40, 1000, {"margin": 0.05}, Verdict.REGRESSION),
    ],
)
def test_a_terminal_and_a_comparison_judge_alike(
    gains: int, losses: int, n_items: int, changes: dict[str, Any], verdict: Verdict
) -> None:
    rule = replace(RULE, **changes)
    calculated = paired_test(gains=gains, losses=losses, n_items=n_items, margin=rule.margin, is_strict=rule.strict)
    own = evidence(sample(n_items, gains, losses), rule)
    assert judge(own, (), rule)[:2] == (calculated.verdict, calculated.reason)
    assert (calculated.verdict, calculated.is_equivalent) == (verdict, is_equivalent(own, rule))
    names = ("pvalue", "pvalue_exact", "pvalue_equivalence", "pvalue_equivalence_exact", "provable_margin")
    assert [getattr(own, name) for name in names] == [getattr(calculated, name) for name in names]
    for name in ("interval", "equivalence_interval"):
        assert asdict(getattr(own, name)) == pytest.approx(asdict(getattr(calculated, name)))
    for needed in (calculated.items_needed, calculated.items_needed_range):
        assert (needed is None) == (verdict is not Verdict.INCONCLUSIVE)
    accuracies = (calculated.baseline, calculated.candidate, calculated.interval_newcombe, calculated.pvalue_unpaired)
    assert accuracies == (None,) * 4


def test_where_less_is_better_a_rise_is_the_loss_inside_the_margin() -> None:
    rule = replace(RULE, higher_is_better=False)
    inside, strict = (judged(sample(5000, 40, 10), one) for one in (rule, replace(rule, strict=True)))
    assert (inside.verdict, strict.verdict) == (Verdict.EQUIVALENT, Verdict.REGRESSION)
    assert english(inside.reason) == "a loss of 0.60 pp (0.38 to 0.85) is real and inside the margin"
    assert "the plan is strict" in english(strict.reason)
