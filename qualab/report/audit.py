"""The token audit: its sentence, its lines on a terminal, and its section."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from qualab.model.audit import GAP_EDGES, Audit, ForeignCount, SampledCount, TaskTokens, WorstToken
from qualab.model.names import ArmName, AuditPart, AuditRuling, IntervalOf, ScoringForm
from qualab.model.reason import Reason
from qualab.model.report import Block, Bullets, Cell, Fact, Facts, PairHistogram, Paragraph, Table, Tone
from qualab.model.wording import count, cut_text, token_text
from qualab.report.source import Cells, Source, table
from qualab.report.words import FORMS, Words

MOST_SHOWN = 12
"""Worst tokens on paper."""
CONTEXT = 48
"""Characters that are shown before and after one of them."""


def audit_sentence(audit: Audit, words: Words) -> str:
    """Word the ruling in a sentence, and what is still needed in another."""
    reason, values = audit.reason, dict(audit.reason.values)
    key = f"sentence {reason.code}"
    if reason.code == "audit.clean":
        values["n"] = audit.foreign[1].n_foreign if audit.foreign else 0
    elif reason.code == "audit.rare":
        values["rate"] = values["n"] / values["total"]
    elif reason.code == "audit.calibration":
        values["size"] = abs(values["difference"])
        key += " low" if values["difference"] < 0.0 else ""
    if sentence := words.optional(key, **values):
        return sentence
    clause = words.reason(Reason("audit", {"ruling": audit.ruling, "reason": reason}))
    sentence = f"{clause.removesuffix('.')}."
    needed = values.get("needed")
    if not needed or needed < 0 or values.get("n"):  # with a foreign token among them no number is known
        return sentence
    return f"{sentence} {words.optional(f'needed {reason.code}', needed=needed)}".strip()


def audit_lines(audit: Audit, words: Words) -> Iterator[str]:
    """Word what was counted: greedy and sampled tokens, and the difference in top choices, a line each."""
    for key, counts in (("greedy line", audit.foreign), ("sampled line", audit.sampled)):
        if counts:
            yield words(key, baseline=counts[0], candidate=counts[1])
    if audit.calibration is not None and (limits := audit.calibration_interval):
        yield words("choice line", difference=audit.calibration, interval=words.interval(limits.low, limits.high))


Counts = Sequence[ForeignCount | SampledCount]
"""Both arms', the baseline's first."""


def _counts(audit: Audit) -> dict[AuditPart, Counts]:
    parts: dict[AuditPart, Counts] = {AuditPart.GREEDY: audit.foreign, AuditPart.SAMPLED: audit.sampled}
    return {part: counts for part, counts in parts.items() if counts}


def audit_blocks(source: Source, words: Words) -> Iterator[Block]:
    """Show the ruling, what was counted, the worst tokens, what was audited, and what it does not prove."""
    audit = source.analysis.audit
    if audit is None:
        return
    yield Paragraph(text=audit_sentence(audit, words))
    if audit.tasks:
        yield _tokens(audit, words)
    for part, counts in _counts(audit).items():
        yield _histogram(part, counts, audit.plan.tau, words)
    if audit.sampled:
        yield _calibration(audit, words)
    if audit.partings:
        yield _partings(audit, words)
    if audit.structured:
        yield Paragraph(text=words("structured line", counted=audit.structured))
    if audit.worst:
        yield Paragraph(text=words("worst how", n=min(MOST_SHOWN, len(audit.worst))), is_muted=True)
        yield _worst(audit, words)
    yield Facts(facts=tuple(Fact(label=words(key), text=text) for key, text in _facts(audit, words)))
    limits = ["audit limits scope", "audit limits ties", "audit limits quality"]
    limits.append("audit limits sampled" if audit.sampled else "audit limits greedy")
    limits += ["audit limits few"] if audit.scoring is ScoringForm.TOKEN_BY_TOKEN else []
    if audit.scoring:
        yield Bullets(title=words("not proven"), items=tuple(words(key, tau=audit.plan.tau) for key in limits))


TOKEN_COLUMNS = (
    *("task", "decoding", "baseline tokens", "baseline foreign", "candidate tokens", "candidate foreign"),
    *("per 10,000", "answers foreign"),
)


def _tokens(audit: Audit, words: Words) -> Table:
    """Lay out tasks, then all of them together where there are several."""
    by_part: dict[AuditPart, dict[str, dict[ArmName, TaskTokens]]] = {}
    for counted in audit.tasks:
        by_part.setdefault(counted.part, {}).setdefault(counted.task, {})[counted.arm] = counted
    rows: list[Cells] = []
    strong, is_fault = [], audit.ruling is AuditRuling.FOREIGN
    for part, tasks in by_part.items():
        own = list(tasks.items())
        if len(own) > 1:
            own.append((words("all tasks"), {arm: _sum(audit.tasks, part, arm) for arm in ArmName}))
            strong.append(len(rows) + len(tasks))
        rows += [_token_cells(task, part, arms, words, is_fault=is_fault) for task, arms in own]
    note = words("foreign note", tau=audit.plan.tau)
    laid_out = table(words, TOKEN_COLUMNS, rows, n_texts=2, notes=[note])
    marked = (replace(row, is_strong=place in strong) for place, row in enumerate(laid_out.rows))
    return replace(laid_out, rows=tuple(marked))


def _sum(tasks: Sequence[TaskTokens], part: AuditPart, arm: ArmName) -> TaskTokens:
    own = [counted for counted in tasks if (counted.part, counted.arm) == (part, arm)]
    names = ("n_answers", "n_tokens", "n_foreign", "n_answers_foreign")
    totals = {name: sum(getattr(counted, name) for counted in own) for name in names}
    return TaskTokens(part=part, arm=arm, task="", **totals)


def _token_cells(task: str, part: AuditPart, arms: dict[ArmName, TaskTokens], words: Words, *, is_fault: bool) -> Cells:
    cells: Cells = {"task": task, "decoding": words.name(part)}
    for arm, own in arms.items():
        cells[f"{arm} tokens"] = (own.n_tokens, "count")
        tone = Tone.BAD if is_fault and own.n_foreign and arm is ArmName.CANDIDATE else Tone.PLAIN
        cells[f"{arm} foreign"] = Cell(text=count(own.n_foreign), value=own.n_foreign, tone=tone)
    if candidate := arms.get(ArmName.CANDIDATE):
        cells["per 10,000"] = (1e4 * candidate.n_foreign / max(1, candidate.n_tokens), "tokens")
        text = words("n of", n=candidate.n_answers_foreign, total=candidate.n_answers)
        cells["answers foreign"] = Cell(text=text, value=candidate.n_answers_foreign)
    return cells


def _histogram(part: AuditPart, counts: Counts, tau: float, words: Words) -> PairHistogram:
    title, axis = words(f"gaps {part}", n=sum(own.n_tokens for own in counts)), words("gaps axis")
    edges, names = tuple(f"{edge:g}" for edge in GAP_EDGES), tuple(words(own.arm) for own in counts)
    below = [edge for edge in GAP_EDGES if edge <= tau]
    limit: float | None = None
    if part is AuditPart.GREEDY and len(below) < len(GAP_EDGES):
        above = GAP_EDGES[len(below)]
        limit = len(below) - 1 + (tau - below[-1]) / (above - below[-1])
    lists = (
        f"{name}: {', '.join(f'{edge}: {count(n)}' for edge, n in zip(edges, own.histogram, strict=True) if n)}"
        for name, own in zip(names, counts, strict=True)
    )
    return PairHistogram(
        title=title,
        edges=edges,
        names=names,
        counts=tuple(own.histogram for own in counts),
        axis=axis,
        vertical_axis=words("gaps vertical"),
        limit=limit,
        limit_text=f"τ = {tau:g}",
        description=f"{title}. {axis}: {'; '.join(lists)}",
    )


SAMPLED_COLUMNS = ("arm", "answers", "tokens sampled", "rare", "p", "excess", "excess interval", "z", "largest gap")


def _calibration(audit: Audit, words: Words) -> Table:
    """Lay out both arms and their difference, whose interval is held against the margin."""
    rows: list[Cells] = [
        {
            "arm": words(own.arm),
            "answers": (own.n_answers, "count"),
            "tokens sampled": (own.n_tokens, "count"),
            "rare": (own.n_rare, "count"),
            "p": (own.pvalue_rare, "pvalue"),
            "excess": (own.excess, "signed"),
            "excess interval": words.interval(own.interval.low, own.interval.high) if own.interval else None,
            "z": (own.statistic, "over"),
            "largest gap": (own.largest_gap, "tokens"),
        }
        for own in audit.sampled
    ]
    if audit.calibration is not None:
        interval, margin = audit.calibration_interval, audit.plan.calibration_margin
        cell = _interval_cell(interval, margin, words) if interval else words("none")
        rows.append({"arm": words("arms differ by"), "excess": (audit.calibration, "signed"), "excess interval": cell})
    notes = [words("excess note", margin=audit.plan.calibration_margin)]
    return table(words, SAMPLED_COLUMNS, rows, notes=notes)


def _interval_cell(interval: IntervalOf, margin: float, words: Words) -> Cell:
    is_inside = -margin < interval.low <= interval.high < margin
    is_outside = interval.low > margin or interval.high < -margin
    tone = Tone.GOOD if is_inside else Tone.BAD if is_outside else Tone.OPEN
    return Cell(text=words.interval(interval.low, interval.high), tone=tone)


PARTING_COLUMNS = ("task", "pairs", "same text", "near-tie", "foreign")


def _partings(audit: Audit, words: Words) -> Table:
    """Lay out how the arms' greedy texts part, task by task, then all together where there are several."""
    counts = [(own.task, [own.n_pairs, own.n_same, own.n_near_ties, own.n_foreign]) for own in audit.partings]
    if len(counts) > 1:
        counts.append((words("all tasks"), [sum(ns) for ns in zip(*(own for _, own in counts), strict=True)]))
    rows: list[Cells] = [
        {"task": task, **{name: (n, "count") for name, n in zip(PARTING_COLUMNS[1:], own, strict=True)}}
        for task, own in counts
    ]
    laid_out = table(words, PARTING_COLUMNS, rows, notes=[words("parting note", tau=audit.plan.tau)])
    *tasks, last = laid_out.rows
    return replace(laid_out, rows=(*tasks, replace(last, is_strong=bool(tasks))))


