"""What the plan expected these items to prove, and what they did prove."""

from __future__ import annotations

import math
from collections.abc import Iterator

from qualab.app.analysis.ruling import MAX_ITEMS, bounds_of, is_one_sided, is_out_of_reach
from qualab.app.reporting.source import Source, columns
from qualab.app.reporting.words import Words
from qualab.domain.comparison import Evidence, ItemsRange, LooksTaken, MetricResult
from qualab.domain.names import EvidenceKind, MetricKind, Verdict
from qualab.domain.numbers import count, percent, share, tokens
from qualab.domain.plan import DecisionRule, MetricSpec
from qualab.domain.report import Block, Cell, Column, Paragraph, Row, Section, Table

_HAIR = 1e-9
PLANNED = ("planned discordance", "planned effect", "planned power")
ACHIEVED = ("n", "seen discordance", "seen effect", "proven margin", "items needed", "needed observed")
NOTHING = Cell(text="–")


def power_section(source: Source, words: Words) -> Section:
    """One row a primary metric, the plan's assumptions beside what was observed."""
    blocks: list[Block] = []
    if source.primaries:
        blocks.append(_table(source, words))
    if source.plan.assumptions is None:
        blocks.append(Paragraph(text=words("not planned")))
    blocks.append(Paragraph(text=_joint(source, words)))
    if source.analysis.looks:
        blocks.append(Paragraph(text=looks_text(source.analysis.looks, words)))
    return Section(id="power", title=words("power"), blocks=tuple(blocks))


def _table(source: Source, words: Words) -> Table:
    is_planned = source.plan.assumptions is not None
    names = ("metric", "margin", *(PLANNED if is_planned else ()), *ACHIEVED)
    shown = columns(words, *names)
    rows = tuple(_row(row, shown, source, words) for row in source.primaries)
    return Table(columns=shown, rows=rows, legend=(words("power legend", power=percent(source.plan.rule.power)),))


def _row(row: MetricResult, shown: tuple[Column, ...], source: Source, words: Words) -> Row:
    spec = next(one for one in source.plan.metrics if one.id == row.id)
    rule = source.plan.rule_for(spec)
    found = {"metric": Cell(text=row.id), "margin": Cell(text=words.units(bounds_of(rule)), value=rule.margin)}
    found |= _planned(row, spec, rule, source, words)
    if row.evidence:
        found |= dict(_achieved(row.evidence, rule, words))
    if row.evidence and row.verdict is Verdict.INCONCLUSIVE:
        found |= _needed(row.evidence, rule, words, higher_is_better=spec.higher_is_better)
    return Row(cells=tuple(found.get(one.id, NOTHING) for one in shown))


def _planned(row: MetricResult, spec: MetricSpec, rule: DecisionRule, source: Source, words: Words) -> dict[str, Cell]:
    taken = source.plan.assumptions
    if taken is None or row.id not in taken.discordance:
        return {}
    discordance, effect = taken.discordance[row.id], taken.design_effect.get(row.id, 1.0)
    cells = {
        "planned discordance": Cell(text=words.units(percent(discordance)), value=discordance),
        "planned effect": Cell(text=tokens(effect), value=effect),
    }
    if spec.kind in (MetricKind.BINARY_MEAN, MetricKind.GROUP_MEAN):
        # scipy: planned runs only
        from qualab.app.calculators import Missing, verdict_power  # noqa: PLC0415
        from qualab.stats.sizing import discordance_with_repeats  # noqa: PLC0415

        noise = taken.noise.get(row.id, 0.0)
        evidence, repeats = row.evidence, source.plan.sampling.repeats
        is_clustered = evidence is not None and evidence.kind is EvidenceKind.CLUSTERS
        n_clusters = evidence.n_clusters if evidence and is_clustered else None
        variance = discordance_with_repeats(discordance=discordance, noise=noise, repeats=repeats)
        power = verdict_power(
            n_items=max(1, math.floor(row.n_items / effect + _HAIR)),
            discordance=variance,
            margin=rule.margin,
            alpha=rule.alpha,
            is_one_sided=is_one_sided(rule),
            missing=Missing(share=taken.missing, lost=rule.missing_lost),
            n_clusters=n_clusters,
        )
        cells["planned power"] = Cell(text=words.units(share(power)), value=power)
    return cells


def _achieved(evidence: Evidence, rule: DecisionRule, words: Words) -> Iterator[tuple[str, Cell]]:
    yield "n", Cell(text=count(evidence.n_items), value=evidence.n_items)
    if evidence.kind in (EvidenceKind.COUNTS, EvidenceKind.CLUSTERS):
        discordance = (evidence.gains + evidence.losses) / evidence.n_items
        yield "seen discordance", Cell(text=words.units(share(discordance, 2)), value=discordance)
        yield "seen effect", Cell(text=tokens(evidence.design_effect), value=evidence.design_effect)
    yield "proven margin", _margin(evidence.provable_margin, rule, words)


def _needed(evidence: Evidence, rule: DecisionRule, words: Words, *, higher_is_better: bool) -> dict[str, Cell]:
    """Items to prove the margin, of a metric that is open: at no true difference, and at the observed one."""
    if evidence.provable_margin is None:
        return {"items needed": Cell(text=words("no bound"))}
    found = {"items needed": _items(evidence.items_needed, evidence.items_needed_range, words)}
    if is_out_of_reach(evidence, rule, higher_is_better=higher_is_better):
        return found | {"needed observed": Cell(text=words("out of reach"))}
    observed, over = evidence.items_needed_observed, evidence.items_needed_observed_range
    if observed is None and over is None:
        return found  # of an earlier version
    return found | {"needed observed": _items(observed, over, words)}


def _items(needed: int | None, over: ItemsRange | None, words: Words) -> Cell:
    def said(n: int | None) -> str:
        return words("more than", n=count(MAX_ITEMS)) if n is None else count(n)

    if over is None or needed is None:
        return Cell(text=said(needed), value=needed)
    return Cell(text=words("items range", n=said(needed), low=said(over.low), high=said(over.high)), value=needed)


def _margin(margin: float | None, rule: DecisionRule, words: Words) -> Cell:
    if margin is None:
        return Cell(text=words("no bound"))
    if margin >= 1.0:
        return Cell(text=words("none proven"), value=margin)
    return Cell(text=words.units(bounds_of(rule, margin)), value=margin)


def _joint(source: Source, words: Words) -> str:
    suite = source.analysis.suite
    if suite.joint_power is None:
        return words("no joint power", why=words.sentence(suite.joint_power_reason))
    return words("joint power", power=share(suite.joint_power))


def looks_text(taken: LooksTaken, words: Words) -> str:
    """Where a run with looks ended."""
    places = {
        "planned": taken.n_planned,
        "n": count(taken.n_items),
        "total": count(taken.n_items_planned),
        "saved": count(taken.n_requests_saved),
        "look": taken.looks[-1].number if taken.looks else 0,
    }
    return words("looks stopped" if taken.stopped_early else "looks to the end", **places)
