"""Converts rows to values of the model and back; holds what several queries share."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Row,
    Table,
    Text,
    and_,
    func,
    insert,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.exc import IntegrityError

from qualab.errors import StoreError
from qualab.model.audit import ScoredAnswer, TokenPieces
from qualab.model.canonical import adapter
from qualab.model.comparison import Comparison, Look
from qualab.model.items import Answer, Drafted, Item, Outcome, Prompt, Reply, Request, Score
from qualab.model.names import Api
from qualab.model.plan import Plan
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import AuditEntry
from qualab.store.engine import take_turn
from qualab.store.tables import audit, comparison, score, scored_answer, to_json

T = TypeVar("T")
CHUNK = 1_000
"""Rows in memory at a time."""
SCORES = select(*(score.c[name] for name in Score.__dataclass_fields__))
SCORE_ORDER = (score.c.arm, score.c.position, score.c.repeat, score.c.metric)


def chunks(values: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of at most CHUNK values."""
    source = iter(values)
    while chunk := list(islice(source, CHUNK)):
        yield chunk


def insert_new(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """Insert rows, except those whose key is there already, and return how many were new."""
    if not rows:
        return 0
    dialect = import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
    statement = dialect.insert(table).on_conflict_do_nothing()
    return connection.execute(statement, rows, execution_options={"preserve_rowcount": True}).rowcount


@cache
def _scored_upsert(dialect: str) -> Executable:
    new = import_module(f"sqlalchemy.dialects.{dialect}").insert(scored_answer)
    is_first = scored_answer.c.scores.is_(None) & new.excluded.scores.is_not(None)
    changes = {name: new.excluded[name] for name in ("token_ids", "is_tokenized_again", "scores", "pieces")}
    statement: Executable = new.on_conflict_do_update(
        index_elements=scored_answer.primary_key.columns, set_=changes, where=is_first
    )
    return statement


def insert_scored(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert answers of the audit; one that is there without scores is given those of its row."""
    if rows:
        connection.execute(_scored_upsert(connection.dialect.name), rows)


def insert_all(connection: Connection, table: Table, rows: Iterable[dict[str, Any]], *, problem: str) -> None:
    """Insert rows. Raises StoreError with `problem` where one is refused: PostgreSQL's error would quote the row."""
    for chunk in chunks(rows):
        try:
            connection.execute(insert(table), chunk)
        except IntegrityError:
            raise StoreError(problem) from None


def append(connection: Connection, table: Table, key: int, row: dict[str, Any]) -> int:
    """Insert a row of a comparison with the next number, and return that."""
    take_turn(connection, key)
    last = connection.scalar(select(func.max(table.c.number)).where(table.c.comparison_key == key)) or 0
    connection.execute(insert(table), row | {"comparison_key": key, "number": last + 1})
    return int(last) + 1


def conditions_of(filters: ComparisonFilter) -> Iterator[ColumnElement[bool]]:
    """Yield a filter's conditions on comparisons."""
    c = comparison.c
    for name in ("status", "verdict", "label", "model"):
        if (value := getattr(filters, name)) is not None:
            yield c[name] == value
    if filters.group is not None:
        yield of_group(filters.group)
    if filters.since is not None:
        yield c.created_at >= filters.since
    if filters.until is not None:
        yield c.created_at < filters.until


def of_group(group_id: str) -> ColumnElement[bool]:
    """Match the comparisons of a group, whose ids begin with the group's; the first may have no plan yet."""
    begins = func.substr(comparison.c.id, 1, len(group_id) + 1) == f"{group_id}-"
    is_named = comparison.c.plan.contains(f'"group":{{"id":{to_json(group_id)},', autoescape=True)
    is_asked = type_coerce(comparison.c.request, Text).contains('"candidates":')
    return and_(begins, or_(is_named, (comparison.c.plan == "") & is_asked))


def add_entry(connection: Connection, entry: AuditEntry) -> None:
    """Record who did what."""
    connection.execute(insert(audit), fields_of(entry))


def fields_of(value: Any) -> dict[str, Any]:
    """Map a dataclass's fields to their values."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def value_of(type_: Callable[..., T], row: Row[Any], **changes: Any) -> T:
    """Make a dataclass from the columns that are named as its fields; `changes` take their place."""
    names = type_.__dataclass_fields__  # type: ignore[attr-defined]
    return type_(**{name: getattr(row, name) for name in names if name not in changes}, **changes)


def comparison_of(row: Row[Any]) -> Comparison:
    """Make a comparison of a whole row."""
    return value_of(Comparison, row, plan=adapter(Plan).validate_json(row.plan))


def look_of(body: str) -> Look:
    """Read a look's JSON."""
    look: Look = adapter(Look).validate_json(body)
    return look


def item_row(key: int, item: Item) -> dict[str, Any]:
    """Make a row of `item`. Raises StoreError for a document that JSON cannot hold."""
    prompts = {"prompts": list(map(fields_of, item.prompts)), "requests": list(map(fields_of, item.requests))}
    changes = {"doc": to_json(item.doc, of=f"item {item.id}"), "prompts": prompts, "n_requests": len(item.requests)}
    row = fields_of(item) | changes | {"comparison_key": key}
    del row["requests"]
    return row


def item_of(row: Row[Any]) -> Item:
    """Make an item of a whole row."""
    prompts = tuple(Prompt(**prompt) for prompt in row.prompts["prompts"])
    requests = tuple(Request(**{**request, "api": Api(request["api"])}) for request in row.prompts["requests"])
    return value_of(Item, row, doc=json.loads(row.doc), prompts=prompts, requests=requests)


def answer_row(key: int, answer: Answer) -> dict[str, Any]:
    """Make a row of `answer`. Raises StoreError for a NaN, which SQLite would take for no value."""
    reply, drafted = answer.reply, answer.reply.drafted
    if reply.loglikelihood is not None and math.isnan(reply.loglikelihood):
        raise StoreError(f"an answer at position {answer.position} has the log-likelihood NaN")
    row = fields_of(answer) | fields_of(reply)
    del row["reply"], row["drafted"]
    row["comparison_key"], row["latency_s"] = key, round(reply.latency_s, 6)
    return row | (fields_of(drafted) if drafted else dict.fromkeys(Drafted.__dataclass_fields__))


def answer_of(row: Row[Any]) -> Answer:
    """Make an answer of a whole row."""
    drafted = None if row.accepted_tokens is None else value_of(Drafted, row, rounds=tuple(row.rounds))
    return value_of(Answer, row, reply=value_of(Reply, row, drafted=drafted))


def scored_row(key: int, value: ScoredAnswer) -> dict[str, Any]:
    """Make a row of `scored_answer`."""
    pieces = value.pieces and [list(value.pieces.texts), list(value.pieces.choices.items())]
    return fields_of(value) | {"comparison_key": key, "pieces": pieces}


def scored_of(row: Row[Any]) -> ScoredAnswer:
    """Make an answer of the audit; without pieces where they were not selected."""
    pieces = getattr(row, "pieces", None)
    read = pieces and TokenPieces(texts=tuple(pieces[0]), choices=dict(pieces[1]))
    return value_of(ScoredAnswer, row, pieces=read)


def score_row(key: int, score: Score) -> dict[str, Any]:
    """Make a row of `score`. Raises StoreError for NaN."""
    if math.isnan(score.value):
        raise StoreError(f"the score {score.metric} at position {score.position} is NaN, which is no score")
    return fields_of(score) | {"comparison_key": key, "value": float(score.value)}


def score_of(row: Any) -> Score:
    """Make a score of a row of `SCORES`, of which there are tens of thousands."""
    arm, position, repeat, metric, value, detail = row
    detail = None if detail is None else tuple(detail)
    return Score(arm=arm, position=position, repeat=repeat, metric=metric, value=value, detail=detail)


def outcome_row(key: int, outcome: Outcome) -> dict[str, Any]:
    """Make a row of `outcome`. Raises StoreError for NaN."""
    if any(value is not None and math.isnan(value) for value in (outcome.baseline, outcome.candidate)):
        raise StoreError(f"the outcome at position {outcome.position} has the score NaN")
    return fields_of(outcome) | {"comparison_key": key}
