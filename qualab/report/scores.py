"""Write the scores' sections: all metrics, power, looks, and what missing answers change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from qualab.analysis.ruling import MAX_ITEMS, bounds_of, is_one_sided, is_out_of_reach
from qualab.model.comparison import Evidence, ItemsRange, MetricResult, MissingSummary, StatusMissing
from qualab.model.names import AnswerStatus, EvidenceKind, MetricKind, MissingPolicy, Verdict
from qualab.model.plan import MetricRule, MetricSpec, deciding_metrics
from qualab.model.report import Block, Bullets, Cell, Flow, Paragraph, Split, Splits, Step, Table, Tone
from qualab.model.wording import count, signed
from qualab.report.source import Cells, Source, table, verdict_cell, weightiest
from qualab.report.words import Words

METRIC_COLUMNS = (
    *("metric", "tier", "n", "clusters", "missing", "baseline", "candidate", "difference", "interval"),
    *("p", "adjusted", "unpaired", "gains", "verdict"),
)
DISPENSABLE = (
    *("unpaired", "tier", "clusters", "n", "missing", "gains", "adjusted", "p", "interval"),
    *("baseline", "candidate"),
)


def metrics_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show the table of all metrics, what its rows have no room for, and how many items changed."""
    analysis, suite = source.analysis, source.analysis.suite
    yield metric_table(analysis.metrics, words, has_looks=analysis.looks is not None)
    if chart := _splits(source, words):
        yield Paragraph(text=words("splits how"), is_muted=True)
        yield chart
    notes = []
    if pairs := [f"{row.id} = {row.equals.removeprefix(f'{row.task}/')}" for row in analysis.metrics if row.equals]:
        notes.append(words("same scores", pairs=", ".join(pairs)))
    by_note: dict[str, list[str]] = {}
    for row in analysis.metrics:
        note = row.reason if row.verdict is Verdict.NOT_TESTED else row.evidence.note if row.evidence else None
        if note and not row.equals:
            by_note.setdefault(words.reason(note), []).append(row.id)
    notes += [f"{', '.join(ids)}: {note}" for note, ids in by_note.items()]
    if notes:
        yield Bullets(items=tuple(notes))
    if suite.global_test and suite.global_test.n_metrics > 1:
        yield Paragraph(text=words("together", test=suite.global_test))
    if suite.joint_power is not None:
        yield Paragraph(text=words("joint power", power=suite.joint_power))


def metric_table(metrics: Sequence[MetricResult], words: Words, *, has_looks: bool = False) -> Table:
    """Lay out one row a metric, in the plan's order."""
    intervals = (row.evidence.equivalence_interval for row in metrics if row.evidence)
    levels = {interval.confidence_level for interval in intervals if interval}
    title = words("interval at", level=levels.pop()) if len(levels) == 1 else words("interval")
    has_undrafted = not all(row.exercises_drafter for row in metrics)
    notes = {"primary note": True, "drafter note": has_undrafted, "looks note": has_looks}
    rows = table(
        words,
        METRIC_COLUMNS,
        [_metric_cells(row, words) for row in metrics],
        texts=("verdict", "tier"),
        titles={"interval": title},
        notes=[words(key) for key, is_needed in notes.items() if is_needed],
        dispensable=DISPENSABLE,
        is_wide=True,
    )
    marked = (replace(row, is_strong=own.is_primary) for row, own in zip(rows.rows, metrics, strict=True))
    return replace(rows, rows=tuple(marked))


