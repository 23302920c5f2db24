"""lm-evaluation-harness behind `qualab.ports.Harness`."""

from __future__ import annotations

from qualab.adapters.harness.harness import LmEvalHarness

__all__ = ["LmEvalHarness"]
