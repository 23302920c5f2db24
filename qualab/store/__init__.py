"""Comparisons in SQLite or PostgreSQL. The only SQL of the project is in here and in `migrations/`."""

from __future__ import annotations

from qualab.store.schema import current, open_store, upgrade
from qualab.store.store import Store

__all__ = ["Store", "current", "open_store", "upgrade"]
