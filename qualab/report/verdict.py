"""The verdict in one sentence, why, what it does not prove, sign-off, and the methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from qualab.analysis.ruling import PASSING, PROVEN, bounds_of, changes_inside, is_one_sided, suspicions
from qualab.model.comparison import Evidence, MetricResult, SignOff
from qualab.model.names import AuditRuling, EvidenceKind, Verdict
from qualab.model.plan import DecisionRule, Plan
from qualab.model.reason import of
from qualab.model.report import Block, Bullets, Forest, ForestRow, Paragraph
from qualab.model.wording import MINUS, signed
from qualab.report.audit import audit_sentence
from qualab.report.source import Cells, Source, table, verdict_cell
from qualab.report.words import ENGLISH, Words
from qualab.run.sign import signoff_obstacles

GUARDED = (EvidenceKind.COUNTS, EvidenceKind.REPEATED)
MOST_REASONS = 8
"""Metrics whose reasons are told one by one."""
MOST_IN_HEADLINE = 2
"""Real losses and gains inside the margin that the headline names."""


def headline(source: Source, words: Words) -> str:
    """Word the verdict in one sentence, and the token audit; then what makes the metrics' values doubtful.

    An audit that found a fault stands first, and alone where no metric got worse.
    """
    verdict, rows, rule = source.analysis.verdict, source.analysis.metrics, source.plan.rule
    key = f"headline {verdict}"
    if source.is_after_data:
        key = "headline after the data"
    elif verdict is Verdict.INCONCLUSIVE and not source.primaries:
        key = "no primaries"
    bounds = bounds_text(source.plan)
    numbers = {
        "n": len(source.primaries),
        "n_open": sum(row.verdict not in PASSING[rule.objective] for row in source.primaries),
        "n_worse": sum(row.verdict is Verdict.REGRESSION for row in rows),
        "n_all": len(rows),
    }
    sentences = [words(key, bounds=bounds, loss=bounds.replace(MINUS, ""), **numbers)]
    if verdict is PROVEN[rule.objective] and (inside := changes_inside(rows, rule)):
        changes = [words.reason(of(row.id, row.reason)) for row in inside[:MOST_IN_HEADLINE]]
        if len(inside) > MOST_IN_HEADLINE:
            changes.append(words("more reasons", n=len(inside) - MOST_IN_HEADLINE))
        sentences.append(f"{'; '.join(changes)}.")
    if audit := source.analysis.audit:
        is_foreign = audit.ruling is AuditRuling.FOREIGN
        if is_foreign and verdict is Verdict.REGRESSION and not numbers["n_worse"]:
            sentences.clear()
        sentences.insert(0 if is_foreign else len(sentences), audit_sentence(audit, words))
    return " ".join((*sentences, *(f"{doubt}." for doubt in words.reasons(suspicions(rows)))))


def bounds_text(plan: Plan) -> str:
    """List the margins of the primary metrics, each once."""
    rules: Sequence[DecisionRule] = [plan.rule_for(metric) for metric in plan.primaries] or [plan.rule]
    return ", ".join(dict.fromkeys(ENGLISH.reason(bounds_of(rule)) for rule in rules))


def verdict_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show reasons, limits, and whether the result can be signed off."""
    analysis = source.analysis
    if source.is_after_data:
        yield Paragraph(text=words("after the data", own=source.comparison.plan_hash[:12]))
    # of many metrics the weightiest: the table of all metrics has the others
    ids = {row.id for row in analysis.metrics}
    of_metrics = [reason for reason in analysis.reasons if reason.code == "of" and reason.values["name"] in ids]
    hidden = of_metrics[MOST_REASONS:]
    shown = (reason for reason in analysis.reasons if reason not in hidden[1:])
    more = words("more reasons", n=len(hidden))
    reasons = (more if reason in hidden else words.reason(reason) for reason in shown)
    yield Bullets(title=words("why"), items=tuple(reasons))
    limits = [words.optional(f"limits of {analysis.verdict}", alpha=source.plan.rule.alpha)]
    limits += [words("limits of items")] if analysis.verdict is not Verdict.INVALID else []
    limits += words.reasons(analysis.caveats)
    yield Bullets(title=words("not proven"), items=tuple(filter(None, limits)))


def signoff_line(source: Source, words: Words) -> Paragraph:
    """Tell whether the result can be signed off, and what keeps it from that."""
    obstacles = tuple(signoff_obstacles(source.analysis, source.comparison))
    return Paragraph(text=words("sign-off no" if obstacles else "sign-off possible", obstacles=obstacles))


