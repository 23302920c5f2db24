"""Analyses are sealed: each with the one before it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("previous", "seal"):
        op.add_column("analysis", sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    for name in ("seal", "previous"):
        op.drop_column("analysis", name)
