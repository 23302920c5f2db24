"""What the scores show: all metrics, power, looks, and what missing answers change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from qualab.analysis.ruling import MAX_ITEMS, bounds_of, is_one_sided, is_out_of_reach
from qualab.model.comparison import (
    ArmSummary,
    Evidence,
    ItemsRange,
    MetricResult,
    MissingSummary,
    PolicyResult,
    StatusMissing,
)
from qualab.model.names import AnswerStatus, EvidenceKind, MetricKind, MissingPolicy, Verdict
from qualab.model.plan import DecisionRule, MetricRule, MetricSpec
from qualab.model.report import Block, Bullets, Cell, Paragraph, Row, Table, Tone
from qualab.model.wording import count, signed
from qualab.report.source import Cells, Source, number, table, verdict_cell
from qualab.report.words import Words

METRIC_COLUMNS = (
    *("metric", "n", "clusters", "missing", "baseline", "candidate", "difference", "interval"),
    *("p", "adjusted", "unpaired", "gains", "verdict"),
)
DISPENSABLE = ("unpaired", "clusters", "n", "gains", "adjusted", "baseline", "candidate", "p", "missing", "interval")


def metrics_blocks(source: Source, words: Words) -> Iterator[Block]:
    """The table of all metrics, and what its rows have no room for."""
    analysis, suite = source.analysis, source.analysis.suite
    yield metric_table(analysis.metrics, words, has_looks=analysis.looks is not None)
    if notes := tuple(_notes(analysis.metrics, words)):
        yield Bullets(items=notes)
    if (found := suite.global_test) and found.n_metrics > 1:
        yield Paragraph(text=words("together", n=found.n_metrics, difference=found.difference, p=found.pvalue))
    if suite.joint_power is not None:
        yield Paragraph(text=words("joint power", power=suite.joint_power))


def metric_table(metrics: Sequence[MetricResult], words: Words, *, has_looks: bool = False) -> Table:
    """Lay out one row a metric, in the plan's order."""
    notes = [words("primary note")]
    notes += [words("drafter note")] if not all(row.exercises_drafter for row in metrics) else []
    notes += [words("looks note")] if has_looks else []
    found = table(
        words,
        METRIC_COLUMNS,
        [_metric_cells(row, words) for row in metrics],
        texts=("verdict",),
        titles={"interval": _interval_title(metrics, words)},
        notes=notes,
        dispensable=DISPENSABLE,
        is_wide=True,
    )
    rows = (Row(cells=row.cells, is_strong=own.is_primary) for row, own in zip(found.rows, metrics, strict=True))
    return replace(found, rows=tuple(rows))


def _interval_title(metrics: Iterable[MetricResult], words: Words) -> str:
    """With the level of the intervals that decide."""
    intervals = (row.evidence.equivalence_interval for row in metrics if row.evidence)
    levels = {interval.confidence_level for interval in intervals if interval}
    return words("interval at", level=levels.pop()) if len(levels) == 1 else words("interval")


def _metric_cells(row: MetricResult, words: Words) -> Cells:
    evidence = row.evidence
    cells: Cells = {
        "metric": f"{'*' if row.is_primary else ' '} {row.id}{'' if row.exercises_drafter else ' †'}",
        "n": number(evidence.n_items if evidence else row.n_items, "count", words),
        "missing": number(row.n_missing or None, "count", words),
        "baseline": words("none") if row.baseline is None else number(row.baseline, "score", words),
        "candidate": words("none") if row.candidate is None else number(row.candidate, "score", words),
        "verdict": verdict_cell(row.verdict, words),
    }
    if evidence is None:
        arms = [value for value in (row.baseline, row.candidate) if value is not None and 0.0 <= value <= 1.0]
        if len(arms) == 2:  # other values do not differ by percentage points
            cells["difference"] = number(arms[1] - arms[0], "signed", words)
        return cells
    interval = evidence.equivalence_interval
    is_clustered = evidence.n_clusters < evidence.n_items
    return cells | {
        "clusters": number(evidence.n_clusters if is_clustered else None, "count", words),
        "difference": number(evidence.difference, "signed", words),
        "interval": words.interval(interval.low, interval.high) if interval else words("none"),
        "p": number(evidence.pvalue, "pvalue", words),
        "adjusted": number(evidence.pvalue_adjusted, "pvalue", words),
        "unpaired": number(evidence.pvalue_unpaired, "pvalue", words),
        "gains": f"{count(evidence.gains)}/{count(evidence.losses)}",
    }


def _notes(rows: Sequence[MetricResult], words: Words) -> Iterator[str]:
    """What the cells of rows have no room for, rows with the same note together."""
    if pairs := [f"{row.id} = {row.equals.removeprefix(f'{row.task}/')}" for row in rows if row.equals]:
        yield words("same scores", pairs=", ".join(pairs))
    by_note: dict[str, list[str]] = {}
    for row in rows:
        note = row.reason if row.verdict is Verdict.NOT_TESTED else row.evidence.note if row.evidence else None
        if note and not row.equals:
            by_note.setdefault(words.reason(note), []).append(row.id)
    yield from (f"{', '.join(ids)}: {note}" for note, ids in by_note.items())


