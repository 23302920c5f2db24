"""Looks: what was decided while a comparison was running."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "look",
        sa.Column("comparison_key", sa.Integer(), nullable=False),
        sa.Column("number", sa.SmallInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("comparison_key", "number", name="look_pk"),
        sa.ForeignKeyConstraint(["comparison_key"], ["comparison.key"], name="look_comparison_key_fk"),
        sa.CheckConstraint("number >= 1", name=op.f("look_number_check")),
    )


def downgrade() -> None:
    op.drop_table("look")
