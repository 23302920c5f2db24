"""First schema: comparisons, their items, answers, scores and analyses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INCOMPRESSIBLE = (("dictionary", "data"), ("item", "payload"), ("answer", "text"))
"""Columns that hold compressed bytes already, which PostgreSQL would try to compress again."""


def upgrade() -> None:
    create_comparison()
    create_phrase()
    create_dictionary()
    create_item()
    create_answer()
    create_score()
    create_analysis()
    if op.get_context().dialect.name == "postgresql":
        for table, column in INCOMPRESSIBLE:
            op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")


def downgrade() -> None:
    for table in ("analysis", "score", "answer", "item", "dictionary", "phrase", "comparison"):
        op.drop_table(table)


def create_comparison() -> None:
    op.create_table(
        "comparison",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("plan_hash", sa.Text(), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("finished_at", sa.BigInteger()),
        sa.Column("verdict", sa.SmallInteger()),
        sa.Column("stop_reason", sa.Text(), nullable=False),
        sa.Column("duplicates", sa.BigInteger(), nullable=False),
        sa.Column("runner", sa.Text()),
        sa.Column("claimed_at", sa.BigInteger()),
        sa.Column("heartbeat_at", sa.BigInteger()),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("local", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="comparison_pk"),
        sa.UniqueConstraint("id", name="comparison_id_unique"),
        sa.CheckConstraint("id <> ''", name=op.f("comparison_id_check")),
        sa.CheckConstraint("status BETWEEN 0 AND 5", name=op.f("comparison_status_check")),
        sa.CheckConstraint("verdict BETWEEN 0 AND 6", name=op.f("comparison_verdict_check")),
        sa.CheckConstraint("duplicates >= 0", name=op.f("comparison_duplicates_check")),
        sa.CheckConstraint(
            "(runner IS NULL) = (claimed_at IS NULL) AND (runner IS NULL) = (heartbeat_at IS NULL)",
            name=op.f("comparison_claim_check"),
        ),
    )
    op.create_index("comparison_created_at_index", "comparison", ["created_at"])


def create_phrase() -> None:
    op.create_table(
        "phrase",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("text", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="phrase_pk"),
        sa.UniqueConstraint("digest", name="phrase_digest_unique"),
        sa.CheckConstraint("length(digest) = 16", name=op.f("phrase_digest_check")),
    )


def create_dictionary() -> None:
    op.create_table(
        "dictionary",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("script", sa.SmallInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("comparison_key", "script", name="dictionary_pk"),
        sa.ForeignKeyConstraint(["comparison_key"], ["comparison.key"], name="dictionary_comparison_key_fk"),
        sa.CheckConstraint("script BETWEEN 0 AND 1", name=op.f("dictionary_script_check")),
    )


def create_item() -> None:
    op.create_table(
        "item",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("doc_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("comparison_key", "position", name="item_pk"),
        sa.UniqueConstraint("comparison_key", "task", "doc_id", name="item_comparison_key_task_doc_id_unique"),
        sa.ForeignKeyConstraint(["comparison_key"], ["comparison.key"], name="item_comparison_key_fk"),
        sa.CheckConstraint("position >= 0", name=op.f("item_position_check")),
        sa.CheckConstraint("kind BETWEEN 0 AND 1", name=op.f("item_kind_check")),
    )


def create_answer() -> None:
    op.create_table(
        "answer",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("arm", sa.SmallInteger(), nullable=False),
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
        sa.PrimaryKeyConstraint("comparison_key", "arm", "position", "choice", "repeat", name="answer_pk"),
        sa.ForeignKeyConstraint(
            ["comparison_key", "position"],
            ["item.comparison_key", "item.position"],
            name="answer_comparison_key_position_fk",
        ),
        sa.ForeignKeyConstraint(["finish_reason"], ["phrase.id"], name="answer_finish_reason_fk"),
        sa.ForeignKeyConstraint(["fingerprint"], ["phrase.id"], name="answer_fingerprint_fk"),
        sa.CheckConstraint("arm BETWEEN 0 AND 1", name=op.f("answer_arm_check")),
        sa.CheckConstraint("choice >= 0", name=op.f("answer_choice_check")),
        sa.CheckConstraint("repeat >= 0", name=op.f("answer_repeat_check")),
        sa.CheckConstraint("status BETWEEN 0 AND 7", name=op.f("answer_status_check")),
        sa.CheckConstraint("attempts >= 1", name=op.f("answer_attempts_check")),
        sa.CheckConstraint("latency_us >= 0", name=op.f("answer_latency_us_check")),
        sa.CheckConstraint("length(request_hash) = 16", name=op.f("answer_request_hash_check")),
        sqlite_with_rowid=False,
    )


def create_score() -> None:
    op.create_table(
        "score",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("arm", sa.SmallInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("repeat", sa.SmallInteger(), nullable=False),
        sa.Column("metric", sa.Integer(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("detail", sa.Text()),
        sa.PrimaryKeyConstraint("comparison_key", "arm", "position", "repeat", "metric", name="score_pk"),
        sa.ForeignKeyConstraint(
            ["comparison_key", "position"],
            ["item.comparison_key", "item.position"],
            name="score_comparison_key_position_fk",
        ),
        sa.ForeignKeyConstraint(["metric"], ["phrase.id"], name="score_metric_fk"),
        sa.CheckConstraint("arm BETWEEN 0 AND 1", name=op.f("score_arm_check")),
        sa.CheckConstraint("repeat >= 0", name=op.f("score_repeat_check")),
        sqlite_with_rowid=False,
    )


def create_analysis() -> None:
    op.create_table(
        "analysis",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("verdict", sa.SmallInteger(), nullable=False),
        sa.Column("input_hash", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="analysis_pk"),
        sa.ForeignKeyConstraint(["comparison_key"], ["comparison.key"], name="analysis_comparison_key_fk"),
        sa.CheckConstraint("verdict BETWEEN 0 AND 6", name=op.f("analysis_verdict_check")),
    )
    op.create_index("analysis_comparison_key_id_index", "analysis", ["comparison_key", "id"])
