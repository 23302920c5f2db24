"""What an inference engine says of itself: its configuration, and what its drafter has done so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class EngineKind(StrEnum):
    """The engines that qualab can look into."""

    VLLM = "vLLM"
    LLAMA_CPP = "llama.cpp"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What a drafter did over a stretch of time."""

    drafts: int = 0
    """Rounds: times that draft tokens were put before the model."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()
    """Rounds that accepted the first draft token, the second, ...: the survival function of accepted tokens a round,
    times `drafts`. Empty where the engine does not count by position."""

    def __add__(self, other: Drafting) -> Drafting:
        length = max(len(self.accepted_at), len(other.accepted_at))
        return Drafting(
            drafts=self.drafts + other.drafts,
            draft_tokens=self.draft_tokens + other.draft_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            accepted_at=tuple(a + b for a, b in zip(self._padded(length), other._padded(length), strict=True)),
        )

    def __sub__(self, other: Drafting) -> Drafting:
        return self + Drafting(
            drafts=-other.drafts,
            draft_tokens=-other.draft_tokens,
            accepted_tokens=-other.accepted_tokens,
            accepted_at=tuple(-count for count in other.accepted_at),
        )

    def _padded(self, length: int) -> tuple[int, ...]:
        return self.accepted_at + (0,) * (length - len(self.accepted_at))

    @property
    def is_possible(self) -> bool:
        """Whether no count is negative, as it would be where counters began anew in between."""
        return min(self.drafts, self.draft_tokens, self.accepted_tokens, *self.accepted_at) >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """An engine's counters at one moment. None where it has no such counter."""

    drafting: Drafting | None
    """None where the engine counts no drafts, as vLLM without a drafter: that is not a drafter that did nothing."""
    finished_requests: int | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    decode_s: float | None = None
    """Seconds that requests spent between their first token and their last, summed over requests."""
    decode_steps: int | None = None
    """Steps in that time: each gives a request one token, or what a draft round yields."""
    started_at_s: float | None = None
    """When the server's process started, seconds since 1970: another one is another process."""

    def has_restarted_since(self, earlier: Counters) -> bool:
        """Whether these counters began anew after `earlier`."""
        if self.started_at_s != earlier.started_at_s:
            return True
        if (self.drafting is None) is not (earlier.drafting is None):
            return True
        if self.drafting and earlier.drafting and not (self.drafting - earlier.drafting).is_possible:
            return True
        pairs = (
            (self.finished_requests, earlier.finished_requests),
            (self.prompt_tokens, earlier.prompt_tokens),
            (self.generated_tokens, earlier.generated_tokens),
            (self.decode_s, earlier.decode_s),
        )
        return any(now is not None and before is not None and now < before for now, before in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine's identity and configuration. Empty or None where it does not say."""

    kind: EngineKind
    version: str = ""
    model_root: str = ""
    """The checkpoint as the engine names it: a path or a hub name."""
    max_model_len: int | None = None
    kv_cache_tokens: int | None = None
    drafter: str = ""
    """The drafter as configured, as "ngram, 4 tokens"; empty where none is configured or the engine does not say."""
    config: Mapping[str, str] = field(default_factory=dict)
    """The engine's configuration, flat: "scheduler_config.max_num_seqs" -> "8"."""
    counters: Counters | None = None
    """At the time of asking; None where the metrics are closed."""
