"""Submissions count how often a worker of theirs was lost without one more answer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("takeovers", "answered"):
        op.add_column("submission", sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    for name in ("answered", "takeovers"):
        op.drop_column("submission", name)