def _metric_cells(row: MetricResult, words: Words) -> Cells:
    evidence = row.evidence
    cells: Cells = {
        "metric": f"{'*' if row.is_primary else ' '} {row.id}{'' if row.exercises_drafter else ' †'}",
        "tier": words.name(row.tier) if row.tier else None,
        "n": (evidence.n_items if evidence else row.n_items, "count"),
        "missing": (row.n_missing or None, "count"),
        "baseline": words("none") if row.baseline is None else (row.baseline, "score"),
        "candidate": words("none") if row.candidate is None else (row.candidate, "score"),
        "verdict": verdict_cell(row.verdict, words),
    }
    if evidence is None:
        arms = [value for value in (row.baseline, row.candidate) if value is not None and 0.0 <= value <= 1.0]
        if len(arms) == 2:  # other values do not differ by percentage points
            cells["difference"] = (arms[1] - arms[0], "signed")
        return cells
    interval = evidence.equivalence_interval
    is_clustered = evidence.n_clusters < evidence.n_items
    return cells | {
        "clusters": (evidence.n_clusters if is_clustered else None, "count"),
        "difference": (evidence.difference, "signed"),
        "interval": words.interval(interval.low, interval.high) if interval else words("none"),
        "p": (evidence.pvalue, "pvalue"),
        "adjusted": (evidence.pvalue_adjusted, "pvalue"),
        "unpaired": (evidence.pvalue_unpaired, "pvalue"),
        "gains": f"{count(evidence.gains)}/{count(evidence.losses)}",
    }


def _splits(source: Source, words: Words) -> Splits | None:
    """Draw what changed in each task's deciding metric; None where nothing did."""
    deciding = {spec.id for spec in deciding_metrics(source.plan.metrics).values()}
    rows = [
        Split(
            label=row.task,
            loss=own.losses / own.n_items,
            gain=own.gains / own.n_items,
            text=words("split of", losses=own.losses, gains=own.gains, n=own.n_items),
        )
        for row in source.analysis.metrics
        if (own := row.evidence) and row.id in deciding
    ]
    if not any(row.loss or row.gain for row in rows):
        return None
    described = "; ".join(f"{row.label}: {row.text}" for row in rows)
    left, right = words("losses"), words("gained")
    return Splits(rows=tuple(rows), axis=words("splits axis"), left=left, right=right, description=described)


_HAIR = 1e-9
POWER_COLUMNS = (
    *("metric", "margin", "planned discordance", "planned effect", "planned power", "n"),
    *("seen discordance", "seen effect", "proven margin", "items needed", "needed observed"),
)


def power_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show one row a primary metric, the plan's assumptions beside what was observed."""
    specs = {spec.id: spec for spec in source.plan.metrics}
    if rows := [_power_cells(row, specs[row.id], source, words) for row in source.primaries]:
        yield table(words, POWER_COLUMNS, rows, notes=[words("power note", power=source.plan.rule.power)])
    if (row := weightiest(source)) and row.evidence and row.evidence.kind is EvidenceKind.COUNTS:
        yield from _curve(row, specs[row.id], source, words)
    if source.plan.assumptions is None:
        yield Paragraph(text=words("not planned"))
    elif reason := source.analysis.suite.joint_power_reason:
        yield Paragraph(text=words("no joint power", why=reason))


def _curve(row: MetricResult, spec: MetricSpec, source: Source, words: Words) -> Iterator[Block]:
    evidence = row.evidence
    assert evidence is not None
    if discordance := (evidence.gains + evidence.losses) / evidence.n_items:
        from qualab.report.planning import power_curve  # noqa: PLC0415  scipy: no terminal shows it

        yield Paragraph(text=words("curve of", metric=row.id, discordance=discordance), is_muted=True)
        yield power_curve(evidence.n_items, discordance, source.plan.rule_for(spec), words)


def _power_cells(row: MetricResult, spec: MetricSpec, source: Source, words: Words) -> Cells:
    rule, evidence = source.plan.rule_for(spec), row.evidence
    margin = Cell(text=words.reason(bounds_of(rule)), value=rule.margin)
    cells: Cells = {"metric": row.id, "margin": margin, **_planned(row, spec, source)}
    if evidence is None:
        return cells
    cells["n"] = (evidence.n_items, "count")
    proven = evidence.provable_margin
    if proven is None:
        cells["proven margin"] = words("no bound")
    else:
        text = words("none") if proven >= 1.0 else words.reason(bounds_of(rule, proven))
        cells["proven margin"] = Cell(text=text, value=proven)
    if evidence.kind in (EvidenceKind.COUNTS, EvidenceKind.CLUSTERS):
        cells["seen discordance"] = ((evidence.gains + evidence.losses) / evidence.n_items, "share.2")
        cells["seen effect"] = (evidence.design_effect, "tokens")
    if row.verdict is Verdict.INCONCLUSIVE:
        cells |= _needed(evidence, rule, words)
    return cells


