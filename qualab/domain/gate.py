"""What a gate tells a pipeline: one verdict, with what stands behind it."""

from __future__ import annotations

from dataclasses import dataclass

from qualab.domain.comparison import MetricResult
from qualab.domain.names import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """A finished comparison, as a gate shows it."""

    id: str
    label: str
    model: str
    plan_hash: str
    verdict: Verdict
    reasons: tuple[str, ...]
    caveats: tuple[str, ...]
    metrics: tuple[MetricResult, ...]

    @property
    def primaries(self) -> tuple[MetricResult, ...]:
        return tuple(metric for metric in self.metrics if metric.is_primary)

    @property
    def confidence_level(self) -> float | None:
        """Of the intervals that decide; None where there is none."""
        found = (metric.evidence.equivalence_interval for metric in self.metrics if metric.evidence)
        return next((one.confidence_level for one in found if one), None)

    @property
    def alarms(self) -> tuple[MetricResult, ...]:
        """Other metrics that got worse."""
        worse = (metric for metric in self.metrics if metric.verdict is Verdict.REGRESSION)
        return tuple(metric for metric in worse if not metric.is_primary)
