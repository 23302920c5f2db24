"""Whether one arm left more answers out than the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qualab.app.analysis.scores import Layout, Scores
from qualab.domain.comparison import MissingSummary
from qualab.domain.names import ArmName
from qualab.domain.plan import DecisionRule, Plan
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar
from qualab.stats.resampling import sign_flip


def missing_summary(plan: Plan, scores: Scores, layout: Layout, rng: np.random.Generator) -> MissingSummary:
    """Answers without any score, by arm, and a paired test of the arms' rates."""
    off, on = (
        np.array(
            [key not in scores.answered[arm] for places in layout.tasks.values() for key in places.keys], dtype=np.bool_
        )
        for arm in ArmName
    )
    only_off, only_on = int(np.sum(off & ~on)), int(np.sum(on & ~off))
    if not only_off + only_on:
        pvalue = 1.0
    elif plan.sampling.repeats == 1:
        pvalue = mcnemar(PairedCounts(n_items=off.size, gains=only_off, losses=only_on)).pvalue
    else:
        items = np.arange(off.size) // plan.sampling.repeats
        pvalue = sign_flip(on.astype(np.float64) - off, cluster=items, rng=rng).pvalue
    return MissingSummary(
        n_asked=off.size,
        baseline_only=only_off,
        candidate_only=only_on,
        both=int(np.sum(off & on)),
        pvalue=pvalue,
    )


def missing_caveats(found: MissingSummary, rule: DecisionRule) -> Iterator[str]:
    """Said where the arms differ in what they leave out."""
    if found.pvalue <= rule.alpha:
        more = ArmName.CANDIDATE if found.candidate_only > found.baseline_only else ArmName.BASELINE
        yield (
            f"The {more} left more unanswered: {found.baseline_only} answers are missing in the baseline alone, "
            f"{found.candidate_only} in the candidate alone (p {found.pvalue:.2g})."
        )
