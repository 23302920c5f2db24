"""What the engines said: drafted tokens of each answer, configuration and counters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("answer", "noise_answer"):
        op.add_column(table, sa.Column("drafted", sa.Text()))
    op.create_table(
        "observation",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("comparison_key", "number", name="observation_pk"),
        sa.ForeignKeyConstraint(["comparison_key"], ["comparison.key"], name="observation_comparison_key_fk"),
        sa.CheckConstraint("number >= 1", name=op.f("observation_number_check")),
        sa.CheckConstraint("kind BETWEEN 0 AND 1", name=op.f("observation_kind_check")),
    )


def downgrade() -> None:
    op.drop_table("observation")
    for table in ("answer", "noise_answer"):
        op.drop_column(table, "drafted")