_HAIR = 1e-9
POWER_COLUMNS = (
    *("metric", "margin", "planned discordance", "planned effect", "planned power", "n"),
    *("seen discordance", "seen effect", "proven margin", "items needed", "needed observed"),
)


def power_blocks(source: Source, words: Words) -> Iterator[Block]:
    """One row a primary metric, the plan's assumptions beside what was observed."""
    specs = {spec.id: spec for spec in source.plan.metrics}
    rows = [_power_cells(row, specs[row.id], source, words) for row in source.primaries]
    note = words("power note", power=source.plan.rule.power)
    if rows:
        yield table(words, POWER_COLUMNS, rows, notes=[note])
    reason = source.analysis.suite.joint_power_reason
    if source.plan.assumptions is None:
        yield Paragraph(text=words("not planned"))
    elif reason:
        yield Paragraph(text=words("no joint power", why=words.reason(reason)))


def _power_cells(row: MetricResult, spec: MetricSpec, source: Source, words: Words) -> Cells:
    rule, evidence = source.plan.rule_for(spec), row.evidence
    margin = Cell(text=words.reason(bounds_of(rule)), value=rule.margin)
    cells: Cells = {"metric": row.id, "margin": margin, **_planned(row, spec, source, words)}
    if evidence is None:
        return cells
    cells["n"] = number(evidence.n_items, "count", words)
    cells["proven margin"] = _proven(evidence.provable_margin, rule, words)
    if evidence.kind in (EvidenceKind.COUNTS, EvidenceKind.CLUSTERS):
        discordance = (evidence.gains + evidence.losses) / evidence.n_items
        cells["seen discordance"] = number(discordance, "share.2", words)
        cells["seen effect"] = number(evidence.design_effect, "tokens", words)
    if row.verdict is Verdict.INCONCLUSIVE:
        cells |= _needed(evidence, rule, words)
    return cells


def _planned(row: MetricResult, spec: MetricSpec, source: Source, words: Words) -> Cells:
    assumed = source.plan.assumptions
    if assumed is None or row.id not in assumed.discordance:
        return {}
    discordance, effect = assumed.discordance[row.id], assumed.design_effect.get(row.id, 1.0)
    cells: Cells = {
        "planned discordance": number(discordance, "percent", words),
        "planned effect": number(effect, "tokens", words),
    }
    if spec.kind in (MetricKind.BINARY_MEAN, MetricKind.GROUP_MEAN):
        # scipy: planned runs only
        from qualab.planning.power import Missing, verdict_power  # noqa: PLC0415
        from qualab.stats.sizing import discordance_with_repeats  # noqa: PLC0415

        rule, evidence, repeats = source.plan.rule_for(spec), row.evidence, source.plan.sampling.repeats
        is_clustered = evidence is not None and evidence.kind is EvidenceKind.CLUSTERS
        power = verdict_power(
            n_items=max(1, math.floor(row.n_items / effect + _HAIR)),
            discordance=discordance_with_repeats(
                discordance=discordance, noise=assumed.noise.get(row.id, 0.0), repeats=repeats
            ),
            margin=rule.margin,
            alpha=rule.alpha,
            is_one_sided=is_one_sided(rule),
            missing=Missing(share=assumed.missing, lost=rule.missing_lost),
            n_clusters=evidence.n_clusters if evidence and is_clustered else None,
        )
        cells["planned power"] = number(power, "share", words)
    return cells


def _needed(evidence: Evidence, rule: MetricRule, words: Words) -> Cells:
    """Items to prove the margin: at no true difference, and at the observed one."""
    if evidence.provable_margin is None:
        return {"items needed": words("no bound")}
    observed, over = evidence.items_needed_observed, evidence.items_needed_observed_range
    cells: Cells = {"items needed": _items(evidence.items_needed, evidence.items_needed_range, words)}
    if is_out_of_reach(evidence, rule):
        cells["needed observed"] = words("out of reach")
    elif observed is not None or over is not None:  # neither is known of an earlier version's analysis
        cells["needed observed"] = _items(observed, over, words)
    return cells


def _items(needed: int | None, over: ItemsRange | None, words: Words) -> Cell:
    def text(n: int | None) -> str:
        return f">{count(MAX_ITEMS)}" if n is None else count(n)

    if over is None or needed is None:
        return Cell(text=text(needed), value=needed)
    limits = words("from to", low=text(over.low), high=text(over.high))
    return Cell(text=f"{text(needed)} ({limits})", value=needed)


