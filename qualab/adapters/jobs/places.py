"""Where the queue is, and its names there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine

APPLICATION = "qualab"
SCHEMA = "qualab_jobs"
QUEUE = "comparisons"
WORKFLOW = "carry_out"
POOL = 10
CONNECT_TIMEOUT_S = 5


@dataclass(frozen=True, kw_only=True)
class QueuePlace:
    """The database of the comparisons: the queue has a schema of its own there, or a file beside it."""

    url: URL
    path: Path | None
    """The file of a SQLite database."""

    @property
    def queue_url(self) -> str:
        """A URL that DBOS reads."""
        if self.path is None:
            return self.url.render_as_string(hide_password=False)
        beside = self.path.with_name(f"{self.path.stem}-jobs{self.path.suffix or '.db'}")
        return URL.create("sqlite", database=str(beside.absolute())).render_as_string()

    @cached_property
    def engine(self) -> Engine | None:
        """None for SQLite, whose connections DBOS sets up itself."""
        if self.path is not None:
            return None
        timeout = {} if "connect_timeout" in self.url.query else {"connect_timeout": CONNECT_TIMEOUT_S}
        return create_engine(self.url, connect_args=timeout, hide_parameters=True, pool_pre_ping=True, pool_size=POOL)