def _planned(row: MetricResult, spec: MetricSpec, source: Source) -> Cells:
    assumed = source.plan.assumptions
    if assumed is None or row.id not in assumed.discordance:
        return {}
    discordance, effect = assumed.discordance[row.id], assumed.design_effect.get(row.id, 1.0)
    cells: Cells = {"planned discordance": (discordance, "percent"), "planned effect": (effect, "tokens")}
    if spec.kind in (MetricKind.BINARY_MEAN, MetricKind.GROUP_MEAN):
        # scipy: planned runs only
        from qualab.planning.power import Missing, verdict_power  # noqa: PLC0415
        from qualab.stats.sizing import discordance_with_repeats  # noqa: PLC0415

        rule, evidence = source.plan.rule_for(spec), row.evidence
        noise, repeats = assumed.noise.get(row.id, 0.0), source.plan.sampling.repeats
        power = verdict_power(
            n_items=max(1, math.floor(row.n_items / effect + _HAIR)),
            discordance=discordance_with_repeats(
                discordance=discordance, noise=noise, repeats=repeats, baseline_runs=source.plan.n_baseline_runs
            ),
            margin=rule.margin,
            alpha=rule.alpha,
            is_one_sided=is_one_sided(rule),
            missing=Missing(share=assumed.missing, lost=rule.missing_lost),
            n_clusters=evidence.n_clusters if evidence and evidence.kind is EvidenceKind.CLUSTERS else None,
        )
        cells["planned power"] = (power, "share")
    return cells


def _needed(evidence: Evidence, rule: MetricRule, words: Words) -> Cells:
    if evidence.provable_margin is None:
        return {"items needed": words("no bound")}
    observed, over = evidence.items_needed_observed, evidence.items_needed_observed_range
    cells: Cells = {"items needed": _items(evidence.items_needed, evidence.items_needed_range, words)}
    if is_out_of_reach(evidence, rule):
        cells["needed observed"] = words("out of reach")
    elif observed is not None or over is not None:
        cells["needed observed"] = _items(observed, over, words)
    return cells


def _items(needed: int | None, over: ItemsRange | None, words: Words) -> Cell:
    def text(n: int | None) -> str:
        return f">{count(MAX_ITEMS)}" if n is None else count(n)

    if over is None or needed is None:
        return Cell(text=text(needed), value=needed)
    limits = words("from to", low=text(over.low), high=text(over.high))
    return Cell(text=f"{text(needed)} ({limits})", value=needed)


