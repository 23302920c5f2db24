"""The verdict in one sentence, why, and what it does not prove."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qualab.analysis.ruling import PASSING, PROVEN, bounds_of, changes_inside, is_one_sided, sides, suspicions
from qualab.model.comparison import Analysis, Evidence, MetricResult
from qualab.model.comparison import SignOff as Signed
from qualab.model.names import EvidenceKind, Verdict
from qualab.model.plan import DecisionRule, Plan
from qualab.model.reason import of
from qualab.model.report import Block, Bullets, Forest, ForestRow, Paragraph, Section, SignOff
from qualab.model.wording import MINUS, percent, signed
from qualab.report.metrics import verdict_cell
from qualab.report.source import Source
from qualab.report.words import ENGLISH, Words
from qualab.run.sign import signoff_obstacles

LIMITED = (Verdict.EQUIVALENT, Verdict.NON_INFERIOR, Verdict.INCONCLUSIVE, Verdict.REGRESSION, Verdict.INVALID)
"""Verdicts that need a word on how they may be misread."""


MOST_REASONS = 8
"""Metrics whose reasons are said one by one."""
MOST_IN_HEADLINE = 2
"""Real losses and gains inside the margin that the first sentence names."""


def headline(source: Source, words: Words) -> str:
    """The verdict in one sentence, and what makes its metrics' values doubtful."""
    doubts = words.reasons(suspicions(source.analysis.metrics))
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
    changes = (words.reason(of(row.id, row.reason)) for row in inside[:MOST_IN_HEADLINE])
    return words("headline changed", headline=said, changes="; ".join((*changes, *more)))


def bounds_text(plan: Plan) -> str:
    """The margins of the primary metrics, each once."""
    rules: Sequence[DecisionRule] = [plan.rule_for(metric) for metric in plan.primaries] or [plan.rule]
    return ", ".join(dict.fromkeys(ENGLISH.reason(bounds_of(rule)) for rule in rules))


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
    ids = {row.id for row in analysis.metrics}
    cut = [one for one in analysis.reasons if one.code == "of" and one.values["name"] in ids][MOST_REASONS:]
    for reason in analysis.reasons:
        if reason not in cut:
            yield words.reason(reason)
        elif reason == cut[0]:
            yield words("more reasons", n=len(cut))


def _limits(source: Source, words: Words) -> Iterator[str]:
    analysis = source.analysis
    if analysis.verdict in LIMITED:
        yield words(source.key(f"limits of {analysis.verdict}"), alpha=percent(source.plan.rule.alpha))
    if analysis.verdict is not Verdict.INVALID:
        yield words("limits of items")
    yield from words.reasons(analysis.caveats)
    yield words("limits of speed")


def signoff_text(source: Source, words: Words) -> str:
    """Whether the result can be signed off, and what keeps it from that."""
    obstacles = words.reasons(signoff_obstacles(source.analysis, source.comparison))
    return words("sign-off no", obstacles="; ".join(obstacles)) if obstacles else words("sign-off possible")


def forest_section(source: Source, words: Words) -> Section:
    """How the chart is read, and the chart; or why there is none."""
    rows = tuple(_row(row, row.evidence, source, words) for row in source.primaries if row.evidence is not None)
    blocks: tuple[Block, ...]
    if rows:
        blocks = (Paragraph(text=_how(source, words), is_muted=True), _forest(rows, source, words))
    else:
        blocks = (Paragraph(text=words("no evidence" if source.primaries else "no primaries")),)
    return Section(id="forest", title=words("forest"), blocks=blocks)


def _row(row: MetricResult, evidence: Evidence, source: Source, words: Words) -> ForestRow:
    rule = source.plan.rule
    margin = rule.margin if row.margin is None else row.margin
    better = next(one.higher_is_better for one in source.plan.metrics if one.id == row.id)
    lower, upper = sides(rule.objective, higher_is_better=better)
    interval = evidence.equivalence_interval
    difference = signed(evidence.difference)
    if interval is None:
        text = words("difference alone", difference=difference)
    else:
        limits = words.interval(interval.low, interval.high)
        text = words("difference numbers", difference=difference, interval=limits)
    return ForestRow(
        label=row.id,
        difference=evidence.difference,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        margin_low=-margin if lower else None,
        margin_high=margin if upper else None,
        text=text,
        verdict=verdict_cell(row.verdict, words),
    )


