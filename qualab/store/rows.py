"""Rows of the tables as values of the model, and back; what store and registry query alike."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Connection, Row, Table, select

from qualab.errors import StoreError
from qualab.model.comparison import Comparison, Look
from qualab.model.items import Answer, Drafted, Item, Outcome, Prompt, Reply, Request, Score
from qualab.model.names import Api
from qualab.model.plan import Plan
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import Claim, Submission, impossible_outcome
from qualab.store.tables import comparison, score, to_json

T = TypeVar("T")
CHUNK = 1_000
"""Rows in memory at a time."""
SCORES = select(score.c.arm, score.c.position, score.c.repeat, score.c.metric, score.c.value, score.c.detail)
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


def matching(wanted: ComparisonFilter, table: Table) -> Iterator[ColumnElement[bool]]:
    """A filter's conditions on comparisons, or on submissions, which have no verdict."""
    c = table.c
    if wanted.status is not None:
        yield c.status == wanted.status
    if wanted.verdict is not None:
        yield c.verdict == wanted.verdict
    if wanted.label is not None:
        yield c.label == wanted.label
    if wanted.model is not None:
        yield c.model == wanted.model
    if wanted.since is not None:
        yield c.created_at >= wanted.since
    if wanted.until is not None:
        yield c.created_at < wanted.until


def read_claim(connection: Connection, key: int) -> Claim | None:
    """Who runs the comparison. On PostgreSQL nobody else changes the row until the transaction ends."""
    c = comparison.c
    query = select(c.runner, c.claimed_at, c.heartbeat_at).where(c.key == key).with_for_update(key_share=True)
    runner, claimed_at, heartbeat_at = connection.execute(query).one()
    return None if runner is None else Claim(runner=runner, since=claimed_at, heartbeat_at=heartbeat_at)


adapter: Any = cache(TypeAdapter)
"""The validator of a type, made once."""


def comparison_of(row: Row[Any]) -> Comparison:
    """A comparison from a whole row."""
    return Comparison(
        id=row.id,
        plan=adapter(Plan).validate_json(row.plan),
        plan_hash=row.plan_hash,
        status=row.status,
        label=row.label,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        verdict=row.verdict,
        stop_reason=row.stop_reason,
        duplicates=row.duplicates,
        local=row.local,
        baseline_url=row.baseline_url,
        candidate_url=row.candidate_url,
    )


def look_of(body: str) -> Look:
    """A look from its JSON."""
    look: Look = adapter(Look).validate_json(body)
    return look


def item_row(key: int, item: Item) -> dict[str, Any]:
    """One row of `item`."""
    return {
        "comparison_key": key,
        "position": item.position,
        "task": item.task,
        "doc_id": item.doc_id,
        "kind": item.kind,
        "n_requests": len(item.requests),
        "cluster": item.cluster,
        "target": item.target,
        "doc": to_json(item.doc, of=f"item {item.id}"),
        "prompts": {
            "prompts": [fields_of(prompt) for prompt in item.prompts],
            "requests": [fields_of(request) for request in item.requests],
        },
    }


def fields_of(value: Any) -> dict[str, Any]:
    """Fields by name, their values as they are."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def item_of(row: Row[Any]) -> Item:
    """An item from a whole row."""
    return Item(
        position=row.position,
        task=row.task,
        doc_id=row.doc_id,
        kind=row.kind,
        doc=json.loads(row.doc),
        target=row.target,
        prompts=tuple(Prompt(**prompt) for prompt in row.prompts["prompts"]),
        requests=tuple(Request(**{**request, "api": Api(request["api"])}) for request in row.prompts["requests"]),
        cluster=row.cluster,
    )


def answer_row(key: int, answer: Answer) -> dict[str, Any]:
    """One row of `answer`. Raises StoreError for a NaN, which SQLite would take for no value."""
    reply, drafted = answer.reply, answer.reply.drafted
    if reply.loglikelihood is not None and math.isnan(reply.loglikelihood):
        raise StoreError(f"an answer at position {answer.position} has the log-likelihood NaN")
    return {
        "comparison_key": key,
        "position": answer.position,
        "choice": answer.choice,
        "repeat": answer.repeat,
        "arm": answer.arm,
        "run": answer.run,
        "status": reply.status,
        "attempts": reply.attempts,
        "finish_reason": reply.finish_reason,
        "system_fingerprint": reply.system_fingerprint,
        "model": reply.model,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "reasoning_characters": reply.reasoning_characters,
        "sent_at": reply.sent_at,
        "latency_s": round(reply.latency_s, 6),
        "loglikelihood": reply.loglikelihood,
        "is_greedy": reply.is_greedy,
        "draft_tokens": drafted.draft_tokens if drafted else None,
        "accepted_tokens": drafted.accepted_tokens if drafted else None,
        "rounds": drafted.rounds if drafted else None,
        "request_hash": answer.request_hash,
        "text": reply.text,
        "reasoning": reply.reasoning,
        "error": reply.error,
    }


def answer_of(row: Row[Any]) -> Answer:
    """An answer from a whole row."""
    drafted = None
    if row.accepted_tokens is not None:
        drafted = Drafted(draft_tokens=row.draft_tokens, accepted_tokens=row.accepted_tokens, rounds=tuple(row.rounds))
    reply = Reply(
        status=row.status,
        text=row.text,
        loglikelihood=row.loglikelihood,
        is_greedy=row.is_greedy,
        finish_reason=row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        attempts=row.attempts,
        latency_s=row.latency_s,
        sent_at=row.sent_at,
        system_fingerprint=row.system_fingerprint,
        error=row.error,
        reasoning_characters=row.reasoning_characters,
        drafted=drafted,
        model=row.model,
        reasoning=row.reasoning,
    )
    return Answer(
        arm=row.arm,
        position=row.position,
        choice=row.choice,
        repeat=row.repeat,
        request_hash=row.request_hash,
        reply=reply,
        run=row.run,
    )


def score_row(key: int, score: Score) -> dict[str, Any]:
    """One row of `score`. Raises StoreError for NaN."""
    if math.isnan(score.value):
        raise StoreError(f"the score {score.metric} at position {score.position} is NaN, which is no score")
    return {
        "comparison_key": key,
        "position": score.position,
        "repeat": score.repeat,
        "metric": score.metric,
        "arm": score.arm,
        "value": float(score.value),
        "detail": score.detail,
    }


def score_of(row: Sequence[Any]) -> Score:
    """A score from a row of SCORES."""
    arm, position, repeat, metric, value, detail = row
    detail = None if detail is None else tuple(detail)
    return Score(arm=arm, position=position, repeat=repeat, metric=metric, value=value, detail=detail)


def outcome_row(key: int, outcome: Outcome) -> dict[str, Any]:
    """One row of `outcome`. Raises StoreError for NaN."""
    if any(value is not None and math.isnan(value) for value in (outcome.baseline, outcome.candidate)):
        raise impossible_outcome()
    return {"comparison_key": key, **fields_of(outcome)}


def submission_of(row: Row[Any]) -> Submission:
    """A submission from a whole row."""
    return Submission(
        id=row.id,
        experiment=row.experiment,
        label=row.label,
        model=row.model,
        created_at=row.created_at,
        created_by=row.created_by,
        status=row.status,
        error=row.error,
        version=row.version,
        takeovers=row.takeovers,
    )
