"""Logs of other evaluation tools behind `qualab.ports.ReadLogs`."""

from __future__ import annotations

from qualab.adapters.imports.opening import LogFiles

__all__ = ["LogFiles"]
