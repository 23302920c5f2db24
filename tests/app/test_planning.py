"""What the items can prove before a run: figures against the statistics, sentences, degenerate suites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np
import pytest

from qualab.analysis.missing import lost_pairs
from qualab.analysis.samples import MeanSample, MissingCount
from qualab.errors import InvalidValue, PlanChanged, RunStopped, UsageError
from qualab.model.canonical import plain, plan_hash
from qualab.model.comparison import MissingSummary
from qualab.model.items import Item, Prompt, Reply
from qualab.model.names import MetricKind, MissingPolicy, Objective
from qualab.model.plan import DecisionRule, LookPlan, MetricSpec, NoisePlan
from qualab.model.report import Paragraph
from qualab.planning.power import verdict_power
from qualab.planning.suite import Given, Pilot, Planning, pilot_of, plan_comparison
from qualab.report.planning import planning_blocks
from qualab.run.prepare import FrozenPlan, from_document, make_plan, to_document
from qualab.settings import Settings
from qualab.stats.audit import provable_share
from qualab.stats.counts import PairedCounts
from qualab.stats.equivalence import equivalence
from qualab.stats.looks import looks_at, simulate_looks
from qualab.stats.sizing import items_needed, power_equivalence, smallest_margin
from tests.app.fakes import (
    START,
    Bench,
    FakeHarness,
    FakeTasks,
    QuietProgress,
    echo_number,
    experiment,
    failure,
    metric_spec,
    other_for,
    reply,
)
from tests.said import english

RULE = {one.name for one in fields(DecisionRule)}
SAMPLED: dict[str, Any] = {"gen_kwargs": {"temperature": 1.0}}
NOTHING_MISSING = MissingSummary(n_asked=1, baseline_only=0, candidate_only=0, both=0, pvalue=1.0)


@dataclass
class Suite(FakeTasks):
    """Of `specs` if given; `per_cluster` items share a cluster."""

    per_cluster: int = 1
    specs: tuple[MetricSpec, ...] = ()

    @property
    def metrics(self) -> tuple[MetricSpec, ...]:
        return self.specs or super().metrics

    def render(self) -> Iterator[Item]:
        for item in super().render():
            yield replace(item, cluster=str(item.doc_id // self.per_cluster) if self.per_cluster > 1 else "")


def planned_suite(given: Settings, tasks: Any, beliefs: Given, pilot: Pilot | None = None) -> Planning:
    return plan_comparison(make_plan(given, tasks), tasks.render(), beliefs, pilot, missing=given.expected_missing)


def planned(sizes: dict[str, int], given: Given | None = None, **changes: Any) -> Planning:
    rule = {name: changes.pop(name) for name in RULE & changes.keys()}
    tasks = Suite(sizes=sizes, **{name: changes.pop(name) for name in ("per_cluster", "specs") if name in changes})
    settings = experiment(rule=DecisionRule(**{"power": 0.8} | rule), **changes)
    return planned_suite(settings, tasks, given or Given(discordance={"": 0.05}))


def test_gsm8k_at_one_point_needs_4335_items_and_the_sentence_says_so() -> None:
    found = planned({"gsm8k": 1319}, margin=0.01)
    (one,) = found.metrics
    assert one.items_needed == 4335
    assert one.power < 0.2
    (said,) = english(found.unproven)
    assert said.startswith("gsm8k: 1,319 items cannot prove ±1 pp at 5 % discordance: 4,335 are needed for 80 % power.")
    assert "A second set of 3,016 more items would do." in said
    assert "4 answers an item would do if nearly all of the discordance were run noise." in said


def test_without_a_changed_item_the_exact_guard_counts() -> None:
    (one,) = planned({"a": 600}, Given(discordance={"": 0.0})).metrics
    assert (one.items_needed, one.power, one.mde) == (149, 1.0, None)
    assert one.provable_margin == pytest.approx(0.00498, abs=1e-5)
    assert one.mde_beyond_noise is not None
    (one,) = (tiny := planned({"a": 1})).metrics
    assert (one.power, one.mde) == (0.0, None)
    assert "1 item cannot prove" in english(tiny.unproven)[0]


def test_figures_are_those_of_the_statistics_and_metrics_are_sized_for_the_product_of_their_powers() -> None:
    found = planned({"a": 1319, "b": 900})
    for one, n_items in zip(found.metrics, (1319, 900), strict=True):
        assert one.power == power_equivalence(n_items=n_items, discordance=0.05, margin=0.02, is_guarded=True)
        assert one.provable_margin == smallest_margin(n_items=n_items, discordance=0.05, power=0.8**0.5)
        assert one.items_needed == items_needed(discordance=0.05, margin=0.02, power=0.8**0.5)
        assert one.items_needed_alone == items_needed(discordance=0.05, margin=0.02)
    assert found.joint_power == found.metrics[0].power * found.metrics[1].power == found.plan.assumptions.joint_power
    mixed = planned({"a": 1319, "b": 5000})  # a large task makes up for a smaller one
    assert mixed.metrics[0].planned_power < mixed.power_each
    assert mixed.joint_power > 0.8
    assert not mixed.unproven
    few = planned(dict.fromkeys("abcde", 1123))
    assert (few.power_each, few.joint_power) == (pytest.approx(0.8**0.2), pytest.approx(0.33, abs=0.02))
    ((alone, needed),) = {(one.items_needed_alone, one.items_needed) for one in few.metrics}
    assert (alone, len(few.unproven)) == (1123, 5)
    enough = planned(dict.fromkeys("abcde", needed))
    assert (enough.joint_power, enough.unproven) == (pytest.approx(0.8, abs=0.02), ())


def test_repeats_divide_run_noise_and_nothing_else() -> None:
    sampled = {"repeats": 4} | SAMPLED
    unknown, once = (planned({"a": 600}, **changes).metrics[0] for changes in (sampled, {}))
    assert unknown.variance == 0.05
    assert unknown.power == verdict_power(n_items=600, discordance=0.05, margin=0.02, alpha=0.05, n_clusters=600)
    assert unknown.power < once.power  # all repeats of an item may be lost together: the bound allows for it
    half = planned({"a": 600}, Given(discordance={"": 0.05}, noise={"": 0.03}), **sampled).metrics[0]
    assert half.variance == pytest.approx(0.02 + 0.03 / 4)
    assert once.power < half.power < verdict_power(n_items=2400, discordance=0.05, margin=0.02, alpha=0.05)


@pytest.mark.parametrize(("runs", "left"), [(1, 0.75), (3, 0.625)])
def test_further_baseline_answers_divide_the_baselines_half_of_the_noise(runs: int, left: float) -> None:
    given = Given(discordance={"": 0.05}, noise={"": 0.05})
    once, floor = planned({"a": 600}, given), planned({"a": 600}, given, noise_floor_runs=runs)
    other_load = planned({"a": 600}, given, noise_floor_runs=runs, noise_floor_concurrency=99)
    assert other_load.metrics[0].variance == once.metrics[0].variance == 0.05
    assert floor.metrics[0].variance == pytest.approx(0.05 * left)
    assert floor.metrics[0].items_needed < 1.1 * left * once.metrics[0].items_needed  # type: ignore[operator]
    (note,) = [note for note in english(floor.caveats) if "baseline answers an item" in note]
    assert f"{100 * (1 - left):.1f} %" in note
    unknown = planned({"a": 600}, noise_floor_runs=runs)
    assert unknown.metrics[0].variance == 0.05
    assert any("is not known for a" in note for note in english(unknown.caveats))


def test_clusters_count_as_items_over_the_design_effect_and_an_unknown_one_is_said() -> None:
    unknown = planned({"a": 900}, per_cluster=2)
    (one,) = unknown.metrics
    assert (one.asked.n_items, one.asked.n_clusters, one.effective_items) == (900, 450, 900)
    assert any("450 clusters count as independent" in note for note in english(unknown.caveats))
    (told,) = planned({"a": 900}, Given(discordance={"": 0.05}, design_effect={"a": 1.5}), per_cluster=2).metrics
    assert told.effective_items == 600
    assert 1123 * 1.5 < told.items_needed < 1123 * 1.5 * 1.15  # the bound over clusters takes some more
    effective, n_clusters = round(told.items_needed / 1.5), told.items_needed / 2
    power = verdict_power(n_items=effective, discordance=0.05, margin=0.02, alpha=0.05, n_clusters=n_clusters)
    assert power == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("kind", [MetricKind.MACRO_F1, MetricKind.LIST_MEAN, MetricKind.OTHER])
def test_a_group_is_planned_over_the_items_of_all_its_members_and_no_figure_made_up_for_other_kinds(
    kind: MetricKind,
) -> None:
    group = metric_spec("both", kind=MetricKind.GROUP_MEAN, members=("a", "b"))
    parts = tuple(metric_spec(name, is_primary=False) for name in ("a", "b"))
    found = planned({"a": 700, "b": 500}, specs=(group, *parts, metric_spec("a", name="other", kind=kind)))
    assert [(one.name, one.asked.n_items) for one in found.metrics] == [("both/exact_match,none", 1200)]
    assert found.unplanned[0].id == "a/other,none"
    assert "planning is not offered" in english(found.unplanned[0].reason)
    assert found.joint_power is None


def test_looks_never_need_fewer_items_at_most_than_one_look_at_the_end() -> None:
    for discordance in (0.0, 0.002, 0.004, 0.008, 0.05):
        (one,) = planned({"a": 600}, Given(discordance={"": discordance}), looks=5).metrics
        assert one.looks.most_items >= one.items_needed
        assert one.looks.power > 0.78
    assert one.looks.expected_items < one.items_needed < one.looks.most_items


def test_power_with_looks_is_that_of_the_looks_at_these_items() -> None:
    found = planned({"a": 240, "b": 600}, Given(discordance={"a": 0.004, "b": 0.02}), looks=5)
    few, many = found.metrics
    design = looks_at(most_items=600, margin=0.02, harm_alpha=0.0125, n_looks=5)
    other = simulate_looks(design, discordance=0.02, n_resamples=4_000, rng=np.random.default_rng(9))
    assert many.power_looks == pytest.approx(other.equivalent, abs=0.03)
    assert (few.power_looks < 0.75, few.power > 0.8) == (True, True)
    assert found.joint_power == pytest.approx(few.power_looks * many.power_looks)
    short, _ = english(found.unproven)
    assert few.items_needed > 240
    assert f"{few.items_needed} are needed for 89.4 % power, so that all metrics together have 80 %." in short
    assert f"With looks they have {100 * few.power_looks:.1f} %." in short
    found = planned({"a": 240}, Given(discordance={"a": 0.004}), looks=5)
    (one,), (short,) = found.metrics, english(found.unproven)
    assert f"with the looks of this plan, short of 80 %: they need up to {one.looks.most_items}" in short


def test_missing_answers_cost_the_power_of_the_reference_and_more_items_and_a_plan_says_what_they_come_to() -> None:
    for missing, power in ((0.0, 0.87), (0.01, 0.03), (0.005, 0.48)):
        found = planned({"gsm8k": 1319}, expected_missing=missing)
        (one,) = found.metrics
        assert one.planned_power == pytest.approx(power, abs=0.012)
        assert (one.power_missing is None) is (missing == 0.0)
    assert 2000 < one.items_needed < 2300
    assert 0.023 < one.provable_margin < 0.025
    enough = planned({"gsm8k": one.items_needed}, expected_missing=0.005)
    assert (enough.metrics[0].planned_power >= 0.795, enough.unproven) == (True, ())
    assert planned({"gsm8k": 1319}, expected_missing=0.02).metrics[0].items_needed is None
    some = planned({"gsm8k": 1319}, expected_missing=0.005, missing_lost=0.25).metrics[0]
    assert one.planned_power + 0.15 < some.planned_power < some.power
    assert some.items_needed < one.items_needed
    assert found.plan.assumptions.missing == 0.005
    assert any("INVALID until they are asked again" in note for note in english(found.caveats))
    assert "Without a missing answer these have 87.4 %." in english(found.unproven)[0]
    allowed = planned({"gsm8k": 1319}, expected_missing=0.005, max_missing_share=0.05)
    assert not any("INVALID" in note for note in english(allowed.caveats))
    assert any("--expected-missing 0.005" in note for note in english(planned({"gsm8k": 1319}).caveats))


def test_a_metrics_own_margin_comes_before_that_of_its_task_and_that_before_the_plans() -> None:
    found = planned(dict.fromkeys("abc", 600), margins={"a": 0.05, "a/exact_match,none": 0.04, "b": 0.03})
    assert [metric.margin for metric in found.metrics] == [0.04, 0.03, 0.02]


@cache
def is_proven(gains: int, losses: int, n_items: int, margin: float) -> bool:
    return equivalence(PairedCounts(n_items=n_items, gains=gains, losses=losses), margin=margin).is_equivalent


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("n_items", "discordance", "margin", "missing", "lost"),
    [
        (600, 0.03, 0.02, 0.0, None),
        (1319, 0.05, 0.02, 0.005, None),
        (1319, 0.05, 0.02, 0.005, 0.25),
        (500, 0.01, 0.02, 0.002, None),
        (900, 0.05, 0.03, 0.01, 0.5),
    ],
)
def test_the_power_of_a_plan_is_the_frequency_of_its_verdict(
    n_items: int, discordance: float, margin: float, missing: float, lost: float | None
) -> None:
    """Answers are drawn, 70 % of them right, and treated as in an analysis: every policy has to prove the margin."""
    rng, n_runs, numbers = np.random.default_rng(7), 1_000, np.arange(n_items)
    given = Given(discordance={"": discordance})
    rule = DecisionRule(margin=margin, missing_lost=lost)
    (one,) = planned({"a": n_items}, given, margin=margin, missing_lost=lost, expected_missing=missing).metrics
    # half of the changes are gains, so that the wrong ones among the others make it 70 %
    chances = [discordance / 2, discordance / 2, 0.7 - discordance / 2, 0.3 - discordance / 2]
    n_proven = 0
    for _ in range(n_runs):
        kinds = rng.choice(4, p=chances, size=n_items)
        off, on = (np.where(rng.random(n_items) < missing, np.nan, np.isin(kinds, right)) for right in ([1, 2], [0, 2]))
        sample = MeanSample(number=numbers, unit=numbers, baseline=off, candidate=on)
        gone_off, gone_on = np.isnan(off), np.isnan(on)
        gone = {"baseline": gone_off, "candidate": gone_on, "either": gone_off | gone_on}
        count = MissingCount(**{name: int(which.sum()) for name, which in gone.items()})
        n_lost = lost_pairs(rule, count, NOTHING_MISSING)
        n_proven += all(
            is_proven(int(np.sum(d > 0)), int(np.sum(d < 0)), d.size, margin)
            for d in (sample.under(policy, right=1.0, n_lost=n_lost).differences for policy in MissingPolicy)
        )
    found = n_proven / n_runs
    assert found == pytest.approx(one.planned_power, abs=3 * np.sqrt(0.25 / n_runs) + 0.005)


def test_non_inferiority_takes_fewer_items_and_its_own_test() -> None:
    (one,) = planned({"a": 819}, objective=Objective.NON_INFERIORITY).metrics
    assert one.items_needed == 819
    design: Any = {"n_items": 819, "discordance": 0.05, "margin": 0.02, "is_one_sided": True, "is_guarded": True}
    assert one.power == power_equivalence(**design)
    (short,) = english(planned({"a": 500}, objective=Objective.NON_INFERIORITY).unproven)
    assert "cannot rule out a loss of 2 pp" in short


@pytest.mark.parametrize(
    ("changes", "given", "message"),
    [
        ({"margins": {"gsm8": 0.01}}, Given(), r"no benchmark.* gsm8\. Did you mean gsm8k"),
        ({"margins": {"gsm8k": 1.0}}, Given(), r"margins\.gsm8k must be"),
        ({"margin": 1.0}, Given(), "margin must be"),
        ({"power": 1.0}, Given(), "power must be"),
        ({}, Given(discordance={"gsm": 0.1}), "discordance: the plan has no"),
        ({}, Given(discordance={"": 1.5}), "discordance must be"),
        ({}, Given(design_effect={"gsm8k": 0.5}), "design-effect of gsm8k must be 1 or more"),
        ({}, Given(rate=0.0), "rate must be"),
        ({"repeats": 2} | SAMPLED, Given(discordance={"": 0.02}, noise={"": 0.03}), "noise of gsm8k/"),
    ],
)
def test_what_cannot_be_planned_is_one_clear_error(changes: dict[str, object], given: Given, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        planned({"gsm8k": 10}, given, **changes)


def planned_from(pilot: Pilot, n_items: int, beliefs: Given | None = None, **changes: Any) -> Planning:
    return planned_suite(experiment(**changes), FakeTasks(n_items=n_items), beliefs or Given(), pilot)


async def test_a_pilot_gives_discordance_noise_and_rate() -> None:
    def answer(prompt: str, seed: int) -> Reply:
        number = int(prompt[4:])
        is_wrong = number < 5 or (number < 15 and seed % 2)  # 5 items differ always, 10 in every second run
        sent_at = START + timedelta(seconds=number / 10)
        return replace(reply("wrong") if is_wrong else echo_number(prompt, seed), sent_at=sent_at)

    bench = Bench.of(100, on=answer)
    sampled = {"repeats": 2} | SAMPLED
    pilot = pilot_of(bench.store, (await bench.run(**sampled)).comparison_id)
    seen = pilot.metrics["sums/exact_match,none"]
    assert (seen.n_scores, seen.n_changed, seen.discordance) == (200, 20, 0.1)
    assert seen.noise == pytest.approx(10 * 0.5 / 100)
    assert pilot.rate == pytest.approx(399 / 9.9)
    (one,) = planned_from(pilot, 100, **sampled).metrics
    assert one.belief.discordance == 0.1
    assert one.variance == pytest.approx(0.05 + 0.05 / 2)
    assert pilot.id in one.belief.discordance_source
    named = planned_from(pilot, 100, Given(discordance={"sums": 0.2}), **sampled)
    assert named.metrics[0].belief.discordance == 0.2


async def test_an_audits_outlook_is_that_of_the_budget_or_all_answers_and_of_a_pilots_lengths() -> None:
    def sent(item: Item, gen_kwargs: dict[str, Any]) -> Prompt:
        return replace(item.prompts[0], gen_kwargs=item.prompts[0].gen_kwargs | gen_kwargs)

    bench, tasks = Bench.of(50), FakeTasks(n_items=200)  # each prompt has 3 tokens, each answer 1 of at most 5
    pilot = pilot_of(bench.store, (await bench.run()).comparison_id)
    for source, changes, figures in (
        (None, {"audit_tokens": 10_000}, (400, 2_000, 400, 2_000)),
        (None, {"audit_tokens": 500, "audit_items": 10, "audit_max_tokens": 2}, (100, 500, 20, 40)),
        (pilot, {"audit_tokens": 10_000}, (400, 400, 400, 2_000)),
        (None, SAMPLED, (0, 0, 400, 2_000)),
        (None, {"audit_items": 0} | SAMPLED, (0, 0, 0, 0)),
    ):
        own = experiment(audit=True, **changes)
        asked = [replace(item, prompts=(sent(item, own.gen_kwargs),)) for item in tasks.render()]
        found = plan_comparison(make_plan(own, tasks), asked, Given(), source)
        audit = found.audit
        assert audit is not None
        counted = (audit.n_answers, audit.n_tokens, audit.n_asked_again, audit.generated_tokens)
        assert counted == figures, changes
        assert audit.provable_share == (provable_share(figures[1] // 2) if figures[1] else None)
        assert audit.is_assumed is (source is None and bool(figures[1]))
        text = "".join(block.text for block in planning_blocks(found) if isinstance(block, Paragraph))
        assert ("no answer is greedy" in text) is (not figures[1])
        if source:
            assert audit.prefilled_tokens == 400 + 2_000 + 3 * (400 + 400)
        assert any("CLEAN needs 5,990" in note for note in english(found.caveats))
    assert planned({"gsm8k": 10}).audit is None


async def test_a_pilot_without_a_change_is_no_proof_of_none_and_one_without_answers_is_refused() -> None:
    bench, progress = Bench.of(50), QuietProgress()
    found = planned_from(pilot_of(bench.store, (await bench.run()).comparison_id), 50)
    assert found.metrics[0].belief.discordance == 0.0
    assert any("up to 5.8 %" in note for note in english(found.caveats))
    bench.candidate.answer = bench.baseline.answer = lambda prompt, seed: failure()
    with pytest.raises(RunStopped, match="stored"):
        await bench.run(progress=progress)
    with pytest.raises(InvalidValue, match="no scores to plan from"):
        pilot_of(bench.store, progress.comparison.id)


COMMIT = "1" * 40


def frozen_of(tasks: FakeTasks | None = None, **changes: Any) -> FrozenPlan:
    plan = planned_suite(experiment(**changes), tasks or FakeTasks(), Given()).plan
    return FrozenPlan(plan=plan, plan_hash=plan_hash(plan), frozen_at=START, settings={"model": "m"})


PARTS = ("plan", "hash", "frozen_at", "experiment")
EDITED, OTHER = r"was edited.*run `qualab plan` again", r"made by another version of qualab: .* other fields"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda document: document["plan"]["rule"].update(margin=0.03), EDITED),
        (lambda document: document["plan"]["rule"].update(another=1), EDITED),
        (lambda document: document["plan"]["assumptions"].update(joint_power=0.99), EDITED),
        (lambda document: document.update(hash="0" * 64), EDITED),
        *((lambda document, name=name: document["plan"].pop(name), OTHER) for name in ("suite", "sequential")),
        (lambda document: document["plan"].update(later=1), OTHER),
        *((lambda document, name=name: document.pop(name), "not a whole plan file") for name in PARTS),
    ],
)
def test_a_plan_file_comes_back_as_it_was_written_or_not_at_all(edit: Callable[[Any], object], message: str) -> None:
    frozen = frozen_of(rule=DecisionRule(margin=1 / 3, margins={"sums": 1e-05}))
    document = plain(to_document(frozen, {}))
    assert from_document(document, where="plan.yaml") == frozen
    edit(document)
    if message is OTHER:
        document["hash"] = plan_hash(document["plan"])
    with pytest.raises(UsageError, match=message):
        from_document(document, where="plan.yaml")


@pytest.mark.parametrize(
    ("tasks", "changes", "message"),
    [
        (FakeTasks(config_hash="other"), {}, "sums"),
        (FakeTasks(), {"rule": DecisionRule(margin=0.03)}, "rule differ"),
        (FakeTasks(), {"seed": 2}, "sampling"),
    ],
)
async def test_a_frozen_plan_is_not_run_or_looked_at_with_other_items_or_settings(
    tasks: FakeTasks, changes: Any, message: str
) -> None:
    for job in ((bench := Bench(harness=FakeHarness(tasks))).run, bench.look):
        with pytest.raises(PlanChanged, match=message):
            await job(frozen=frozen_of().plan, **changes)


@pytest.mark.parametrize(
    ("read_at", "off", "on"), [(COMMIT, "http://off", "http://on"), ("local", "http://off2", "http://on2")]
)
async def test_a_frozen_plan_is_run_from_its_commit_or_the_same_documents_elsewhere_whatever_the_urls(
    read_at: str, off: str, on: str
) -> None:
    frozen = frozen_of(FakeTasks(revision=COMMIT))
    bench = Bench(harness=FakeHarness(FakeTasks(revision=read_at)))
    bench.baseline.url = off
    analysis = await bench.run(baseline=off, candidate=on, frozen=frozen.plan)
    assert bench.harness.seen[0].revisions == {"sums": COMMIT}
    comparison = bench.store.get(analysis.comparison_id)
    assert (comparison.baseline_url, comparison.candidate_url) == (off, on)
    assert (comparison.plan, comparison.plan_hash) == (frozen.plan, frozen.plan_hash)
    assert analysis.suite.joint_power == frozen.plan.assumptions.joint_power
    assert analysis.suite.joint_power_reason is None


def test_a_noise_floor_is_counted_among_the_requests_and_frozen_with_the_looks() -> None:
    timed = planned({"a": 30}, Given(rate=2.0), repeats=3, **SAMPLED)
    assert (timed.n_requests, timed.duration_s) == (180, 90.0)
    plain = planned({"a": 60})
    assert make_plan(experiment(), FakeTasks()).assumptions is None
    found = planned({"a": 60}, noise_floor=NoisePlan(runs=2, concurrency=3), looks=4)
    assert found.n_requests == plain.n_requests + 2 * 60 == 4 * 60
    assert (found.plan.noise_floor, found.plan.looks) == (NoisePlan(runs=2, concurrency=3), LookPlan(n_looks=4))
    assert plan_hash(found.plan) != plan_hash(plain.plan)


async def test_a_noise_floor_that_a_pilot_measured_is_what_a_loss_comes_on_top_of() -> None:
    asked: Counter[str] = Counter()

    def answer(prompt: str, seed: int) -> Reply:
        asked[prompt] += 1
        return reply("wrong") if asked[prompt] > 1 and int(prompt[4:]) < 8 else echo_number(prompt, seed)

    bench = Bench.of(200, off=answer, on=other_for(range(20)))
    analysis = await bench.run(noise_floor=NoisePlan(runs=1, concurrency=2))
    found = planned_from(pilot_of(bench.store, analysis.comparison_id), 200)
    (one,), (alone,) = found.metrics, planned({"sums": 200}, Given(discordance={"": 0.04})).metrics
    assert (one.belief.discordance, one.belief.floor) == (0.1, 0.04)
    assert one.mde_beyond_noise == alone.mde_beyond_noise
    assert one.mde != alone.mde
    assert any("differ in 4.0 %" in note for note in english(found.caveats))
