"""Alembic's environment. `qualab db upgrade` runs it with a connection; the schema is that of the store's tables."""

from __future__ import annotations

from alembic import context

from qualab.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
