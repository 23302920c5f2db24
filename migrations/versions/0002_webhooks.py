"""Webhooks: whom to tell of a comparison's end. The first schema makes the table in new databases."""

from __future__ import annotations

from alembic import op

from qualab.store.tables import webhook

revision = "3"
down_revision = "2"


def upgrade() -> None:
    webhook.create(op.get_bind(), checkfirst=True)
