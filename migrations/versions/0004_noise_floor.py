"""Answers of further runs of the baseline."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_noise_answer()
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE noise_answer ALTER COLUMN text SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("noise_answer")


def create_noise_answer() -> None:
    op.create_table(
        "noise_answer",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("run", sa.SmallInteger(), nullable=False),
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
        sa.PrimaryKeyConstraint("comparison_key", "run", "position", "choice", "repeat", name="noise_answer_pk"),
        sa.ForeignKeyConstraint(
            ["comparison_key", "position"],
            ["item.comparison_key", "item.position"],
            name="noise_answer_comparison_key_position_fk",
        ),
        sa.ForeignKeyConstraint(["finish_reason"], ["phrase.id"], name="noise_answer_finish_reason_fk"),
        sa.ForeignKeyConstraint(["fingerprint"], ["phrase.id"], name="noise_answer_fingerprint_fk"),
        sa.CheckConstraint("run >= 1", name=op.f("noise_answer_run_check")),
        sa.CheckConstraint("choice >= 0", name=op.f("noise_answer_choice_check")),
        sa.CheckConstraint("repeat >= 0", name=op.f("noise_answer_repeat_check")),
        sa.CheckConstraint("status BETWEEN 0 AND 7", name=op.f("noise_answer_status_check")),
        sa.CheckConstraint("attempts >= 1", name=op.f("noise_answer_attempts_check")),
        sa.CheckConstraint("latency_us >= 0", name=op.f("noise_answer_latency_us_check")),
        sa.CheckConstraint("length(request_hash) = 16", name=op.f("noise_answer_request_hash_check")),
        sqlite_with_rowid=False,
    )
