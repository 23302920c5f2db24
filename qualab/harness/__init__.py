"""lm-evaluation-harness behind `qualab.model.ports.Harness`."""

from __future__ import annotations

from qualab.harness.harness import LmEvalHarness
from qualab.harness.process import SeparateHarness

__all__ = ["LmEvalHarness", "SeparateHarness"]
