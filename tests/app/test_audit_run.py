"""The token audit of a run over HTTP: which faults it finds, what it leaves alone, and how it goes on or ends early."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from qualab.endpoints.client import HttpEndpoint
from qualab.errors import ComparisonSignedOff, InvalidValue, PairDiffers, QualabError, WrongState
from qualab.model.audit import Audit, ForeignCount, SampledCount, ScoredAnswer, unpack_ids
from qualab.model.comparison import Analysis
from qualab.model.engine import AuditSeen, last_seen
from qualab.model.items import Item, Prompt
from qualab.model.names import ArmName, AuditPart, AuditRuling, ComparisonStatus, ScoringForm, Verdict
from qualab.model.plan import AuditPlan
from qualab.run.bank import add_bank
from qualab.run.run import audit, auditable, lacks_baseline, start
from qualab.run.sign import sign_off
from qualab.run.stored import compare_again
from tests.app.fakes import BASELINE, CANDIDATE, START
from tests.app.scripted_pair import MadeUpTasks, Pair
from tests.app.test_turns import Turns
from tests.said import english
from tests.scripted_engine import EngineScript
from tests.scripted_lm import Fault, LanguageModel
from tests.scripted_server import Script, ScriptedServer, reply

GREEDY, SAMPLED, STRUCTURED = AuditPart
NEUTRAL = ("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
TELLS = ("return_token_ids", *NEUTRAL)
TOKEN = np.dtype([("own", "<f4"), ("top", "<f4"), ("rank", "<u4")])
BROKEN = reply({"error": {"message": "CUDA error"}}, status=500)
AUDITED = {"audit": True, "audit_items": 20, "audit_max_tokens": 32}


@dataclass
class Audited(Pair):
    """A pair whose servers answer from a language model."""

    open_endpoint: Any = HttpEndpoint

    @property
    def services(self) -> Any:
        return replace(super().services, open_endpoint=self.open_endpoint)

    def audited(self, *, arms: Sequence[ArmName] = tuple(ArmName), **changes: Any) -> Analysis:
        """What `qualab audit` makes of the comparison."""
        return asyncio.run(audit(self.services, self.comparison.id, self.wanted(**changes), arms=arms))

    @property
    def seen(self) -> AuditSeen:
        found = last_seen(self.store.observations(self.comparison.id), AuditSeen)
        assert found is not None
        return found

    def scored(self, part: AuditPart, arm: ArmName | None = None) -> list[ScoredAnswer]:
        rows = self.store.scored(self.comparison.id, with_pieces=True)
        return [row for row in rows if row.part is part and arm in (None, row.arm)]

    def gaps(self, part: AuditPart, arm: ArmName) -> Any:
        """Of all tokens, in nats."""
        tokens = np.frombuffer(b"".join(row.scores or b"" for row in self.scored(part, arm)), dtype=TOKEN)
        return tokens["top"] - tokens["own"]


@contextmanager
def audited_pair(
    fault: Fault = Fault.NONE, *, tells: Sequence[str] = TELLS, length: int = 1_000_000, ends: int = 60, **changes: Any
) -> Iterator[Audited]:
    engine = EngineScript(settings=tuple(tells), **changes.pop("engine", {}))
    lm = LanguageModel(end_every=ends, floor=-30.0)
    off = Script(engine=engine, lm=lm, max_model_len=length)
    on = replace(off, drafts=True, lm=replace(lm, fault=fault, stream=1))
    with ScriptedServer(off) as one, ScriptedServer(on) as other:
        yield Audited(one, other, tasks=MadeUpTasks(**changes or {"sizes": {"sums": 30}}))


def audit_in(analysis: Analysis) -> Audit:
    assert analysis.audit is not None
    return analysis.audit


def counts(found: Audit) -> list[ForeignCount | SampledCount]:
    return [*found.foreign, *found.sampled]


def bodies(server: ScriptedServer, **holding: Any) -> list[dict[str, Any]]:
    """Requests whose bodies hold these settings; ... for any value, None for none."""
    found = [json.loads(body) for _, body in server.requests]
    return [
        body
        for body in found
        if all(name in body if value is ... else body.get(name) == value for name, value in holding.items())
    ]


def scorings(server: ScriptedServer) -> list[dict[str, Any]]:
    """Without the trials of whether it scores."""
    return [body for body in bodies(server, prompt_logprobs=...) if len(body["prompt"]) > 5]


@pytest.mark.parametrize(
    ("fault", "part", "n_foreign"),
    [
        (Fault.DOUBLED, GREEDY, 3),
        (Fault.RELAXED, GREEDY, 100),
        (Fault.ALWAYS, SAMPLED, 10),
        (Fault.LOST, GREEDY, 10),
        (Fault.NEAR_TIES, None, 0),
        (Fault.NONE, None, 0),
    ],
)
def test_a_fault_of_the_drafter_is_in_the_stored_scores_and_nothing_else_is_foreign(
    fault: Fault, part: AuditPart | None, n_foreign: int
) -> None:
    with audited_pair(fault) as both:
        analysis = both.compared(**AUDITED)
        found = audit_in(analysis)
        assert {row.status.is_answer for row in both.scored(SAMPLED)} == {True}
        assert all(
            len(row.scores or b"") == 3 * len(row.token_ids) for part in (GREEDY, SAMPLED) for row in both.scored(part)
        )
        assert both.gaps(GREEDY, BASELINE).max() <= 1e-6
        if part is None:
            assert both.gaps(GREEDY, CANDIDATE).max() <= 0.3 + 1e-5
            assert found.ruling is AuditRuling.INCONCLUSIVE  # too few tokens to be CLEAN
            assert (analysis.verdict, found.n_not_audited) == (Verdict.INCONCLUSIVE, 0)
        else:
            assert (both.gaps(part, CANDIDATE) > (1.0 if part is GREEDY else 16.0)).sum() >= n_foreign
            assert (analysis.verdict, found.ruling) == (Verdict.REGRESSION, AuditRuling.FOREIGN)
            assert found.worst[0].choice != found.worst[0].token


def test_one_token_in_500_is_found_in_200_answers_where_accuracy_sees_nothing() -> None:
    with audited_pair(Fault.REPLACED, sizes={"sums": 200}, settings={"max_gen_toks": 100}, ends=9_999) as both:
        analysis = both.compared(audit=True, audit_items=0)
        found = audit_in(analysis)
        assert found.ruling is AuditRuling.FOREIGN
        assert found.pvalue_foreign is not None
        assert found.pvalue_foreign < 1e-6
        assert {row.verdict for row in analysis.metrics} <= {Verdict.EQUIVALENT, Verdict.INCONCLUSIVE}


def test_both_arms_are_asked_the_same_bytes_at_a_temperature_of_1_without_anything_that_changes_it() -> None:
    sizes = {"stress": 30, "sums": 6, "words": 30}
    with audited_pair(sizes=sizes, settings={"top_k": 20, "presence_penalty": 0.5}) as both:
        both.compared(**AUDITED)
        first, second = (Counter(body for _, body in server.requests) for server in (both.off, both.on))
        asked = bodies(both.off, temperature=1)
        assert {json.dumps(body) for body in asked} == {json.dumps(body) for body in bodies(both.on, temperature=1)}
        assert {tuple(body[name] for name in NEUTRAL) for body in asked} == {(-1, 0, 1, 0, 0)}
        assert {(body["top_p"], body["max_tokens"], tuple(body["stop"])) for body in asked} == {(1, 32, ("END",))}
        assert Counter(body["prompt"].split()[0] for body in asked) == {"stress": 10, "sums": 5, "words": 5}
        assert len({body["seed"] for body in asked}) == len(asked) == 20
        assert max((first | second).values()) <= 4  # probes alone are sent more than once
        assert len(bodies(both.off, return_token_ids=True)) > sum(sizes.values())
        assert both.scored(GREEDY) == []  # drawn with a penalty: the model's own choices are others
        assert both.store.n_answered(both.comparison.id)[BASELINE] == sum(sizes.values())


def test_a_budget_is_kept_with_the_same_items_in_both_arms() -> None:
    with audited_pair(sizes={"sums": 20, "stress": 3}) as both:
        both.compared(**AUDITED | {"audit_items": 0, "audit_tokens": 500})
        sizes = {
            arm: {row.position: len(row.scores or b"") // 12 for row in both.scored(GREEDY, arm)} for arm in ArmName
        }
        assert sizes[BASELINE] == sizes[CANDIDATE]  # lossless
        assert 480 <= sum(sizes[BASELINE].values()) * 2 <= 500
        tasks = {item.position: item.task for item in both.store.items(both.comparison.id)}
        assert [tasks[position] for position in sizes[BASELINE]].count("stress") == 3
        assert {len(row.token_ids) // 4 * 12 - len(row.scores or b"") for row in both.scored(GREEDY)} > {0}  # the last


class Dying(HttpEndpoint):
    """Ends the job after so many scored answers."""

    job: asyncio.Task[Any] | None = None
    left = 0

    async def score(self, *given: Any, **named: Any) -> Any:
        scores = await super().score(*given, **named)
        Dying.left -= 1
        if Dying.left == 0 and Dying.job:
            Dying.job.cancel()
        return scores


def killed_while_scoring(both: Audited, after: int, **changes: Any) -> None:
    both.open_endpoint, Dying.left = Dying, after

    async def run() -> None:
        Dying.job = asyncio.create_task(start(both.services, both.wanted(**changes)))
        with pytest.raises(asyncio.CancelledError):
            await Dying.job

    asyncio.run(run())
    both.open_endpoint = HttpEndpoint


@pytest.mark.parametrize("while_scoring", [True, False])
def test_a_killed_audit_goes_on_asks_and_scores_nothing_twice_and_ends_as_a_whole_one(while_scoring: bool) -> None:
    with audited_pair() as both:
        if while_scoring:
            killed_while_scoring(both, 50, **AUDITED)
        else:
            assert both.compared(killed_after=30 + 10, **AUDITED) is None
        assert both.comparison.status is ComparisonStatus.INTERRUPTED
        stored = [row for part in (GREEDY, SAMPLED) for row in both.scored(part)]
        assert len(stored) >= (60 if while_scoring else 16)
        n_before = len(scorings(both.off)), len(bodies(both.on, temperature=1))
        analysis = both.resumed()
        in_flight = 4
        sent = [tuple(body["prompt"]) for body in scorings(both.off)]
        assert len(sent) - len(set(sent)) <= in_flight * while_scoring  # answers that are the same are scored once
        assert 20 <= len(bodies(both.on, temperature=1)) <= 20 + in_flight * (not while_scoring)
        assert n_before[not while_scoring] < (20 if not while_scoring else 100)
        asked = len(both.off.requests), len(both.on.requests)
        again = both.audited()
        assert audit_in(again) == audit_in(analysis)
        assert len(scorings(both.off)) == len(sent)
        assert len(both.off.requests) - asked[0] <= 4  # probes
    with audited_pair() as whole:
        assert audit_in(whole.compared(**AUDITED)).foreign == audit_in(analysis).foreign


@contextmanager
def broken_from(server: ScriptedServer, n: int, *, setting: str = "prompt_logprobs") -> Iterator[None]:
    """Lets the server fail at requests with a setting that is not 0, from the nth on: at scoring, unless given."""
    route, left = ("POST", "/v1/completions"), n
    works = server.routes[route]

    async def step(request: Any) -> Any:
        nonlocal left
        is_such = bool((await request.json()).get(setting))
        left -= is_such
        return await (BROKEN if is_such and left < 0 else works)(request)

    server.routes[route] = step
    yield
    server.routes[route] = works


def test_a_server_that_fails_in_the_middle_costs_the_audit_and_not_the_verdict_and_the_rest_is_audited_later() -> None:
    with audited_pair() as both:
        with broken_from(both.off, 25):
            analysis = both.compared(**AUDITED)
        assert (analysis.verdict, both.comparison.status) == (Verdict.INCONCLUSIVE, ComparisonStatus.FINISHED)
        assert both.seen.lack is not None
        assert f"qualab audit {both.comparison.id}" in english(both.seen.lack)
        assert audit_in(analysis).ruling is AuditRuling.INCONCLUSIVE
        n_scored = sum(bool(row.scores) for part in (GREEDY, SAMPLED) for row in both.scored(part))
        assert 20 <= n_scored < 80
        before = len(scorings(both.off))
        again = both.audited()
        assert both.seen.lack is None
        assert len(scorings(both.off)) - before <= 100 - n_scored
        assert all(row.scores for part in (GREEDY, SAMPLED) for row in both.scored(part))
        assert audit_in(again).n_not_audited == 0
        assert [arm.n_answers for arm in audit_in(again).foreign] == [30, 30]


def test_a_candidate_that_fails_when_sampling_leaves_the_greedy_answers_audited_and_is_asked_again_later() -> None:
    with audited_pair() as both:
        with broken_from(both.on, 8, setting="temperature"):
            found = audit_in(both.compared(**AUDITED))
        assert [arm.n_answers for arm in found.foreign] == [30, 30]
        assert found.reason.code == "audit.early"
        assert "The candidate at" in english(found.reason.values["why"])
        n_asked = len(bodies(both.off, temperature=1))
        assert audit_in(both.audited()).n_not_audited == 0
        assert [len(both.scored(SAMPLED, arm)) for arm in ArmName] == [20, 20]
        assert len(bodies(both.off, temperature=1)) <= 20 + 4 < n_asked + 20


def retokenized_otherwise(both: Audited) -> None:
    for server in (both.off, both.on):
        server.routes["POST", "/detokenize"] = reply({"prompt": "another text"})


def nothing(_: Audited) -> None: ...


@pytest.mark.parametrize(
    ("options", "change", "expected"),
    [
        ({"engine": {"rejects": ("prompt_logprobs", "echo")}}, nothing, (AuditRuling.UNOBSERVED, None, 0, 0)),
        ({"tells": ("top_k",)}, nothing, (AuditRuling.INCONCLUSIVE, "told", 0, 100)),
        ({"tells": ("top_k",)}, retokenized_otherwise, (AuditRuling.INCONCLUSIVE, "told", 100, 100)),
        ({"length": 40}, nothing, (AuditRuling.INCONCLUSIVE, "told", 30, 100)),
    ],
    ids=["cannot score", "ids of texts", "other texts", "short context"],
)
def test_what_cannot_be_audited_is_counted_once_and_never_tried_again(
    options: dict[str, Any], change: Any, expected: tuple[AuditRuling, str | None, int, int]
) -> None:
    ruling, form, n_not_audited, n_rows = expected
    with audited_pair(**options) as both:
        change(both)
        analysis = both.compared(**AUDITED)
        found = audit_in(analysis)
        assert (found.ruling, both.seen.lack) == (ruling, None)
        assert both.seen.scoring is (ScoringForm.PROMPT_LOGPROBS if form else None)
        assert found.n_not_audited >= n_not_audited
        rows = [row for part in (GREEDY, SAMPLED) for row in both.scored(part)]
        assert len(rows) == n_rows
        assert {row.token_ids for row in rows if row.scores == b""} <= {b""}
        assert len(bodies(both.on, temperature=1)) == (20 if form else 0)
        before = len(scorings(both.off)), len(both.off.tokenized)
        both.audited()
        assert len(scorings(both.off)) == before[0]


def test_arm_by_arm_each_turn_asks_its_own_and_the_baseline_is_needed_once_more() -> None:
    with audited_pair() as both:
        turns = Turns(both)
        assert turns.take(BASELINE, **AUDITED) is None
        assert last_seen(both.store.observations(both.comparison.id), AuditSeen) is None
        analysis = turns.take(CANDIDATE)
        assert lacks_baseline(both.store, both.comparison.id)
        assert audit_in(analysis).ruling is AuditRuling.INCONCLUSIVE
        assert "with it served again" in english(audit_in(analysis).reason.values["why"])
        turns.serve(BASELINE)
        again = both.audited(arms=[BASELINE])
        assert [arm.n_answers for arm in counts(audit_in(again))] == [30, 30, 20, 20]
        assert both.comparison.status is ComparisonStatus.FINISHED
        assert not lacks_baseline(both.store, both.comparison.id)
        assert [len(bodies(server, temperature=1)) for server in turns.servers] == [20, 20, 0]
        turns.stop()


@dataclass
class Stress(MadeUpTasks):
    """Items over chat that name a schema."""

    applies_chat_template: bool = True
    sizes: Any = field(default_factory=lambda: {"stress": 12})

    def render(self) -> Iterator[Item]:
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
        for item in super().render():
            text = json.dumps([{"role": "user", "content": item.prompts[0].text}])
            prompts = (Prompt(text=text, is_chat=True, gen_kwargs=item.prompts[0].gen_kwargs),)
            yield replace(item, doc={**item.doc, "response_format": json.dumps(schema)}, prompts=prompts)


@pytest.mark.parametrize("rejects", [(), ("response_format",)])
def test_items_with_a_schema_are_asked_with_it_unless_that_is_refused(rejects: tuple[str, ...]) -> None:
    with audited_pair(engine={"rejects": rejects}) as both:
        both.tasks = Stress()
        analysis = both.compared(**AUDITED)
        assert len(bodies(both.on, response_format=...)) == (1 if rejects else 12)
        assert len(both.scored(STRUCTURED)) == (2 if rejects else 24)
        assert {row.scores for row in both.scored(STRUCTURED)} == {b""}
        notes = english(audit_in(analysis).notes)
        assert notes == (
            ("The baseline and the candidate refused a request with a response format: no item was asked so.",)
            if rejects
            else ()
        )
        assert both.seen.lack is None
        assert [arm.n_answers for arm in audit_in(analysis).foreign] == [12, 12]
        both.audited()
        assert len(bodies(both.on, response_format=...)) == (1 if rejects else 12)


def test_a_finished_comparison_without_an_audit_gets_one_with_the_given_sizes() -> None:
    with audited_pair() as both:
        assert both.compared(audit=False).audit is None
        found = audit_in(both.audited(audit_items=12, audit_max_tokens=16))
        assert (found.is_planned, both.seen.plan.sampled_items) == (False, 12)
        assert [arm.n_answers for arm in counts(found)] == [30, 30, 12, 12]
        assert max(len(unpack_ids(row.token_ids)) for row in both.scored(SAMPLED)) == 16
        assert both.comparison.plan.audit is None


def test_limits_of_the_audit_that_follow_the_data_are_named() -> None:
    with audited_pair() as both:
        both.compared(audit=True, audit_items=0)
        plan = both.comparison.plan
        for later, says in (
            (AuditPlan(tau=3.0, sampled_items=0), "audit_tau 1.0 to 3.0"),
            (None, "audit True to False"),
            (AuditPlan(greedy_tokens=5), "nothing that decides"),
        ):
            again = compare_again(both.services, both.comparison.id, other=replace(plan, audit=later))
            assert f"made after the data (changed: {says})" in english(again.analysis.reasons)[0]


def signed(both: Audited) -> None:
    both.compared(audit=False)
    sign_off(both.store, both.comparison.id, signed_by="a", override="a test", who="a", at=START)


def unfinished(both: Audited) -> None:
    assert both.compared(killed_after=10, audit=False) is None


def generating_nothing(both: Audited) -> None:
    both.tasks = MadeUpTasks(scored=("sums",))
    both.compared(audit=False)


def with_a_plan(both: Audited) -> None:
    both.compared(**AUDITED)


def another_now(both: Audited) -> None:
    both.compared(audit=False)
    both.replace_candidate(EngineScript(settings=TELLS), drafts=False)


@pytest.mark.parametrize(
    ("prepare", "error", "says"),
    [
        (signed, ComparisonSignedOff, "is signed off"),
        (unfinished, WrongState, "it has no verdict yet.*qualab resume"),
        (generating_nothing, InvalidValue, "there are no tokens to audit"),
        (with_a_plan, InvalidValue, "holds the audit's sizes"),
        (another_now, PairDiffers, "drafter"),
    ],
)
def test_what_cannot_be_audited_is_refused_and_stays_as_it_was(
    prepare: Any, error: type[QualabError], says: str
) -> None:
    with audited_pair() as both:
        prepare(both)
        before = both.comparison.status, both.store.analysis(both.comparison.id)
        refused = partial(auditable, both.services, both.comparison.id, is_given=True)
        with pytest.raises(error, match=says):
            (both.audited if prepare is another_now else refused)()
        assert (both.comparison.status, both.store.analysis(both.comparison.id)) == before


def test_answers_from_a_bank_are_audited_and_the_baseline_scores_them() -> None:
    with audited_pair() as both:
        first = both.compared(noise_floor_runs=1, **AUDITED)
        add_bank(both.store, "nightly", first.comparison_id, who="me", now=START)
        both.off.seen.clear()
        analysis = both.compared(bank="nightly", bank_sample=10, **AUDITED)
        assert audit_in(analysis).ruling is not AuditRuling.UNOBSERVED
        assert audit_in(analysis).foreign == audit_in(first).foreign
        assert len(bodies(both.off, max_tokens=64)) == 10
        with pytest.raises(InvalidValue, match="are not byte for byte what it asked"):
            both.compared(bank="nightly", audit=False)
