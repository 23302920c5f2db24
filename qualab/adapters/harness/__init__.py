"""lm-evaluation-harness behind `qualab.ports.Harness`."""

from __future__ import annotations

from qualab.adapters.harness.harness import LmEvalHarness
from qualab.adapters.harness.process import SeparateHarness

__all__ = ["LmEvalHarness", "SeparateHarness"]
