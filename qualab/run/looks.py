"""Looks while a run asks: after each stage its answers are scored, looked at, and the look is stored.

A look that is stored is never taken again: a resumed run reads it, and goes on or stops as it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from qualab.analysis.looks import LookData, take_look
from qualab.analysis.samples import Scores, Streams, layout_of, scores_hash
from qualab.analysis.scoring import seen_scores
from qualab.analysis.summaries import Unanswered
from qualab.model.comparison import Look
from qualab.model.names import LookDecision
from qualab.model.plan import LookPlan
from qualab.run.ask import Pause, in_thread, kept_alive
from qualab.run.prepare import stage_ends
from qualab.run.services import Run, Services

SAYS = {
    LookDecision.CONTINUE: "goes on",
    LookDecision.PROVEN: "every primary metric is proven",
    LookDecision.IMPROVEMENT: "every primary metric is settled, and one improved",
    LookDecision.HARM: "a primary metric is plainly worse",
}


def look_pauses(services: Services, run: Run) -> list[Pause]:
    """A pause for each look; none where the plan has none."""
    looks = run.comparison.plan.looks
    if looks is None:
        return []
    looking = _Looking(
        services=services,
        run=run,
        looks=looks,
        ends=stage_ends(run.items, n_stages=looks.n_looks),
        taken=list(services.store.looks(run.comparison.id)),
    )
    return [Pause(end=end, then=partial(looking.goes_on, number)) for number, end in enumerate(looking.ends, start=1)]


def looked_to(looks: Sequence[Look]) -> int:
    """The position after the last item that has been looked at: what lies before is never asked again."""
    return looks[-1].n_items if looks else 0


@dataclass(slots=True, kw_only=True)
class _Looking:
    """The scores so far, and the looks that they have had."""

    services: Services
    run: Run
    looks: LookPlan
    ends: list[int]
    taken: list[Look]
    scores: Scores = field(default_factory=Scores)
    unanswered: Unanswered = field(default_factory=Unanswered)
    n_scored: int = 0
    """Stages whose scores are in."""

    async def goes_on(self, number: int) -> bool:
        """Whether there is anything left to ask after this stage; takes its look where it has not been taken."""
        if number > len(self.taken):
            look = await in_thread(self.services, partial(self._taken_now, number))
            self.services.store.add_look(self.run.comparison.id, look, now=self.services.clock.now())
            self.taken.append(look)
            self.run.progress.phase(
                f"Look {number} of {self.looks.n_looks} after {look.n_items:,} of {len(self.run.items):,} items: "
                f"{SAYS[look.decision]}"
            )
        return self.taken[number - 1].decision is LookDecision.CONTINUE

    def _taken_now(self, number: int) -> Look:
        run = self.run
        with kept_alive(self.services, run.comparison.id):
            while self.n_scored < number:  # stage by stage: a resumed run reads the same scores in the same order
                self._score_next()
            items = run.items[: self.ends[number - 1]]
            layout = layout_of(run.comparison.plan, items, left_out=self.unanswered.same_in_both)
            data = LookData(
                plan=run.comparison.plan,
                looks=self.looks,
                scores=self.scores,
                layout=layout,
                streams=Streams.of(run.comparison.plan_hash),
                number=number,
                before=self.taken,
            )
            return take_look(data, n_items=len(items), input_hash=scores_hash(self.scores, layout).hexdigest())

    def _score_next(self) -> None:
        start = self.ends[self.n_scored - 1] if self.n_scored else 0
        positions = range(start, self.ends[self.n_scored])
        run = self.run
        store, comparison_id, see = self.services.store, run.comparison.id, self.unanswered.add
        for score in seen_scores(store, comparison_id, run.tasks, run.items, see, positions=positions):
            self.scores.add(score, run.items[score.position].task)
        self.n_scored += 1
