"""What the answers themselves say of drafting: sums by arm and task, and by the length of the prompt."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from qualab.domain.items import Answer, Drafted, Reply
from qualab.domain.names import ArmName

UNDRAFTED = 2
"""Tokens of an answer that no drafter offers: the first comes with the prompt, and the last needs no draft."""
UNTOLD_LENGTH = 100
"""Taken for the length of an answer whose server does not count tokens."""


@dataclass(slots=True)
class DraftingCount:
    """Sums over some answers."""

    n_answers: int = 0
    n_told: int = 0
    """Those of them that say what was drafted."""
    draft_tokens: int | None = 0
    """None where an answer tells accepted tokens alone."""
    accepted_tokens: int = 0
    room: int = 0
    """Tokens that could have been drafted."""
    rounds: list[int] = field(default_factory=list)
    """Rounds with 0, 1, ... accepted tokens."""
    lengths: list[float] = field(default_factory=list)
    """Mean length of each answer that says its rounds."""

    def add(self, reply: Reply) -> None:
        self.n_answers += 1
        length = UNTOLD_LENGTH if reply.completion_tokens is None else reply.completion_tokens
        self.room += max(0, length - UNDRAFTED)
        if reply.drafted is not None:
            self._add_drafted(reply.drafted)

    def _add_drafted(self, drafted: Drafted) -> None:
        self.n_told += 1
        if self.draft_tokens is not None:
            self.draft_tokens = None if drafted.draft_tokens is None else self.draft_tokens + drafted.draft_tokens
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
        self.tasks[answer.arm, task].add(reply)
        if answer.arm is ArmName.CANDIDATE and reply.prompt_tokens:
            self.bins[reply.prompt_tokens.bit_length()].add(reply)

    def tell(self, arm: ArmName) -> bool:
        """Whether the arm's answers say what was drafted. Then one that does not say so drafted nothing.

        llama.cpp leaves `draft_n` out where it is 0.
        """
        return any(count.n_told for (of, _), count in self.tasks.items() if of is arm)
