"""What a drafter costs and gains: speed, room, limits, and where to turn it on. Computed from observations."""

from __future__ import annotations

from dataclasses import dataclass

from qualab.model.engine import Cell
from qualab.model.names import ArmName, IntervalOf, Outcome, Turn, Work
from qualab.model.plan import SpeedPlan
from qualab.model.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Candidate's speed over the baseline's: output tokens over the requests' latencies, over paired repeats."""

    value: float
    interval: IntervalOf | None
    """None with fewer than two paired repeats."""
    n_repeats: int

    @property
    def is_faster(self) -> bool | None:
        """None where the interval holds 1."""
        if self.interval is None or self.interval.low <= 1.0 <= self.interval.high:
            return None
        return self.value > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One of several speeds that requests of a cell have."""

    tokens_per_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpeed:
    """One arm in one cell, over its measured repeats; None where it cannot be told."""

    arm: ArmName
    n_repeats: int
    n_streams: int
    n_failed: int
    n_contaminated: int
    """Repeats that were left out, since others loaded the engine."""
    warmup: tuple[float, ...]
    """Tokens a second of the repeats before, in their order."""
    tokens_per_s: float | None
    """Output tokens of all requests over the time of their repeats."""
    request_tokens_per_s: float | None
    """Output tokens over the sum of the requests' latencies."""
    spread: float | None
    """Fastest repeat over the slowest, by `tokens_per_s`."""
    first_token_p50_s: float | None
    first_token_p95_s: float | None
    gap_p50_s: float | None
    gap_p95_s: float | None
    gap_p99_s: float | None
    acceptance_length: float | None
    """Tokens that a draft round yields, itself included."""
    zero_share: float | None
    """Draft rounds of which nothing was accepted."""
    cached_share: float | None
    """Prompt tokens that came from the prefix cache."""
    goodput_per_s: float | None
    """Requests a second within the plan's targets; None without targets."""
    modes: tuple[Mode, ...] = ()
    """The fastest first; empty for one mode."""
    repeats: tuple[float, ...] = ()
    """`request_tokens_per_s` of each measured repeat, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpeed:
    cell: Cell
    baseline: ArmSpeed
    candidate: ArmSpeed
    ratio: Ratio | None
    """None where no repeat is usable in both arms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSpeed:
    """One kind of work over all its cells: the geometric mean of their ratios."""

    work: Work
    ratio: Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    plan: SpeedPlan
    cells: tuple[CellSpeed, ...]
    works: tuple[WorkSpeed, ...]
    """The largest gain first."""
    notes: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An arm of a chain against the one before it, over the cells that all arms have."""

    name: str
    ratio: Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Several arms in order: each step's factor, the whole, and whether the product of the steps agrees with it."""

    steps: tuple[Step, ...]
    whole: Ratio
    product: float
    agrees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Requests of a length that fit into the KV cache at once."""

    tokens: int
    baseline: float
    candidate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    baseline_tokens: int
    candidate_tokens: int
    rooms: tuple[Room, ...]

    @property
    def change(self) -> float:
        """Change of the KV cache, a fraction: below 0 is less room."""
        return self.candidate_tokens / self.baseline_tokens - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTried:
    """Prompts of one length in one arm: the worst outcome over languages."""

    prompt_tokens: int
    outcome: Outcome
    acceptance_length: float | None
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmLimits:
    arm: ArmName
    advertised: int | None
    """Tokens that the engine says it takes; None where it does not say."""
    verified: int | None
    """Longest prompt up to which every one was answered rightly; None where not even the shortest was."""
    refused_from: int | None
    """Shortest prompt that was refused cleanly."""
    fails_from: int | None
    """Shortest prompt that broke it or was answered wrongly."""
    n_deaths: int
    set_to: int | None
    """The max_model_len to set; None where what is advertised holds, or nothing is known."""
    is_content_checked: bool
    """False where the model finds needles at no length: then an answer alone counts."""
    lengths: tuple[LengthTried, ...]
    """In rising order."""
    notes: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    arms: tuple[ArmLimits, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where the drafter is on or off: a kind of work, up to a length, up to a load."""

    work: Work | None
    """None stands for all other work."""
    max_prompt_tokens: int | None
    max_concurrency: int | None
    """None where nothing bounds it."""
    turn: Turn
    evidence: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Where to turn the drafter on, from what was measured."""

    routes: tuple[Route, ...]
    """The first that matches counts."""
    flags: tuple[str, ...]
    """Options of `vllm serve`."""
    reasons: tuple[Reason, ...]
    """What holds for all of it, as what was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payoff:
    """What a drafter costs and gains; None where it was not measured."""

    speed: Speed | None
    capacity: Capacity | None
    limits: Limits | None
    advice: Advice | None
