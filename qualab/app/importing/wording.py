"""What an analysis of an imported comparison says of where it comes from, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qualab.domain.comparison import ArmSummary, Comparison
from qualab.domain.imported import FindingCode, Imported, TaskJoin

UNCHECKED = (
    "Imported from logs, which do not tell: that the drafter ran, and in the candidate alone; the arms' images and "
    "checkpoints; that both were sent the same bytes in one order, at one time, with the same retries and deadlines."
)
APART = (
    "Made of two runs of this store: whether they were asked at one time, of the same images and checkpoints, with the "
    "same retries, and with a drafter in the candidate alone, is not checked."
)
AFTER_DATA = "The margin was chosen after the data: not for sign-off."
UNASKED = "Items that only one of the two runs asked are left out: they are not missing."
ADOPTED = "The plan is that of the comparison that these logs were exported from, as they say."
ADOPTED_CHANGED = "The plan is that of the comparison that these logs were exported from, but for what decides."


def stream_source(comparison: Comparison) -> str:
    """The hash that an analysis draws its random numbers from: an exported run's is that of the run."""
    imported = comparison.plan.imported
    return imported.plan_hash if imported and imported.plan_hash else comparison.plan_hash


def without_times(arm: ArmSummary) -> ArmSummary:
    """No log tells how long an answer took."""
    return replace(arm, latency_p50_s=None, latency_p99_s=None)


def import_caveats(imported: Imported) -> Iterator[str]:
    """Notes for whoever reads the result, what may make it void first."""
    first = [one for one in imported.findings if one.code is FindingCode.SAME_RUN]
    yield from (f"{one.what}." for one in first)
    yield APART if imported.is_of_store else UNCHECKED
    if imported.plan_hash:
        yield ADOPTED_CHANGED if imported.is_rule_changed else ADOPTED
    if not imported.plan_hash or imported.is_rule_changed:
        yield AFTER_DATA
    if imported.leaves_unasked and any(join.only_baseline or join.only_candidate for join in imported.joins):
        yield UNASKED
    for join in imported.joins:
        if facts := list(left_over(join)):
            yield f"{join.task}: {join.paired} answers paired, {', '.join(facts)}{_taken(join, imported)}."
    for finding in (one for one in imported.findings if one not in first):
        yield f"{'Allowed: ' if finding.is_allowed else ''}{finding.what}."


def left_over(join: TaskJoin) -> Iterator[str]:
    """What of a task's answers is no pair."""
    counts = {
        "only in the baseline": join.only_baseline,
        "only in the candidate": join.only_candidate,
        "with other prompts": join.prompt_differs,
        "with another right answer": join.target_differs,
        "logged more than once": join.duplicated,
        "lost in both logs": join.lost,
    }
    yield from (f"{count} {what}" for what, count in counts.items() if count)


def _taken(join: TaskJoin, imported: Imported) -> str:
    """Which of them count as pairs all the same."""
    counts = {
        FindingCode.PROMPTS: join.prompt_differs,
        FindingCode.TARGETS: join.target_differs,
        FindingCode.DUPLICATES: join.duplicated,
        FindingCode.ROWS: join.lost,
    }
    taken = [code.value for code, count in counts.items() if count and code in imported.allowed]
    return f" (allowed: {', '.join(taken)})" if taken else ""
