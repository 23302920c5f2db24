"""What the answers themselves say of drafting: sums by arm and task, and by the length of the prompt."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from qualab.domain.items import Answer, Drafted
from qualab.domain.names import ArmName


@dataclass(slots=True)
class DraftingCount:
    """Sums over some answers."""

    n_answers: int = 0
    n_told: int = 0
    """Those of them that say what was drafted."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    rounds: list[int] = field(default_factory=list)
    """Rounds with 0, 1, ... accepted tokens."""
    lengths: list[float] = field(default_factory=list)
    """Mean length of each answer that says its rounds."""

    def add(self, drafted: Drafted | None) -> None:
        self.n_answers += 1
        if drafted is None:
            return
        self.n_told += 1
        self.draft_tokens += drafted.draft_tokens
        self.accepted_tokens += drafted.accepted_tokens
        self.rounds += [0] * (len(drafted.rounds) - len(self.rounds))
        for accepted, count in enumerate(drafted.rounds):
            self.rounds[accepted] += count
        if n_rounds := sum(drafted.rounds):
            self.lengths.append(1.0 + drafted.accepted_tokens / n_rounds)


@dataclass(slots=True)
class DraftedAnswers:
    """Counts generations that were answered, as they go by."""

    tasks: defaultdict[tuple[ArmName, str], DraftingCount] = field(default_factory=lambda: defaultdict(DraftingCount))
    bins: defaultdict[int, DraftingCount] = field(default_factory=lambda: defaultdict(DraftingCount))
    """The candidate's, by the bits of the prompt's length: 8 stands for 128 to 255 tokens."""

    def add(self, answer: Answer, task: str) -> None:
        reply = answer.reply
        if not reply.status.is_answer:
            return
        self.tasks[answer.arm, task].add(reply.drafted)
        if answer.arm is ArmName.CANDIDATE and reply.prompt_tokens:
            self.bins[reply.prompt_tokens.bit_length()].add(reply.drafted)
