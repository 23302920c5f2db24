"""Comparisons with their items, answers, scores and analyses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from qualab.errors import ComparisonNotFound, StoreError
from qualab.model.canonical import canonical_json
from qualab.model.comparison import Analysis, Comparison, Look, SealedAnalysis, seal_of
from qualab.model.engine import EngineSeen, FirstTokensSeen, Observation, ObservationKind, PinsSeen, Segment
from qualab.model.items import Answer, Item, ItemHead, Outcome, Score, ScoreFlip
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus
from qualab.model.ports import ComparisonFilter
from qualab.model.reason import Reason
from qualab.model.registry import not_found
from qualab.model.wording import valid_text
from qualab.store.engine import take_turn
from qualab.store.queue import Queue, drop_failures
from qualab.store.registry import Registry
from qualab.store.rows import (
    SCORE_ORDER,
    SCORES,
    adapter,
    answer_of,
    answer_row,
    chunks,
    comparison_of,
    conditions_of,
    fields_of,
    impossible_outcome,
    insert_new,
    item_of,
    item_row,
    look_of,
    outcome_row,
    score_of,
    score_row,
    value_of,
)
from qualab.store.tables import UtcTime, analysis, answer, comparison, item, look, observation, outcome, score

T = TypeVar("T")
_C = comparison.c
_NEWEST_FIRST = (_C.created_at.desc(), _C.key.desc())
_OBSERVED: dict[ObservationKind, type[Observation]] = {
    ObservationKind.ENGINE: EngineSeen,
    ObservationKind.SEGMENT: Segment,
    ObservationKind.PINS: PinsSeen,
    ObservationKind.FIRST_TOKENS: FirstTokensSeen,
}


class Store(Queue, Registry):
    """A database's comparisons. Each method is one transaction; threads may share it. Made by `open_store`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the store may be used again."""
        self.engine.dispose()

    # comparisons

    def create(self, comparison: Comparison, items: Iterable[Item]) -> None:
        """Stores the plan and every item, or nothing. Raises StoreError where the id or an item is there already."""
        with self.writing() as connection:
            _insert_comparison(connection, comparison, items)

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
        """Stores a finished comparison in one transaction. Raises StoreError for what cannot be stored."""
        with self.writing() as connection:
            key = _insert_comparison(connection, comparison, items)
            for chunk in chunks(answers):
                _insert_answers(connection, key, chunk)
            _replace_scores(connection, key, scores)
            result = analysis()
            _insert_analysis(connection, key, result, now=now)
        return result

    def get(self, comparison_id: str) -> Comparison:
        """By id or by an unambiguous beginning of one. Raises ComparisonNotFound, also where it has no plan yet."""
        with self.reading() as connection:
            planned = select(comparison).where(_C.plan != "")
            rows = connection.execute(planned.where(_C.id == comparison_id)).all()
            if not rows and comparison_id:
                begins = func.substr(_C.id, 1, len(comparison_id)) == comparison_id
                rows = connection.execute(planned.where(begins).order_by(*_NEWEST_FIRST).limit(6)).all()
            if len(rows) > 1:
                shown = ", ".join(row.id for row in rows[:5]) + (", ..." if len(rows) > 5 else "")
                raise ComparisonNotFound(
                    f"'{comparison_id}' begins several comparisons: {shown}", hint="Give more of the id"
                )
            if not rows:
                raise not_found(comparison_id)
            return comparison_of(rows[0])

    def list(self, wanted: ComparisonFilter) -> list[Comparison]:
        """Newest first, without those that have no plan yet."""
        query = select(comparison).where(_C.plan != "", *conditions_of(wanted)).order_by(*_NEWEST_FIRST)
        with self.reading() as connection:
            return [comparison_of(row) for row in connection.execute(query.limit(max(wanted.limit, 0)))]

    def plan_text(self, comparison_id: str) -> str:
        """The plan's canonical JSON as it was stored."""
        with self.reading_of(comparison_id) as (connection, key):
            plan: str = connection.execute(select(_C.plan).where(_C.key == key)).scalar_one()
            return plan

    def set_status(
        self, comparison_id: str, status: ComparisonStatus, *, now: datetime, stop_reason: Reason | None = None
    ) -> None:
        """Any status but FINISHED takes the verdict and the time of finishing away; the first start stays.

        Nothing happens to what was cancelled, failed or queued meanwhile.
        """
        with self.writing_to(comparison_id) as (connection, key):
            _set_status(connection, key, status, now=now, stop_reason=stop_reason)

    # items

    def items(self, comparison_id: str, *, positions: Collection[int] | None = None) -> Iterator[Item]:
        """In order of position; all of them, or those at these positions."""
        return self._stream(comparison_id, select(item), item_of, item.c.position, positions=positions)

    def heads(self, comparison_id: str, *, positions: Collection[int]) -> Iterator[ItemHead]:
        """In order of position, without what items hold."""
        query = select(item.c.position, item.c.task, item.c.doc_id, item.c.kind)

        def head_of(row: Row[Any]) -> ItemHead:
            return value_of(ItemHead, row)

        return self._stream(comparison_id, query, head_of, item.c.position, positions=positions)

    def n_requests(self, comparison_id: str) -> int:
        """Count the requests of its items."""
        with self.reading_of(comparison_id) as (connection, key):
            return connection.scalar(select(func.sum(item.c.n_requests)).where(item.c.comparison_key == key)) or 0

    # answers

    def add_answers(self, comparison_id: str, answers: Sequence[Answer]) -> int:
        """Commits new answers and returns how many were there already."""
        with self.writing_to(comparison_id) as (connection, key):
            duplicates = len(answers) - _insert_answers(connection, key, answers)
            if duplicates:
                more = update(comparison).where(_C.key == key).values(duplicates=_C.duplicates + duplicates)
                connection.execute(more)
        return duplicates

    def answered(self, comparison_id: str, *, run: int = 0) -> set[tuple[ArmName, int, int, int]]:
        """(arm, position, choice, repeat) of every stored answer of a run."""
        c = answer.c
        query = select(c.arm, c.position, c.choice, c.repeat)
        with self.reading_of(comparison_id) as (connection, key):
            rows = connection.execute(query.where(c.comparison_key == key, c.run == run))
            return {(arm, position, choice, repeat) for arm, position, choice, repeat in rows}

    def n_answered(self, comparison_id: str) -> Mapping[ArmName, int]:
        """Count the requests of each arm that came back, without the noise floor's."""
        return self._count(comparison_id)

    def n_unanswered(self, comparison_id: str) -> Mapping[ArmName, int]:
        """Count those that came back without an answer."""
        unanswered = [status for status in AnswerStatus if not status.is_answer]
        return self._count(comparison_id, answer.c.status.in_(unanswered))

    def _count(self, comparison_id: str, *conditions: ColumnElement[bool]) -> Mapping[ArmName, int]:
        c = answer.c
        query = select(c.arm, func.count()).where(c.run == 0, *conditions).group_by(c.arm)
        with self.reading_of(comparison_id) as (connection, key):
            return dict.fromkeys(ArmName, 0) | dict(connection.execute(query.where(c.comparison_key == key)).all())

    def answers(
        self, comparison_id: str, *, arm: ArmName, run: int = 0, positions: Collection[int] | None = None
    ) -> Iterator[Answer]:
        """In order of (position, choice, repeat). The noise floor's runs: the baseline alone, all positions."""
        c = answer.c
        query = select(answer).where(c.arm == arm, c.run == run)
        place = (c.position, c.choice, c.repeat)
        return self._stream(comparison_id, query, answer_of, *place, positions=positions)

    def drop_failures(self, comparison_id: str, *, from_position: int = 0) -> int:
        """Deletes answers that are failures of the endpoint and returns how many."""
        with self.writing_to(comparison_id) as (connection, key):
            return drop_failures(connection, key, from_position)

    # scores and outcomes

    def put_scores(self, comparison_id: str, scores: Iterable[Score]) -> None:
        """Replaces the comparison's scores; outcomes that came of the former ones go."""
        made = list(scores)  # scoring may take minutes, in which others want to write
        with self.writing_to(comparison_id) as (connection, key):
            _replace_scores(connection, key, made)
            connection.execute(delete(outcome).where(outcome.c.comparison_key == key))

    def scores(self, comparison_id: str) -> Iterator[Score]:
        """In order of (arm, position, repeat, metric)."""
        return self._stream(comparison_id, SCORES, score_of, *SCORE_ORDER)

    def flips(self, comparison_id: str, *, metrics: Collection[str]) -> Iterator[ScoreFlip]:
        """Scores of these metrics that differ between the arms, in order of (position, repeat, metric)."""
        before, after = score.alias("before"), score.alias("after")
        same = (before.c[name] == after.c[name] for name in ("comparison_key", "position", "repeat", "metric"))
        place = (before.c.position, before.c.repeat, before.c.metric)
        query = (
            select(*place, before.c.value.label("baseline"), after.c.value.label("candidate"))
            .join(after, and_(*same))
            .where(
                before.c.arm == ArmName.BASELINE,
                after.c.arm == ArmName.CANDIDATE,
                before.c.value != after.c.value,
                before.c.metric.in_(metrics),
            )
        )
        return self._stream(comparison_id, query, lambda row: value_of(ScoreFlip, row), *place)

    def put_outcomes(self, comparison_id: str, outcomes: Iterable[Outcome]) -> None:
        """Replaces the comparison's outcomes."""
        made = list(outcomes)
        with self.writing_to(comparison_id) as (connection, key):
            take_turn(connection, key)
            connection.execute(delete(outcome).where(outcome.c.comparison_key == key))
            for chunk in chunks(made):
                try:
                    connection.execute(insert(outcome), [outcome_row(key, value) for value in chunk])
                except IntegrityError:  # PostgreSQL's would tell the row
                    raise impossible_outcome() from None

    # looks and observations

    def add_look(self, comparison_id: str, value: Look, *, now: datetime) -> None:
        """Stores the next look. Raises StoreError where its number is not the one after the last."""
        with self.writing_to(comparison_id) as (connection, key):
            n_taken = connection.scalar(select(func.count()).where(look.c.comparison_key == key)) or 0
            if n_taken != value.number - 1:
                raise StoreError(
                    f"look {value.number} of {comparison_id} does not follow the {n_taken} that were taken"
                )
            row = {"comparison_key": key, "number": value.number, "created_at": now, "body": canonical_json(value)}
            connection.execute(insert(look), row)

    def looks(self, comparison_id: str) -> Sequence[Look]:
        """In order of their numbers."""
        with self.reading_of(comparison_id) as (connection, key):
            query = select(look.c.body).where(look.c.comparison_key == key).order_by(look.c.number)
            return [look_of(body) for body in connection.scalars(query)]

    def add_observation(self, comparison_id: str, value: Observation) -> None:
        """Stores what was seen of an engine."""
        c = observation.c
        with self.writing_to(comparison_id) as (connection, key):
            last = connection.scalar(select(func.max(c.number)).where(c.comparison_key == key)) or 0
            row = {"comparison_key": key, "number": last + 1, "kind": value.kind, "body": canonical_json(value)}
            connection.execute(insert(observation), row)

    def observations(self, comparison_id: str) -> Sequence[Observation]:
        """In the order in which they were made."""
        c = observation.c
        with self.reading_of(comparison_id) as (connection, key):
            rows = connection.execute(select(c.kind, c.body).where(c.comparison_key == key).order_by(c.number))
            return [adapter(_OBSERVED[kind]).validate_json(body) for kind, body in rows]

    # analyses

    def put_analysis(self, analysis: Analysis, *, now: datetime) -> None:
        """Adds an analysis. Under the comparison's own plan it marks it FINISHED and gives it the verdict."""
        with self.writing_to(analysis.comparison_id) as (connection, key):
            _insert_analysis(connection, key, analysis, now=now)

    def analysis(self, comparison_id: str, *, plan_hash: str | None = None) -> Analysis | None:
        """The newest analysis under a plan, the comparison's own by default."""
        c = analysis.c
        with self.reading_of(comparison_id) as (connection, key):
            own = select(_C.plan_hash).where(_C.key == key).scalar_subquery()
            of_plan = c.plan_hash == (own if plan_hash is None else plan_hash)
            query = select(c.body).where(c.comparison_key == key, of_plan).order_by(c.id.desc()).limit(1)
            body = connection.scalar(query)
            return None if body is None else adapter(Analysis).validate_json(body)

    def seals(self, comparison_id: str) -> Sequence[SealedAnalysis]:
        """Every stored analysis with its seal, the oldest first."""
        c = analysis.c
        query = select(c.plan_hash, c.body, c.previous, c.seal).order_by(c.id)
        with self.reading_of(comparison_id) as (connection, key):
            rows = connection.execute(query.where(c.comparison_key == key))
            return [SealedAnalysis(**row._mapping) for row in rows]

    def plan_hashes(self, comparison_id: str) -> Sequence[str]:
        """Plan hashes of all analyses, each once, the oldest first."""
        c = analysis.c
        with self.reading_of(comparison_id) as (connection, key):
            query = select(c.plan_hash).where(c.comparison_key == key).order_by(c.id)
            return list(dict.fromkeys(connection.scalars(query)))

    def _stream(
        self,
        comparison_id: str,
        query: Select[Any],
        convert: Callable[[Row[Any]], T],
        *order: Any,
        positions: Collection[int] | None = None,
    ) -> Iterator[T]:
        """Yields a comparison's rows as values. Raises ComparisonNotFound at once."""
        c = order[0].table.c
        with self.reading_of(comparison_id) as (_, key):
            query = query.where(c.comparison_key == key).order_by(*order)
        if positions is not None:
            query = query.where(c.position.in_(list(positions)))
        return self.streamed(query, convert)


