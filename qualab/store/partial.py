"""Indexes of some rows only, for migrations: their options load both databases' dialects, which commands do without."""

from __future__ import annotations

from sqlalchemy import Index

from qualab.store.tables import FLIPPED, WAITING, outcome, submission

FLIPPED_OUTCOMES = Index(
    "outcome_flipped_index",
    outcome.c.comparison_key,
    outcome.c.position,
    outcome.c.repeat,
    sqlite_where=FLIPPED,
    postgresql_where=FLIPPED,
)
WAITING_SUBMISSIONS = Index(
    None, submission.c.created_at, submission.c.key, sqlite_where=WAITING, postgresql_where=WAITING
)