def _proven(margin: float | None, rule: DecisionRule, words: Words) -> Cell:
    if margin is None:
        return Cell(text=words("no bound"))
    if margin >= 1.0:
        return Cell(text=words("none"), value=margin)
    return Cell(text=words.reason(bounds_of(rule, margin)), value=margin)


def looks_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Where a run with looks ended, and where each primary metric stood at its last look."""
    taken = source.analysis.looks
    if taken is None or not taken.looks:
        return
    last = taken.looks[-1]
    key = "looks stopped" if taken.stopped_early else "looks to the end"
    yield Paragraph(
        text=words(
            key,
            look=last.number,
            planned=taken.n_planned,
            n=taken.n_items,
            total=taken.n_items_planned,
            items=taken.n_items_planned - taken.n_items,
            requests=taken.n_requests_saved,
        )
    )
    if last.metrics:
        rows: list[Cells] = [
            {
                "metric": one.metric,
                "standing": words.name(one.decision),
                "since look": number(one.decided_at, "count", words),
                "pairs": number(one.n_pairs, "count", words),
                "z": number(one.statistic, "tokens", words),
                "boundary": number(one.boundary, "tokens", words),
            }
            for one in last.metrics
        ]
        yield table(words, tuple(rows[0]), rows, n_texts=2)


ARM_COLUMNS = ("arm", "requests", "answered", "unanswered", "truncated", "empty", "stop strings", "retries")


def missing_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Which answers are missing, by arm, and whether it matters how they are treated."""
    analysis, missing = source.analysis, source.analysis.suite.missing
    yield table(words, ARM_COLUMNS, (_arm_cells(arm, source, words) for arm in analysis.arms), texts=("unanswered",))
    n_lost = sum(arm.n_requests - arm.n_answers for arm in analysis.arms)
    if not n_lost and not missing.baseline_only + missing.candidate_only + missing.both + missing.left_out:
        yield Paragraph(text=words("nothing missing", n=sum(arm.n_requests for arm in analysis.arms)))
        return
    counted: list[tuple[str, MissingSummary | StatusMissing]] = [("missing in", missing)]
    for key, one in (*counted, *(("missing by status", status) for status in missing.by_status)):
        numbers = {"off": one.baseline_only, "on": one.candidate_only, "both": one.both, "p": one.pvalue}
        yield Paragraph(text=words(key, status=getattr(one, "status", ""), **numbers))
    if missing.left_out:
        yield Paragraph(text=words("left out", n=missing.left_out))
    yield from _policies(source, words)


def _arm_cells(arm: ArmSummary, source: Source, words: Words) -> Cells:
    cells: Cells = {
        "arm": words(arm.arm),
        "requests": number(arm.n_requests, "count", words),
        "answered": number(arm.n_answers, "count", words),
        "unanswered": unanswered(arm, words) or "0",
        "empty": number(arm.empty_answers, "count", words),
    }
    if source.plan.imported is None:  # no log tells the others
        cells["truncated"] = number(arm.truncated_share, "share", words)
        cells["stop strings"] = number(arm.stop_string_answers, "count", words)
        cells["retries"] = number(arm.retries, "count", words)
    return cells


def unanswered(arm: ArmSummary, words: Words) -> str:
    """List how requests ended that have no answer; empty where all have."""
    lost = {status: n for status, n in arm.statuses.items() if not AnswerStatus(status).is_answer}
    return ", ".join(words("status", n=n, status=status) for status, n in lost.items())


def _policies(source: Source, words: Words) -> Iterator[Block]:
    rows = [row for row in source.analysis.metrics if row.policies and not row.equals]
    if not rows:
        yield Paragraph(text=words("policies unneeded"))
        return
    yield Paragraph(text=words("policies how", level=1.0 - 2.0 * source.plan.rule.alpha), is_muted=True)
    policies = {policy.name.lower(): words.name(policy) for policy in MissingPolicy}
    names = ["metric", *policies, "all agree", "tipping point"]
    yield table(words, names, [_policy_cells(row, words) for row in rows], titles=policies, is_wide=True)


def _policy_cells(row: MetricResult, words: Words) -> Cells:
    """Each way of treating missing answers, whether all of them prove the objective, and up to how many losses."""
    is_proven = all(one.is_equivalent for one in row.policies)
    cells: Cells = {one.policy.name.lower(): _policy(one, words) for one in row.policies}
    cells |= {"metric": row.id, "all agree": words("yes" if is_proven else "no")}
    cells["tipping point"] = words("tipping all") if is_proven else "–"
    if row.tipping_point is not None:
        cells["tipping point"] = words("tipping", most=row.tipping_point, n=row.n_missing)
    return cells


def _policy(one: PolicyResult, words: Words) -> Cell:
    interval = f" ({words.interval(one.interval.low, one.interval.high)})" if one.interval else ""
    tone = Tone.GOOD if one.is_equivalent else Tone.OPEN
    return Cell(text=f"{signed(one.difference)}{interval}", value=one.difference, tone=tone)
