"""Everything that was seen of the engines of a comparison, and what an arm drafted in a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from qualab.app.drafting import DraftedAnswers
from qualab.domain.comparison import ArmSummary
from qualab.domain.engine import Counters, Drafting, Engine, EngineKind
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
            if any(
                one.after and one.after.tells_drafting and one.after.drafting is None
                for one in self.segments_of(CANDIDATE, name)
            )
        ]

    def is_lost(self, task: str) -> bool:
        """Whether an interruption took away what the candidate's counters said of a task."""
        engine = self.engines.get(CANDIDATE)
        counts = engine is not None and engine.counters is not None and engine.counters.drafting is not None
        return counts and not self.segments_of(CANDIDATE, task) and self.n_starts(CANDIDATE) > 1

    @property
    def knows_baseline(self) -> bool:
        """Whether anything tells that the baseline drafts, or does not."""
        counted = [one for one in self.segments if one.after]
        if any(one.arm is BASELINE and one.after and one.after.tells_drafting for one in counted):
            return True
        engine, candidate = self.engines.get(BASELINE), self.engines.get(CANDIDATE)
        if self.answers.tell(BASELINE) or engine is None:
            return self.answers.tell(BASELINE)
        if engine.tells_drafter or (engine.counters and engine.counters.tells_drafting):
            return True
        if engine.kind is EngineKind.LLAMA_CPP and self.answers.tell(CANDIDATE):
            return True
        return any(one.arm is BASELINE for one in counted) and tells_where_other_is_silent(
            engine, candidate, [one.after for one in counted if one.arm is CANDIDATE and one.after]
        )


def tells_where_other_is_silent(baseline: Engine, candidate: Engine | None, counters: Sequence[Counters]) -> bool:
    """Whether the baseline's open metrics, silent of drafting, mean that it has no drafter.

    They do where the candidate's, of the same engine and version, tell of it: SGLang and TensorRT-LLM have such series
    with a drafter alone.
    """
    is_same = candidate and (baseline.kind, baseline.version) == (candidate.kind, candidate.version)
    return bool(is_same) and baseline.kind is not EngineKind.UNKNOWN and any(one.drafting for one in counters)


def drafted_in(seen: Seen, arm: ArmName, task: str) -> Drafting | None:
    """What an arm drafted in a task: as its counters say, else as its answers do; None where neither tells."""
    parts = [one.drafting for one in seen.segments_of(arm, task)]
    if known := [part for part in parts if part is not None]:
        return reduce(add, known)
    if not seen.answers.tell(arm):
        return None
    count = seen.answers.tasks[arm, task]
    return Drafting(draft_tokens=count.draft_tokens, accepted_tokens=count.accepted_tokens)
