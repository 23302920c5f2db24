"""What keeps a result from being signed off, whoever asks: one list of conditions."""

from __future__ import annotations

from collections.abc import Iterator

from qualab.app.analysis.ruling import PASSING
from qualab.app.analysis.suspect import suspicions
from qualab.app.interleaving import NOT_INTERLEAVED
from qualab.domain.comparison import Analysis, Comparison
from qualab.domain.imported import FindingCode
from qualab.domain.names import RequestKind


def signoff_obstacles(analysis: Analysis, comparison: Comparison) -> tuple[str, ...]:
    """Why this analysis may not stand for a release, a phrase each; empty where it may.

    A noise floor that was not measured is no obstacle: it is a note of the analysis.
    """
    return tuple(_obstacles(analysis, comparison))


def signoff_line(analysis: Analysis, comparison: Comparison) -> str:
    """For a person."""
    obstacles = signoff_obstacles(analysis, comparison)
    return f"Sign-off: no ({'; '.join(obstacles)})" if obstacles else "Sign-off: possible"


def _obstacles(analysis: Analysis, comparison: Comparison) -> Iterator[str]:
    plan = comparison.plan
    if analysis.verdict not in PASSING[plan.rule.objective]:
        yield f"the verdict is {analysis.verdict}"
    yield from suspicions(analysis.metrics)
    if analysis.plan_hash != comparison.plan_hash:
        yield "the plan was made after the data"
    if plan.imported:
        what = "made of two runs" if plan.imported.is_of_store else "imported from logs"
        yield f"{what}: what was run cannot be checked"
        if any(finding.code is FindingCode.SAME_RUN for finding in plan.imported.findings):
            yield "both logs may be of one run"
        if not plan.imported.plan_hash or plan.imported.is_rule_changed:
            yield "the margin was chosen after the data"
    if plan.limit is not None:
        yield f"limited to {plan.limit:g} items a task"
    if plan.pins.unpinned:
        yield f"unpinned: {', '.join(plan.pins.unpinned)}"
    if plan.sequential:
        yield NOT_INTERLEAVED
    if not any(task.kind is RequestKind.GENERATION for task in plan.tasks):
        yield "no task exercises the drafter"
    elif analysis.treatment is None or not analysis.treatment.is_observed:
        yield "nothing tells that the drafter ran"
