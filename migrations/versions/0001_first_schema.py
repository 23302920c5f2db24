"""First schema: the tables of qualab.store.tables, which may change until the first release writes them out here."""

from __future__ import annotations

from alembic import op

from qualab.store.tables import metadata

revision = "2"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
