"""A store in memory that behaves as the database does: shipped, and for tests."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count

from qualab.errors import StoreError
from qualab.model.canonical import canonical_json
from qualab.model.comparison import Analysis, Comparison, Look, SealedAnalysis, SignOff, seal_of
from qualab.model.engine import Observation
from qualab.model.items import Answer, Change, Item, ItemHead, Outcome, Reply, Score, ScoreFlip
from qualab.model.names import ArmName, ComparisonStatus, Verdict
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import (
    Claim,
    ambiguous,
    busy,
    impossible_outcome,
    is_gone,
    may_claim,
    not_found,
    not_next,
    taken,
)
from qualab.model.wording import storable_text, valid_text

Place = tuple[ArmName, int, int, int]
RunPlace = tuple[int, ArmName, int, int, int]


@dataclass(slots=True, kw_only=True)
class Kept:
    """Everything about one comparison."""

    comparison: Comparison
    number: int
    items: dict[int, Item]
    claim: Claim | None = None
    answers: dict[RunPlace, Answer] = field(default_factory=dict)
    scores: tuple[Score, ...] = ()
    looks: tuple[Look, ...] = ()
    observations: tuple[Observation, ...] = ()
    analyses: dict[str, Analysis] = field(default_factory=dict)
    """The newest by the hash of its plan."""
    seals: list[SealedAnalysis] = field(default_factory=list)
    outcomes: tuple[Outcome, ...] = ()
    signoffs: tuple[SignOff, ...] = ()


class MemoryStore:
    """`qualab.model.ports.Store` for one process and one thread."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self._numbers = count()

    def create(self, comparison: Comparison, items: Iterable[Item]) -> None:
        if comparison.id in self.kept:
            raise taken(comparison.id)
        kept = _index(items)
        cleaned = replace(
            comparison,
            label=storable_text(comparison.label),
            stop_reason=storable_text(comparison.stop_reason),
            baseline_url=storable_text(comparison.baseline_url),
            candidate_url=storable_text(comparison.candidate_url),
            created_at=as_utc(comparison.created_at),
            started_at=None if comparison.started_at is None else as_utc(comparison.started_at),
            finished_at=None if comparison.finished_at is None else as_utc(comparison.finished_at),
        )
        self.kept[comparison.id] = Kept(comparison=cleaned, number=next(self._numbers), items=kept)

    def put_whole(
        self,
        comparison: Comparison,
        items: Iterable[Item],
        answers: Iterable[Answer],
        scores: Iterable[Score],
        analysis: Callable[[], Analysis],
        *,
        now: datetime,
    ) -> Analysis:
        if comparison.id in self.kept:
            raise taken(comparison.id)
        whole = MemoryStore()
        whole.create(comparison, items)
        whole.add_answers(comparison.id, list(answers))
        whole.put_scores(comparison.id, scores)
        found = analysis()
        whole.put_analysis(found, now=now)
        self.kept[comparison.id] = replace(whole.kept[comparison.id], number=next(self._numbers))
        return found

    def get(self, comparison_id: str) -> Comparison:
        if comparison_id in self.kept:
            return self.kept[comparison_id].comparison
        found = [kept.comparison for id_, kept in self.kept.items() if comparison_id and id_.startswith(comparison_id)]
        if len(found) > 1:
            raise ambiguous(comparison_id, [comparison.id for comparison in found])
        if not found:
            raise not_found(comparison_id)
        return found[0]

    def list(self, wanted: ComparisonFilter) -> list[Comparison]:
        newest_first = sorted(
            self.kept.values(), key=lambda kept: (kept.comparison.created_at, kept.number), reverse=True
        )
        matching = [kept.comparison for kept in newest_first if _is_wanted(kept.comparison, wanted)]
        return matching[: max(wanted.limit, 0)]

    def items(self, comparison_id: str, *, positions: Collection[int] | None = None) -> Iterator[Item]:
        items = self.of(comparison_id).items
        return iter([items[one] for one in sorted(items) if positions is None or one in positions])

    def heads(self, comparison_id: str, *, positions: Collection[int]) -> Iterator[ItemHead]:
        """In order of position, without what items hold."""
        for one in self.items(comparison_id, positions=positions):
            yield ItemHead(position=one.position, task=one.task, doc_id=one.doc_id, kind=one.kind)

    def n_requests(self, comparison_id: str) -> int:
        """How many requests its items have, each counted once."""
        return sum(len(one.requests) for one in self.items(comparison_id))

    def claim(self, comparison_id: str, *, runner: str, now: datetime, stale_after_s: float) -> None:
        kept = self.of(comparison_id)
        if not may_take(kept.claim, runner=runner, now=now, stale_after_s=stale_after_s):
            raise busy(comparison_id, kept.claim)
        kept.claim = Claim(runner=runner, since=as_utc(now), heartbeat_at=as_utc(now))

    def heartbeat(self, comparison_id: str, *, runner: str, now: datetime) -> None:
        kept = self.of(comparison_id)
        if kept.claim is None or kept.claim.runner != runner:
            raise busy(comparison_id, kept.claim)
        kept.claim = replace(kept.claim, heartbeat_at=as_utc(now))

    def release(self, comparison_id: str, *, runner: str) -> None:
        kept = self.of(comparison_id)
        if kept.claim is not None and kept.claim.runner == runner:
            kept.claim = None

    def runners(self, comparison_ids: Sequence[str], *, now: datetime, stale_after_s: float) -> dict[str, Claim]:
        claims = {id_: kept.claim for id_, kept in self.kept.items() if id_ in comparison_ids and kept.claim}
        host = socket.gethostname()
        return {
            id_: claim
            for id_, claim in claims.items()
            if not is_gone(claim, now=now, stale_after_s=stale_after_s, host=host, is_alive=_is_this_process)
        }

    def set_status(self, comparison_id: str, status: ComparisonStatus, *, now: datetime, stop_reason: str = "") -> None:
        kept = self.of(comparison_id)
        before = kept.comparison
        is_finished = status is ComparisonStatus.FINISHED
        kept.comparison = replace(
            before,
            status=status,
            stop_reason=storable_text(stop_reason),
            started_at=before.started_at or (as_utc(now) if status is ComparisonStatus.RUNNING else None),
            finished_at=(before.finished_at or as_utc(now)) if is_finished else None,
            verdict=before.verdict if is_finished else None,
        )

    def add_answers(self, comparison_id: str, answers: Sequence[Answer]) -> int:
        kept = self.of(comparison_id)
        new: dict[RunPlace, Answer] = {}
        for answer in answers:
            if answer.position not in kept.items or not _is_possible(answer):
                raise StoreError("an answer is impossible, or belongs to an item that its comparison does not have")
            place = _place_of(answer)
            if place not in kept.answers and place not in new:
                new[place] = replace(answer, reply=_as_stored(answer.reply))
        kept.answers |= new
        duplicates = len(answers) - len(new)
        kept.comparison = replace(kept.comparison, duplicates=kept.comparison.duplicates + duplicates)
        return duplicates

    def answered(self, comparison_id: str, *, run: int = 0) -> set[Place]:
        return {place[1:] for place in self.of(comparison_id).answers if place[0] == run}

    def n_answered(self, comparison_id: str) -> Mapping[ArmName, int]:
        places = self.answered(comparison_id)
        return {arm: sum(place[0] is arm for place in places) for arm in ArmName}

    def n_unanswered(self, comparison_id: str) -> Mapping[ArmName, int]:
        own = [one for one in self.of(comparison_id).answers.values() if not one.run]
        return {arm: sum(one.arm is arm and not one.reply.status.is_answer for one in own) for arm in ArmName}

    def answers(
        self, comparison_id: str, *, arm: ArmName, run: int = 0, positions: Collection[int] | None = None
    ) -> Iterator[Answer]:
        of_run = (answer for answer in self.of(comparison_id).answers.values() if answer.run == run)
        wanted = (answer for answer in of_run if positions is None or answer.position in positions)
        of_arm = [answer for answer in wanted if answer.arm is arm]
        return iter(sorted(of_arm, key=_place_of))

    def drop_failures(self, comparison_id: str, *, from_position: int = 0) -> int:
        kept = self.of(comparison_id)
        before = len(kept.answers)
        kept.answers = {
            place: answer
            for place, answer in kept.answers.items()
            if (not answer.run and answer.position < from_position) or not answer.reply.status.is_failure
        }
        return before - len(kept.answers)

    def put_scores(self, comparison_id: str, scores: Iterable[Score]) -> None:
        kept = self.of(comparison_id)
        listed = [_checked(score) for score in scores]
        stored = {_score_key(score): score for score in listed}
        if len(stored) < len(listed) or any(score.position not in kept.items for score in listed):
            raise StoreError("a score comes twice, or belongs to an item that its comparison does not have")
        kept.scores = tuple(stored[key] for key in sorted(stored))
        kept.outcomes = ()

    def scores(self, comparison_id: str) -> Iterator[Score]:
        return iter(self.of(comparison_id).scores)

    def put_outcomes(self, comparison_id: str, outcomes: Iterable[Outcome]) -> None:
        kept = self.of(comparison_id)
        listed = sorted(outcomes, key=outcome_place)
        is_double = len(set(map(outcome_place, listed))) < len(listed)
        if is_double or not all(one.position in kept.items and _can_be(one) for one in listed):
            raise impossible_outcome()
        kept.outcomes = tuple(listed)

    def flips(self, comparison_id: str, *, metrics: Collection[str]) -> Iterator[ScoreFlip]:
        by_arm: dict[ArmName, dict[tuple[int, int, str], float]] = {arm: {} for arm in ArmName}
        for score in self.of(comparison_id).scores:
            if score.metric in metrics:
                by_arm[score.arm][score.position, score.repeat, score.metric] = score.value
        off, on = by_arm[ArmName.BASELINE], by_arm[ArmName.CANDIDATE]
        for place in sorted(off.keys() & on.keys()):
            if off[place] != on[place]:
                position, repeat, metric = place
                yield ScoreFlip(
                    position=position, repeat=repeat, metric=metric, baseline=off[place], candidate=on[place]
                )

    def add_look(self, comparison_id: str, look: Look, *, now: datetime) -> None:
        kept = self.of(comparison_id)
        as_utc(now)
        if look.number != len(kept.looks) + 1:
            raise not_next(comparison_id, look.number, len(kept.looks))
        kept.looks = (*kept.looks, look)

    def add_observation(self, comparison_id: str, observation: Observation) -> None:
        kept = self.of(comparison_id)
        kept.observations = (*kept.observations, observation)

    def observations(self, comparison_id: str) -> Sequence[Observation]:
        return self.of(comparison_id).observations

    def looks(self, comparison_id: str) -> Sequence[Look]:
        return self.of(comparison_id).looks

    def put_analysis(self, analysis: Analysis, *, now: datetime) -> None:
        kept = self.of(analysis.comparison_id)
        previous = kept.seals[-1].seal if kept.seals else kept.comparison.plan_hash
        body = canonical_json(analysis)
        seal = seal_of(body, previous=previous)
        kept.seals.append(SealedAnalysis(plan_hash=analysis.plan_hash, body=body, previous=previous, seal=seal))
        kept.analyses[analysis.plan_hash] = analysis
        if analysis.plan_hash == kept.comparison.plan_hash:
            kept.comparison = replace(
                kept.comparison,
                status=ComparisonStatus.FINISHED,
                finished_at=kept.comparison.finished_at or as_utc(now),
                verdict=analysis.verdict,
            )

    def analysis(self, comparison_id: str, *, plan_hash: str | None = None) -> Analysis | None:
        kept = self.of(comparison_id)
        return kept.analyses.get(kept.comparison.plan_hash if plan_hash is None else plan_hash)

    def plan_text(self, comparison_id: str) -> str:
        return canonical_json(self.of(comparison_id).comparison.plan)

    def seals(self, comparison_id: str) -> Sequence[SealedAnalysis]:
        return list(self.of(comparison_id).seals)

    def plan_hashes(self, comparison_id: str) -> Sequence[str]:
        return list(self.of(comparison_id).analyses)

    def of(self, comparison_id: str) -> Kept:
        """Raises ComparisonNotFound."""
        if comparison_id not in self.kept:
            raise not_found(comparison_id)
        return self.kept[comparison_id]


