"""Everything that was seen of the engines of a comparison, and what an arm drafted in a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from qualab.app.drafting import DraftedAnswers
from qualab.domain.comparison import ArmSummary
from qualab.domain.engine import Drafting, Engine, EngineKind
from qualab.domain.names import ArmName, RequestKind
from qualab.domain.observations import EngineSeen, Observation, Segment, engines_seen
from qualab.domain.plan import Plan

BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that was seen of the engines."""

    plan: Plan
    observations: Sequence[Observation]
    """In the order in which they were made."""
    answers: DraftedAnswers
    arms: Sequence[ArmSummary]

    @property
    def engines(self) -> Mapping[ArmName, Engine]:
        """As last seen."""
        return engines_seen(self.observations)

    @property
    def segments(self) -> list[Segment]:
        return [one for one in self.observations if isinstance(one, Segment)]

    @property
    def tasks(self) -> list[str]:
        """Tasks that generate and were answered by the candidate."""
        names = [task.name for task in self.plan.tasks if task.kind is RequestKind.GENERATION]
        return [name for name in names if self.answers.tasks[CANDIDATE, name].n_answers]

    def segments_of(self, arm: ArmName, task: str) -> list[Segment]:
        return [one for one in self.segments if one.arm is arm and one.task == task]

    def n_starts(self, arm: ArmName) -> int:
        """Times that the run was started or resumed."""
        return sum(isinstance(one, EngineSeen) and one.arm is arm for one in self.observations)

    @property
    def undrafting(self) -> list[str]:
        """Tasks in which the candidate's engine counted, but counted no drafts: it had no drafter then."""
        if self.answers.tell(CANDIDATE):
            return []
        return [
            name
            for name in self.tasks
            if any(one.after and one.after.drafting is None for one in self.segments_of(CANDIDATE, name))
        ]

    def is_lost(self, task: str) -> bool:
        """Whether an interruption took away what the candidate's counters said of a task."""
        engine = self.engines.get(CANDIDATE)
        counts = engine is not None and engine.counters is not None and engine.counters.drafting is not None
        return counts and not self.segments_of(CANDIDATE, task) and self.n_starts(CANDIDATE) > 1

    @property
    def knows_baseline(self) -> bool:
        """Whether anything tells that the baseline drafts, or does not."""
        engine = self.engines.get(BASELINE)
        if any(one.arm is BASELINE and one.after for one in self.segments) or self.answers.tell(BASELINE):
            return True
        if engine is None:
            return False
        told_alike = engine.kind is EngineKind.LLAMA_CPP and self.answers.tell(CANDIDATE)
        is_configured = engine.kind is EngineKind.VLLM and bool(engine.config)
        return engine.counters is not None or told_alike or is_configured


def drafted_in(seen: Seen, arm: ArmName, task: str) -> Drafting | None:
    """What an arm drafted in a task: as its counters say, else as its answers do; None where neither tells."""
    parts = [one.drafting for one in seen.segments_of(arm, task)]
    if known := [part for part in parts if part is not None]:
        return reduce(add, known)
    if not seen.answers.tell(arm):
        return None
    count = seen.answers.tasks[arm, task]
    return Drafting(draft_tokens=count.draft_tokens, accepted_tokens=count.accepted_tokens)
