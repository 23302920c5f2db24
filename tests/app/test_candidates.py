"""Several candidates against one baseline: asked once, in step, each in a comparison of its own."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from qualab.errors import ComparisonNotFound, PairDiffers, QualabError, RunStopped, WrongState
from qualab.model.comparison import Analysis
from qualab.model.engine import BankSeen, last_seen
from qualab.model.names import AnswerStatus, ArmName, AuditPart, AuditRuling, ComparisonStatus, LookDecision, Verdict
from qualab.model.plan import NoisePlan
from qualab.model.registry import Heartbeat
from qualab.report.group import RankedGroup, ranked_group
from qualab.run.bank import add_bank
from qualab.run.group import GroupResult, resume_group, start_group
from qualab.run.preflight import PROBE_TOKENS, TRIAL_TOKENS
from qualab.run.run import resume
from qualab.run.verify import verify
from tests.app.fakes import BASELINE
from tests.app.scripted_pair import ALLOWED, Killing, MadeUpTasks, Pair, Talker
from tests.app.test_audit_run import AUDITED, TELLS, bodies
from tests.scripted_engine import EngineScript
from tests.scripted_lm import Fault, LanguageModel
from tests.scripted_server import Script, ScriptedServer, reply
from tests.store.samples import put

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass(kw_only=True)
class Wrong(Talker):
    """Says something else to one prompt in `every`; nothing wrong at 0."""

    every: int = 0

    def text(self, prompt: str) -> str:
        number = int(prompt.split()[1]) if prompt.split()[1].isdecimal() else 1
        return "The harbour is empty tonight, he said." if self.every and number % self.every == 0 else self.says


@dataclass
class Servers(Pair):
    """A baseline, and candidates by name; `on` is the first."""

    others: dict[str, ScriptedServer] = None  # type: ignore[assignment]

    @property
    def candidates(self) -> dict[str, str]:
        return {name: server.url for name, server in self.others.items()}

    def run(self, *, killed_after: int | None = None, **changes: Any) -> GroupResult:
        progress = Killing(after=killed_after)
        settings = self.wanted(candidate="", candidates=self.candidates, **changes)
        return progress.result_of(start_group(replace(self.services, progress=progress), settings))

    def ranked(self, group_id: str = "") -> RankedGroup:
        return ranked_group(self.store, group_id or self.group_id, now=NOW)

    @property
    def group_id(self) -> str:
        group = self.store.list(_all())[0].plan.group
        assert group
        return group.id

    def member(self, name: str) -> Any:
        return self.store.get(f"{self.group_id}-{name}")


def _all() -> Any:
    from qualab.model.ports import ComparisonFilter

    return ComparisonFilter()


@contextmanager
def servers(
    *, n_items: int = 40, drafts: bool = True, off: Talker | None = None, **scripts: Talker
) -> Iterator[Servers]:
    with ExitStack() as stack:
        one = stack.enter_context(ScriptedServer(off or Talker()))
        others = {
            name: stack.enter_context(ScriptedServer(replace(script, drafts=True))) for name, script in scripts.items()
        }
        yield Servers(one, next(iter(others.values())), tasks=MadeUpTasks(sizes={"sums": n_items}), others=others)


def asked(server: ScriptedServer) -> Counter[bytes]:
    """Bodies of items: not those of trials and probes."""
    bodies = [body for _, body in server.requests if json.loads(body)["max_tokens"] not in (TRIAL_TOKENS, PROBE_TOKENS)]
    return Counter(bodies)


def verdicts(result: GroupResult) -> dict[str, Any]:
    return {name: own.verdict if isinstance(own, Analysis) else own.code for name, own in result.outcomes.items()}


def test_each_candidate_has_its_verdict_and_the_baseline_is_asked_once() -> None:
    with servers(n_items=300, fine=Wrong(), broken=Wrong(every=5)) as group:
        result = group.run(rule=ALLOWED)
        assert verdicts(result) == {"fine": Verdict.EQUIVALENT, "broken": Verdict.REGRESSION}
        assert set(asked(group.off).values()) == {1}
        assert asked(group.off) == asked(group.others["fine"]) == asked(group.others["broken"])
        order = [body for _, body in group.off.requests[-300:]]
        assert len(order) == 300
        fine, broken = (group.member(name) for name in ("fine", "broken"))
        assert fine.status is broken.status is ComparisonStatus.FINISHED
        assert fine.plan_hash != broken.plan_hash
        assert fine.plan.group.names == ("fine", "broken")
        shared = [list(group.store.answers(own.id, arm=BASELINE)) for own in (fine, broken)]
        assert shared[0] == shared[1]
        assert len(shared[0]) == 300
        ranked = group.ranked()
        assert [own.name for own in ranked.candidates] == ["fine", "broken"]
        assert ranked.candidates[0].acceptance_length == pytest.approx(3.0)
        assert ranked.candidates[1].difference == pytest.approx(-0.2)
        assert any(own.code == "candidates" for own in result.outcomes["fine"].caveats)  # type: ignore[union-attr]


def test_pvalues_of_changes_are_adjusted_over_candidates_and_equivalence_is_each_ones_own() -> None:
    with servers(n_items=120, a=Wrong(every=20), b=Wrong(), c=Wrong()) as group:
        three = group.run(rule=ALLOWED).outcomes["a"]
        alone = group.compared(candidate=group.on.url, rule=ALLOWED)
    assert isinstance(three, Analysis)
    (of_three,), (of_one,) = ([row.evidence for row in own.metrics] for own in (three, alone))
    assert of_three is not None
    assert of_one is not None
    assert of_three.pvalue_adjusted == pytest.approx(3 * of_one.pvalue_adjusted)
    assert of_three.pvalue == of_one.pvalue
    assert of_three.pvalue_equivalence == of_one.pvalue_equivalence
    assert of_three.equivalence_interval == of_one.equivalence_interval
    assert alone.metrics[0].verdict is Verdict.REGRESSION  # 0 gained, 6 lost: p 0.0156 alone, 0.047 for three


@pytest.mark.parametrize("looks", [None, 4])
def test_a_candidate_that_dies_stops_alone_and_goes_on_by_itself(looks: int | None) -> None:
    with servers(n_items=200, dead=Wrong(), fine=Wrong()) as group:
        dead = group.others["dead"]
        alive = dead.routes["POST", "/v1/completions"]

        async def dying(request: Any) -> Any:
            step = alive if len(dead.requests) < 60 else reply({"error": "gone"}, status=500)
            return await step(request)

        dead.routes["POST", "/v1/completions"] = dying
        result = group.run(rule=ALLOWED, looks=looks)
        stopped = result.outcomes["dead"]
        assert isinstance(stopped, RunStopped)
        assert f"qualab resume {group.group_id}-dead --retry-failed" in stopped.hint
        assert verdicts(result)["fine"] is Verdict.EQUIVALENT
        assert group.member("dead").status is ComparisonStatus.STOPPED
        assert [own.name for own in group.ranked().candidates] == ["fine", "dead"]
        n_fine = sum(asked(group.others["fine"]).values())
        assert group.store.n_answered(group.member("dead").id)[BASELINE] < 200
        dead.routes["POST", "/v1/completions"] = alive
        again = asyncio.run(resume(group.services, group.member("dead").id, retry_failed=True))
        assert again is not None
        assert again.verdict is Verdict.EQUIVALENT
        assert sum(asked(group.others["fine"]).values()) == n_fine


def test_candidates_that_all_die_end_the_run_and_the_baseline_is_spared_the_rest() -> None:
    with servers(n_items=400, a=Wrong(), b=Wrong()) as group:
        for server in group.others.values():
            alive = server.routes["POST", "/v1/completions"]

            async def dying(request: Any, server: ScriptedServer = server, alive: Any = alive) -> Any:
                step = alive if len(server.requests) < 40 else reply({"error": "gone"}, status=500)
                return await step(request)

            server.routes["POST", "/v1/completions"] = dying
        result = group.run(rule=ALLOWED)
        assert verdicts(result) == {"a": "run-stopped", "b": "run-stopped"}
        assert {own.status for own in group.store.group(group.group_id)} == {ComparisonStatus.STOPPED}
        assert sum(asked(group.off).values()) < 200


def test_a_baseline_that_dies_stops_all_and_the_group_goes_on_together() -> None:
    with servers(n_items=60, a=Wrong(), b=Wrong()) as group:
        alive = group.off.routes["POST", "/v1/completions"]

        async def dying(request: Any) -> Any:
            step = alive if len(group.off.requests) < 30 else reply({"error": "gone"}, status=500)
            return await step(request)

        group.off.routes["POST", "/v1/completions"] = dying
        with pytest.raises(RunStopped, match="baseline"):
            group.run(rule=ALLOWED)
        assert {own.status for own in group.store.group(group.group_id)} == {ComparisonStatus.STOPPED}
        group.off.routes["POST", "/v1/completions"] = alive
        result = asyncio.run(resume_group(group.services, group.group_id, retry_failed=True))
        assert set(verdicts(result)) == {"a", "b"}
        for name in ("a", "b"):
            answers = group.store.answers(group.member(name).id, arm=BASELINE)
            assert {answer.reply.status for answer in answers} == {AnswerStatus.OK}
        with pytest.raises(WrongState, match="finished"):
            asyncio.run(resume_group(group.services, group.group_id))


def test_looks_that_end_at_different_times_ask_the_decided_candidate_no_more() -> None:
    with servers(n_items=2_000, bad=Wrong(every=4), fine=Wrong()) as group:
        result = group.run(rule=ALLOWED, looks=10)
        assert verdicts(result) == {"bad": Verdict.REGRESSION, "fine": Verdict.EQUIVALENT}
        looks = {name: group.store.looks(group.member(name).id) for name in ("bad", "fine")}
        ends = {name: own[-1].n_items for name, own in looks.items()}
        assert looks["bad"][-1].decision is LookDecision.HARM
        assert ends["bad"] < ends["fine"] < 2_000
        for name, server in group.others.items():
            assert sum(asked(server).values()) == ends[name]
            assert dict(group.store.n_answered(group.member(name).id)) == dict.fromkeys(ArmName, ends[name])
        assert sum(asked(group.off).values()) == max(ends.values())


@pytest.mark.parametrize("floor", [None, NoisePlan(runs=2, concurrency=4), NoisePlan(runs=1, concurrency=9)])
def test_a_killed_group_goes_on_and_asks_each_answer_once(floor: NoisePlan | None) -> None:
    slow = Talker(latency_s=0.005)
    with servers(n_items=80, off=slow, a=Wrong(), b=Wrong(every=40)) as group:
        assert group.run(killed_after=70, rule=ALLOWED, noise_floor=floor) is None
        members = group.store.group(group.group_id)
        assert {own.status for own in members} == {ComparisonStatus.INTERRUPTED}
        stored = [group.store.answered(own.id) for own in members]
        assert {key for key in stored[0] if key[0] is BASELINE} == {key for key in stored[1] if key[0] is BASELINE}
        silent_since = group.services.clock.now() - timedelta(seconds=10)  # by a runner on another host
        for own in members:
            put(group.store, own.id, runner="elsewhere:1:x", claimed_at=silent_since, heartbeat_at=silent_since)
        services = replace(group.services, heartbeat=Heartbeat(stale_after_s=5.0))
        result = asyncio.run(resume_group(services, group.group_id))
        assert set(verdicts(result)) == {"a", "b"}
        n_runs = 1 + (floor.runs if floor else 0)
        in_flight = 2 * 9
        assert sum(asked(group.off).values()) <= 80 * n_runs + in_flight
        for number in range(n_runs):
            runs = [
                {
                    (answer.position, answer.reply.sent_at)
                    for answer in group.store.answers(own.id, arm=BASELINE, run=number)
                }
                for own in members
            ]
            assert runs[0] == runs[1]
            assert len(runs[0]) == 80


def test_the_baseline_scores_its_answers_once_and_is_sampled_once_in_all_audits() -> None:
    engine, lm = EngineScript(settings=TELLS), LanguageModel(end_every=60, floor=-30.0)
    off = Script(engine=engine, lm=lm)
    with ExitStack() as stack:
        one = stack.enter_context(ScriptedServer(off))
        streams = {
            name: replace(off, drafts=True, lm=replace(lm, fault=fault, stream=number))
            for number, (name, fault) in enumerate({"a": Fault.NONE, "b": Fault.DOUBLED}.items(), start=1)
        }
        others = {name: stack.enter_context(ScriptedServer(script)) for name, script in streams.items()}
        group = Servers(one, others["a"], tasks=MadeUpTasks(sizes={"sums": 30}), others=others)
        result = group.run(rule=ALLOWED, **AUDITED)
        audits = {name: own.audit for name, own in result.outcomes.items() if isinstance(own, Analysis)}
        assert {name: own and own.ruling for name, own in audits.items()}["b"] is AuditRuling.FOREIGN
        asked_for = [tuple(body["prompt"]) for body in bodies(one, prompt_logprobs=...) if len(body["prompt"]) > 9]
        assert len(asked_for) == len(set(asked_for))
        assert len(bodies(one, temperature=1)) == len(bodies(others["a"], temperature=1)) == 20
        for part in (AuditPart.GREEDY, AuditPart.SAMPLED):
            scored = [
                [own for own in group.store.scored(group.member(name).id) if own.part is part and own.arm is BASELINE]
                for name in others
            ]
            assert scored[0] == scored[1]
            assert all(own.scores for own in scored[0])


def test_a_candidate_may_be_several_replicas() -> None:
    with servers(a=Wrong(), b=Wrong(), c=Wrong()) as group:
        a, b, c = group.candidates.values()
        settings = group.wanted(candidate="", candidates={"two": f"{a}, {b}", "one": c}, rule=ALLOWED)
        result = asyncio.run(start_group(group.services, settings))
        assert not {Verdict.INVALID, "run-stopped"} & set(verdicts(result).values())
        assert [sum(asked(server).values()) for server in group.others.values()] == [20, 20, 40]


def test_a_candidate_that_cannot_be_compared_keeps_all_from_starting_and_is_named() -> None:
    with servers(a=Wrong(), b=replace(Wrong(), engine=EngineScript(is_dead=True))) as group:
        with pytest.raises(PairDiffers, match=r"^Candidate b: "):
            group.run()
        assert group.store.list(_all()) == []
        with pytest.raises(ComparisonNotFound, match="no group"):
            group.ranked("20260101-000000-abcd")


def test_one_candidate_has_the_plan_that_it_had() -> None:
    with servers(a=Wrong()) as group:
        analysis = group.compared(candidate=group.on.url, rule=ALLOWED)
        assert '"group"' not in group.store.plan_text(analysis.comparison_id)
        assert group.comparison.plan.group is None


BAD = [
    ({"a": "http://h:1", "b": "http://h:1/v1"}, {}, "Candidate b has the URL of candidate a"),
    ({"a": "http://h:1", "b": "http://off"}, {"baseline": "http://off/"}, "Candidate b has the URL of the baseline"),
    ({"a b": "http://h:1", "b": "http://h:2"}, {}, "'a b' does not name a candidate"),
    ("a=http://h:1,a=http://h:2", {}, "'a' is given twice"),
    ("http://h:1,b=http://h:2", {}, "'http://h:1' is not of the form NAME=URL"),
    ({"a": "http://h:1", "b": "http://h:2"}, {"candidate": "http://h:3"}, "candidate and candidates are given"),
    ({"a": "http://h:1", "b": "http://h:2"}, {"sequential": True}, "Candidates are asked at once"),
    ({"a": "http://h:1"}, {}, "candidates holds a alone"),
    ({"a": "http://h:1", "b": ""}, {}, "Candidate b has no URL"),
    ({"a": ["http://h:1", "http://h:2"], "b": "http://h:2/v1"}, {}, "Candidate b has the URL of candidate a"),
    ({1: "http://h:1", "b": ["http://h:2", "http://h:1"]}, {}, "Candidate b has the URL of candidate 1"),
    ({"a": "http://h:1", "b": "http://h:2"}, {"pods": {"candidate": "n/p"}}, "A pod or container of the candidate"),
]


@pytest.mark.parametrize(("candidates", "more", "message"), BAD)
def test_what_cannot_be_candidates_is_refused_in_one_line(candidates: Any, more: dict[str, Any], message: str) -> None:
    from qualab.settings import load

    with pytest.raises(QualabError, match=message) as error:
        load(content={"baseline": "http://off", "model": "m", "candidates": candidates, **more}, environment=False)
    assert error.value.hint
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("looks", "killed_after"), [(None, None), (4, None), (None, 30), (None, 150)])
def test_a_bank_stands_in_for_the_baseline_of_all_candidates_and_is_sampled_once(
    looks: int | None, killed_after: int | None
) -> None:
    with servers(n_items=200, a=Wrong(), b=Wrong(every=4)) as group:
        first = group.compared(candidate=group.on.url, rule=ALLOWED, noise_floor_runs=1)
        add_bank(group.store, "nightly", first.comparison_id, who="me", now=NOW)
        for server in (group.off, *group.others.values()):
            server.seen.clear()
        result = group.run(rule=ALLOWED, bank="nightly", bank_sample=50, looks=looks, killed_after=killed_after)
        if killed_after:
            result = asyncio.run(resume_group(group.services, group.group_id))
        assert verdicts(result) == {"a": Verdict.EQUIVALENT, "b": Verdict.REGRESSION}
        in_flight = 8 if killed_after else 0
        assert 50 <= sum(asked(group.off).values()) <= 50 + in_flight
        for own in group.store.group(group.group_id):
            seen = last_seen(group.store.observations(own.id), BankSeen)
            assert seen is not None
            assert (seen.n_compared, seen.trouble) == (50, None)
            assert not verify(group.services, own.id).is_altered
        assert {own.speed for own in group.ranked().candidates} == {None}


def test_a_bank_that_differs_stops_all_candidates_and_says_so_again() -> None:
    with servers(n_items=100, a=Wrong(), b=Wrong()) as group:
        first = group.compared(candidate=group.on.url, rule=ALLOWED, noise_floor_runs=1)
        add_bank(group.store, "nightly", first.comparison_id, who="me", now=NOW)
        group.off.script.says = "Another answer by far, whoever asks."  # type: ignore[attr-defined]
        with pytest.raises(RunStopped, match="does not answer any more as in bank nightly") as stop:
            group.run(rule=ALLOWED, bank="nightly", bank_sample=50)
        assert "Run without the bank" in stop.value.hint
        assert f"qualab resume {group.group_id}`" in stop.value.hint
        assert {own.status for own in group.store.group(group.group_id)} == {ComparisonStatus.STOPPED}
        n_asked = sum(asked(group.off).values())
        with pytest.raises(RunStopped, match="does not answer any more"):
            asyncio.run(resume_group(group.services, group.group_id))
        assert sum(asked(group.off).values()) == n_asked
