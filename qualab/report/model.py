"""A comparison's report, from what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from qualab.analysis.advice import payoff_of
from qualab.model.engine import answers_by_replica
from qualab.model.names import Language
from qualab.model.report import Block, Report, Section
from qualab.report import arms, scores, speed, verdict
from qualab.report.audit import audit_blocks
from qualab.report.box import box_lines
from qualab.report.flips import find_flips, flips_blocks
from qualab.report.source import Source, under_its_plan, verdict_cell
from qualab.report.words import Words
from qualab.run.sign import analysed, newest_seal

if TYPE_CHECKING:
    from qualab.store import Store

SECTIONS: Mapping[str, Callable[[Source, Words], Iterator[Block]]] = {
    "forest": verdict.forest_blocks,
    "verdict": verdict.verdict_blocks,
    "arms": arms.arms_blocks,
    "audit": audit_blocks,
    "speed": lambda source, words: speed.speed_blocks(source.payoff.speed, words),
    "capacity": lambda source, words: speed.capacity_blocks(source.payoff.capacity, words),
    "limits": lambda source, words: speed.limits_blocks(source.payoff.limits, words),
    "advice": lambda source, words: speed.advice_blocks(source.payoff, words),
    "metrics": scores.metrics_blocks,
    "power": scores.power_blocks,
    "looks": scores.looks_blocks,
    "noise": arms.noise_blocks,
    "acceptance": lambda source, words: arms.acceptance_blocks(source.analysis.treatment, words),
    "missing": scores.missing_blocks,
    "flips": flips_blocks,
    "signoff": verdict.signoff_blocks,
    "configuration": arms.configuration_blocks,
    "running": arms.running_blocks,
    "methods": verdict.methods_blocks,
}
"""In the order in which they are read. A section without blocks is left out."""
APPENDIX = frozenset({"configuration", "running", "methods"})
OF_TIMES = ("speed", "capacity", "limits", "advice", "arms", "configuration", "running")
"""Those of a comparison without tasks, in their order."""
LABELS = ("of", "contents", "shared", "nothing")


def report_model(store: Store, comparison_id: str, language: Language, *, plan_hash: str | None = None) -> Report:
    """Report on a comparison under its own plan, or under another one that it was analysed under.

    Raises ComparisonNotFound, and WrongState where nothing is analysed yet.
    """
    comparison, analysis = analysed(store, comparison_id, plan_hash=plan_hash)
    is_own = analysis.plan_hash == comparison.plan_hash
    judged = comparison if is_own else under_its_plan(comparison, analysis)
    observations = store.observations(comparison.id)
    source = Source(
        comparison=judged,
        analysis=analysis,
        observations=observations,
        by_replica=answers_by_replica(observations),
        payoff=payoff_of(analysis, observations, seed=comparison.plan.sampling.seed),
        flips=find_flips(store, judged),
        signoffs=[one for one in store.signoffs(comparison.id) if one.plan_hash == analysis.plan_hash],
        latencies=store.latencies(comparison.id),
        seal=newest_seal(store, comparison, plan_hash=analysis.plan_hash),
    )
    return model_of(source, Words(language=language))


def model_of(source: Source, words: Words, *, sections: Sequence[str] = tuple(SECTIONS)) -> Report:
    """Word a report with these sections, in this order."""
    comparison, analysis = source.comparison, source.analysis
    ended = comparison.finished_at or comparison.started_at or comparison.created_at
    if source.has_no_tasks:
        sections = [name for name in OF_TIMES if name in sections]
    blocks = {name: tuple(SECTIONS[name](source, words)) for name in sections}
    model = " / ".join(dict.fromkeys(source.models.values()))
    tasks = words("no tasks") if source.has_no_tasks else ", ".join(source.plan.requested)
    version = analysis.versions.get("qualab", "")
    return Report(
        comparison_id=comparison.id,
        plan_hash=analysis.plan_hash,
        language=words.language,
        title=words("title", model=model),
        subtitle=words("subtitle", tasks=tasks, id=comparison.id, date=f"{ended:%Y-%m-%d}"),
        verdict=verdict_cell(analysis.verdict, words),
        box=box_lines(source, words),
        sections=tuple(
            Section(id=name, title=_title(name, words), blocks=own, is_appendix=name in APPENDIX)
            for name, own in blocks.items()
            if own
        ),
        written_at=ended,
        footer=words("footer", version=version, id=comparison.id, plan=analysis.plan_hash[:12]),
        labels={key: words(key) for key in LABELS},
    )


def _title(name: str, words: Words) -> str:
    title = words(f"section {name}")
    return words("appendix", title=title) if name in APPENDIX else title
