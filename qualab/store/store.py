"""Stores comparisons with their items, answers, scores and analyses."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, get_args

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from qualab.errors import ComparisonNotFound, StoreError
from qualab.model.audit import ScoredAnswer
from qualab.model.canonical import adapter, canonical_json
from qualab.model.comparison import Analysis, Comparison, Look, SealedAnalysis, seal_of
from qualab.model.engine import Observation
from qualab.model.items import Answer, Item, Outcome, Score, ScoreFlip
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus
from qualab.model.ports import ComparisonFilter
from qualab.model.reason import Reason
from qualab.model.registry import not_found
from qualab.model.wording import valid_text
from qualab.store import rows
from qualab.store.banks import Banks
from qualab.store.engine import key_of, take_turn
from qualab.store.failures import translated
from qualab.store.queue import Queue, drop_failures
from qualab.store.registry import Registry
from qualab.store.tables import (
    UtcTime,
    analysis,
    answer,
    comparison,
    item,
    look,
    observation,
    outcome,
    score,
    scored_answer,
)
from qualab.store.webhooks import Webhooks

T = TypeVar("T")
_C = comparison.c
_NEWEST_FIRST = (_C.created_at.desc(), _C.key.desc())
_ANSWERED = [status for status in AnswerStatus if status.is_answer]
_OBSERVED = {type_.kind: type_ for type_ in get_args(Observation)}


class Store(Queue, Registry, Banks, Webhooks):
    """A database's comparisons. Each method is one transaction; threads may share it. Made by `open_store`."""

    # comparisons

    def create(
        self,
        comparison: Comparison,
        items: Iterable[Item],
        answers: Iterable[Answer] = (),
        *,
        more: Iterable[Comparison] = (),
    ) -> None:
        """Store the plan, every item and a bank's answers, or nothing; the same of `more` comparisons of a group.

        Raises StoreError where an id or an item is there already.
        """
        with self.writing() as connection:
            keys = [_insert_comparison(connection, own, items) for own in (comparison, *more)]
            for chunk in rows.chunks(answers):
                for key in keys:
                    _insert_answers(connection, key, chunk)

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
        """Store a finished comparison in one transaction. Raises StoreError for what cannot be stored."""
        with self.writing() as connection:
            key = _insert_comparison(connection, comparison, items)
            for chunk in rows.chunks(answers):
                _insert_answers(connection, key, chunk)
            _replace_scores(connection, key, scores)
            result = analysis()
            _insert_analysis(connection, key, result, now=now)
        return result

    def copy(self, comparison: Comparison, source: Store) -> None:
        """Copy all that another database has of a comparison but its analyses, and what follows from them."""
        with source.reading_of(comparison.id) as (reading, old), self.writing() as connection:
            key = _insert_comparison(connection, comparison, source.items(comparison.id))
            for table in (answer, scored_answer, score, look, observation):
                copied = reading.execute(sa.select(table).where(table.c.comparison_key == old)).mappings()
                own = ({**row, "comparison_key": key} for row in copied)
                rows.insert_all(connection, table, own, problem="a copy is not whole")

    def get(self, comparison_id: str) -> Comparison:
        """Read one by id or an unambiguous beginning of it. Raises ComparisonNotFound; also without a plan."""
        with self.reading() as connection:
            planned = sa.select(comparison).where(_C.plan != "")
            result = connection.execute(planned.where(_C.id == comparison_id)).all()
            if not result and comparison_id:
                begins = sa.func.substr(_C.id, 1, len(comparison_id)) == comparison_id
                result = connection.execute(planned.where(begins).order_by(*_NEWEST_FIRST).limit(6)).all()
            if len(result) > 1:
                shown = ", ".join(row.id for row in result[:5]) + (", ..." if len(result) > 5 else "")
                raise ComparisonNotFound(
                    f"'{comparison_id}' begins several comparisons: {shown}", hint="Give more of the id"
                )
            if not result:
                raise not_found(comparison_id)
            return rows.comparison_of(result[0])

    def list(self, filters: ComparisonFilter) -> list[Comparison]:
        """List comparisons that have a plan, newest first."""
        query = sa.select(comparison).where(_C.plan != "", *rows.conditions_of(filters)).order_by(*_NEWEST_FIRST)
        with self.reading() as connection:
            return [rows.comparison_of(row) for row in connection.execute(query.limit(max(filters.limit, 0)))]

    def group(self, group_id: str) -> Sequence[Comparison]:
        """List the comparisons of a group, whose ids begin with the group's, in its order of candidates; maybe none."""
        planned = sa.select(comparison).where(_C.plan != "", rows.of_group(group_id))
        with self.reading() as connection:
            found = map(rows.comparison_of, connection.execute(planned))
            members = {own.plan.group.name: own for own in found if own.plan.group}
        names = next((own.plan.group.names for own in members.values() if own.plan.group), ())
        return [members[name] for name in names if name in members]

    def plan_text(self, comparison_id: str) -> str:
        """Read the plan's canonical JSON as it was stored."""
        with self.reading_of(comparison_id) as (connection, key):
            plan: str = connection.execute(sa.select(_C.plan).where(_C.key == key)).scalar_one()
            return plan

    def set_status(
        self, comparison_id: str, status: ComparisonStatus, *, now: datetime, stop_reason: Reason | None = None
    ) -> None:
        """Set the status of a run, unless it was cancelled, failed or queued meanwhile.

        Any status but FINISHED takes the verdict and the time of finishing away; the first start stays.
        """
        values: dict[str, Any] = {"status": status, "stop_reason": stop_reason, "version": _C.version + 1}
        moment = sa.literal(now, UtcTime)
        if status is ComparisonStatus.FINISHED:
            values["finished_at"] = sa.func.coalesce(_C.finished_at, moment)
        else:
            values |= {"finished_at": None, "verdict": None}
        if status is ComparisonStatus.RUNNING:
            values["started_at"] = sa.func.coalesce(_C.started_at, moment)
        is_run = _C.status.not_in((ComparisonStatus.QUEUED, ComparisonStatus.CANCELLED, ComparisonStatus.FAILED))
        with self.writing_to(comparison_id) as (connection, key):
            connection.execute(sa.update(comparison).where(_C.key == key, is_run).values(values))

    # items

    def items(self, comparison_id: str, *, positions: Collection[int] | None = None) -> Iterator[Item]:
        """Yield items in order of position: all of them, or those at `positions`."""
        return self._stream(comparison_id, sa.select(item), rows.item_of, item.c.position, positions=positions)

    def n_requests(self, comparison_id: str) -> int:
        """Count the requests of its items."""
        with self.reading_of(comparison_id) as (connection, key):
            return connection.scalar(sa.select(sa.func.sum(item.c.n_requests)).where(item.c.comparison_key == key)) or 0

    # answers

    def add_answers(self, comparison_id: str, answers: Sequence[Answer]) -> int:
        """Commit new answers and return how many were there already."""
        return self.add_shared({comparison_id: answers})

    def add_shared(self, answers: Mapping[str, Sequence[Answer]]) -> int:
        """Commit new answers to several comparisons, or to none, and return how many were there already."""
        n_duplicates = 0
        with self.writing() as connection:
            for comparison_id, own in answers.items():
                key = key_of(connection, comparison_id, is_kept=True)
                if duplicates := len(own) - _insert_answers(connection, key, own):
                    more = sa.update(comparison).where(_C.key == key).values(duplicates=_C.duplicates + duplicates)
                    connection.execute(more)
                    n_duplicates += duplicates
        return n_duplicates

    def answered(self, comparison_id: str, *, run: int = 0) -> set[tuple[ArmName, int, int, int]]:
        """Read (arm, position, choice, repeat) of every stored answer of a run."""
        c = answer.c
        query = sa.select(c.arm, c.position, c.choice, c.repeat)
        with self.reading_of(comparison_id) as (connection, key):
            result = connection.execute(query.where(c.comparison_key == key, c.run == run))
            return {(arm, position, choice, repeat) for arm, position, choice, repeat in result}

    def n_answered(
        self, comparison_id: str, statuses: Collection[AnswerStatus] = tuple(AnswerStatus)
    ) -> Mapping[ArmName, int]:
        """Count the requests of each arm that came back with one of these statuses, without the noise floor's."""
        c = answer.c
        query = sa.select(c.arm, sa.func.count()).where(c.run == 0, c.status.in_(statuses)).group_by(c.arm)
        with self.reading_of(comparison_id) as (connection, key):
            return dict.fromkeys(ArmName, 0) | dict(connection.execute(query.where(c.comparison_key == key)).all())

    def answers(
        self, comparison_id: str, *, arm: ArmName, run: int = 0, positions: Collection[int] | None = None
    ) -> Iterator[Answer]:
        """Yield answers in order of (position, choice, repeat)."""
        c = answer.c
        query = sa.select(answer).where(c.arm == arm, c.run == run)
        place = (c.position, c.choice, c.repeat)
        return self._stream(comparison_id, query, rows.answer_of, *place, positions=positions)

    def drop_failures(self, comparison_id: str, *, from_position: int = 0) -> int:
        """Delete answers that are failures of the endpoint and return how many."""
        with self.writing_to(comparison_id) as (connection, key):
            return drop_failures(connection, key, from_position)

    def drop_answers(self, comparison_id: str, *, from_position: int) -> None:
        """Delete every answer from a position on."""
        with self.writing_to(comparison_id) as (connection, key):
            connection.execute(
                sa.delete(answer).where(answer.c.comparison_key == key, answer.c.position >= from_position)
            )

    # the token audit

    def put_scored(self, comparison_id: str, answers: Sequence[ScoredAnswer]) -> None:
        """Store answers of the audit; their scores take the place of none."""
        with self.writing_to(comparison_id) as (connection, key):
            rows.insert_scored(connection, [rows.scored_row(key, value) for value in answers])

    def scored(
        self, comparison_id: str, *, positions: Collection[int] | None = None, with_pieces: bool = False
    ) -> Iterator[ScoredAnswer]:
        """Yield answers of the audit by part, arm and position, without their pieces unless asked for."""
        c = scored_answer.c
        columns = [c[name] for name in ScoredAnswer.__dataclass_fields__ if with_pieces or name != "pieces"]
        order = (c.part, c.arm, c.position)
        return self._stream(comparison_id, sa.select(*columns), rows.scored_of, *order, positions=positions)

    def latencies(self, comparison_id: str) -> Mapping[ArmName, Sequence[float]]:
        """Read the seconds that each answer took, by arm. Raises ComparisonNotFound."""
        c = answer.c
        seconds = {arm: array("d") for arm in ArmName}
        with self.reading_of(comparison_id) as (connection, key):
            taken = sa.select(c.arm, c.latency_s).where(c.comparison_key == key, c.status.in_(_ANSWERED))
            for arm, latency_s in connection.execute(taken):
                seconds[arm].append(latency_s)
        return seconds

    def documents(self, comparison_id: str) -> Sequence[tuple[int, str, str]]:
        """Read each item's position, task and document (JSON)."""
        c = item.c
        with self.reading_of(comparison_id) as (connection, key):
            query = sa.select(c.position, c.task, c.doc).where(c.comparison_key == key).order_by(c.position)
            return [(position, task, doc) for position, task, doc in connection.execute(query)]

    # scores and outcomes

    def put_scores(self, comparison_id: str, scores: Iterable[Score]) -> None:
        """Replace the comparison's scores, and delete the outcomes of the former ones."""
        all_scores = list(scores)  # scoring may take minutes, in which others want to write
        with self.writing_to(comparison_id) as (connection, key):
            _replace_scores(connection, key, all_scores)
            connection.execute(sa.delete(outcome).where(outcome.c.comparison_key == key))

    def scores(self, comparison_id: str) -> Iterator[Score]:
        """Yield scores in order of (arm, position, repeat, metric)."""
        return self._stream(comparison_id, rows.SCORES, rows.score_of, *rows.SCORE_ORDER)

    def flips(self, comparison_id: str, *, metrics: Collection[str]) -> Iterator[ScoreFlip]:
        """Yield scores of these metrics that differ between the arms, in order of (position, repeat, metric)."""
        before, after = score.alias("before"), score.alias("after")
        same = (before.c[name] == after.c[name] for name in ("comparison_key", "position", "repeat", "metric"))
        place = (before.c.position, before.c.repeat, before.c.metric)
        values = before.c.value.label("baseline"), after.c.value.label("candidate")
        query = (
            sa.select(*place, item.c.task, item.c.kind, *values)
            .join(after, sa.and_(*same))
            .join(item, sa.and_(*(before.c[name] == item.c[name] for name in ("comparison_key", "position"))))
            .where(
                before.c.arm == ArmName.BASELINE,
                after.c.arm == ArmName.CANDIDATE,
                before.c.value != after.c.value,
                before.c.metric.in_(metrics),
            )
        )
        return self._stream(comparison_id, query, lambda row: rows.value_of(ScoreFlip, row), *place)

    def put_outcomes(self, comparison_id: str, outcomes: Iterable[Outcome]) -> None:
        """Replace the comparison's outcomes."""
        all_outcomes = list(outcomes)
        with self.writing_to(comparison_id) as (connection, key):
            take_turn(connection, key)
            connection.execute(sa.delete(outcome).where(outcome.c.comparison_key == key))
            problem = "an outcome comes twice, is impossible, or belongs to an item that its comparison does not have"
            rows.insert_all(
                connection, outcome, (rows.outcome_row(key, value) for value in all_outcomes), problem=problem
            )

    # looks and observations

    def add_look(self, comparison_id: str, value: Look, *, now: datetime) -> None:
        """Store the next look. Raises StoreError where its number is not the one after the last."""
        with self.writing_to(comparison_id) as (connection, key):
            number = rows.append(connection, look, key, {"created_at": now, "body": canonical_json(value)})
            if number != value.number:
                taken = number - 1
                raise StoreError(f"look {value.number} of {comparison_id} does not follow the {taken} that were taken")

    def looks(self, comparison_id: str) -> Sequence[Look]:
        """Read all looks in their order."""
        with self.reading_of(comparison_id) as (connection, key):
            query = sa.select(look.c.body).where(look.c.comparison_key == key).order_by(look.c.number)
            return [rows.look_of(body) for body in connection.scalars(query)]

    def add_observation(self, comparison_id: str, value: Observation) -> None:
        """Store what was seen of an engine."""
        with self.writing_to(comparison_id) as (connection, key):
            rows.append(connection, observation, key, {"kind": value.kind, "body": canonical_json(value)})

    def observations(self, comparison_id: str) -> Sequence[Observation]:
        """Read all observations in their order."""
        c = observation.c
        with self.reading_of(comparison_id) as (connection, key):
            result = connection.execute(sa.select(c.kind, c.body).where(c.comparison_key == key).order_by(c.number))
            return [adapter(_OBSERVED[kind]).validate_json(body) for kind, body in result]

    # analyses

    def put_analysis(self, analysis: Analysis, *, now: datetime) -> None:
        """Add an analysis. One under the comparison's own plan finishes it with its verdict."""
        with self.writing_to(analysis.comparison_id) as (connection, key):
            _insert_analysis(connection, key, analysis, now=now)

    def analysis(self, comparison_id: str, *, plan_hash: str | None = None) -> Analysis | None:
        """Read the newest analysis under a plan, the comparison's own by default."""
        c = analysis.c
        with self.reading_of(comparison_id) as (connection, key):
            own = sa.select(_C.plan_hash).where(_C.key == key).scalar_subquery()
            of_plan = c.plan_hash == (own if plan_hash is None else plan_hash)
            query = sa.select(c.body).where(c.comparison_key == key, of_plan).order_by(c.id.desc()).limit(1)
            body = connection.scalar(query)
            return None if body is None else adapter(Analysis).validate_json(body)

    def seals(self, comparison_id: str) -> Sequence[SealedAnalysis]:
        """Read every stored analysis with its seal, the oldest first."""
        c = analysis.c
        query = sa.select(c.plan_hash, c.body, c.previous, c.seal).order_by(c.id)
        with self.reading_of(comparison_id) as (connection, key):
            result = connection.execute(query.where(c.comparison_key == key))
            return [SealedAnalysis(**row._mapping) for row in result]

    def plan_hashes(self, comparison_id: str) -> Sequence[str]:
        """Read the plan hashes of all analyses, each once, the oldest first."""
        c = analysis.c
        with self.reading_of(comparison_id) as (connection, key):
            query = sa.select(c.plan_hash).where(c.comparison_key == key).order_by(c.id)
            return list(dict.fromkeys(connection.scalars(query)))

    def _stream(
        self,
        comparison_id: str,
        query: sa.Select[Any],
        convert: Callable[[sa.Row[Any]], T],
        *order: Any,
        positions: Collection[int] | None = None,
    ) -> Iterator[T]:
        """Yield a comparison's rows as values, a chunk in memory at a time. Raises ComparisonNotFound at once."""
        c = order[0].table.c
        with self.reading_of(comparison_id) as (_, key):
            query = query.where(c.comparison_key == key).order_by(*order)
        if positions is not None:
            query = query.where(c.position.in_(list(positions)))

        def values() -> Iterator[T]:
            with translated(self.location), self.engine.connect() as connection:
                for chunk in connection.execution_options(yield_per=rows.CHUNK).execute(query).partitions():
                    yield from map(convert, chunk)

        return values()