def difference_text(evidence: Evidence, words: Words) -> str:
    """Write a difference with its 1 − 2 alpha interval."""
    interval = evidence.equivalence_interval
    limits = f" ({words.interval(interval.low, interval.high)})" if interval else ""
    return words.units(f"{signed(evidence.difference)}{limits} pp")


def forest_row(source: Source, row: MetricResult, words: Words, *, label: str) -> ForestRow:
    """Draw a tested metric against its margin."""
    assert row.evidence is not None
    plan, interval = source.plan, row.evidence.equivalence_interval
    margin = plan.rule.margin if row.margin is None else row.margin
    lower, upper = next(plan.rule_for(spec) for spec in plan.metrics if spec.id == row.id).sides
    return ForestRow(
        label=label,
        difference=row.evidence.difference,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        margin_low=-margin if lower else None,
        margin_high=margin if upper else None,
        text=difference_text(row.evidence, words),
        verdict=verdict_cell(row.verdict, words),
    )


def forest_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show how the chart is read, and the chart; or why there is none."""
    plan, rule, bounds = source.plan, source.plan.rule, bounds_text(source.plan)
    rows = []
    for row in source.primaries:
        if row.evidence is not None:
            rows.append(forest_row(source, row, words, label=row.id))
    if not rows:
        yield Paragraph(text=words("no evidence" if source.primaries else "no primaries"))
        return
    is_guarded = any(row.evidence and row.evidence.kind in GUARDED for row in source.primaries)
    looks, guard = words("over looks") if source.analysis.looks else "", words("guard") if is_guarded else ""
    how = words("forest how", level=1.0 - 2.0 * rule.alpha, bounds=bounds, looks=looks, guard=guard)
    yield Paragraph(text=how, is_muted=True)
    are_better = all(metric.higher_is_better for metric in plan.primaries)
    yield Forest(
        rows=tuple(rows),
        axis=words("forest axis"),
        left=words("worse" if are_better else "lower"),
        right=words("better" if are_better else "higher"),
        band=words("margin") if "," in bounds else f"{words('margin')} {words.units(bounds)}",
        description="; ".join(f"{row.label}: {row.text}, {row.verdict.text}" for row in rows),
    )


def signoff_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show whether the result can be signed off, who did, and where to sign."""
    yield signoff_line(source, words)
    if source.signoffs:
        yield Bullets(title=words("signed off"), items=tuple(_signed(signoff, words) for signoff in source.signoffs))
    if source.is_after_data:
        return
    seal = source.seal[:12] or words("no seal")
    yield Paragraph(text=words("sign off how", id=source.comparison.id, plan=source.analysis.plan_hash[:12], seal=seal))
    yield Paragraph(text="    ".join(f"□ {words(key)}" for key in ("approve", "reject", "further")))
    rows: list[Cells] = [
        {"role": words(role), "name": "", "date": "", "signature": ""} for role in ("evaluator", "releaser")
    ]
    yield replace(table(words, tuple(rows[0]), rows, n_texts=4), is_form=True)


def _signed(signoff: SignOff, words: Words) -> str:
    time = words.moment(signoff.signed_at)
    sentences = [words("signed by", verdict=signoff.verdict, name=signoff.signed_by, time=time)]
    if signoff.note:
        sentences.append(words("signed note", note=signoff.note))
    if signoff.override:
        sentences.append(words("signed in spite of", obstacles=signoff.obstacles, reason=signoff.override))
    if signoff.analysis_hash:
        sentences.append(words("signed seal", seal=signoff.analysis_hash))
    return " ".join(sentences)


METHODS = {
    EvidenceKind.COUNTS: ("method difference", "method interval"),
    EvidenceKind.REPEATED: ("method repeated",),
    EvidenceKind.CLUSTERS: ("method clusters",),
    EvidenceKind.SCORES: ("method bounded",),
    EvidenceKind.LABELS: ("method labels",),
}


def methods_blocks(source: Source, words: Words) -> Iterator[Block]:
    """List the methods that this comparison's metrics got, each with its source."""
    kinds = {row.evidence.kind for row in source.analysis.metrics if row.evidence}
    keys = [key for kind, own in METHODS.items() if kind in kinds for key in own]
    if is_one_sided(source.plan.rule):
        keys = [key.replace("method interval", "method interval one-sided") for key in keys]
    keys += ["method all", "method family"]
    keys += ["method looks"] if source.plan.looks else []
    keys += ["method noise"] if source.analysis.noise else []
    if audit := source.analysis.audit:
        keys += ["method audit", *(["method audit sampled"] if audit.sampled else [])]
    keys += ["method missing", "method unpaired"]
    scores = words("method scores", version=source.plan.harness_version)
    yield Bullets(items=(scores, *(words(key) for key in keys)))
