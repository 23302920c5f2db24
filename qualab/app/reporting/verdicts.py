"""The verdict in one sentence, why, and what it does not prove."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qualab.app.analysis.ruling import PASSING, PROVEN, bounds_of, changes_inside
from qualab.app.analysis.suspect import suspicions
from qualab.app.reporting.source import Source
from qualab.app.reporting.words import Words
from qualab.app.signoff import signoff_obstacles
from qualab.domain.comparison import Analysis
from qualab.domain.names import Verdict
from qualab.domain.numbers import MINUS, percent
from qualab.domain.plan import DecisionRule, Plan
from qualab.domain.report import Bullets, Paragraph, Section

LIMITED = (Verdict.EQUIVALENT, Verdict.NON_INFERIOR, Verdict.INCONCLUSIVE, Verdict.REGRESSION, Verdict.INVALID)
"""Verdicts that need a word on how they may be misread."""


MOST_REASONS = 8
"""Metrics whose reasons are said one by one."""
MOST_IN_HEADLINE = 2
"""Real losses and gains inside the margin that the first sentence names."""


def headline(source: Source, words: Words) -> str:
    """The verdict in one sentence, and what makes its metrics' values doubtful."""
    doubts = words.sentences(suspicions(source.analysis.metrics))
    return " ".join((_headline(source, words), *(f"{doubt}." for doubt in doubts)))


def _headline(source: Source, words: Words) -> str:
    verdict, rows, primaries = source.analysis.verdict, source.analysis.metrics, source.primaries
    if verdict is Verdict.INCONCLUSIVE and not primaries:
        return words("headline INCONCLUSIVE without primaries")
    if source.is_after_data:
        return words("headline after the data")
    lost = " lost" if verdict is Verdict.NON_INFERIOR else ""
    number = "one" if len(primaries) == 1 else "many"
    worse = [row for row in rows if row.verdict is Verdict.REGRESSION]
    undecided = [row for row in primaries if row.verdict not in PASSING[source.plan.rule.objective]]
    bounds = bounds_text(source.plan)
    said = words(
        source.key(f"headline {verdict}"),
        primaries=words(f"primaries {number}{lost}", n=len(primaries)),
        bounds=bounds.replace(MINUS, "") if lost else bounds,  # a loss of so much
        n=len(worse if verdict is Verdict.REGRESSION else undecided),
        total=len(rows if verdict is Verdict.REGRESSION else primaries),
    )
    inside = changes_inside(rows, source.plan.rule) if verdict is PROVEN[source.plan.rule.objective] else []
    if not inside:
        return said
    more = (words("more reasons", n=len(inside) - MOST_IN_HEADLINE),) if len(inside) > MOST_IN_HEADLINE else ()
    changes = (words.sentence(f"{row.id}: {row.reason}") for row in inside[:MOST_IN_HEADLINE])
    return words("headline changed", headline=said, changes="; ".join((*changes, *more)))


def bounds_text(plan: Plan) -> str:
    """The margins of the primary metrics, each once."""
    rules: Sequence[DecisionRule] = [plan.rule_for(metric) for metric in plan.primaries] or [plan.rule]
    return ", ".join(dict.fromkeys(bounds_of(rule) for rule in rules))


def verdict_section(source: Source, words: Words) -> Section:
    """The reasons, the limits, and whether the result can be signed off."""
    analysis = source.analysis
    own = words("after the data", own=source.comparison.plan_hash[:12])
    blocks = (
        *((Paragraph(text=own),) if source.is_after_data else ()),
        Bullets(title=words("why"), items=tuple(_reasons(analysis, words))),
        Bullets(title=words("not proven"), items=tuple(_limits(source, words))),
        Paragraph(text=signoff_text(source, words)),
    )
    return Section(id="verdict", title=words("verdict"), blocks=blocks)


def _reasons(analysis: Analysis, words: Words) -> Iterator[str]:
    """Of many metrics the weightiest: the table of all of them has the others."""
    of_metrics = {reason for reason in analysis.reasons for row in analysis.metrics if reason.startswith(f"{row.id}: ")}
    cut = [reason for reason in analysis.reasons if reason in of_metrics][MOST_REASONS:]
    for reason in analysis.reasons:
        if reason not in cut:
            yield words.sentence(reason)
        elif reason == cut[0]:
            yield words("more reasons", n=len(cut))


def _limits(source: Source, words: Words) -> Iterator[str]:
    analysis = source.analysis
    if analysis.verdict in LIMITED:
        yield words(source.key(f"limits of {analysis.verdict}"), alpha=percent(source.plan.rule.alpha))
    if analysis.verdict is not Verdict.INVALID:
        yield words("limits of items")
    yield from words.sentences(analysis.caveats)
    yield words("limits of speed")


def signoff_text(source: Source, words: Words) -> str:
    """Whether the result can be signed off, and what keeps it from that."""
    obstacles = words.sentences(signoff_obstacles(source.analysis, source.comparison))
    return words("sign-off no", obstacles="; ".join(obstacles)) if obstacles else words("sign-off possible")
