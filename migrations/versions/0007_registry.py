"""What the service keeps beside comparisons; lists without their plans; rows that are written many at a time.

Comparisons get what a list shows, out of their plans. Answers and scores lose their foreign keys: checking them row by
row took five times as long as writing the rows. The store checks all rows of a transaction at once.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TABLES = ("submission", "token", "audit", "signoff", "outcome", "host_lease")
COMPARISON = sa.table(
    "comparison",
    sa.column("key", sa.Integer),
    sa.column("plan", sa.Text),
    sa.column("model", sa.Text),
    sa.column("suite", sa.Text),
    sa.column("n_items", sa.Integer),
)
LISTED = ("status", "verdict", "label", "model")
"""Columns of `comparison` that a list is filtered by."""
ITEM = (["comparison_key", "position"], "item", ["comparison_key", "position"])
FOREIGN_KEYS = {
    table: {f"{table}_{'_'.join(columns)}_fk": (columns, *target) for columns, *target in keys}
    for table, keys in {
        "answer": (ITEM, (["finish_reason"], "phrase", ["id"]), (["fingerprint"], "phrase", ["id"])),
        "noise_answer": (ITEM, (["finish_reason"], "phrase", ["id"]), (["fingerprint"], "phrase", ["id"])),
        "score": (ITEM, (["metric"], "phrase", ["id"])),
    }.items()
}


def upgrade() -> None:
    add_listed_columns()
    create_submission()
    create_access()
    create_signoff()
    create_outcome()
    create_host_lease()
    if op.get_context().dialect.name == "postgresql":
        for table, keys in FOREIGN_KEYS.items():
            for name in keys:
                op.drop_constraint(name, table, type_="foreignkey")
    else:
        make_again(with_keys=False)


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        for table, keys in FOREIGN_KEYS.items():
            for name, (columns, target, target_columns) in keys.items():
                op.create_foreign_key(name, table, target, columns, target_columns)
    else:
        make_again(with_keys=True)
    for table in reversed(TABLES):
        op.drop_table(table)
    for column in LISTED:
        op.drop_index(f"comparison_{column}_created_at_key_index", "comparison")
    op.drop_index("comparison_created_at_key_index", "comparison")
    for column in ("n_items", "suite", "model"):
        op.drop_column("comparison", column)
    op.create_index("comparison_created_at_index", "comparison", ["created_at"])


def add_listed_columns() -> None:
    for column in ("model", "suite"):
        op.add_column("comparison", sa.Column(column, sa.Text(), nullable=False, server_default=sa.text("''")))
    op.add_column("comparison", sa.Column("n_items", sa.Integer(), nullable=False, server_default=sa.text("0")))
    connection = op.get_bind()
    keys = list(connection.scalars(sa.select(COMPARISON.c.key)))
    for key in keys:  # one at a time: a plan may be large
        plan = connection.scalar(sa.select(COMPARISON.c.plan).where(COMPARISON.c.key == key))
        connection.execute(sa.update(COMPARISON).where(COMPARISON.c.key == key).values(listed_of(json.loads(plan))))
    op.drop_index("comparison_created_at_index", "comparison")
    op.create_index("comparison_created_at_key_index", "comparison", ["created_at", "key"])
    for column in LISTED:
        op.create_index(f"comparison_{column}_created_at_key_index", "comparison", [column, "created_at", "key"])


def listed_of(plan: dict) -> dict:
    return {
        "model": plan.get("sampling", {}).get("model", "").replace("\x00", "\ufffd"),
        "suite": plan.get("suite", "").replace("\x00", "\ufffd"),
        "n_items": sum(task["n_items"] for task in plan.get("tasks", ())),
    }


def create_submission() -> None:
    op.create_table(
        "submission",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("is_planned", sa.Boolean(), nullable=False),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("body_hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="submission_pk"),
        sa.UniqueConstraint("id", name="submission_id_unique"),
        sa.UniqueConstraint("idempotency_key", name="submission_idempotency_key_unique"),
        sa.CheckConstraint("id <> ''", name=op.f("submission_id_check")),
        sa.CheckConstraint("status BETWEEN 0 AND 4", name=op.f("submission_status_check")),
        sa.CheckConstraint("version >= 1", name=op.f("submission_version_check")),
        sa.CheckConstraint("idempotency_key <> ''", name=op.f("submission_idempotency_key_check")),
    )
    op.create_index("submission_status_created_at_key_index", "submission", ["status", "created_at", "key"])
    waiting = sa.text("NOT is_planned")
    op.create_index(
        "submission_created_at_key_index",
        "submission",
        ["created_at", "key"],
        sqlite_where=waiting,
        postgresql_where=waiting,
    )


def create_access() -> None:
    op.create_table(
        "token",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("scope", sa.SmallInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("key", name="token_pk"),
        sa.UniqueConstraint("id", name="token_id_unique"),
        sa.CheckConstraint("length(digest) = 32", name=op.f("token_digest_check")),
        sa.CheckConstraint("scope BETWEEN 0 AND 2", name=op.f("token_scope_check")),
    )
    op.create_table(
        "audit",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="audit_pk"),
    )


def create_signoff() -> None:
    op.create_table(
        "signoff",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("plan_hash", sa.Text(), nullable=False),
        sa.Column("analysis_hash", sa.Text(), nullable=False),
        sa.Column("verdict", sa.SmallInteger(), nullable=False),
        sa.Column("signed_by", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("override", sa.Text(), nullable=False),
        sa.Column("obstacles", sa.Text(), nullable=False),
        sa.Column("signed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("comparison_key", "number", name="signoff_pk"),
        sa.ForeignKeyConstraint(["comparison_key"], ["comparison.key"], name="signoff_comparison_key_fk"),
        sa.CheckConstraint("number >= 1", name=op.f("signoff_number_check")),
        sa.CheckConstraint("verdict BETWEEN 0 AND 6", name=op.f("signoff_verdict_check")),
    )


def create_outcome() -> None:
    op.create_table(
        "outcome",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("repeat", sa.SmallInteger(), nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("doc_id", sa.Integer(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("baseline", sa.Double()),
        sa.Column("candidate", sa.Double()),
        sa.Column("change", sa.SmallInteger(), nullable=False),
        sa.Column("different_text", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("comparison_key", "position", "repeat", name="outcome_pk"),
        sa.CheckConstraint("repeat >= 0", name=op.f("outcome_repeat_check")),
        sa.CheckConstraint("kind BETWEEN 0 AND 1", name=op.f("outcome_kind_check")),
        sa.CheckConstraint("length >= 0", name=op.f("outcome_length_check")),
        sa.CheckConstraint("change BETWEEN 0 AND 3", name=op.f("outcome_change_check")),
        sa.CheckConstraint("(change = 3) = (baseline IS NULL OR candidate IS NULL)", name=op.f("outcome_values_check")),
        sqlite_with_rowid=False,
    )
    flipped = sa.text("change BETWEEN 1 AND 2")
    op.create_index(
        "outcome_flipped_index",
        "outcome",
        ["comparison_key", "position", "repeat"],
        sqlite_where=flipped,
        postgresql_where=flipped,
    )


def create_host_lease() -> None:
    op.create_table(
        "host_lease",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("comparison_id", sa.Text(), nullable=False),
        sa.Column("runner", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("is_exclusive", sa.Boolean(), nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("host", "comparison_id", name="host_lease_pk"),
        sa.CheckConstraint("slots >= 1", name=op.f("host_lease_slots_check")),
    )
    op.create_index("host_lease_comparison_id_index", "host_lease", ["comparison_id"])


def make_again(*, with_keys: bool) -> None:
    """SQLite changes no constraint of a table that is there."""
    for table, columns in (("answer", answers("arm")), ("noise_answer", answers("run")), ("score", scores())):
        names = ", ".join(column.name for column in columns if isinstance(column, sa.Column))
        keys = FOREIGN_KEYS[table] if with_keys else {}
        op.rename_table(table, f"{table}_before")
        op.create_table(
            table,
            *columns,
            *(
                sa.ForeignKeyConstraint(local, [f"{target}.{column}" for column in remote], name=name)
                for name, (local, target, remote) in keys.items()
            ),
            sqlite_with_rowid=False,
        )
        op.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM {table}_before")
        op.drop_table(f"{table}_before")


def answers(whose: str) -> list[sa.schema.SchemaItem]:
    table = {"arm": "answer", "run": "noise_answer"}[whose]
    return [
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column(whose, sa.SmallInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("choice", sa.SmallInteger(), nullable=False),
        sa.Column("repeat", sa.SmallInteger(), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), nullable=False),
        sa.Column("finish_reason", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer()),
        sa.Column("completion_tokens", sa.Integer()),
        sa.Column("reasoning_characters", sa.Integer(), nullable=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=False),
        sa.Column("latency_us", sa.BigInteger(), nullable=False),
        sa.Column("loglikelihood", sa.Double()),
        sa.Column("is_greedy", sa.Boolean()),
        sa.Column("request_hash", sa.LargeBinary(), nullable=False),
        sa.Column("text", sa.LargeBinary()),
        sa.Column("error", sa.LargeBinary()),
        sa.Column("drafted", sa.Text()),
        sa.PrimaryKeyConstraint("comparison_key", whose, "position", "choice", "repeat", name=f"{table}_pk"),
        {
            "arm": sa.CheckConstraint("arm BETWEEN 0 AND 1", name=op.f("answer_arm_check")),
            "run": sa.CheckConstraint("run >= 1", name=op.f("noise_answer_run_check")),
        }[whose],
        sa.CheckConstraint("choice >= 0", name=op.f(f"{table}_choice_check")),
        sa.CheckConstraint("repeat >= 0", name=op.f(f"{table}_repeat_check")),
        sa.CheckConstraint("status BETWEEN 0 AND 7", name=op.f(f"{table}_status_check")),
        sa.CheckConstraint("attempts >= 1", name=op.f(f"{table}_attempts_check")),
        sa.CheckConstraint("latency_us >= 0", name=op.f(f"{table}_latency_us_check")),
        sa.CheckConstraint("length(request_hash) = 16", name=op.f(f"{table}_request_hash_check")),
    ]


def scores() -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("arm", sa.SmallInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("repeat", sa.SmallInteger(), nullable=False),
        sa.Column("metric", sa.Integer(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("detail", sa.Text()),
        sa.PrimaryKeyConstraint("comparison_key", "arm", "position", "repeat", "metric", name="score_pk"),
        sa.CheckConstraint("arm BETWEEN 0 AND 1", name=op.f("score_arm_check")),
        sa.CheckConstraint("repeat >= 0", name=op.f("score_repeat_check")),
    ]
