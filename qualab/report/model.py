"""The report's model, from what is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qualab.errors import InvalidValue
from qualab.model.comparison import Analysis, Comparison
from qualab.model.names import Language
from qualab.model.report import ReportModel, Section
from qualab.report.acceptance import acceptance_section
from qualab.report.arms import arms_section, noise_section, running_section
from qualab.report.evidence import find_flips, flips_section, missing_section, power_section
from qualab.report.metrics import metrics_section, verdict_cell
from qualab.report.source import Source, under_its_plan
from qualab.report.summary import forest_section, headline, methods_section, signoff_section, verdict_section
from qualab.report.words import Words
from qualab.run.hints import resume_hint
from qualab.run.sign import newest_seal

if TYPE_CHECKING:
    from qualab.store import Store
    from qualab.store.registry import Registry

SECTIONS: tuple[Callable[[Source, Words], Section], ...] = (
    verdict_section,
    arms_section,
    forest_section,
    lambda source, words: metrics_section(source.analysis, words),
    power_section,
    noise_section,
    acceptance_section,
    missing_section,
    running_section,
    flips_section,
    signoff_section,
    methods_section,
)
"""In the order in which they are read."""
LABELS = ("of", "contents", "shared", "nothing", "same texts")


def report_model(
    store: Store, registry: Registry, comparison_id: str, language: Language, *, plan_hash: str | None = None
) -> ReportModel:
    """The report on a comparison, as it was found under its own plan unless another is named, with its sign-offs.

    Raises ComparisonNotFound, and InvalidValue where nothing is analysed yet.
    """
    comparison = store.get(comparison_id)
    analysis = store.analysis(comparison.id, plan_hash=plan_hash)
    if analysis is None:
        raise InvalidValue(
            f"Comparison {comparison.id} is {comparison.status.value}: it has no analysis yet",
            hint=resume_hint(comparison.id),
        )
    is_own = analysis.plan_hash == comparison.plan_hash
    judged = comparison if is_own else under_its_plan(comparison, analysis)
    source = Source(
        comparison=judged,
        analysis=analysis,
        observations=store.observations(comparison.id),
        flips=find_flips(store, registry, judged),
        signoffs=[one for one in registry.signoffs(comparison.id) if one.plan_hash == analysis.plan_hash],
        seal=newest_seal(store, comparison, plan_hash=analysis.plan_hash),
    )
    return model_of(source, Words(language=language))


def model_of(source: Source, words: Words) -> ReportModel:
    """The model, from what was read."""
    comparison, analysis = source.comparison, source.analysis
    ended = comparison.finished_at or comparison.started_at or comparison.created_at
    tasks = ", ".join(source.plan.requested)
    return ReportModel(
        comparison_id=comparison.id,
        plan_hash=analysis.plan_hash,
        language=words.language,
        title=words(source.key("title"), model=source.model),
        subtitle=words("subtitle", tasks=tasks, id=comparison.id, date=words.date(ended)),
        verdict=verdict_cell(analysis.verdict, words),
        headline=headline(source, words),
        sections=tuple(section(source, words) for section in SECTIONS),
        written_at=ended,
        footer=_footer(comparison, analysis, words),
        labels={key: words(key) for key in LABELS},
    )


def _footer(comparison: Comparison, analysis: Analysis, words: Words) -> str:
    version = analysis.versions.get("qualab", "")
    return words("footer", version=version, id=comparison.id, plan=analysis.plan_hash[:12])
