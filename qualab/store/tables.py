"""The schema, for SQLite and PostgreSQL. Vocabularies are integers (codes.py), times microseconds since 1970 UTC.

Rows that come by the ten thousand (answers, scores, outcomes) have no foreign keys, which databases check row by row:
whoever writes them locks their comparison and checks all their positions (known.py); phrases are never deleted.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
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

from qualab.store import codes

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
    Column("model", Text, nullable=False, server_default=text("''")),
    Column("suite", Text, nullable=False, server_default=text("''")),
    Column("n_items", Integer, nullable=False, server_default=text("0")),
    CheckConstraint("id <> ''", name="id"),
    CheckConstraint(codes.COMPARISON_STATUS.check("status"), name="status"),
    CheckConstraint(codes.VERDICT.check("verdict"), name="verdict"),
    CheckConstraint("duplicates >= 0", name="duplicates"),
    CheckConstraint(
        "(runner IS NULL) = (claimed_at IS NULL) AND (runner IS NULL) = (heartbeat_at IS NULL)", name="claim"
    ),
    Index(None, "created_at", "key"),
    *(Index(None, name, "created_at", "key") for name in ("status", "verdict", "label", "model")),
)
"""One comparison. `plan` is canonical JSON, `local` a JSON object. What a list shows of the plan has columns."""

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
"""Short texts that recur: fingerprints, finish reasons, metric keys. UTF-8; `digest` begins their SHA-256.

An answer's `fingerprint` is followed, after U+001F, by the model that it says it comes from, where it says one.
"""

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
        Column("finish_reason", Integer, nullable=False),
        Column("fingerprint", Integer, nullable=False),
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
        Column("reasoning", LargeBinary),
        PrimaryKeyConstraint("comparison_key", whose, "position", "choice", "repeat"),
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
"""One answer. `text`, `error` and `reasoning` are packed (texts.py), a text perhaps upon the other arm's; no error and
no reasoning is NULL."""

noise_answer = _answers("noise_answer", "run", CheckConstraint("run >= 1", name="run"))
"""One answer of the baseline in a run of the noise floor; its text perhaps upon that of the baseline itself."""

score = Table(
    "score",
    metadata,
    Column("comparison_key", Integer, nullable=False),
    Column("arm", SmallInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Column("repeat", SmallInteger, nullable=False),
    Column("metric", Integer, nullable=False),
    Column("value", Double, nullable=False),
    Column("detail", Text),
    PrimaryKeyConstraint("comparison_key", "arm", "position", "repeat", "metric"),
    CheckConstraint(codes.ARM.check("arm"), name="arm"),
    CheckConstraint("repeat >= 0", name="repeat"),
    sqlite_with_rowid=False,
)
"""One metric of one answered item. `detail` is a JSON list."""

outcome = Table(
    "outcome",
    metadata,
    Column("comparison_key", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("repeat", SmallInteger, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("task", Integer, nullable=False),
    Column("doc_id", Integer, nullable=False),
    Column("length", Integer, nullable=False),
    Column("baseline", Double),
    Column("candidate", Double),
    Column("change", SmallInteger, nullable=False),
    Column("different_text", Boolean, nullable=False),
    PrimaryKeyConstraint("comparison_key", "position", "repeat"),
    CheckConstraint("repeat >= 0", name="repeat"),
    CheckConstraint(codes.KIND.check("kind"), name="kind"),
    CheckConstraint("length >= 0", name="length"),
    CheckConstraint(codes.CHANGE.check("change"), name="change"),
    CheckConstraint("(change = 3) = (baseline IS NULL OR candidate IS NULL)", name="values"),
    sqlite_with_rowid=False,
)
"""What became of one item and repeat. `task` is a phrase."""

FLIPPED = text("change BETWEEN 1 AND 2")
"""Gains and losses, as the index of them says it, so that it is used."""

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
    Column("previous", Text, nullable=False, server_default=text("''")),
    Column("seal", Text, nullable=False, server_default=text("''")),
    CheckConstraint(codes.VERDICT.check("verdict"), name="verdict"),
    Index(None, "comparison_key", "id"),
)
"""Analyses are added, never changed; the newest has the largest id. `body` is canonical JSON.

Those of another plan than the comparison's own were made after its data. `previous` is the seal before this one's.
"""

submission = Table(
    "submission",
    metadata,
    Column("key", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("experiment", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("error", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("is_planned", Boolean, nullable=False),
    Column("idempotency_key", Text, unique=True),
    Column("body_hash", Text, nullable=False),
    Column("takeovers", Integer, nullable=False, server_default=text("0")),
    Column("answered", Integer, nullable=False, server_default=text("0")),
    CheckConstraint("id <> ''", name="id"),
    CheckConstraint(codes.SUBMISSION.check("status"), name="status"),
    CheckConstraint("version >= 1", name="version"),
    CheckConstraint("idempotency_key <> ''", name="idempotency_key"),
    Index(None, "status", "created_at", "key"),
)
"""What was asked for. `experiment` and `error` are JSON objects; `is_planned` where there is a comparison of the id.

`takeovers` counts those without one more answer; `answered` is how many there were at the last.
"""

WAITING = text("NOT is_planned")
"""Submissions that have not become a comparison, as their index says it."""

token = Table(
    "token",
    metadata,
    Column("key", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("scope", SmallInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    CheckConstraint("length(digest) = 32", name="digest"),
    CheckConstraint(codes.SCOPE.check("scope"), name="scope"),
)
"""Bearer tokens. `digest` is the SHA-256 of a token's secret, which is nowhere."""

audit = Table(
    "audit",
    metadata,
    Column("key", Integer, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("details", Text, nullable=False),
)
"""Who did what: added in order, never changed. `details` is a JSON object."""

signoff = Table(
    "signoff",
    metadata,
    Column("comparison_key", Integer, ForeignKey("comparison.key"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("plan_hash", Text, nullable=False),
    Column("analysis_hash", Text, nullable=False),
    Column("verdict", SmallInteger, nullable=False),
    Column("signed_by", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("override", Text, nullable=False),
    Column("obstacles", Text, nullable=False),
    Column("signed_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("comparison_key", "number"),
    CheckConstraint("number >= 1", name="number"),
    CheckConstraint(codes.VERDICT.check("verdict"), name="verdict"),
)
"""Who accepted which verdict: added in order, never changed. `obstacles` is a JSON list."""

host_lease = Table(
    "host_lease",
    metadata,
    Column("host", Text, nullable=False),
    Column("comparison_id", Text, nullable=False),
    Column("runner", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("is_exclusive", Boolean, nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("host", "comparison_id"),
    CheckConstraint("slots >= 1", name="slots"),
    Index(None, "comparison_id"),
)
"""Which comparison may send to which endpoint host; it may not have been planned yet."""

worker = Table(
    "worker",
    metadata,
    Column("runner", Text, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("runner"),
)
"""Workers of the service, as they say that they live."""
