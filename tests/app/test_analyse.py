"""From evidence to verdicts: every row of the verdict table, missing answers, and suspicious values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qualab import bootstrap
from qualab.analysis.analyse import chances_of
from qualab.analysis.evidence import FamilyMember, adjusted, evidence_of, is_equivalent, pairs_of
from qualab.analysis.judge import Judgement, conclude, judge, policy_results
from qualab.analysis.missing import lost_pairs
from qualab.analysis.ruling import is_changed, suspicions
from qualab.analysis.samples import MeanSample, MissingCount, Streams
from qualab.harness.catalog import Catalog, read_catalog
from qualab.model.comparison import (
    ArmSummary,
    Evidence,
    GlobalTest,
    MetricResult,
    MissingSummary,
    PairSummary,
    PolicyResult,
)
from qualab.model.names import MetricKind, MissingPolicy, Verdict
from qualab.model.plan import MetricRule, Plan
from qualab.model.reason import Reason
from qualab.run.prepare import make_plan
from qualab.stats.counts import tally
from qualab.stats.difference import mcnemar
from qualab.stats.interval import clopper_pearson
from qualab.stats.sizing import items_needed
from tests.app.fakes import FakeTasks, experiment, metric_spec, task_spec
from tests.said import english
from tests.store.samples import make_analysis, make_choices, make_comparison, make_item

RULE = MetricRule(margin=0.02)
LESS_IS_BETTER = replace(RULE, higher_is_better=False)
PLAN = make_plan(experiment(), FakeTasks())


def sample(n: int, gains: int = 0, losses: int = 0, *, lost_off: int = 0, lost_on: int = 0) -> MeanSample:
    both = n - gains - losses - lost_off - lost_on
    baseline = [0.0] * gains + [1.0] * (losses + both) + [np.nan] * lost_off + [1.0] * lost_on
    candidate = [1.0] * gains + [0.0] * losses + [1.0] * (both + lost_off) + [np.nan] * lost_on
    numbers = np.arange(n)
    return MeanSample(number=numbers, unit=numbers, baseline=np.array(baseline), candidate=np.array(candidate))


def evidence(found: MeanSample, rule: MetricRule = RULE) -> Evidence:
    complete = found.under(MissingPolicy.COMPLETE, right=1.0)
    return evidence_of(pairs_of(complete), rule, Streams(seed=1), "metric")


def policies_of(found: MeanSample, rule: MetricRule = RULE) -> dict[MissingPolicy, PolicyResult]:
    rng = np.random.default_rng(1)
    results = policy_results(found, rule, lambda policy: rng, policies=tuple(MissingPolicy))
    return {one.policy: one for one in results}


def judged(found: MeanSample, rule: MetricRule = RULE) -> Judgement:
    if not found.under(MissingPolicy.COMPLETE, right=1.0).n_items:
        return judge(None, (), rule)
    return judge(evidence(found, rule), list(policies_of(found, rule).values()), rule)


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
    found = policies_of(sample(100, lost_off=4, lost_on=1))
    differences = {policy: round(one.difference, 12) for policy, one in found.items()}
    assert differences == {
        MissingPolicy.COMPLETE: 0.0,
        MissingPolicy.WRONG: 0.03,
        MissingPolicy.AGAINST_CANDIDATE: -0.01,
        MissingPolicy.AGAINST_BASELINE: 0.04,
    }


@pytest.mark.parametrize(("n_lost", "lost", "gained"), [(0, 0, 0), (2, 2, 2), (4, 4, 2), (9, 4, 2), (None, 4, 2)])
def test_a_worst_case_takes_so_many_of_the_missing_answers_as_lost(n_lost: int | None, lost: int, gained: int) -> None:
    """Of six pairs without an answer, four may be losses (the baseline is right), two gains (the candidate is)."""
    found = sample(100, lost_on=4, lost_off=2)
    against_candidate, against_baseline = (
        found.under(policy, right=1.0, n_lost=n_lost).differences
        for policy in (MissingPolicy.AGAINST_CANDIDATE, MissingPolicy.AGAINST_BASELINE)
    )
    assert (int(-against_candidate.sum()), int(against_baseline.sum())) == (lost, gained)
    assert found.under(MissingPolicy.WRONG, right=1.0, n_lost=n_lost).differences.sum() == -2


def test_an_answer_of_several_scores_is_lost_as_a_whole() -> None:
    number = np.array([0, 0, 0, 1, 1, 2])
    missing, right = np.full(6, np.nan), np.array([1.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    found = MeanSample(number=number, unit=number, baseline=right, candidate=missing)
    worst = found.under(MissingPolicy.AGAINST_CANDIDATE, right=1.0, n_lost=1)
    assert worst.differences.tolist() == [-1.0, -1.0, -1.0, 0.0, 0.0, 0.0]


def test_where_less_is_better_a_missing_answer_scores_the_most() -> None:
    found = policies_of(sample(100, lost_on=5), LESS_IS_BETTER)
    assert found[MissingPolicy.WRONG].difference == 0.0
    assert found[MissingPolicy.AGAINST_BASELINE].difference == pytest.approx(-0.05)


def test_the_exact_guard_can_veto_the_interval() -> None:
    rule = MetricRule(margin=0.1)
    found = evidence(sample(44, 0, 1), rule)
    assert found.equivalence_interval.low > -0.1
    assert found.pvalue_equivalence_exact == pytest.approx(0.0571, abs=2e-4)
    assert not is_equivalent(found, rule)


def test_more_than_two_hundred_thousand_items_is_said_as_that() -> None:
    judgement = judged(sample(100, 30, 30), MetricRule(margin=0.001))
    assert judgement.evidence.items_needed is None
    assert "needs more than 200,000 items" in english(judgement.reason)


ANALYSIS = make_analysis()
PAIRS = ANALYSIS.pairs
ARMS = [replace(one, finish_reasons={}) for one in ANALYSIS.arms]


def row(verdict: Verdict, **changes: Any) -> MetricResult:
    base = replace(ANALYSIS.metrics[1], id=f"t/{verdict}", verdict=verdict, n_items=100, equals="", policies=())
    return replace(base, **{"reason": Reason("no-primary"), **changes})


EQUAL = row(Verdict.EQUIVALENT)


def concluded(
    *rows: MetricResult,
    plan: Plan = PLAN,
    arms: Sequence[ArmSummary] = ARMS,
    pairs: PairSummary = ANALYSIS.pairs,
    **suite: Any,
) -> tuple[Verdict, tuple[str, ...]]:
    verdict, reasons = conclude(plan, rows, arms, pairs, **suite)
    return verdict, english(reasons)


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
    given, reasons = concluded(*rows)
    assert given is verdict
    assert reasons


def test_different_bytes_or_a_silent_arm_make_a_comparison_invalid() -> None:
    assert concluded(EQUAL, pairs=replace(PAIRS, request_hashes_differ=1))[0] is Verdict.INVALID
    assert concluded(EQUAL, arms=[ARMS[0], replace(ARMS[1], n_answers=0)]) == (
        Verdict.INVALID,
        ("the candidate answered nothing",),
    )


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
    rule = replace(RULE, missing_lost=0.25)
    even, uneven = MissingCount(baseline=6, candidate=7, either=13), MissingCount(baseline=0, candidate=13, either=13)
    assert lost_pairs(rule, even, alike) == 4
    assert lost_pairs(rule, even, other) is None
    assert lost_pairs(rule, uneven, alike) is None
    assert lost_pairs(RULE, even, alike) is None
    assert lost_pairs(replace(rule, missing_lost=0.0), even, alike) == 0


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
    judgement = judged(sample(900, 24, 33))
    sized = judgement.evidence
    assert sized.items_needed is not None
    assert sized.items_needed_range.low < sized.items_needed < sized.items_needed_range.high
    assert sized.items_needed == items_needed(discordance=57 / 900, margin=0.02, power=0.8, is_guarded=True)
    low, high = clopper_pearson(57, 900, confidence_level=0.9)
    for share, n in ((low, sized.items_needed_range.low), (high, sized.items_needed_range.high)):
        assert n == items_needed(discordance=share, margin=0.02, power=0.8, is_guarded=True)
    assert sized.items_needed_observed == items_needed(
        discordance=57 / 900, difference=-0.01, margin=0.02, power=0.8, is_guarded=True
    )
    said = english(judgement.reason)
    assert "needs about 1,397 (1,128 to 1,706) items at this discordance and no true difference, about 3,9" in said
    assert said.endswith(" if the difference of −1.00 pp is real")
    lost = judged(sample(80, 0, 4))
    assert lost.evidence.items_needed_observed is None
    assert english(lost.reason).endswith("; more items will not prove it if the difference of −5.00 pp is real")


@pytest.mark.simulation
@pytest.mark.parametrize(("discordance", "margin"), [(0.2, 0.02), (0.1, 0.01)])
def test_many_metrics_without_a_loss_are_seldom_called_a_regression(
    discordance: float, margin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18 metrics of 300 items of their own. Intervals below −margin alone were false alarms in 7 and 15 %."""
    monkeypatch.setattr("qualab.analysis.evidence.N_RESAMPLES", 999)
    n_runs, n_metrics, n_items, rng = 250, 18, 300, np.random.default_rng(8)
    rule, units = MetricRule(margin=margin), np.arange(300)
    template = evidence(sample(n_items, 3, 3), rule)
    n_wrong = 0
    for _ in range(n_runs):
        tested = []
        for metric in range(n_metrics):
            shares = [discordance / 2, 1 - discordance, discordance / 2]
            gained = rng.choice([-1.0, 0.0, 1.0], p=shares, size=n_items)
            off = np.where(gained > 0, 0.0, 1.0)
            number = units + n_items * metric
            found = MeanSample(number=number, unit=number, baseline=off, candidate=off + gained)
            counts = tally(found.baseline, found.candidate)
            changed = replace(template, difference=counts.difference, pvalue=mcnemar(counts).pvalue)
            spec = replace(PLAN.metrics[0], task=f"t{metric}")
            tested.append(FamilyMember(spec=spec, sample=found, evidence=changed))
        family, _ = adjusted(tested, n_metrics * n_items, rng)
        n_wrong += any(
            judge(replace(whole, pvalue_adjusted=family[one.spec.id].pvalue_adjusted), (), rule).verdict
            is Verdict.REGRESSION
            for one in tested
            if isinstance(one.sample, MeanSample) and is_changed(family[one.spec.id], rule)
            for whole in [evidence(one.sample, rule)]
        )
    assert n_wrong / n_runs <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / n_runs)
    assert n_wrong > 0


@pytest.mark.parametrize(
    ("difference", "pvalue", "is_said"), [(-0.003, 0.01, True), (-0.003, 0.2, False), (0.003, 0.01, False)]
)
def test_a_small_loss_everywhere_is_a_reason_beside_the_verdict(
    difference: float, pvalue: float, is_said: bool
) -> None:
    test = GlobalTest(n_metrics=3, difference=difference, pvalue=pvalue, n_resamples=0)
    suite = replace(ANALYSIS.suite, global_test=test)
    verdict, reasons = concluded(EQUAL, suite=suite)
    assert verdict is Verdict.EQUIVALENT
    said = "over all 3 metrics together the candidate is worse by 0.30 pp"
    assert any(said in one for one in reasons) is is_said


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
    catalog: Catalog = read_catalog(bootstrap.share("tasks"))
    found = {
        task: catalog.hints(task).choices for task in ("haerae_history_gen", "kobest_hellaswag", "kobest_wic", "gsm8k")
    }
    assert found == {"haerae_history_gen": 5, "kobest_hellaswag": 4, "kobest_wic": 2, "gsm8k": None}
