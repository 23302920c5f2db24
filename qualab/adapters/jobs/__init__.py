"""A durable queue by DBOS, in the same PostgreSQL, or in a SQLite file beside qualab's."""

from __future__ import annotations

from qualab.adapters.jobs.consumer import DbosConsumer
from qualab.adapters.jobs.places import QueuePlace
from qualab.adapters.jobs.queue import DbosQueue

__all__ = ["DbosConsumer", "DbosQueue", "QueuePlace"]
