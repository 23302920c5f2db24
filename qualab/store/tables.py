"""The schema, for SQLite and PostgreSQL alike, and the types of its columns."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

import sqlalchemy as sa
import zstandard
from pydantic import TypeAdapter
from sqlalchemy.types import TypeEngine

from qualab.errors import StoreError
from qualab.model.canonical import plain
from qualab.model.engine import ObservationKind
from qualab.model.items import Change
from qualab.model.names import AnswerStatus, ArmName, AuditPart, ComparisonStatus, RequestKind, Verdict, WebhookState
from qualab.model.reason import Reason
from qualab.model.registry import VERDICTS, Scope
from qualab.model.wording import storable_text, valid_text

E = TypeVar("E", bound=StrEnum)


class PlainText(sa.TypeDecorator[str]):
    """Text of people and programs. U+FFFD takes the place of NUL, which PostgreSQL cannot hold."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _: sa.Dialect) -> str | None:
        return None if value is None else storable_text(value)


class ExactText(sa.TypeDecorator[str]):
    """Text of a model, which comes back as it was: NUL is stored as "␀0", and ␀ (U+2400) as "␀␀"."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _: sa.Dialect) -> str | None:
        return None if value is None else valid_text(value).replace("␀", "␀␀").replace("\0", "␀0")

    def process_result_value(self, value: str | None, _: sa.Dialect) -> str | None:
        if value is None or "␀" not in value:
            return value
        return re.sub("␀(.)", lambda match: "\0" if match[1] == "0" else match[1], value)


class JsonText(sa.TypeDecorator[Any]):
    """JSON as text: PostgreSQL's own types refuse NaN, which documents of tasks may hold."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, _: sa.Dialect) -> str | None:
        return None if value is None else to_json(value)

    def process_result_value(self, value: str | None, _: sa.Dialect) -> Any:
        return None if value is None else json.loads(value)


class ReasonText(sa.TypeDecorator[Reason]):
    """A reason's code and values as JSON; worded when it is shown."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Reason | None, _: sa.Dialect) -> str | None:
        return None if value is None else to_json(plain(value))

    def process_result_value(self, value: str | None, _: sa.Dialect) -> Reason | None:
        return None if value is None else TypeAdapter(Reason).validate_json(value)


class CompressedJson(sa.TypeDecorator[Any]):
    """zstd of JSON, for prompts that repeat each other."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, _: sa.Dialect) -> bytes | None:
        return None if value is None else zstandard.compress(to_json(value).encode())

    def process_result_value(self, value: bytes | None, _: sa.Dialect) -> Any:
        return None if value is None else json.loads(zstandard.decompress(value))


class UtcTime(sa.TypeDecorator[datetime]):
    """Aware UTC: PostgreSQL's timestamptz, in SQLite ISO text, whose order is that of the times."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(sa.Text() if dialect.name == "sqlite" else sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | str | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise StoreError(f"the time {value} has no time zone", hint="times are aware UTC")
        moment = value.astimezone(UTC)
        return moment.isoformat(timespec="microseconds") if dialect.name == "sqlite" else moment

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return datetime.fromisoformat(value) if dialect.name == "sqlite" else value.astimezone(UTC)


def vocabulary(enum: type[E], column: str) -> sa.Enum:
    """Text with a CHECK that holds it to the enum's values."""
    return sa.Enum(
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


BYTEWISE = PlainText().with_variant(sa.Text(collation="C"), "postgresql")
"""Sorted by code point in both databases."""

metadata = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "uq": "%(table_name)s_%(column_0_N_name)s_unique",
        "fk": "%(table_name)s_%(column_0_N_name)s_fk",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "ix": "%(table_name)s_%(column_0_N_name)s_index",
    }
)


def _required(type_: Any, *names: str, default: Any = None) -> tuple[sa.Column[Any], ...]:
    return tuple(sa.Column(name, type_, nullable=False, default=default) for name in names)


def _comparison_key() -> sa.Column[int]:
    return sa.Column("comparison_key", sa.Integer, sa.ForeignKey("comparison.key", ondelete="CASCADE"), nullable=False)