def looks_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show where a run with looks ended, and where each primary metric stood at its last look."""
    taken = source.analysis.looks
    if taken is None or not taken.looks:
        return
    last, n_saved = taken.looks[-1], taken.n_items_planned - taken.n_items
    key = "looks stopped" if taken.stopped_early else "looks to the end"
    yield Paragraph(text=words(key, taken=taken, look=last.number, n_saved=n_saved))
    rows: list[Cells] = [
        {
            "metric": metric.metric,
            "standing": words.name(metric.decision),
            "since look": (metric.decided_at, "count"),
            "pairs": (metric.n_pairs, "count"),
            "z": (metric.statistic, "tokens"),
            "boundary": (metric.boundary, "tokens"),
        }
        for metric in last.metrics
    ]
    if rows:
        yield table(words, tuple(rows[0]), rows, n_texts=2)


ARM_COLUMNS = ("arm", "requests", "answered", "unanswered", "truncated", "empty", "stop strings", "retries")


def missing_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show the way from planned to tested answers, which are missing, and whether it matters how they are treated."""
    analysis, missing = source.analysis, source.analysis.suite.missing
    if source.plan.imported is None:
        yield _flow(source, words)
    rows: list[Cells] = []
    for arm in analysis.arms:
        lost = [(n, status) for status, n in arm.statuses.items() if not AnswerStatus(status).is_answer]
        cells: Cells = {
            "arm": words(arm.arm),
            "requests": (arm.n_requests, "count"),
            "answered": (arm.n_answers, "count"),
            "unanswered": ", ".join(words("status", n=n, status=status) for n, status in lost) or "0",
            "empty": (arm.empty_answers, "count"),
        }
        if source.plan.imported is None:  # no log tells the others
            cells["truncated"] = (arm.truncated_share, "share")
            cells["stop strings"] = (arm.stop_string_answers, "count")
            cells["retries"] = (arm.retries, "count")
        rows.append(cells)
    yield table(words, ARM_COLUMNS, rows, texts=("unanswered",))
    n_requests, n_answers = (sum(getattr(arm, name) for arm in analysis.arms) for name in ("n_requests", "n_answers"))
    if n_requests == n_answers and not missing.baseline_only + missing.candidate_only + missing.both + missing.left_out:
        yield Paragraph(text=words("nothing missing", n=n_requests))
        return
    counts: list[MissingSummary | StatusMissing] = [missing, *missing.by_status]
    for counted in counts:
        key = "missing by status" if isinstance(counted, StatusMissing) else "missing in"
        yield Paragraph(text=words(key, missing=counted))
    if missing.left_out:
        yield Paragraph(text=words("left out", n=missing.left_out))
    yield from _policies(source, words)


def _flow(source: Source, words: Words) -> Flow:
    missing, plan, looks = source.analysis.suite.missing, source.plan, source.analysis.looks
    asked, lacking = missing.n_asked, missing.baseline_only + missing.candidate_only + missing.both
    planned = sum(task.n_items for task in plan.tasks) * plan.sampling.repeats
    paired = asked - lacking - missing.left_out
    tested = sum(row.n_items for row in source.primaries if row.evidence)
    answered = " · ".join(
        count(asked - missing.left_out - missing.both - own) for own in (missing.baseline_only, missing.candidate_only)
    )
    lost = {
        "asked": words("flow not asked", n=planned - asked) if looks and planned > asked else "",
        "answered": words("flow left out", n=missing.left_out) if missing.left_out else "",
        "paired": words("flow unpaired", n=lacking) if lacking else "",
        "tested": words("flow other tasks", n=paired - tested) if paired > tested else "",
    }
    texts = dict(
        zip(("planned", *lost), (count(planned), count(asked), answered, count(paired), count(tested)), strict=True)
    )
    steps = tuple(Step(title=words(f"flow {name}"), text=text, lost=lost.get(name, "")) for name, text in texts.items())
    described = "; ".join(f"{step.title}: {step.text}{f' ({step.lost})' if step.lost else ''}" for step in steps)
    return Flow(steps=steps, description=described)


def _policies(source: Source, words: Words) -> Iterator[Block]:
    rows: list[Cells] = []
    for row in source.analysis.metrics:
        if not row.policies or row.equals:
            continue
        is_proven = all(policy.is_equivalent for policy in row.policies)
        cells: Cells = {
            "metric": row.id,
            "all agree": words("yes" if is_proven else "no"),
            "tipping point": words("tipping all") if is_proven else None,
        }
        if row.tipping_point is not None:
            cells["tipping point"] = words("tipping", most=row.tipping_point, n=row.n_missing)
        for policy in row.policies:
            limits = policy.interval
            text = f" ({words.interval(limits.low, limits.high)})" if limits else ""
            cells[policy.policy.name.lower()] = Cell(
                text=f"{signed(policy.difference)}{text}",
                value=policy.difference,
                tone=Tone.GOOD if policy.is_equivalent else Tone.OPEN,
            )
        rows.append(cells)
    if not rows:
        yield Paragraph(text=words("policies unneeded"))
        return
    yield Paragraph(text=words("policies how", level=1.0 - 2.0 * source.plan.rule.alpha), is_muted=True)
    titles = {policy.name.lower(): words.name(policy) for policy in MissingPolicy}
    yield table(words, ("metric", *titles, "all agree", "tipping point"), rows, titles=titles, is_wide=True)