def in_context(token: WorstToken) -> str:
    """Show a token in [[ ]] between what stands before and after it, on one line."""
    before, after = cut_text(token.before, CONTEXT, keeps_end=True), cut_text(token.after, CONTEXT)
    return f"{before}[[{token_text(token.token)}]]{after}"


WORST_COLUMNS = ("item", "arm", "in context", "choice instead", "nats", "rank")


def _worst(audit: Audit, words: Words) -> Table:
    rows: list[Cells] = [
        {
            "item": f"{token.task}/{token.doc_id}",
            "arm": words("arm and part", arm=token.arm, part=token.part),
            "in context": in_context(token),
            "choice instead": FORMS["choice"](token.choice),
            "nats": (token.gap, "tokens"),
            "rank": (token.rank, "count"),
        }
        for token in audit.worst[:MOST_SHOWN]
    ]
    return table(words, WORST_COLUMNS, rows, n_texts=4)


def _facts(audit: Audit, words: Words) -> Iterator[tuple[str, str]]:
    """Name what was audited, how, and by which limits."""
    plan = audit.plan
    counts = _counts(audit)
    for part, (baseline, candidate) in counts.items():
        yield f"audited {part}", words("audited of", baseline=baseline, candidate=candidate)
    n_audited = sum(own.n_answers for arms in counts.values() for own in arms)
    if audit.n_tokenized_again:
        share = audit.n_tokenized_again / n_audited
        yield "tokenized again", words("share of", n=audit.n_tokenized_again, total=n_audited, share=share)
    if total := audit.n_not_audited + n_audited:
        share = audit.n_not_audited / total
        yield "not audited", words("share of", n=audit.n_not_audited, total=total, share=share)
    yield "scored by", words("scored how", form=audit.scoring) if audit.scoring else words("none")
    if audit.foreign:
        foreign = audit.foreign[1]
        yield "at most foreign", words("at most of", foreign=foreign)
        if audit.pvalue_foreign is not None:
            yield "foreign in one arm", words("p of", pvalue=audit.pvalue_foreign)
    yield "audit rules", words("audit rules of", plan=plan, weight=math.exp(-plan.tau))
    if not audit.is_planned:
        yield "audit planned", words("no")
