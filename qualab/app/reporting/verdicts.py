"""The verdict in one sentence, why, and what it does not prove."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qualab.app.analysis.ruling import PASSING, bounds_of
from qualab.app.reporting.source import Source
from qualab.app.reporting.words import Words
from qualab.app.signoff import signoff_obstacles
from qualab.domain.comparison import Analysis
from qualab.domain.names import Verdict
from qualab.domain.plan import DecisionRule, Plan
from qualab.domain.report import Bullets, Paragraph, Section

LIMITED = (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE, Verdict.REGRESSION, Verdict.INVALID)
"""Verdicts that need a word on how they may be misread."""


def headline(source: Source, words: Words) -> str:
    """The verdict in one sentence."""
    verdict, rows, primaries = source.analysis.verdict, source.analysis.metrics, source.primaries
    if verdict is Verdict.INCONCLUSIVE and not primaries:
        return words("headline INCONCLUSIVE without primaries")
    lost = " lost" if verdict is Verdict.NON_INFERIOR else ""
    number = "one" if len(primaries) == 1 else "many"
    worse = [row for row in rows if row.verdict is Verdict.REGRESSION]
    undecided = [row for row in primaries if row.verdict not in PASSING[source.plan.rule.objective]]
    return words(
        f"headline {verdict}",
        primaries=words(f"primaries {number}{lost}", n=len(primaries)),
        bounds=bounds_text(source.plan),
        n=len(worse if verdict is Verdict.REGRESSION else undecided),
        total=len(rows if verdict is Verdict.REGRESSION else primaries),
    )


def bounds_text(plan: Plan) -> str:
    """The margins of the primary metrics, each once."""
    rules: Sequence[DecisionRule] = [plan.rule_for(metric) for metric in plan.primaries] or [plan.rule]
    return ", ".join(dict.fromkeys(bounds_of(rule) for rule in rules))


def verdict_section(source: Source, words: Words) -> Section:
    """The reasons, the limits, and whether the result can be signed off."""
    analysis = source.analysis
    blocks = (
        Bullets(title=words("why"), items=words.sentences(analysis.reasons)),
        Bullets(title=words("not proven"), items=tuple(_limits(analysis, words))),
        Paragraph(text=signoff_text(source, words)),
    )
    return Section(id="verdict", title=words("verdict"), blocks=blocks)


def _limits(analysis: Analysis, words: Words) -> Iterator[str]:
    if analysis.verdict in LIMITED:
        yield words(f"limits of {analysis.verdict}")
    if analysis.verdict is not Verdict.INVALID:
        yield words("limits of items")
    yield from words.sentences(analysis.caveats)
    yield words("limits of speed")


def signoff_text(source: Source, words: Words) -> str:
    """Whether the result can be signed off, and what keeps it from that."""
    obstacles = words.sentences(signoff_obstacles(source.analysis, source.comparison))
    return words("sign-off no", obstacles="; ".join(obstacles)) if obstacles else words("sign-off possible")