def _insert_comparison(connection: sa.Connection, value: Comparison, items: Iterable[Item]) -> int:
    """Store it with its items, or the plan of what was asked for, and return its key."""
    planned = {name: getattr(value, name) for name in ("plan_hash", "baseline_url", "candidate_url", "local")} | {
        "plan": canonical_json(value.plan),
        "model": value.plan.sampling.model,
        "suite": value.plan.suite,
        "n_items": sum(task.n_items for task in value.plan.tasks),
    }
    requested = sa.update(comparison).where(_C.id == value.id, _C.created_by != "", _C.plan == "").values(planned)
    key: int | None = connection.execute(requested.returning(_C.key)).scalar_one_or_none()
    if key is None:
        if connection.scalar(sa.select(_C.key).where(_C.id == value.id)) is not None:
            raise StoreError(f"comparison {value.id} exists already")
        key = connection.execute(sa.insert(comparison).returning(_C.key), rows.fields_of(value) | planned).scalar_one()
    problem = "two items have the same position, or the same task and document"
    rows.insert_all(connection, item, (rows.item_row(key, entry) for entry in items), problem=problem)
    return key


def _insert_answers(connection: sa.Connection, key: int, answers: Sequence[Answer]) -> int:
    """Store the answers that are new and return how many were. Raises StoreError for an item that is not there."""
    try:
        return sum(
            rows.insert_new(connection, answer, [rows.answer_row(key, value) for value in chunk])
            for chunk in rows.chunks(answers)
        )
    except IntegrityError:
        raise StoreError("an answer is impossible, or belongs to an item that its comparison does not have") from None


