"""The schema, for SQLite and PostgreSQL. Vocabularies are integers (codes.py), times microseconds since 1970 UTC."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from qualab.adapters.store import codes

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "uq": "%(table_name)s_%(column_0_N_name)s_unique",
        "fk": "%(table_name)s_%(column_0_N_name)s_fk",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "ix": "%(table_name)s_%(column_0_N_name)s_index",
    }
)

comparison = Table(
    "comparison",
    metadata,
    Column("key", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("plan_hash", Text, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("label", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("verdict", SmallInteger),
    Column("stop_reason", Text, nullable=False),
    Column("duplicates", BigInteger, nullable=False),
    Column("runner", Text),
    Column("claimed_at", BigInteger),
    Column("heartbeat_at", BigInteger),
    Column("plan", Text, nullable=False),
    Column("local", Text, nullable=False),
    Column("baseline_url", Text, nullable=False, server_default=text("''")),
    Column("candidate_url", Text, nullable=False, server_default=text("''")),
    CheckConstraint("id <> ''", name="id"),
    CheckConstraint(codes.COMPARISON_STATUS.check("status"), name="status"),
    CheckConstraint(codes.VERDICT.check("verdict"), name="verdict"),
    CheckConstraint("duplicates >= 0", name="duplicates"),
    CheckConstraint(
        "(runner IS NULL) = (claimed_at IS NULL) AND (runner IS NULL) = (heartbeat_at IS NULL)", name="claim"
    ),
    Index(None, "created_at"),
)
"""One comparison. `plan` is canonical JSON, `local` a JSON object."""

dictionary = Table(
    "dictionary",
    metadata,
    Column("comparison_key", Integer, ForeignKey("comparison.key"), nullable=False),
    Column("script", SmallInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("comparison_key", "script"),
    CheckConstraint("script BETWEEN 0 AND 1", name="script"),
)
"""The zstd dictionaries that a comparison's answers are compressed with, themselves compressed (texts.py)."""

phrase = Table(
    "phrase",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("text", LargeBinary, nullable=False),
    CheckConstraint("length(digest) = 16", name="digest"),
)
"""Short texts that recur: fingerprints, finish reasons, metric keys. UTF-8; `digest` begins their SHA-256."""

item = Table(
    "item",
    metadata,
    Column("comparison_key", Integer, ForeignKey("comparison.key"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("doc_id", Integer, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("task", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    PrimaryKeyConstraint("comparison_key", "position"),
    UniqueConstraint("comparison_key", "task", "doc_id"),
    CheckConstraint("position >= 0", name="position"),
    CheckConstraint(codes.KIND.check("kind"), name="kind"),
)
"""One item. `payload` is zstd of the JSON of its document, target, cluster, prompts and requests."""


def _answers(name: str, whose: str, *checks: CheckConstraint) -> Table:
    """A table of answers. Both have the same columns but for the second, so that one row fits either."""
    return Table(
        name,
        metadata,
        Column("comparison_key", Integer, nullable=False),
        Column(whose, SmallInteger, nullable=False),
        Column("position", Integer, nullable=False),
        Column("choice", SmallInteger, nullable=False),
        Column("repeat", SmallInteger, nullable=False),
        Column("status", SmallInteger, nullable=False),
        Column("attempts", SmallInteger, nullable=False),
        Column("finish_reason", Integer, ForeignKey("phrase.id"), nullable=False),
        Column("fingerprint", Integer, ForeignKey("phrase.id"), nullable=False),
        Column("prompt_tokens", Integer),
        Column("completion_tokens", Integer),
        Column("reasoning_characters", Integer, nullable=False),
        Column("sent_at", BigInteger, nullable=False),
        Column("latency_us", BigInteger, nullable=False),
        Column("loglikelihood", Double),
        Column("is_greedy", Boolean),
        Column("request_hash", LargeBinary, nullable=False),
        Column("text", LargeBinary),
        Column("error", LargeBinary),
        Column("drafted", Text),
        PrimaryKeyConstraint("comparison_key", whose, "position", "choice", "repeat"),
        ForeignKeyConstraint(["comparison_key", "position"], ["item.comparison_key", "item.position"]),
        *checks,
        CheckConstraint("choice >= 0", name="choice"),
        CheckConstraint("repeat >= 0", name="repeat"),
        CheckConstraint(codes.ANSWER_STATUS.check("status"), name="status"),
        CheckConstraint("attempts >= 1", name="attempts"),
        CheckConstraint("latency_us >= 0", name="latency_us"),
        CheckConstraint("length(request_hash) = 16", name="request_hash"),
        sqlite_with_rowid=False,
    )


answer = _answers("answer", "arm", CheckConstraint(codes.ARM.check("arm"), name="arm"))
"""One answer. `text` and `error` are packed (texts.py), a text perhaps upon the other arm's; no error is NULL."""

noise_answer = _answers("noise_answer", "run", CheckConstraint("run >= 1", name="run"))
"""One answer of the baseline in a run of the noise floor; its text perhaps upon that of the baseline itself."""

score = Table(
    "score",
    metadata,
    Column("comparison_key", Integer, nullable=False),
    Column("arm", SmallInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Column("repeat", SmallInteger, nullable=False),
    Column("metric", Integer, ForeignKey("phrase.id"), nullable=False),
    Column("value", Double, nullable=False),
    Column("detail", Text),
    PrimaryKeyConstraint("comparison_key", "arm", "position", "repeat", "metric"),
    ForeignKeyConstraint(["comparison_key", "position"], ["item.comparison_key", "item.position"]),
    CheckConstraint(codes.ARM.check("arm"), name="arm"),
    CheckConstraint("repeat >= 0", name="repeat"),
    sqlite_with_rowid=False,
)
"""One metric of one answered item. `detail` is a JSON list."""

look = Table(
    "look",
    metadata,
    Column("comparison_key", Integer, ForeignKey("comparison.key"), nullable=False),
    Column("number", SmallInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    PrimaryKeyConstraint("comparison_key", "number"),
    CheckConstraint("number >= 1", name="number"),
)
"""Looks at a comparison while it runs: added in order, never changed. `body` is canonical JSON."""

observation = Table(
    "observation",
    metadata,
    Column("comparison_key", Integer, ForeignKey("comparison.key"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("comparison_key", "number"),
    CheckConstraint("number >= 1", name="number"),
    CheckConstraint(codes.OBSERVATION.check("kind"), name="kind"),
)
"""What the engines said before and during a run: added in order, never changed. `body` is zstd of canonical JSON."""

analysis = Table(
    "analysis",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("comparison_key", Integer, ForeignKey("comparison.key"), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("verdict", SmallInteger, nullable=False),
    Column("input_hash", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("plan_hash", Text, nullable=False, server_default=text("''")),
    CheckConstraint(codes.VERDICT.check("verdict"), name="verdict"),
    Index(None, "comparison_key", "id"),
)
"""Analyses are added, never changed; the newest has the largest id. `body` is canonical JSON.

Those of another plan than the comparison's own were made after its data.
"""
