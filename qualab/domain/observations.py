"""What was seen of the arms before, during and after a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from qualab.domain.engine import Counters, Drafting, Engine
from qualab.domain.first_tokens import FirstTokens, PairKind, TokenizedBy, TokensLack
from qualab.domain.names import ArmName
from qualab.domain.pins import PinFound


class ObservationKind(StrEnum):
    ENGINE = "engine"
    SEGMENT = "segment"
    PINS = "pins"
    FIRST_TOKENS = "first_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeen:
    """An arm's engine as a run, or its resumption, found it."""

    arm: ArmName
    seen_at: datetime
    engine: Engine
    tokens: str = ""
    """The hash of what its tokenizer makes of a few prompts, where the other arm is seen at another time."""

    @property
    def kind(self) -> ObservationKind:
        return ObservationKind.ENGINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a run in one arm: requests of one task, with the engine's counters before and after."""

    arm: ArmName
    task: str
    part: int
    """Which third of the task's items, from 0."""
    began_at: datetime
    ended_at: datetime
    before: Counters | None
    after: Counters | None
    """None where the engine's metrics are closed."""
    attempts: int
    """Requests that this run sent to the arm meanwhile, repeated attempts included."""
    prompt_tokens: int
    """Prompt tokens of the answers that came meanwhile, as far as the engine counts them."""

    @property
    def kind(self) -> ObservationKind:
        return ObservationKind.SEGMENT

    @property
    def has_restarted(self) -> bool:
        """Whether the counters began anew in between."""
        return bool(self.before and self.after and self.after.has_restarted_since(self.before))

    @property
    def drafting(self) -> Drafting | None:
        """What the drafter did meanwhile; None where that cannot be told."""
        if not self.before or not self.after or self.has_restarted:
            return None
        return self.after.drafting_since(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinsSeen:
    """What both arms are made of, as a run, or its resumption, found or took it."""

    seen_at: datetime
    pins: tuple[PinFound, ...]

    @property
    def kind(self) -> ObservationKind:
        return ObservationKind.PINS


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokensSeen:
    """What a tokenizer made, after a run, of generated texts that differ."""

    seen_at: datetime
    by: TokenizedBy
    tasks: tuple[FirstTokens, ...]
    lack: TokensLack | None
    """Why some of the texts that should have been tokenized were not."""

    @property
    def kind(self) -> ObservationKind:
        return ObservationKind.FIRST_TOKENS

    def places(self, pairs: PairKind) -> dict[tuple[int, int], int | None]:
        """The first token that is another, by position and repeat."""
        found = (place for one in self.tasks if one.pairs is pairs for place in one.places)
        return {(position, repeat): token for position, repeat, token in found}


Observation = EngineSeen | Segment | PinsSeen | FirstTokensSeen


def engines_seen(observations: Iterable[Observation]) -> dict[ArmName, Engine]:
    """Each arm's engine as last seen."""
    return {one.arm: one.engine for one in observations if isinstance(one, EngineSeen)}


def model_names(observations: Iterable[Observation], arm: ArmName) -> set[str]:
    """What an arm's answers may call the model, as all looks at its engine found it."""
    return {name for one in observations if isinstance(one, EngineSeen) and one.arm is arm for name in one.engine.names}


def tokens_seen(observations: Iterable[Observation]) -> dict[ArmName, str]:
    """Each arm's hash of tokens, as last seen; without an arm of which none was kept."""
    return {one.arm: one.tokens for one in observations if isinstance(one, EngineSeen) and one.tokens}


def pins_seen(observations: Iterable[Observation]) -> tuple[PinFound, ...]:
    """Both arms' pins as last seen."""
    return next((one.pins for one in reversed(list(observations)) if isinstance(one, PinsSeen)), ())


def first_tokens_seen(observations: Iterable[Observation]) -> FirstTokensSeen | None:
    """As last seen; None where nothing was to be tokenized, or nobody tried."""
    return next((one for one in reversed(list(observations)) if isinstance(one, FirstTokensSeen)), None)
