"""What an inference engine says of itself: its configuration, and what its drafter has done so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class EngineKind(StrEnum):
    """The engines that qualab can look into."""

    VLLM = "vLLM"
    SGLANG = "SGLang"
    TENSORRT_LLM = "TensorRT-LLM"
    TGI = "TGI"
    LLAMA_CPP = "llama.cpp"
    UNKNOWN = "unknown"


TELLS_IN_PART = frozenset({EngineKind.TENSORRT_LLM, EngineKind.TGI})
"""Engines whose routes tell some settings, and not what else they were started with."""


class DraftSource(StrEnum):
    """Where an engine's counts of drafting come from."""

    COUNTERS = "counters"
    GAUGES = "gauges"
    """Estimated from mean acceptance lengths, as of an SGLang that counts no rounds."""
    STATISTICS = "statistics"
    """Added up since the first look, from statistics that can be read once (TensorRT-LLM)."""
    NOTHING = "nothing"
    """The metrics are open and tell nothing of drafting: neither that there is a drafter nor that there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What a drafter did over a stretch of time."""

    drafts: int = 0
    """Rounds: times that draft tokens were put before the model."""
    draft_tokens: int | None = 0
    """None where the engine counts accepted tokens alone (TGI)."""
    accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()
    """Rounds that accepted the first draft token, the second, ...: the survival function of accepted tokens a round,
    times `drafts`. Empty where the engine does not count by position."""

    def __add__(self, other: Drafting) -> Drafting:
        length = max(len(self.accepted_at), len(other.accepted_at))
        return Drafting(
            drafts=self.drafts + other.drafts,
            draft_tokens=_sum(self.draft_tokens, other.draft_tokens),
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            accepted_at=tuple(a + b for a, b in zip(self._padded(length), other._padded(length), strict=True)),
        )

    def __sub__(self, other: Drafting) -> Drafting:
        return self + Drafting(
            drafts=-other.drafts,
            draft_tokens=None if other.draft_tokens is None else -other.draft_tokens,
            accepted_tokens=-other.accepted_tokens,
            accepted_at=tuple(-count for count in other.accepted_at),
        )

    def _padded(self, length: int) -> tuple[int, ...]:
        return self.accepted_at + (0,) * (length - len(self.accepted_at))

    @property
    def is_possible(self) -> bool:
        """Whether no count is negative, as it would be where counters began anew in between."""
        return min(self.drafts, self.draft_tokens or 0, self.accepted_tokens, *self.accepted_at) >= 0

    @property
    def least_drafted(self) -> int:
        """Draft tokens, at least: all that were counted, else those that were accepted."""
        return self.accepted_tokens if self.draft_tokens is None else self.draft_tokens


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """An engine's counters at one moment. None where it has no such counter."""

    drafting: Drafting | None
    """None where the engine counts no drafts, as vLLM without a drafter: that is not a drafter that did nothing."""
    source: DraftSource = DraftSource.COUNTERS
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
        if self.source is earlier.source is DraftSource.COUNTERS:
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

    @property
    def tells_drafting(self) -> bool:
        """Whether these say what was drafted, or that there is no drafter."""
        return self.source is not DraftSource.NOTHING

    def drafting_since(self, earlier: Counters) -> Drafting | None:
        """What was drafted since `earlier`; None where that cannot be told. Series may begin with the first draft."""
        if self.drafting is None or (earlier.drafting is None and earlier.tells_drafting):
            return None
        return self.drafting - (earlier.drafting or Drafting())


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
    """At the time of asking; None where the metrics are closed, or no known engine's."""
    has_metrics: bool = False
    """Whether /metrics answers, whatever it tells."""
    names: tuple[str, ...] = ()
    """What its answers may call the model: as it was asked for, as the engine lists it, as it answered trials."""

    @property
    def tells_drafter(self) -> bool:
        """Whether its configuration says that there is a drafter, or that there is none."""
        if self.kind is EngineKind.TENSORRT_LLM:
            return "speculative_config.spec_enabled" in self.config
        return self.kind in (EngineKind.VLLM, EngineKind.SGLANG) and bool(self.config)

    @property
    def has_drafted(self) -> bool:
        """Whether its counters show a drafter. vLLM's are there only with one; llama.cpp's are there always."""
        drafting = self.counters.drafting if self.counters else None
        return drafting is not None and (self.kind is EngineKind.VLLM or drafting.least_drafted > 0)
