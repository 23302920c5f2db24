"""A banked baseline stands in for the baseline's answers: what is asked, what is refused, what the verdict says."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from qualab.errors import (
    BankNotFound,
    ComparisonBanked,
    InvalidValue,
    PairDiffers,
    PlanChanged,
    QualabError,
    RunStopped,
    WrongState,
)
from qualab.model.comparison import Analysis
from qualab.model.engine import BankSeen, last_seen
from qualab.model.names import ArmName, ComparisonStatus, Verdict
from qualab.model.plan import RequestPolicy, TaskSpec
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import AuditEntry
from qualab.planning.suite import Given, plan_comparison
from qualab.run.bank import add_bank, find_banked, with_bank
from qualab.run.prepare import make_plan
from qualab.run.prune import prune
from qualab.run.run import resume, start
from qualab.run.sign import signoff_obstacles
from qualab.run.verify import verify
from tests.app.fakes import START
from tests.app.scripted_pair import SAYS, MadeUpTasks, Pair, Talker, pair
from tests.said import english
from tests.scripted_engine import EngineScript
from tests.scripted_server import ScriptedServer

SIZES = {"sums": 60, "words": 20}
ENTRY = AuditEntry(at=START, who="me", action="x", subject="x", details={})


@dataclass(kw_only=True)
class Wavering(Talker):
    """Answers a share of what it is asked otherwise."""

    share: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def text(self, prompt: str) -> str:
        return f"{self.says}!" if self.rng.random() < self.share else self.says


def generations(server: ScriptedServer) -> int:
    """Answers that were asked for: trials and probes are shorter."""
    return sum(json.loads(body)["max_tokens"] == 64 for _, body in server.requests)


def newest(both: Pair) -> Any:
    return both.store.list(ComparisonFilter())[0]


def banked(both: Pair, name: str = "nightly", **changes: Any) -> Analysis:
    analysis = both.compared(**{"noise_floor_runs": 1, **changes})
    add_bank(both.store, name, analysis.comparison_id, who="me", now=START)
    both.off.seen.clear()
    both.on.seen.clear()
    return analysis


def test_a_new_candidate_costs_one_arm_and_a_sample() -> None:
    with pair(sizes=SIZES) as both:
        first = banked(both)
        analysis = both.compared(bank="nightly", bank_sample=24)
        assert (generations(both.off), generations(both.on)) == (24, 80)
        plan, store = newest(both).plan, both.store
        assert plan.n_baseline_runs == 2
        assert analysis.metrics == first.metrics
        assert analysis.noise is not None
        (caveat,) = [text for text in english(analysis.caveats) if "bank" in text]
        assert caveat.startswith(f"The baseline's answers come from bank nightly (comparison {first.comparison_id})")
        seen = last_seen(store.observations(analysis.comparison_id), BankSeen)
        assert seen is not None
        assert (seen.n_sampled, seen.n_compared, seen.n_texts_differ, seen.trouble) == (24, 24, 0, None)
        assert not verify(both.services, analysis.comparison_id).is_altered
        # the copies are its own
        store.drop_bank("nightly", entry=ENTRY)
        store.delete(first.comparison_id, entry=ENTRY, stale_after_s=60)
        assert not verify(both.services, analysis.comparison_id).is_altered


def test_the_sample_is_drawn_over_all_tasks_and_asked_beside_the_candidate() -> None:
    with pair(sizes=SIZES) as both:
        banked(both)
        both.off.script.latency_s = both.on.script.latency_s = 0.01
        both.compared(bank="nightly", bank_sample=40)
        prompts = [json.loads(body)["prompt"] for _, body in both.off.requests if json.loads(body)["max_tokens"] == 64]
        assert Counter(prompt.split()[0] for prompt in prompts).keys() == SIZES.keys()
        assert len(set(prompts)) == 40
        assert both.off.most_in_flight == 4


@pytest.mark.parametrize("killed_after", [30, 110])  # within the sample, and after it was checked
def test_a_killed_run_goes_on_and_looks_leave_the_rest_of_the_copies_out(killed_after: int) -> None:
    with pair(sizes={"sums": 400}) as both:
        banked(both)
        assert both.compared(bank="nightly", bank_sample=100, looks=4, killed_after=killed_after) is None
        comparison = newest(both)
        analysis = resumed(both, comparison.id)
        assert analysis.verdict is Verdict.EQUIVALENT
        assert analysis.looks is not None
        n_asked = analysis.looks.n_items
        assert n_asked < 400
        assert generations(both.off) <= 100 + 8  # those in flight are asked again
        assert generations(both.on) <= n_asked + 8
        for run in (0, 1):
            own = both.store.answered(comparison.id, run=run)
            assert sum(arm is ArmName.BASELINE for arm, *_ in own) == n_asked
        assert {arm.n_answers for arm in analysis.arms} == {n_asked}


def resumed(both: Pair, comparison_id: str) -> Analysis:
    analysis = asyncio.run(resume(both.services, comparison_id))
    assert analysis is not None
    return analysis


def test_a_baseline_that_changed_since_stops_the_run_and_the_candidates_answers_stay() -> None:
    with pair(sizes={"sums": 200}) as both:
        banked(both)
        both.off.script.says = SAYS + " Twice."  # type: ignore[attr-defined]
        with pytest.raises(RunStopped, match="does not answer any more as in bank nightly") as stop:
            both.compared(bank="nightly", bank_sample=50)
        assert "of 50 re-asked items 50 texts (p <0.001) and 50 scores (p <0.001) differ" in stop.value.message
        comparison = newest(both)
        assert comparison.status is ComparisonStatus.STOPPED
        n_kept = both.store.n_answered(comparison.id)[ArmName.CANDIDATE]
        assert 50 <= n_kept < 200  # the rest of the candidate is not paid for
        n_asked = generations(both.off)
        with pytest.raises(RunStopped, match="does not answer any more"):
            resumed(both, comparison.id)
        assert generations(both.off) == n_asked


@pytest.mark.parametrize(("before", "now", "stops"), [(0.1, 0.1, False), (0.0, 0.01, False), (0.02, 0.4, True)])
def test_a_bank_may_differ_as_much_as_its_own_runs_do(before: float, now: float, stops: bool) -> None:
    with pair(sizes={"sums": 300}) as both:
        wavering = Wavering(engine=EngineScript(), share=before)
        both.off.__exit__()
        both.off = ScriptedServer(wavering, port=both.off.port).__enter__()
        banked(both)
        wavering.share = now
        if stops:
            with pytest.raises(RunStopped, match="more than two of its own runs do"):
                both.compared(bank="nightly")
        else:
            assert both.compared(bank="nightly").noise is not None
        both.off.__exit__()


def other_tasks(**changes: Any) -> type[MadeUpTasks]:
    class Other(MadeUpTasks):
        @property
        def tasks(self) -> tuple[TaskSpec, ...]:
            return tuple(replace(task, **changes) for task in super().tasks)

    return Other


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"seed": 7}, {}, "seed (1234, now 7)"),
    ({"policy": RequestPolicy(concurrency=5)}, {}, "concurrency (4, now 5)"),
    ({"gen_kwargs": {"temperature": 0.5}}, {}, "generation settings (none, now {'temperature': 0.5})"),
    ({"system_instruction": "Be brief"}, {}, "system instruction (none, now Be brief)"),
    ({"limit": 30}, {}, "limit (none, now 30.0)"),
    ({"revision": "a" * 40}, {}, "pinned revision (none, now aaaa"),
    ({"noise_floor_runs": 2}, {}, "the noise floor (leave it out"),
    ({}, {"revision": "b" * 40}, "data revision of sums"),
    ({}, {"data_hash": "other", "config_hash": "other"}, "documents and configuration of sums"),
    ({}, {"name": "others"}, "task others, which it does not have"),
    ({"bank": "weekly"}, {}, "no banked baseline named 'weekly'"),
]


@pytest.mark.parametrize(("settings", "task", "says"), REFUSED)
def test_what_is_not_the_same_is_refused_before_anything_is_asked(
    settings: dict[str, Any], task: dict[str, Any], says: str
) -> None:
    with pair() as both:
        banked(both)
        both.tasks = other_tasks(**task)()
        with pytest.raises(InvalidValue) as refusal:
            both.compared(**({"bank": "nightly"} | settings))
        assert says in refusal.value.message
        assert "bank" in refusal.value.details["fields"]  # type: ignore[operator]
        assert generations(both.off) == generations(both.on) == 0


def test_another_template_changes_the_requests_and_is_refused() -> None:
    class Templated(MadeUpTasks):
        def _prompts(self, name: str, text: str) -> Any:
            return super()._prompts(name, f"Question: {text}")

    with pair() as both:
        banked(both)
        both.tasks = Templated()
        with pytest.raises(
            InvalidValue, match=r"the requests of 40 of 40 items \(the first is sums/\d+\) are not byte"
        ):
            both.compared(bank="nightly")
        assert len(both.store.list(ComparisonFilter())) == 1


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (EngineScript(config={"cache_config.block_size": 64}, has_server_info=True), "another cache_config.block_size"),
        (EngineScript(fingerprints=("another-build",)), "fingerprint another-build"),
    ],
)
def test_another_engine_is_refused(engine: EngineScript, says: str) -> None:
    first = EngineScript(has_server_info=engine.has_server_info, fingerprints=("a-build",))
    with pair(off=first, on=first) as both:
        banked(both)
        both.off.__exit__()
        both.off = ScriptedServer(Talker(engine=engine), port=both.off.port).__enter__()
        both.replace_candidate(engine)
        with pytest.raises((PairDiffers, RunStopped)) as stop:
            both.compared(bank="nightly")
        assert says in stop.value.message
        both.off.__exit__()


def test_a_verdict_from_a_bank_is_signed_off_only_where_the_plan_says_so() -> None:
    with pair(sizes={"sums": 400}) as both:
        banked(both)
        for is_chosen in (False, True):
            analysis = both.compared(bank="nightly", bank_signoff=is_chosen)
            texts = english(tuple(signoff_obstacles(analysis, newest(both))))
            assert any("the plan does not say bank_signoff: true" in text for text in texts) is not is_chosen


def test_what_cannot_be_banked() -> None:
    with pair(sizes={"sums": 400}) as both:
        bare = both.compared()
        early = both.compared(noise_floor_runs=1, looks=4)
        whole = banked(both)
        taken = both.compared(bank="nightly")
        cases: list[tuple[str, str, type[QualabError], str]] = [
            ("a", bare.comparison_id, InvalidValue, "does not tell how much two runs of its baseline differ"),
            ("a", early.comparison_id, WrongState, "ended at a look: its baseline answered"),
            ("a", taken.comparison_id, InvalidValue, "come from bank nightly themselves"),
            ("nightly", whole.comparison_id, WrongState, "named nightly already"),
            ("a b", whole.comparison_id, InvalidValue, "is not a name"),
        ]
        for name, comparison_id, error, says in cases:
            with pytest.raises(error, match=says):
                add_bank(both.store, name, comparison_id, who="me", now=START)
        with pytest.raises(InvalidValue, match="--sequential asks one after the other"):
            both.wanted(bank="nightly", sequential=True)
        with pytest.raises(InvalidValue, match="bank_signoff is given without a bank"):
            both.wanted(bank_signoff=True)


def test_a_banked_comparison_is_kept_until_its_bank_is_dropped() -> None:
    with pair() as both:
        first, store = banked(both), both.store
        with pytest.raises(ComparisonBanked, match=f"{first.comparison_id} holds the banked baseline nightly"):
            store.delete(first.comparison_id, entry=ENTRY, stale_after_s=60)
        later = newest(both).created_at + timedelta(days=1)
        for dry_run in (True, False):
            (row,) = prune(store, before=later, label=None, who="me", now=later, dry_run=dry_run)
            assert row.kept == "holds a banked baseline"
        store.drop_bank("nightly", entry=ENTRY)
        with pytest.raises(BankNotFound, match="no banked baseline named 'nightly'"):
            store.drop_bank("nightly", entry=ENTRY)
        (row,) = prune(store, before=later, label=None, who="me", now=later)
        assert not row.kept
        assert store.banks() == []


def test_a_plan_says_what_a_bank_saves_and_names_it_in_its_hash() -> None:
    with pair(sizes={"sums": 400}) as both:
        first = banked(both)
        settings = both.wanted(bank="nightly")
        plan = with_bank(make_plan(settings, both.tasks), settings, find_banked(both.store, "nightly"))
        planning = plan_comparison(plan, both.tasks.render(), Given())
        assert planning.n_requests == 400 + 100
        assert plan.bank is not None
        assert (plan.bank.comparison_id, plan.bank.plan_hash) == (first.comparison_id, first.plan_hash)
        assert any("it is asked 100 items again" in text for text in english(planning.caveats))
        # another comparison under that name is another plan
        both.store.drop_bank("nightly", entry=ENTRY)
        banked(both)
        with pytest.raises(PlanChanged, match="bank differ"):
            asyncio.run(start(both.services, both.wanted(bank="nightly"), frozen=plan))