def _item_key() -> tuple[Any, ...]:
    return (
        *_required(sa.Integer, "comparison_key", "position"),
        sa.ForeignKeyConstraint(
            ["comparison_key", "position"], ["item.comparison_key", "item.position"], ondelete="CASCADE"
        ),
    )


_RANKS = " ".join(f"WHEN '{verdict}' THEN {rank}" for rank, verdict in enumerate(VERDICTS))

comparison = sa.Table(
    "comparison",
    metadata,
    sa.Column("key", sa.Integer, primary_key=True),
    sa.Column("id", PlainText, nullable=False, unique=True),
    sa.Column("status", vocabulary(ComparisonStatus, "status"), nullable=False),
    sa.Column("version", sa.Integer, nullable=False, default=1),
    *_required(PlainText, "label", "model", "baseline_url", "candidate_url", default=""),
    *_required(PlainText, "suite", "plan_hash", "created_by", "body_hash", default=""),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("started_at", UtcTime),
    sa.Column("finished_at", UtcTime),
    sa.Column("stop_reason", ReasonText),
    sa.Column("verdict", vocabulary(Verdict, "verdict")),
    sa.Column(
        "verdict_rank", sa.Integer, sa.Computed(f"CASE verdict {_RANKS} ELSE {len(VERDICTS)} END", persisted=True)
    ),
    *_required(sa.Integer, "n_items", "duplicates", "takeovers", "takeover_answers", default=0),
    # who runs it
    sa.Column("runner", PlainText),
    sa.Column("claimed_at", UtcTime),
    sa.Column("heartbeat_at", UtcTime),
    # what the service was asked for
    sa.Column("is_exclusive", sa.Boolean, nullable=False, default=False),
    sa.Column("idempotency_key", PlainText, unique=True),
    sa.Column("error", JsonText, nullable=False, default=dict),
    # what is long stands last: a list does not read it
    sa.Column("local", JsonText, nullable=False, default=dict),
    sa.Column("request", JsonText),
    sa.Column("plan", PlainText, nullable=False, default=""),
    sa.CheckConstraint("(request IS NULL) = (created_by = '')", name="request"),
    sa.CheckConstraint(
        "(runner IS NULL) = (claimed_at IS NULL) AND (runner IS NULL) = (heartbeat_at IS NULL)", name="claim"
    ),
    sa.Index(None, "created_at", "key"),
    sa.Index(None, "runner"),
    *(sa.Index(None, name, "created_at", "key") for name in ("status", "verdict", "label", "model")),
    *(
        sa.Index(f"comparison_by_{name}_index", name, sa.text("created_at DESC"), sa.text("key DESC"))
        for name in ("label", "verdict_rank")
    ),
)
"""One comparison, from its request to its end. `plan` is canonical JSON, empty while it is not drawn up.

`request` is what the service was asked for, NULL for the command line's. `takeovers` counts workers lost in a row
without one more answer than the `takeover_answers` that were there at the last.
"""

item = sa.Table(
    "item",
    metadata,
    _comparison_key(),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("task", PlainText, nullable=False),
    sa.Column("doc_id", sa.Integer, nullable=False),
    sa.Column("kind", vocabulary(RequestKind, "kind"), nullable=False),
    sa.Column("n_requests", sa.Integer, nullable=False),
    *_required(ExactText, "cluster", "target"),
    sa.Column("doc", PlainText, nullable=False),
    sa.Column("prompts", CompressedJson, nullable=False),
    sa.PrimaryKeyConstraint("comparison_key", "position"),
    sa.UniqueConstraint("comparison_key", "task", "doc_id"),
    sa.CheckConstraint("position >= 0", name="position"),
)
"""One item. `doc` is JSON. `prompts` holds prompts and the requests made of them, in which the prompts stand again."""