def _replace_scores(connection: sa.Connection, key: int, scores: Iterable[Score]) -> None:
    connection.execute(sa.delete(score).where(score.c.comparison_key == key))
    problem = "a score comes twice, or belongs to an item that its comparison does not have"
    rows.insert_all(connection, score, (rows.score_row(key, value) for value in scores), problem=problem)


def _insert_analysis(connection: sa.Connection, key: int, value: Analysis, *, now: datetime) -> None:
    # on PostgreSQL the comparison stays locked until the transaction ends
    own: str = connection.execute(sa.select(_C.plan_hash).where(_C.key == key).with_for_update()).scalar_one()
    c = analysis.c
    last = connection.scalar(sa.select(c.seal).where(c.comparison_key == key).order_by(c.id.desc()).limit(1))
    body, previous = valid_text(canonical_json(value)), last or own
    row = {"comparison_key": key, "created_at": now, "body": body, "previous": previous}
    row |= {name: getattr(value, name) for name in ("verdict", "input_hash", "plan_hash")}
    connection.execute(sa.insert(analysis), row | {"seal": seal_of(body, previous=previous)})
    if value.plan_hash == own:
        finished_at = sa.func.coalesce(_C.finished_at, sa.literal(now, UtcTime))
        change = sa.update(comparison).where(_C.key == key).values(status=ComparisonStatus.FINISHED, error={})
        change = change.values(verdict=value.verdict, finished_at=finished_at, takeovers=0, version=_C.version + 1)
        connection.execute(change)
