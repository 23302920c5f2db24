"""The schema, for SQLite and PostgreSQL alike, and the types of its columns."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

import zstandard
from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    Dialect,
    Double,
    Enum,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeEngine

from qualab.errors import StoreError
from qualab.model.canonical import plain
from qualab.model.engine import ObservationKind
from qualab.model.items import Change
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus, RequestKind, Verdict
from qualab.model.reason import Reason
from qualab.model.registry import VERDICTS, Scope
from qualab.model.wording import storable_text, valid_text

E = TypeVar("E", bound=StrEnum)


class PlainText(TypeDecorator[str]):
    """Text of people and programs. U+FFFD takes the place of NUL, which PostgreSQL cannot hold."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _: Dialect) -> str | None:
        return None if value is None else storable_text(value)


class ExactText(TypeDecorator[str]):
    """Text of a model, which comes back as it was: NUL is stored as "␀0", and ␀ (U+2400) as "␀␀"."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _: Dialect) -> str | None:
        return None if value is None else valid_text(value).replace("␀", "␀␀").replace("\0", "␀0")

    def process_result_value(self, value: str | None, _: Dialect) -> str | None:
        if value is None or "␀" not in value:
            return value
        return re.sub("␀(.)", lambda match: "\0" if match[1] == "0" else match[1], value)


class JsonText(TypeDecorator[Any]):
    """JSON as text: PostgreSQL's own types refuse NaN, which documents of tasks may hold."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, _: Dialect) -> str | None:
        return None if value is None else to_json(value)

    def process_result_value(self, value: str | None, _: Dialect) -> Any:
        return None if value is None else json.loads(value)


class ReasonText(TypeDecorator[Reason]):
    """A reason's code and values as JSON; worded when it is shown."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Reason | None, _: Dialect) -> str | None:
        return None if value is None else to_json(plain(value))

    def process_result_value(self, value: str | None, _: Dialect) -> Reason | None:
        return None if value is None else TypeAdapter(Reason).validate_json(value)


class CompressedJson(TypeDecorator[Any]):
    """zstd of JSON, for prompts that repeat each other."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, _: Dialect) -> bytes:
        return zstandard.compress(to_json(value).encode())

    def process_result_value(self, value: bytes | None, _: Dialect) -> Any:
        return None if value is None else json.loads(zstandard.decompress(value))


class UtcTime(TypeDecorator[datetime]):
    """Aware UTC: PostgreSQL's timestamptz, in SQLite ISO text, whose order is that of the times."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | str | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise StoreError(f"the time {value} has no time zone", hint="times are aware UTC")
        moment = value.astimezone(UTC)
        return moment.isoformat(timespec="microseconds") if dialect.name == "sqlite" else moment

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return datetime.fromisoformat(value) if dialect.name == "sqlite" else value.astimezone(UTC)


def vocabulary(enum: type[E], column: str) -> Enum:
    """Text with a CHECK that holds it to the enum's values."""
    return Enum(
        enum,
        name=column,
        native_enum=False,
        create_constraint=True,
        length=32,
        values_callable=lambda members: [member.value for member in members],
    )


def to_json(value: Any, *, of: str = "a record") -> str:
    """Exact JSON (NaN and large integers included) that UTF-8 can say. `of` names the value in a StoreError."""
    try:
        plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as exc:
        raise StoreError(f"{of} holds a value that JSON cannot say: {exc}") from exc
    return plain if valid_text(plain) == plain else json.dumps(value, separators=(",", ":"))


BYTEWISE = PlainText().with_variant(Text(collation="C"), "postgresql")
"""Sorted by code point in both databases."""

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "uq": "%(table_name)s_%(column_0_N_name)s_unique",
        "fk": "%(table_name)s_%(column_0_N_name)s_fk",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "ix": "%(table_name)s_%(column_0_N_name)s_index",
    }
)


def _comparison_key() -> Column[int]:
    return Column("comparison_key", Integer, ForeignKey("comparison.key", ondelete="CASCADE"), nullable=False)


def _item_key() -> tuple[Any, ...]:
    """Columns that name an item, and their foreign key."""
    return (
        Column("comparison_key", Integer, nullable=False),
        Column("position", Integer, nullable=False),
        ForeignKeyConstraint(
            ["comparison_key", "position"], ["item.comparison_key", "item.position"], ondelete="CASCADE"
        ),
    )


_RANKS = " ".join(f"WHEN '{verdict}' THEN {rank}" for rank, verdict in enumerate(VERDICTS))

