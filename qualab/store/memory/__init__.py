"""Twins of what needs a database or waits, in memory: shipped, and what unit tests run on."""

from __future__ import annotations

from qualab.store.memory.clock import FixedClock
from qualab.store.memory.registry import MemoryRegistry
from qualab.store.memory.store import MemoryStore

__all__ = ["FixedClock", "MemoryRegistry", "MemoryStore"]
