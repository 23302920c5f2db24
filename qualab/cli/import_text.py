"""What a terminal shows of an imported comparison's logs, in place of how two endpoints answered."""

from __future__ import annotations

from collections.abc import Iterator

from qualab.app.importing.wording import left_over
from qualab.domain.comparison import Analysis
from qualab.domain.imported import Imported, TaskJoin


def import_lines(imported: Imported, analysis: Analysis) -> Iterator[str]:
    """Each arm's log, the join over all tasks, and what of the answers themselves is known."""
    yield ""
    logs = (("baseline", imported.baseline, imported.baseline_model),)
    for name, log, model in (*logs, ("candidate", imported.candidate, imported.candidate_model)):
        yield f"{name:<9} {log}{f', {model}' if model else ''}{_answers(analysis, name)}"
    total = _total(imported)
    more = "".join(f", {fact}" for fact in left_over(total))
    yield f"{'joined':<9} {total.paired:,} answers paired{more}"
    if analysis.pairs.n_pairs:
        yield f"{'pairs':<9} same text {analysis.pairs.same_text} of {analysis.pairs.n_pairs}"


def _answers(analysis: Analysis, name: str) -> str:
    (arm,) = (arm for arm in analysis.arms if arm.arm == name)
    if not arm.n_requests:
        return ""
    n_missing = arm.n_requests - arm.n_answers
    missing = f", {n_missing:,} without an answer" if n_missing else ""
    return f": {arm.n_answers:,} answers, {arm.empty_answers} empty{missing}"


def _total(imported: Imported) -> TaskJoin:
    joins = imported.joins
    return TaskJoin(
        task="",
        paired=sum(join.paired for join in joins),
        only_baseline=sum(join.only_baseline for join in joins),
        only_candidate=sum(join.only_candidate for join in joins),
        prompt_differs=sum(join.prompt_differs for join in joins),
        target_differs=sum(join.target_differs for join in joins),
        duplicated=sum(join.duplicated for join in joins),
        lost=sum(join.lost for join in joins),
    )
