"""Audits the tokens of a run's answers: asks some items again, then the baseline scores what both arms generated.

Whatever a server does here, the verdict on accuracy is still made: what kept an audit from its end is in its AuditSeen.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from qualab.errors import (
    ComparisonBusy,
    ComparisonNotFound,
    EndpointUnreachable,
    QualabError,
    RunStopped,
    ScoringUnavailable,
    StoreError,
)
from qualab.model.audit import NEUTRAL, ScoredAnswer, Scoring, TokenScores, is_chosen, is_free, pack_ids, unpack_ids
from qualab.model.engine import AuditSeen, EngineKind, engines_seen, last_seen
from qualab.model.items import ENGINE_SETTINGS, Answer, Item, Reply, Request, generations
from qualab.model.names import AnswerStatus, Api, ArmName, AuditPart
from qualab.model.plan import AuditPlan, SamplingPlan
from qualab.model.reason import Reason
from qualab.model.structured import STRESS, structured_request
from qualab.report.words import ENGLISH
from qualab.run.ask import Arm, Recorder, ask_in_step, feed, jobs_of, kept_alive, lacking, looked_to, own_error
from qualab.run.prepare import Run

if TYPE_CHECKING:
    from qualab.endpoints.replicas import Endpoint
    from qualab.store import Store

MOST_LOST = 5
"""Items that the baseline fails to score, after which it is asked no more."""
FEWEST_ANSWERS = 12
"""Answers of a part and arm over which an engine's few tokens are spread."""
SAY_EVERY_S = 10.0
BASELINE_AWAY = "audit-lack.baseline-away"
SAID = {"format": "with a response format", "tools": "with tools", "sampled": "at temperature 1"}
PARTS = {"format": AuditPart.STRUCTURED, "tools": AuditPart.STRUCTURED, "sampled": AuditPart.SAMPLED}
"""Groups of items asked again, each of which an engine may refuse by itself."""


async def telling_ids(endpoints: Mapping[ArmName, Endpoint], api: Api) -> dict[str, object]:
    """Return the setting that makes answers tell their token ids, where every served arm names it."""
    return {"return_token_ids": True} if "return_token_ids" in await _settings(endpoints, api) else {}


async def _settings(endpoints: Mapping[ArmName, Endpoint], api: Api) -> frozenset[str]:
    named = await asyncio.gather(*(endpoint.settings(api) for endpoint in endpoints.values()))
    return frozenset.intersection(*(own or frozenset() for own in named))


async def audit_answers(run: Run, plan: AuditPlan) -> None:
    """Ask and score what the audit lacks, and store how it ended, unless that is stored already.

    Only the baseline scores; its turn before the candidate's ends no audit. Raises what the store raises, and nothing
    of what the servers do.
    """
    services, baseline = run.services, run.endpoints.get(ArmName.BASELINE)
    earlier = last_seen(await asyncio.to_thread(services.store.observations, run.id), AuditSeen)
    audit, scoring = _Audit(run, plan), None
    can_score = earlier is None or earlier.scoring is not None or earlier.lack is not None
    if baseline:
        with audit.going_on():
            scoring = await baseline.scoring(model=run.plan.sampling.model)
            can_score = scoring is not None
    with audit.going_on():
        await audit.ask(scoring, can_score=can_score)
    if baseline and scoring:
        with audit.going_on():
            await audit.score(baseline, scoring)
    elif can_score and not baseline:
        audit.lacks.append(Reason(BASELINE_AWAY, {"id": run.id}))
    known = earlier if baseline is None else None
    seen = AuditSeen(
        seen_at=services.clock.now(),
        plan=plan,
        scoring=scoring.form if scoring else known.scoring if known else None,
        vocabulary=scoring.vocabulary if scoring else known.vocabulary if known else None,
        lack=next(iter(audit.lacks), None),
        notes=tuple(audit.notes),
    )
    n_answered = await asyncio.to_thread(services.store.n_answered, run.id)
    if can_score and not n_answered[ArmName.CANDIDATE]:  # the candidate's turn follows
        return
    for reason in (*audit.lacks, *audit.notes):
        services.progress.phase(ENGLISH.reason(reason))
    if earlier is None or replace(seen, seen_at=earlier.seen_at) != earlier:
        await asyncio.to_thread(services.store.add_observation, run.id, seen)