def _insert_comparison(connection: Connection, value: Comparison, items: Iterable[Item]) -> int:
    """Store it with its items, or the plan of what was asked for, and return its key."""
    planned = {name: getattr(value, name) for name in ("plan_hash", "baseline_url", "candidate_url", "local")} | {
        "plan": canonical_json(value.plan),
        "model": value.plan.sampling.model,
        "suite": value.plan.suite,
        "n_items": sum(task.n_items for task in value.plan.tasks),
    }
    requested = update(comparison).where(_C.id == value.id, _C.created_by != "", _C.plan == "").values(planned)
    key: int | None = connection.execute(requested.returning(_C.key)).scalar_one_or_none()
    if key is None:
        if connection.scalar(select(_C.key).where(_C.id == value.id)) is not None:
            raise StoreError(f"comparison {value.id} exists already")
        key = connection.execute(insert(comparison).returning(_C.key), fields_of(value) | planned).scalar_one()
    for chunk in chunks(items):
        try:
            connection.execute(insert(item), [item_row(key, one) for one in chunk])
        except IntegrityError:
            raise StoreError("two items have the same position, or the same task and document") from None
    return key


def _set_status(
    connection: Connection, key: int, status: ComparisonStatus, *, now: datetime, stop_reason: Reason | None
) -> None:
    values: dict[str, Any] = {"status": status, "stop_reason": stop_reason, "version": _C.version + 1}
    moment = literal(now, UtcTime)
    if status is ComparisonStatus.FINISHED:
        values["finished_at"] = func.coalesce(_C.finished_at, moment)
    else:
        values |= {"finished_at": None, "verdict": None}
    if status is ComparisonStatus.RUNNING:
        values["started_at"] = func.coalesce(_C.started_at, moment)
    is_run = _C.status.not_in((ComparisonStatus.QUEUED, ComparisonStatus.CANCELLED, ComparisonStatus.FAILED))
    connection.execute(update(comparison).where(_C.key == key, is_run).values(values))