answer = sa.Table(
    "answer",
    metadata,
    *_item_key(),
    *_required(sa.Integer, "choice", "repeat"),
    sa.Column("arm", vocabulary(ArmName, "arm"), nullable=False),
    sa.Column("run", sa.Integer, nullable=False),
    sa.Column("status", vocabulary(AnswerStatus, "status"), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    *_required(ExactText, "finish_reason", "system_fingerprint", "model"),
    sa.Column("prompt_tokens", sa.Integer),
    sa.Column("completion_tokens", sa.Integer),
    sa.Column("reasoning_characters", sa.Integer, nullable=False),
    sa.Column("sent_at", UtcTime, nullable=False),
    sa.Column("latency_s", sa.Double, nullable=False),
    sa.Column("loglikelihood", sa.Double),
    sa.Column("is_greedy", sa.Boolean),
    sa.Column("draft_tokens", sa.Integer),
    sa.Column("accepted_tokens", sa.Integer),
    sa.Column("rounds", JsonText),
    sa.Column("request_hash", sa.LargeBinary, nullable=False),
    sa.Column("text", ExactText),
    *_required(ExactText, "reasoning", "error"),
    sa.Column("token_ids", sa.LargeBinary),
    sa.PrimaryKeyConstraint("comparison_key", "position", "choice", "repeat", "arm", "run"),
    sa.CheckConstraint("choice >= 0", name="choice"),
    sa.CheckConstraint("repeat >= 0", name="repeat"),
    sa.CheckConstraint("run = 0 OR (run > 0 AND arm = 'baseline')", name="run"),
    sa.CheckConstraint("attempts >= 1", name="attempts"),
    sa.CheckConstraint("latency_s >= 0", name="latency_s"),
    sa.CheckConstraint("length(request_hash) = 16", name="request_hash"),
)
"""One answer. `run` is 0 for the comparison itself, 1 and up for the baseline's runs of the noise floor."""

scored_answer = sa.Table(
    "scored_answer",
    metadata,
    *_item_key(),
    sa.Column("part", vocabulary(AuditPart, "part"), nullable=False),
    sa.Column("arm", vocabulary(ArmName, "arm"), nullable=False),
    sa.Column("status", vocabulary(AnswerStatus, "status"), nullable=False),
    sa.Column("finish_reason", ExactText, nullable=False),
    sa.Column("token_ids", sa.LargeBinary, nullable=False),
    sa.Column("is_tokenized_again", sa.Boolean, nullable=False),
    sa.Column("scores", sa.LargeBinary),
    sa.Column("text", ExactText),
    sa.Column("pieces", CompressedJson),
    sa.PrimaryKeyConstraint("comparison_key", "position", "part", "arm"),
)
"""An answer in the token audit. `token_ids` are little-endian int32; `scores` are NULL until it is scored.

A score has 12 bytes: log-probabilities of the token and of the most likely one (float32), and its rank (uint32).
"""

score = sa.Table(
    "score",
    metadata,
    *_item_key(),
    sa.Column("repeat", sa.Integer, nullable=False),
    sa.Column("metric", BYTEWISE, nullable=False),
    sa.Column("arm", vocabulary(ArmName, "arm"), nullable=False),
    sa.Column("value", sa.Double, nullable=False),
    sa.Column("detail", JsonText),
    sa.PrimaryKeyConstraint("comparison_key", "position", "repeat", "metric", "arm"),
    sa.CheckConstraint("repeat >= 0", name="repeat"),
)
"""One metric of one answered item. `detail` is a list."""

outcome = sa.Table(
    "outcome",
    metadata,
    *_item_key(),
    sa.Column("repeat", sa.Integer, nullable=False),
    sa.Column("task", PlainText, nullable=False),
    sa.Column("doc_id", sa.Integer, nullable=False),
    sa.Column("kind", vocabulary(RequestKind, "kind"), nullable=False),
    sa.Column("change", vocabulary(Change, "change"), nullable=False),
    sa.Column("baseline", sa.Double),
    sa.Column("candidate", sa.Double),
    sa.Column("different_text", sa.Boolean, nullable=False),
    sa.Column("length", sa.Integer, nullable=False),
    sa.PrimaryKeyConstraint("comparison_key", "position", "repeat"),
    sa.CheckConstraint("repeat >= 0", name="repeat"),
    sa.CheckConstraint("length >= 0", name="length"),
    sa.CheckConstraint("(change = 'unknown') = (baseline IS NULL OR candidate IS NULL)", name="values"),
    sa.Index(None, "comparison_key", "change", "position", "repeat"),
)
"""Outcome of one item and repeat in both arms."""

look = sa.Table(
    "look",
    metadata,
    _comparison_key(),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("body", PlainText, nullable=False),
    sa.PrimaryKeyConstraint("comparison_key", "number"),
)
"""Looks at a comparison while it runs: added in order, never changed. `body` is canonical JSON."""

observation = sa.Table(
    "observation",
    metadata,
    _comparison_key(),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("kind", vocabulary(ObservationKind, "kind"), nullable=False),
    sa.Column("body", PlainText, nullable=False),
    sa.PrimaryKeyConstraint("comparison_key", "number"),
)
"""Observations of the engines before and during a run: added in order, never changed. `body` is canonical JSON."""

analysis = sa.Table(
    "analysis",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    _comparison_key(),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("verdict", vocabulary(Verdict, "verdict"), nullable=False),
    *_required(PlainText, "input_hash", "plan_hash", "previous", "seal", "body"),
    sa.Index(None, "comparison_key", "id"),
)
"""Analyses are added, never changed; the newest has the largest id. `body` is canonical JSON.

Those of another plan than the comparison's own were made after its data. `previous` is the seal before this one's.
"""

token = sa.Table(
    "token",
    metadata,
    sa.Column("key", sa.Integer, primary_key=True),
    sa.Column("id", PlainText, nullable=False, unique=True),
    sa.Column("name", PlainText, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    sa.Column("scope", vocabulary(Scope, "scope"), nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime),
    sa.Column("revoked_at", UtcTime),
    sa.CheckConstraint("length(digest) = 32", name="digest"),
)
"""Bearer tokens. `digest` is the SHA-256 of a token's secret, which is nowhere."""

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("key", sa.Integer, primary_key=True),
    sa.Column("at", UtcTime, nullable=False),
    *_required(PlainText, "who", "action", "subject"),
    sa.Column("details", JsonText, nullable=False),
)
"""Who did what: added in order, never changed."""

signoff = sa.Table(
    "signoff",
    metadata,
    _comparison_key(),
    sa.Column("number", sa.Integer, nullable=False),
    *_required(PlainText, "plan_hash", "analysis_hash"),
    sa.Column("verdict", vocabulary(Verdict, "verdict"), nullable=False),
    *_required(PlainText, "signed_by", "note", "override"),
    sa.Column("obstacles", JsonText, nullable=False),
    sa.Column("signed_at", UtcTime, nullable=False),
    sa.PrimaryKeyConstraint("comparison_key", "number"),
)
"""Who accepted which verdict: added in order, never changed."""

bank = sa.Table(
    "bank",
    metadata,
    sa.Column("name", PlainText, primary_key=True),
    sa.Column("comparison_key", sa.Integer, sa.ForeignKey("comparison.key"), nullable=False, index=True),
    sa.Column("banked_at", UtcTime, nullable=False),
    sa.Column("body", PlainText, nullable=False),
)
"""Banked baselines, each a comparison that cannot be deleted meanwhile. `body` is canonical JSON."""

webhook = sa.Table(
    "webhook",
    metadata,
    _comparison_key(),
    sa.Column("url", PlainText, nullable=False),
    sa.Column("state", vocabulary(WebhookState, "state"), nullable=False, default=WebhookState.WAITING),
    *_required(sa.Integer, "version", "attempts", default=0),
    sa.Column("last_at", UtcTime),
    sa.Column("due_at", UtcTime),
    *_required(PlainText, "result", default=""),
    sa.PrimaryKeyConstraint("comparison_key"),
)
"""Whom to tell of a comparison's end. `version` is the comparison's at the end that the tries are about."""

worker = sa.Table(
    "worker",
    metadata,
    sa.Column("runner", PlainText, primary_key=True),
    *_required(UtcTime, "since", "heartbeat_at"),
)
"""Workers of the service, and the last heartbeat of each."""
