"""Twins of what needs a database or waits, in memory: shipped, and what unit tests run on."""

from __future__ import annotations

from qualab.adapters.memory.clock import FixedClock
from qualab.adapters.memory.registry import MemoryRegistry
from qualab.adapters.memory.store import MemoryStore

__all__ = ["FixedClock", "MemoryRegistry", "MemoryStore"]