def _insert_answers(connection: Connection, key: int, answers: Sequence[Answer]) -> int:
    """Stores the answers that are new and returns how many were. Raises StoreError for an item that is not there."""
    try:
        return sum(
            insert_new(connection, answer, [answer_row(key, value) for value in chunk]) for chunk in chunks(answers)
        )
    except IntegrityError:
        raise StoreError("an answer is impossible, or belongs to an item that its comparison does not have") from None


def _replace_scores(connection: Connection, key: int, scores: Iterable[Score]) -> None:
    connection.execute(delete(score).where(score.c.comparison_key == key))
    for chunk in chunks(scores):
        try:
            connection.execute(insert(score), [score_row(key, value) for value in chunk])
        except IntegrityError:
            raise StoreError("a score comes twice, or belongs to an item that its comparison does not have") from None


def _insert_analysis(connection: Connection, key: int, value: Analysis, *, now: datetime) -> None:
    """Seals it upon the analysis before it. One under the comparison's own plan finishes it with its verdict."""
    # on PostgreSQL the comparison stays locked until the transaction ends
    own: str = connection.execute(select(_C.plan_hash).where(_C.key == key).with_for_update()).scalar_one()
    c = analysis.c
    last = connection.scalar(select(c.seal).where(c.comparison_key == key).order_by(c.id.desc()).limit(1))
    body, previous = valid_text(canonical_json(value)), last or own
    row = {
        "comparison_key": key,
        "created_at": now,
        "verdict": value.verdict,
        "input_hash": value.input_hash,
        "plan_hash": value.plan_hash,
        "previous": previous,
        "seal": seal_of(body, previous=previous),
        "body": body,
    }
    connection.execute(insert(analysis), row)
    if value.plan_hash == own:
        finished_at = func.coalesce(_C.finished_at, literal(now, UtcTime))
        values: dict[str, Any] = {
            "status": ComparisonStatus.FINISHED,
            "verdict": value.verdict,
            "finished_at": finished_at,
        }
        values |= {"error": {}, "takeovers": 0, "version": _C.version + 1}
        connection.execute(update(comparison).where(_C.key == key).values(values))
