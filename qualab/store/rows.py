"""Rows of the tables as values of the model, and back; what several queries share."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Connection, Row, Table, insert, select

from qualab.errors import StoreError
from qualab.model.comparison import Comparison, Look
from qualab.model.items import Answer, Drafted, Item, Outcome, Prompt, Reply, Request, Score
from qualab.model.names import Api
from qualab.model.plan import Plan
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import AuditEntry
from qualab.store.tables import audit, comparison, score, to_json

T = TypeVar("T")
CHUNK = 1_000
"""Rows in memory at a time."""
SCORES = select(*(score.c[name] for name in Score.__dataclass_fields__))
SCORE_ORDER = (score.c.arm, score.c.position, score.c.repeat, score.c.metric)


def chunks(values: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yields lists of at most `size` values."""
    source = iter(values)
    while chunk := list(islice(source, size)):
        yield chunk


def insert_new(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """Inserts rows, except those whose key is there already, and returns how many were new."""
    if not rows:
        return 0
    statement: Any
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert  # noqa: PLC0415  only the dialect in use

        statement = sqlite_insert(table).on_conflict_do_nothing()
    else:
        from sqlalchemy.dialects.postgresql import insert as postgresql_insert  # noqa: PLC0415

        statement = postgresql_insert(table).on_conflict_do_nothing()
    return connection.execute(statement, rows, execution_options={"preserve_rowcount": True}).rowcount


def conditions_of(wanted: ComparisonFilter) -> Iterator[ColumnElement[bool]]:
    """A filter's conditions on comparisons."""
    c = comparison.c
    for name in ("status", "verdict", "label", "model"):
        if (value := getattr(wanted, name)) is not None:
            yield c[name] == value
    if wanted.since is not None:
        yield c.created_at >= wanted.since
    if wanted.until is not None:
        yield c.created_at < wanted.until


def add_entry(connection: Connection, entry: AuditEntry) -> None:
    """Record who did what."""
    connection.execute(insert(audit), fields_of(entry))


def impossible_outcome() -> StoreError:
    """For outcomes that cannot be stored."""
    return StoreError("an outcome comes twice, is impossible, or belongs to an item that its comparison does not have")


adapter: Any = cache(TypeAdapter)
"""The validator of a type, made once."""


def fields_of(value: Any) -> dict[str, Any]:
    """A dataclass's fields by name, their values as they are."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def value_of(type_: Callable[..., T], row: Row[Any], **changes: Any) -> T:
    """A dataclass from the columns that are named as its fields; `changes` take their place."""
    names = type_.__dataclass_fields__  # type: ignore[attr-defined]
    return type_(**{name: getattr(row, name) for name in names if name not in changes}, **changes)


def comparison_of(row: Row[Any]) -> Comparison:
    """A comparison from a whole row."""
    return value_of(Comparison, row, plan=adapter(Plan).validate_json(row.plan))


def look_of(body: str) -> Look:
    """A look from its JSON."""
    look: Look = adapter(Look).validate_json(body)
    return look


def item_row(key: int, item: Item) -> dict[str, Any]:
    """One row of `item`. Raises StoreError for a document that JSON cannot hold."""
    prompts = {"prompts": list(map(fields_of, item.prompts)), "requests": list(map(fields_of, item.requests))}
    changes = {"doc": to_json(item.doc, of=f"item {item.id}"), "prompts": prompts, "n_requests": len(item.requests)}
    row = fields_of(item) | changes | {"comparison_key": key}
    del row["requests"]
    return row


def item_of(row: Row[Any]) -> Item:
    """An item from a whole row."""
    prompts = tuple(Prompt(**prompt) for prompt in row.prompts["prompts"])
    requests = tuple(Request(**{**request, "api": Api(request["api"])}) for request in row.prompts["requests"])
    return value_of(Item, row, doc=json.loads(row.doc), prompts=prompts, requests=requests)


def answer_row(key: int, answer: Answer) -> dict[str, Any]:
    """One row of `answer`. Raises StoreError for a NaN, which SQLite would take for no value."""
    reply, drafted = answer.reply, answer.reply.drafted
    if reply.loglikelihood is not None and math.isnan(reply.loglikelihood):
        raise StoreError(f"an answer at position {answer.position} has the log-likelihood NaN")
    row = fields_of(answer) | fields_of(reply)
    del row["reply"], row["drafted"]
    row["comparison_key"], row["latency_s"] = key, round(reply.latency_s, 6)
    return row | (fields_of(drafted) if drafted else dict.fromkeys(Drafted.__dataclass_fields__))


def answer_of(row: Row[Any]) -> Answer:
    """An answer from a whole row."""
    drafted = None if row.accepted_tokens is None else value_of(Drafted, row, rounds=tuple(row.rounds))
    return value_of(Answer, row, reply=value_of(Reply, row, drafted=drafted))


def score_row(key: int, score: Score) -> dict[str, Any]:
    """One row of `score`. Raises StoreError for NaN."""
    if math.isnan(score.value):
        raise StoreError(f"the score {score.metric} at position {score.position} is NaN, which is no score")
    return fields_of(score) | {"comparison_key": key, "value": float(score.value)}


def score_of(row: Any) -> Score:
    """A score from a row of `SCORES`: there are tens of thousands."""
    arm, position, repeat, metric, value, detail = row
    detail = None if detail is None else tuple(detail)
    return Score(arm=arm, position=position, repeat=repeat, metric=metric, value=value, detail=detail)


def outcome_row(key: int, outcome: Outcome) -> dict[str, Any]:
    """One row of `outcome`. Raises StoreError for NaN."""
    if any(value is not None and math.isnan(value) for value in (outcome.baseline, outcome.candidate)):
        raise impossible_outcome()
    return fields_of(outcome) | {"comparison_key": key}
