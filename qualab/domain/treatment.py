"""Whether the drafter ran, and what it did: the treatment of the comparison."""

from __future__ import annotations

from dataclasses import dataclass

from qualab.domain.engine import Engine, EngineKind
from qualab.domain.names import ArmName


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDrafting:
    """What the candidate's drafter did in one task that generates. None where it cannot be told."""

    task: str
    n_answers: int
    """Generations that were answered."""
    rounds: int | None
    draft_tokens: int | None
    """None also where the engine counts accepted tokens alone."""
    accepted_tokens: int | None
    accepted_share: float | None
    """Of the draft tokens."""
    mean_length: float | None
    """Tokens a round yields: 1 + accepted tokens / rounds. Over all rounds, so that long answers weigh more."""
    median_length: float | None
    p10_length: float | None
    zero_share: float | None
    """Of the rounds: no draft token was accepted."""
    histogram: tuple[int, ...]
    """Rounds with 0, 1, ... accepted tokens."""
    request_mean_length: float | None
    """The mean over answers of each answer's own mean length."""
    first_third: float | None
    """Mean length in the first third of the task's items ..."""
    last_third: float | None
    """... and in the last."""
    break_even_margin: float | None = None
    """Mean length minus break-even length: drafting pays above 0. By the plan's costs, else by `round_cost`."""
    round_cost: float | None = None
    """What a round costs beyond a step of the baseline, in such steps: draft cost and overhead together, as estimated
    from both engines' decode times in this task. None where these are not told."""

    @property
    def least_drafted(self) -> int | None:
        """Draft tokens, at least; None where nothing tells."""
        return self.accepted_tokens if self.draft_tokens is None else self.draft_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """The candidate's answers to prompts of a length, where answers say what was drafted."""

    from_tokens: int
    to_tokens: int
    n_answers: int
    draft_tokens: int | None
    """None where answers tell accepted tokens alone."""
    accepted_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSummary:
    """An arm's engine, as last seen."""

    arm: ArmName
    kind: EngineKind
    version: str
    model_root: str
    max_model_len: int | None
    kv_cache_tokens: int | None
    drafter: str

    @classmethod
    def of(cls, arm: ArmName, engine: Engine) -> EngineSummary:
        return cls(
            arm=arm,
            kind=engine.kind,
            version=engine.version,
            model_root=engine.model_root,
            max_model_len=engine.max_model_len,
            kv_cache_tokens=engine.kv_cache_tokens,
            drafter=engine.drafter,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """The drafter's part in a comparison."""

    is_observed: bool
    """Whether counters or answers tell what the candidate drafted."""
    engines: tuple[EngineSummary, ...]
    tasks: tuple[TaskDrafting, ...]
    bins: tuple[LengthBin, ...]
    troubles: tuple[str, ...]
    """What makes the comparison INVALID."""
    notes: tuple[str, ...]
    """What a person should know."""
    break_even_length: float | None = None
    """Tokens a round must yield for drafting to pay: 1 + draft cost + overhead, where the plan names them. Else each
    task's 1 + `round_cost` is taken."""