comparison = Table(
    "comparison",
    metadata,
    Column("key", Integer, primary_key=True),
    Column("id", PlainText, nullable=False, unique=True),
    Column("status", vocabulary(ComparisonStatus, "status"), nullable=False),
    Column("version", Integer, nullable=False, default=1),
    Column("label", PlainText, nullable=False),
    Column("model", PlainText, nullable=False),
    Column("baseline_url", PlainText, nullable=False),
    Column("candidate_url", PlainText, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("finished_at", UtcTime),
    Column("verdict", vocabulary(Verdict, "verdict")),
    Column("verdict_rank", Integer, Computed(f"CASE verdict {_RANKS} ELSE {len(VERDICTS)} END", persisted=True)),
    Column("stop_reason", ReasonText),
    Column("duplicates", BigInteger, nullable=False, default=0),
    Column("plan_hash", PlainText, nullable=False, default=""),
    Column("suite", PlainText, nullable=False, default=""),
    Column("n_items", Integer, nullable=False, default=0),
    # who runs it
    Column("runner", PlainText),
    Column("claimed_at", UtcTime),
    Column("heartbeat_at", UtcTime),
    # what the service was asked for
    Column("created_by", PlainText, nullable=False, default=""),
    Column("is_exclusive", Boolean, nullable=False, default=False),
    Column("idempotency_key", PlainText, unique=True),
    Column("body_hash", PlainText, nullable=False, default=""),
    Column("error", JsonText, nullable=False, default=dict),
    Column("takeovers", Integer, nullable=False, default=0),
    Column("takeover_answers", Integer, nullable=False, default=0),
    # what is long stands last: a list does not read it
    Column("local", JsonText, nullable=False, default=dict),
    Column("request", JsonText),
    Column("plan", PlainText, nullable=False, default=""),
    CheckConstraint("id <> ''", name="id"),
    CheckConstraint("version >= 1", name="version"),
    CheckConstraint("duplicates >= 0", name="duplicates"),
    CheckConstraint("idempotency_key <> ''", name="idempotency_key"),
    CheckConstraint("(request IS NULL) = (created_by = '')", name="request"),
    CheckConstraint(
        "(runner IS NULL) = (claimed_at IS NULL) AND (runner IS NULL) = (heartbeat_at IS NULL)", name="claim"
    ),
    Index(None, "created_at", "key"),
    Index(None, "runner"),
    *(Index(None, name, "created_at", "key") for name in ("status", "verdict", "label", "model")),
    *(
        Index(f"comparison_by_{name}_index", name, text("created_at DESC"), text("key DESC"))
        for name in ("label", "verdict_rank")
    ),
)
"""One comparison, from its request to its end. `plan` is canonical JSON, empty while it is not drawn up.

`request` is what the service was asked for, NULL for the command line's. `takeovers` counts workers lost in a row
without one more answer than the `takeover_answers` that were there at the last.
"""

item = Table(
    "item",
    metadata,
    _comparison_key(),
    Column("position", Integer, nullable=False),
    Column("task", PlainText, nullable=False),
    Column("doc_id", Integer, nullable=False),
    Column("kind", vocabulary(RequestKind, "kind"), nullable=False),
    Column("n_requests", Integer, nullable=False),
    Column("cluster", ExactText, nullable=False),
    Column("target", ExactText, nullable=False),
    Column("doc", PlainText, nullable=False),
    Column("prompts", CompressedJson, nullable=False),
    PrimaryKeyConstraint("comparison_key", "position"),
    UniqueConstraint("comparison_key", "task", "doc_id"),
    CheckConstraint("position >= 0", name="position"),
)
"""One item. `doc` is JSON. `prompts` holds prompts and the requests made of them, in which the prompts stand again."""

answer = Table(
    "answer",
    metadata,
    *_item_key(),
    Column("choice", Integer, nullable=False),
    Column("repeat", Integer, nullable=False),
    Column("arm", vocabulary(ArmName, "arm"), nullable=False),
    Column("run", Integer, nullable=False),
    Column("status", vocabulary(AnswerStatus, "status"), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("finish_reason", ExactText, nullable=False),
    Column("system_fingerprint", ExactText, nullable=False),
    Column("model", ExactText, nullable=False),
    Column("prompt_tokens", Integer),
    Column("completion_tokens", Integer),
    Column("reasoning_characters", Integer, nullable=False),
    Column("sent_at", UtcTime, nullable=False),
    Column("latency_s", Double, nullable=False),
    Column("loglikelihood", Double),
    Column("is_greedy", Boolean),
    Column("draft_tokens", Integer),
    Column("accepted_tokens", Integer),
    Column("rounds", JsonText),
    Column("request_hash", LargeBinary, nullable=False),
    Column("text", ExactText),
    Column("reasoning", ExactText, nullable=False),
    Column("error", ExactText, nullable=False),
    PrimaryKeyConstraint("comparison_key", "position", "choice", "repeat", "arm", "run"),
    CheckConstraint("choice >= 0", name="choice"),
    CheckConstraint("repeat >= 0", name="repeat"),
    CheckConstraint("run = 0 OR (run > 0 AND arm = 'baseline')", name="run"),
    CheckConstraint("attempts >= 1", name="attempts"),
    CheckConstraint("latency_s >= 0", name="latency_s"),
    CheckConstraint("length(request_hash) = 16", name="request_hash"),
)
"""One answer. `run` is 0 for the comparison itself, 1 and up for the baseline's runs of the noise floor."""

score = Table(
    "score",
    metadata,
    *_item_key(),
    Column("repeat", Integer, nullable=False),
    Column("metric", BYTEWISE, nullable=False),
    Column("arm", vocabulary(ArmName, "arm"), nullable=False),
    Column("value", Double, nullable=False),
    Column("detail", JsonText),
    PrimaryKeyConstraint("comparison_key", "position", "repeat", "metric", "arm"),
    CheckConstraint("repeat >= 0", name="repeat"),
)
"""One metric of one answered item. `detail` is a list."""

outcome = Table(
    "outcome",
    metadata,
    *_item_key(),
    Column("repeat", Integer, nullable=False),
    Column("task", PlainText, nullable=False),
    Column("doc_id", Integer, nullable=False),
    Column("kind", vocabulary(RequestKind, "kind"), nullable=False),
    Column("change", vocabulary(Change, "change"), nullable=False),
    Column("baseline", Double),
    Column("candidate", Double),
    Column("different_text", Boolean, nullable=False),
    Column("length", Integer, nullable=False),
    PrimaryKeyConstraint("comparison_key", "position", "repeat"),
    CheckConstraint("repeat >= 0", name="repeat"),
    CheckConstraint("length >= 0", name="length"),
    CheckConstraint("(change = 'unknown') = (baseline IS NULL OR candidate IS NULL)", name="values"),
    Index(None, "comparison_key", "change", "position", "repeat"),
)
"""What became of one item and repeat in both arms."""

look = Table(
    "look",
    metadata,
    _comparison_key(),
    Column("number", Integer, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("body", PlainText, nullable=False),
    PrimaryKeyConstraint("comparison_key", "number"),
    CheckConstraint("number >= 1", name="number"),
)
"""Looks at a comparison while it runs: added in order, never changed. `body` is canonical JSON."""

observation = Table(
    "observation",
    metadata,
    _comparison_key(),
    Column("number", Integer, nullable=False),
    Column("kind", vocabulary(ObservationKind, "kind"), nullable=False),
    Column("body", PlainText, nullable=False),
    PrimaryKeyConstraint("comparison_key", "number"),
    CheckConstraint("number >= 1", name="number"),
)
"""What the engines said before and during a run: added in order, never changed. `body` is canonical JSON."""

analysis = Table(
    "analysis",
    metadata,
    Column("id", Integer, primary_key=True),
    _comparison_key(),
    Column("created_at", UtcTime, nullable=False),
    Column("verdict", vocabulary(Verdict, "verdict"), nullable=False),
    Column("input_hash", PlainText, nullable=False),
    Column("plan_hash", PlainText, nullable=False),
    Column("previous", PlainText, nullable=False),
    Column("seal", PlainText, nullable=False),
    Column("body", PlainText, nullable=False),
    Index(None, "comparison_key", "id"),
)
"""Analyses are added, never changed; the newest has the largest id. `body` is canonical JSON.

Those of another plan than the comparison's own were made after its data. `previous` is the seal before this one's.
"""

token = Table(
    "token",
    metadata,
    Column("key", Integer, primary_key=True),
    Column("id", PlainText, nullable=False, unique=True),
    Column("name", PlainText, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("scope", vocabulary(Scope, "scope"), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    CheckConstraint("length(digest) = 32", name="digest"),
)
"""Bearer tokens. `digest` is the SHA-256 of a token's secret, which is nowhere."""

audit = Table(
    "audit",
    metadata,
    Column("key", Integer, primary_key=True),
    Column("at", UtcTime, nullable=False),
    Column("who", PlainText, nullable=False),
    Column("action", PlainText, nullable=False),
    Column("subject", PlainText, nullable=False),
    Column("details", JsonText, nullable=False),
)
"""Who did what: added in order, never changed."""

signoff = Table(
    "signoff",
    metadata,
    _comparison_key(),
    Column("number", Integer, nullable=False),
    Column("plan_hash", PlainText, nullable=False),
    Column("analysis_hash", PlainText, nullable=False),
    Column("verdict", vocabulary(Verdict, "verdict"), nullable=False),
    Column("signed_by", PlainText, nullable=False),
    Column("note", PlainText, nullable=False),
    Column("override", PlainText, nullable=False),
    Column("obstacles", JsonText, nullable=False),
    Column("signed_at", UtcTime, nullable=False),
    PrimaryKeyConstraint("comparison_key", "number"),
    CheckConstraint("number >= 1", name="number"),
)
"""Who accepted which verdict: added in order, never changed."""

worker = Table(
    "worker",
    metadata,
    Column("runner", PlainText, primary_key=True),
    Column("since", UtcTime, nullable=False),
    Column("heartbeat_at", UtcTime, nullable=False),
)
"""Workers of the service, and the last heartbeat of each."""