def is_listed(
    wanted: ComparisonFilter, *, status: str, verdict: Verdict | None, label: str, model: str, created_at: datetime
) -> bool:
    """Whether every condition that is set holds."""
    return (
        wanted.status in (None, status)
        and wanted.verdict in (None, verdict)
        and (wanted.label is None or storable_text(wanted.label) == label)
        and (wanted.model is None or storable_text(wanted.model) == model)
        and (wanted.since is None or as_utc(wanted.since) <= created_at)
        and (wanted.until is None or created_at < as_utc(wanted.until))
    )


def _is_wanted(comparison: Comparison, wanted: ComparisonFilter) -> bool:
    return is_listed(
        wanted,
        status=comparison.status,
        verdict=comparison.verdict,
        label=comparison.label,
        model=storable_text(comparison.plan.sampling.model),
        created_at=comparison.created_at,
    )


def _index(items: Iterable[Item]) -> dict[int, Item]:
    listed = list(items)
    kept = {item.position: item for item in listed}
    if len(kept) < len(listed) or len({item.id for item in listed}) < len(listed):
        raise StoreError("two items have the same position, or the same task and document")
    for item in listed:
        require_json(item.doc, of=f"item {item.id}")
    return kept


def _as_stored(reply: Reply) -> Reply:
    """What the database gives back: whole microseconds, valid text, UTC."""
    return replace(
        reply,
        text=None if reply.text is None else valid_text(reply.text),
        finish_reason=valid_text(reply.finish_reason),
        system_fingerprint=valid_text(reply.system_fingerprint),
        error=valid_text(reply.error),
        model=valid_text(reply.model),
        reasoning=valid_text(reply.reasoning),
        latency_s=round(reply.latency_s * 1e6) / 1e6,
        sent_at=as_utc(reply.sent_at),
    )