class ToScore(NamedTuple):
    """An answer to be scored, as it is stored so far."""

    answer: ScoredAnswer
    text: str | None
    """To be tokenized where the ids are not known; None where that cannot give them."""
    prompt_tokens: int | None
    """Count by the engine."""
    limit: int | None
    """Tokens that are scored, the first ones; None scores all."""


@dataclass(slots=True)
class _Audit:
    run: Run
    plan: AuditPlan
    lacks: list[Reason] = field(default_factory=list)
    notes: list[Reason] = field(default_factory=list)
    others: tuple[str, ...] = ()
    """Other comparisons of its group."""

    @property
    def store(self) -> Store:
        return self.run.services.store

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Note what a server fails at, and go on; what the store raises passes."""
        try:
            yield
        except (StoreError, ComparisonBusy, ComparisonNotFound):
            raise
        except QualabError as error:
            why = error.details["reason"] if isinstance(error, RunStopped) else error.message
            self.lacks.append(Reason("audit-lack.stopped", {"why": why, "id": self.run.id}))
        finally:
            self.run.services.progress.finished()

    async def ask(self, scoring: Scoring | None, *, can_score: bool) -> None:
        """Ask both parts' missing answers of the arms that are served. Raises as `ask_all`, and of the settings."""
        run, store = self.run, self.store
        looks = await asyncio.to_thread(store.looks, run.id)
        asked = run.items[: looked_to(looks)] if looks else run.items
        groups = _structured(asked, run.plan.sampling)
        if can_score:
            cap, plan = answer_cap(scoring), self.plan
            if cap is not None:  # no more is asked than will be scored
                n_items, n_tokens = min(plan.sampled_items, FEWEST_ANSWERS), min(plan.sampled_max_tokens, cap)
                plan = replace(plan, sampled_items=n_items, sampled_max_tokens=n_tokens)
            chosen = sampled_items(asked, plan.sampled_items, seed=run.plan.sampling.seed)
            neutral = await self._neutral_settings() if chosen else {}
            groups["sampled"] = [
                replace(item, requests=(sampled_request(item.requests[0], plan, neutral),)) for item in chosen
            ]
        stored = await asyncio.to_thread(lambda: {_place(answer) for answer in store.scored(run.id)})
        places = [
            (PARTS[name], arm, item.position) for name, own in groups.items() for item in own for arm in run.endpoints
        ]
        if {*places} <= stored:
            return
        totals = {arm: sum(own is arm for _, own, _ in places) for arm in ArmName}
        done = {arm: sum(place[1] is arm and place in stored for place in places) for arm in ArmName}
        run.services.progress.finished()  # of what was asked before
        run.services.progress.started(run.comparison, totals=totals, done=done)
        for name, items in groups.items():
            if items:
                run.services.progress.phase(f"Token audit: asking {len(items):,} items again {SAID[name]}")
                done_before = {(arm, at, 0, 0) for part, arm, at in stored if part is PARTS[name]}
                await self._ask_group(name, items, done_before)

    async def _ask_group(self, name: str, items: Sequence[Item], done: set[tuple[ArmName, int, int, int]]) -> None:
        run, seed, part = self.run, self.run.plan.sampling.seed, PARTS[name]
        first = min(items, key=lambda item: len(item.prompts[0].text))  # tells whether such requests are taken at all
        items = [first, *(item for item in items if item is not first)]
        refusing: list[ArmName] = []

        def answers(positions: set[int]) -> list[ScoredAnswer]:
            stored = self.store.scored(run.id, positions=positions)
            return [answer for answer in stored if answer.part is part and answer.arm in run.endpoints]

        async def is_taken() -> bool:
            own = await asyncio.to_thread(answers, {first.position})
            refusing.extend(answer.arm for answer in own if answer.status is AnswerStatus.REJECTED)
            return not refusing

        concurrency = run.plan.policy.concurrency
        arms = [Arm(name=n, endpoint=e, total=len(items), concurrency=concurrency) for n, e in run.endpoints.items()]
        recorder = Recorder(partial(_put_asked, self.store, run.id, part))
        feeding = feed(
            items,
            arms,
            lacking({0: done}),
            jobs=lambda item: jobs_of(item, seed=seed + item.position),
            recorder=recorder,
            pauses=[(1, is_taken)],
        )
        await ask_in_step(run, arms, recorder, feeding)
        if refusing:
            self.notes.append(Reason(f"audit-note.{name}-refused", {"arms": tuple(refusing)}))
            return
        n_stored = len(await asyncio.to_thread(answers, {item.position for item in items}))
        if n_lost := len(items) * len(arms) - n_stored:
            self.lacks.append(Reason("audit-lack.unanswered", {"n": n_lost, "id": run.id}))

    async def _neutral_settings(self) -> dict[str, object]:
        """Return what leaves the model's probabilities as they are, of the settings that the engines take."""
        run = self.run
        engines = engines_seen(await asyncio.to_thread(self.store.observations, run.id))
        kind = engines[ArmName.BASELINE].kind if ArmName.BASELINE in engines else EngineKind.UNKNOWN
        taken = await _settings(run.endpoints, run.plan.sampling.api) or ENGINE_SETTINGS.get(kind, frozenset())
        neutral = {name: value for name, value in NEUTRAL.items() if name in taken or name == "top_p"}
        if kind is EngineKind.LLAMA_CPP:
            neutral |= {"top_k": 0, "presence_penalty": 0, "frequency_penalty": 0}
        return neutral | ({"return_token_ids": True} if "return_token_ids" in taken else {})

    async def score(self, endpoint: Endpoint, scoring: Scoring) -> None:
        """Score what is stored unscored; an item's answers are committed together."""
        if own_group := self.run.plan.group:
            members = await asyncio.to_thread(self.store.group, own_group.id)
            self.others = tuple(own.id for own in members if own.id != self.run.id)
        run, progress, clock = self.run, self.run.services.progress, self.run.services.clock
        with kept_alive(run):
            items = await asyncio.to_thread(self._to_score, scoring)
            total, n_done, n_lost = sum(map(len, items.values())), 0, 0
            if not total:
                return
            progress.phase(f"Token audit: the baseline scores {total:,} answers")
            recorder, waiting = Recorder(partial(self.store.put_scored, run.id)), iter(items.items())
            said_s = clock.monotonic_s()

            async def work() -> None:
                nonlocal n_done, n_lost, said_s
                for position, answers in waiting:
                    try:
                        async for scored in self._scored(endpoint, scoring, run.items[position].requests[0], answers):
                            recorder.hold(scored)
                            n_done += 1
                    except EndpointUnreachable as error:
                        n_lost += 1
                        if n_lost >= MOST_LOST:
                            raise
                        progress.phase(f"Token audit: {error.message}")
                    await recorder.stored()
                    if clock.monotonic_s() - said_s >= SAY_EVERY_S:
                        said_s = clock.monotonic_s()
                        progress.phase(f"Token audit: {n_done:,} of {total:,} answers are scored")

            try:
                with own_error():
                    async with asyncio.TaskGroup() as group:
                        for _ in range(run.plan.policy.concurrency):
                            group.create_task(work())
            finally:
                await recorder.flush()
            if n_lost:
                self.lacks.append(Reason("audit-lack.unscored", {"n": total - n_done, "id": run.id}))

    async def _scored(
        self, endpoint: Endpoint, scoring: Scoring, request: Request, answers: Sequence[ToScore]
    ) -> AsyncIterator[ScoredAnswer]:
        """Yield an item's answers with their scores, without any where they cannot be audited."""
        model = self.run.plan.sampling.model
        prompt: tuple[int, ...] | None = None
        known = await asyncio.to_thread(self._scored_elsewhere, answers[0].answer.position)
        for answer, text, prompt_tokens, limit in answers:
            ids: tuple[int, ...] | None = unpack_ids(answer.token_ids)
            scored = replace(answer, token_ids=b"", scores=b"")
            try:
                if is_again := not ids and bool(text):
                    ids = await endpoint.answer_ids(text or "", model=model)
                if ids:
                    prompt = prompt or await endpoint.prompt_ids(request, model=model)
                    if prompt_tokens in (None, len(prompt)):
                        key = ids[:limit]
                        if key not in known:  # greedy answers of both arms are mostly the same
                            known[key] = await endpoint.score(prompt, key, model=model, scoring=scoring)
                        scored = replace(
                            answer,
                            token_ids=pack_ids(ids),
                            is_tokenized_again=is_again,
                            scores=known[key].scores,
                            pieces=known[key].pieces,
                        )
            except ScoringUnavailable:  # this text: the next may be taken
                pass
            yield scored

    def _scored_elsewhere(self, position: int) -> dict[tuple[int, ...], TokenScores]:
        """Read what the baseline has scored of this item's greedy answers in other comparisons of the group."""
        return {
            unpack_ids(own.token_ids): TokenScores(scores=own.scores, pieces=own.pieces)
            for other in self.others
            for own in self.store.scored(other, positions={position}, with_pieces=True)
            if own.scores and own.pieces and own.part is AuditPart.GREEDY
        }

    def _to_score(self, scoring: Scoring) -> dict[int, list[ToScore]]:
        """Choose answers by position: the same greedy ones in both arms, and all sampled ones, within the budgets."""
        cap = answer_cap(scoring)
        stored = {_place(answer): answer for answer in self.store.scored(self.run.id)}
        replies = {
            (arm, answer.position): answer.reply
            for arm in ArmName
            for answer in self.store.answers(self.run.id, arm=arm)
            if (answer.choice, answer.repeat) == (0, 0)
        }
        chosen: dict[int, list[ToScore]] = {}
        left = self.plan.greedy_tokens
        if scoring.most_tokens is not None:
            left = min(left, scoring.most_tokens // len(ArmName))  # sampled answers take the other half
        for item in greedy_items(self.run.items, seed=self.run.plan.sampling.seed):
            own = [replies.get((arm, item.position)) for arm in ArmName]
            pair = [reply for reply in own if reply and (reply.status.is_answer or reply.token_ids)]
            if len(pair) < len(own):
                continue
            lengths = [_n_tokens(reply) for reply in pair]
            most = max(lengths) if cap is None else cap
            if sum(min(length, most) for length in lengths) > left:
                most = left // 2
                if not most:
                    break
            for arm, reply, length in zip(ArmName, pair, lengths, strict=True):
                left -= min(length, most)
                if (AuditPart.GREEDY, arm, item.position) not in stored:
                    unscored = ScoredAnswer(
                        part=AuditPart.GREEDY,
                        arm=arm,
                        position=item.position,
                        status=reply.status,
                        finish_reason=reply.finish_reason,
                        text=None,
                        token_ids=reply.token_ids or b"",
                    )
                    limit = most if length > most else None
                    text = reply.text if _may_be_scored(reply) else None
                    chosen.setdefault(item.position, []).append(ToScore(unscored, text, reply.prompt_tokens, limit))
        for answer in stored.values():
            if answer.part is AuditPart.SAMPLED and answer.scores is None:
                planned = replies.get((answer.arm, answer.position))
                prompt_tokens = planned.prompt_tokens if planned else None
                chosen.setdefault(answer.position, []).append(ToScore(answer, answer.text, prompt_tokens, cap))
        return chosen


def answer_cap(scoring: Scoring | None) -> int | None:
    """Return the tokens of an answer that an engine of few tokens scores: two parts of two arms share them."""
    if scoring is None or scoring.most_tokens is None:
        return None
    return max(1, scoring.most_tokens // (2 * len(ArmName) * FEWEST_ANSWERS))


def greedy_items(items: Sequence[Item], *, seed: int) -> list[Item]:
    """Draw the order in which answers at temperature 0 are scored, stress first; not those with penalties."""
    drawn = (item for item in _drawn(items, seed=seed) if is_chosen(item.requests[0].payload))
    return sorted(drawn, key=lambda item: item.task != STRESS)


def sampled_items(items: Sequence[Item], n_items: int, *, seed: int) -> list[Item]:
    """Draw items to be asked again: half of them stress where there are any, the others of the tasks in turn."""
    by_task: dict[str, list[Item]] = {}
    for item in _drawn(items, seed=seed):
        by_task.setdefault(item.task, []).append(item)
    stress = by_task.pop(STRESS, [])
    others = [item for row in zip_longest(*by_task.values()) for item in row if item is not None]
    n_stress = max(n_items // 2, n_items - len(others))
    return [*stress[:n_stress], *others[: n_items - min(n_stress, len(stress))]]


def _drawn(items: Sequence[Item], *, seed: int) -> list[Item]:
    """Put generations into a drawn order, without those whose tokens something else than the model chooses."""
    free = [item for item in generations(items) if is_free(item.requests[0].payload)]
    random.Random(f"{seed}:audit").shuffle(free)
    return free


def sampled_request(request: Request, plan: AuditPlan, neutral: Mapping[str, object]) -> Request:
    """Make the request that draws from the model's own probabilities."""
    payload = request.payload
    given = {name: value for name, value in NEUTRAL.items() if name in payload}
    length = min(payload["max_tokens"], plan.sampled_max_tokens)
    return replace(request, payload={**payload, **given, **neutral, "temperature": 1, "max_tokens": length})


def _structured(items: Sequence[Item], sampling: SamplingPlan) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = {"format": [], "tools": []}
    for item in generations(items):
        if request := structured_request(item, sampling=sampling):
            name = "tools" if "tools" in request.payload else "format"
            groups[name].append(replace(item, requests=(request,)))
    return groups


def _put_asked(store: Store, comparison_id: str, part: AuditPart, answers: Sequence[Answer]) -> None:
    """Store what the arms said; what failed is asked again where the audit goes on."""
    asked = [
        ScoredAnswer(
            part=part,
            arm=answer.arm,
            position=answer.position,
            status=answer.reply.status,
            finish_reason=answer.reply.finish_reason,
            text=answer.reply.text,
            token_ids=answer.reply.token_ids or b"",
            scores=None if part is AuditPart.SAMPLED and _may_be_scored(answer.reply) else b"",
        )
        for answer in answers
        if not answer.reply.status.is_failure
    ]
    if asked:
        store.put_scored(comparison_id, asked)


def _may_be_scored(reply: Reply) -> bool:
    """True where the token ids are known, or the text may give them: it does not where there are thoughts apart."""
    return bool(reply.token_ids or (reply.text and not reply.reasoning_characters))


def _n_tokens(reply: Reply) -> int:
    """Tokens of an answer, about so many where the engine does not count; 0 where they cannot be known."""
    if reply.token_ids:
        return len(unpack_ids(reply.token_ids))
    is_known = _may_be_scored(reply)
    return (reply.completion_tokens or len(reply.text or "")) if is_known else 0


def _place(answer: ScoredAnswer) -> tuple[AuditPart, ArmName, int]:
    return answer.part, answer.arm, answer.position
