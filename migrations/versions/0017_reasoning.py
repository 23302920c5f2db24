"""Answers keep what the model thought before them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("answer", "noise_answer"):
        op.add_column(table, sa.Column("reasoning", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    for table in ("noise_answer", "answer"):
        op.drop_column(table, "reasoning")
