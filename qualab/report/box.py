"""The box at the top of a report: verdict, whether to ship, size, gain, and what to do where it is open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qualab.analysis.advice import payoff_of
from qualab.analysis.ruling import bounds_of
from qualab.model.names import Language, Verdict
from qualab.model.reason import Reason
from qualab.model.report import BoxLine, Tone
from qualab.model.wording import signed
from qualab.report.source import Source, weightiest
from qualab.report.speed import gain_line
from qualab.report.verdict import headline
from qualab.report.words import ENGLISH, Words
from qualab.run.sign import analysed, signoff_obstacles

if TYPE_CHECKING:
    from qualab.store import Store

NEVER = (Verdict.REGRESSION, Verdict.INVALID)
"""Verdicts that no more items and no pin would change."""


def source_of(store: Store, comparison_id: str) -> Source:
    """Read what the box is made of. Raises ComparisonNotFound, WrongState where nothing is analysed yet."""
    comparison, analysis = analysed(store, comparison_id)
    return Source(
        comparison=comparison,
        analysis=analysis,
        payoff=payoff_of(analysis, store.observations(comparison.id), seed=comparison.plan.sampling.seed),
        signoffs=[own for own in store.signoffs(comparison.id) if own.plan_hash == analysis.plan_hash],
    )


def box_of(store: Store, comparison_id: str, language: Language) -> tuple[BoxLine, ...]:
    """Write a stored comparison's box without the rest of its report. Raises as `source_of`."""
    return box_lines(source_of(store, comparison_id), Words(language=language))


def box_lines(source: Source, words: Words) -> tuple[BoxLine, ...]:
    """Say in a few lines what a reader of one page has to know."""
    verdict = words("headline no tasks") if source.has_no_tasks else headline(source, words)
    if source.analysis.verdict is Verdict.INVALID and source.analysis.reasons and not source.is_after_data:
        why = words.reason(source.analysis.reasons[0])
        verdict = f"{verdict} {why[:1].upper()}{why[1:]}."
    texts = {
        "verdict": verdict,
        "size": "" if source.analysis.verdict is Verdict.INVALID else size_line(source, words),
        "gain": "; ".join(_gains(source, words)),
        "next": _next_line(source, words),
    }
    lines = {name: BoxLine(id=name, label=words(f"box {name}"), text=text) for name, text in texts.items() if text}
    if not source.has_no_tasks:
        lines["ship"] = ship_line(source, words)
    return tuple(lines[name] for name in ("verdict", "ship", "size", "gain", "next") if name in lines)


def ship_line(source: Source, words: Words) -> BoxLine:
    """Say who signed it off; else whether that may be done, and what keeps it from that."""
    obstacles = tuple(signoff_obstacles(source.analysis, source.comparison))
    if source.signoffs:
        last = source.signoffs[-1]
        key, tone = ("ship signed in spite of" if last.override else "ship signed"), Tone.GOOD
        text = words(key, name=last.signed_by, time=words.moment(last.signed_at), obstacles=last.obstacles)
    elif not obstacles:
        text, tone = words("ship possible"), Tone.GOOD
    else:
        is_final = source.analysis.verdict in NEVER
        others = [why for why in obstacles if not (is_final and why.code == "verdict-is")]
        key, tone = ("ship never" if is_final else "ship not yet"), Tone.BAD if is_final else Tone.OPEN
        text = words(key, obstacles=tuple(others)) if others else words("ship no", verdict=source.analysis.verdict)
    return BoxLine(id="ship", label=words("box ship"), text=text, tone=tone)


def size_line(source: Source, words: Words) -> str:
    """Write the deciding metric's difference, interval, margin and items; empty where nothing was tested."""
    row, specs = weightiest(source), {spec.id: spec for spec in source.plan.metrics}
    if row is None or row.evidence is None:
        return ""
    interval, looks = row.evidence.equivalence_interval, source.analysis.looks
    parts = [words.units(f"{row.id} {signed(row.evidence.difference)} pp")]
    if interval:
        level = words("interval at", level=interval.confidence_level)
        parts.append(f"{level} {words.interval(interval.low, interval.high)}")
    parts.append(words("box margin", bounds=ENGLISH.reason(bounds_of(source.plan.rule_for(specs[row.id])))))
    parts.append(words("box items", n=row.evidence.n_items))
    if looks and looks.n_items < looks.n_items_planned:
        parts.append(words("box stopped", taken=looks))
    if n_others := sum(other.evidence is not None for other in source.primaries) - 1:
        parts.append(words("box others", n=n_others))
    return ", ".join(parts)


def _gains(source: Source, words: Words) -> Iterator[str]:
    if source.plan.speed and source.payoff.speed is None:
        yield words("not timed", id=source.comparison.id)
    elif line := gain_line(source.payoff, words):
        yield line
    if acceptance := acceptance_of(source):
        yield words("box acceptance", length=acceptance[0], share=acceptance[1])
    if audit := source.analysis.audit:
        yield words("box audit", ruling=audit.ruling)


def acceptance_of(source: Source) -> tuple[float, float] | None:
    """Return tokens a round and the accepted share of the draft, over all tasks; None where nothing was drafted."""
    tasks = source.analysis.treatment.tasks if source.analysis.treatment else ()
    rounds, drafted, accepted = (
        sum(getattr(task, name) or 0 for task in tasks if task.draft_tokens)
        for name in ("rounds", "draft_tokens", "accepted_tokens")
    )
    return (1.0 + accepted / rounds, accepted / drafted) if rounds and drafted else None


def _next_line(source: Source, words: Words) -> str:
    """Name the command that takes an open verdict further."""
    analysis, plan, id_ = source.analysis, source.plan, source.comparison.id
    if analysis.verdict is not Verdict.INCONCLUSIVE or source.is_after_data or not plan.tasks:
        return ""
    if any(_codes(reason) & {"too-many-missing"} for reason in analysis.reasons) and not plan.imported:
        return words("next retry", command=f"qualab resume {id_} --retry-failed")
    needed = [n for row in source.primaries if row.evidence and (n := row.evidence.items_needed)]
    command = f"qualab plan --tasks {','.join(plan.requested)} --pilot {id_}"
    return words("next items", command=command, n=max(needed)) if needed else words("next plan", command=command)


def _codes(reason: Reason) -> set[str]:
    inner = reason.values.get("reason")
    return {reason.code} | (_codes(inner) if isinstance(inner, Reason) else set())