def _forest(rows: tuple[ForestRow, ...], source: Source, words: Words) -> Forest:
    bounds = bounds_text(source.plan)
    are_better = all(metric.higher_is_better for metric in source.plan.primaries)
    said = (words("forest row", label=row.label, numbers=row.text, verdict=row.verdict.text) for row in rows)
    return Forest(
        rows=rows,
        axis=words("forest axis"),
        left=words("worse" if are_better else "lower"),
        right=words("better" if are_better else "higher"),
        band=words("band") if "," in bounds else words("band of", bounds=bounds),
        description="; ".join(said),
    )


def _how(source: Source, words: Words) -> str:
    rule = source.plan.rule
    is_guarded = any(row.evidence and row.evidence.kind is EvidenceKind.COUNTS for row in source.primaries)
    key = "forest how one-sided" if is_one_sided(rule) else "forest how"
    return words(
        key,
        level=percent(1.0 - 2.0 * rule.alpha),
        bounds=bounds_text(source.plan),
        looks=words("over looks" if source.analysis.looks else "no looks"),
        guard=words("guard" if is_guarded else "no guard"),
    )


METHODS = {
    EvidenceKind.COUNTS: ("method difference", "method interval"),
    EvidenceKind.CLUSTERS: ("method clusters",),
    EvidenceKind.SCORES: ("method bounded",),
    EvidenceKind.LABELS: ("method labels",),
}
"""What is said of each kind of evidence."""
ONE_SIDED = {"method interval": "method interval one-sided"}
"""What is said instead where a loss alone has to be ruled out."""


def signoff_section(source: Source, words: Words) -> Section:
    """Whether the result can be signed off, and where."""
    key = "sign off how sealed" if source.seal else "sign off how"
    how = words(key, id=source.comparison.id, plan=source.analysis.plan_hash[:12], seal=source.seal[:12])
    lines = SignOff(
        choices=(words(source.key("approve")), words("reject"), words("further")),
        fields=tuple(words(key) for key in ("name", "date field", "signature")),
        roles=tuple(words(key) for key in ("evaluator", "releaser")),
    )
    signed = tuple(_signed(one, words) for one in source.signoffs)
    record = (Bullets(title=words("signed off"), items=signed),) if signed else ()
    to_sign = () if source.is_after_data else (Paragraph(text=how), lines)
    blocks = (Paragraph(text=signoff_text(source, words)), *record, *to_sign)
    return Section(id="signoff", title=words("sign off"), blocks=blocks)


def _signed(one: Signed, words: Words) -> str:
    said = [
        words(
            "signed by",
            verdict=verdict_cell(one.verdict, words).text,
            name=one.signed_by,
            time=words.moment(one.signed_at),
        )
    ]
    if one.note:
        said.append(words("signed note", note=one.note))
    if one.override:
        obstacles = "; ".join(words.reasons(one.obstacles))
        said.append(words("signed in spite of", obstacles=obstacles, reason=one.override))
    if one.analysis_hash:
        said.append(words("signed seal", seal=one.analysis_hash))
    return " ".join(said)


def methods_section(source: Source, words: Words) -> Section:
    """The methods that this comparison's metrics got, each with its source."""
    items = tuple(dict.fromkeys(_methods(source, words)))
    return Section(id="methods", title=words("methods"), blocks=(Bullets(items=items),))


def _methods(source: Source, words: Words) -> Iterator[str]:
    is_lone = is_one_sided(source.plan.rule)
    kinds = {row.evidence.kind for row in source.analysis.metrics if row.evidence}
    yield words("method scores", version=source.plan.harness_version)
    for kind, keys in METHODS.items():
        if kind in kinds:
            yield from (words(ONE_SIDED.get(key, key) if is_lone else key) for key in keys)
    yield words("method all")
    yield words("method family")
    if source.plan.looks:
        yield words("method looks")
    if source.analysis.noise:
        yield words("method noise")
    yield words("method missing")
    yield words("method unpaired")