def _is_possible(answer: Answer) -> bool:
    reply = answer.reply
    if reply.loglikelihood is not None and math.isnan(reply.loglikelihood):
        raise StoreError(f"an answer at position {answer.position} has the log-likelihood NaN")
    return (
        answer.choice >= 0
        and answer.repeat >= 0
        and (answer.run == 0 or (answer.run > 0 and answer.arm is ArmName.BASELINE))
        and len(answer.request_hash) == 16
        and reply.attempts >= 1
        and reply.latency_s >= 0
    )


def as_utc(moment: datetime) -> datetime:
    """Raises StoreError for a time without a zone."""
    if moment.tzinfo is None:
        raise StoreError(f"the time {moment} has no time zone", hint="times are aware UTC")
    return moment.astimezone(UTC)


def _checked(score: Score) -> Score:
    if math.isnan(score.value):
        raise StoreError(f"the score {score.metric} at position {score.position} is NaN, which is no score")
    require_json(score.detail, of=f"the score {score.metric}")
    return replace(score, metric=valid_text(score.metric), value=float(score.value))


def require_json(value: object, *, of: str) -> None:
    """Raises StoreError for what JSON cannot say."""
    try:
        json.dumps(value)
    except (TypeError, ValueError) as exc:
        raise StoreError(f"{of} holds a value that JSON cannot say: {exc}") from exc


def _place_of(answer: Answer) -> RunPlace:
    return (answer.run, answer.arm, answer.position, answer.choice, answer.repeat)


def outcome_place(outcome: Outcome) -> tuple[int, int]:
    """Where it stands among those of its comparison."""
    return (outcome.position, outcome.repeat)


def _can_be(outcome: Outcome) -> bool:
    values = (outcome.baseline, outcome.candidate)
    is_unknown = outcome.change is Change.UNKNOWN
    return (
        outcome.repeat >= 0
        and outcome.length >= 0
        and is_unknown == (None in values)
        and not any(value is not None and math.isnan(value) for value in values)
    )


def _score_key(score: Score) -> tuple[ArmName, int, int, str]:
    return (score.arm, score.position, score.repeat, score.metric)


def may_take(held: Claim | None, *, runner: str, now: datetime, stale_after_s: float) -> bool:
    """Whether a runner may take what is `held` so."""
    host = socket.gethostname()
    return may_claim(held, runner=runner, now=now, stale_after_s=stale_after_s, host=host, is_alive=_is_this_process)


def _is_this_process(process: int) -> bool:
    """No other process can have claimed what is in this one's memory."""
    return process == os.getpid()
