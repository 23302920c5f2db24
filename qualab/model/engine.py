"""An inference engine's configuration, its counters, and what was observed of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from itertools import zip_longest
from typing import ClassVar, TypeVar

from qualab.model.names import AnswerStatus, ArmName, Language, Outcome, ScoringForm, Work
from qualab.model.plan import AuditPlan, PinFound, SpeedPlan
from qualab.model.reason import Reason

T = TypeVar("T")


class EngineKind(StrEnum):
    VLLM = "vLLM"
    SGLANG = "SGLang"
    TENSORRT_LLM = "TensorRT-LLM"
    TGI = "TGI"
    LLAMA_CPP = "llama.cpp"
    UNKNOWN = "unknown"


TELLS_IN_PART = frozenset({EngineKind.TENSORRT_LLM, EngineKind.TGI})
"""Engines whose routes tell some settings, and not what else they were started with."""


class DraftSource(StrEnum):
    COUNTERS = "counters"
    STATISTICS = "statistics"
    """Added up since the first look, from statistics that can be read once (TensorRT-LLM)."""
    NOTHING = "nothing"
    """The metrics are open and tell nothing of drafting: neither that there is a drafter nor that there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    drafts: int = 0
    draft_tokens: int | None = 0
    """None where the engine counts accepted tokens alone (TGI)."""
    accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()
    """Rounds that accepted the first draft token, the second, ...: the survival function of accepted tokens a round,
    times `drafts`. Empty where the engine does not count by position."""

    def __add__(self, other: Drafting) -> Drafting:
        return self._plus(other, 1)

    def __sub__(self, other: Drafting) -> Drafting:
        return self._plus(other, -1)

    def _plus(self, other: Drafting, sign: int) -> Drafting:
        is_told = self.draft_tokens is not None and other.draft_tokens is not None
        return Drafting(
            drafts=self.drafts + sign * other.drafts,
            draft_tokens=(self.draft_tokens or 0) + sign * (other.draft_tokens or 0) if is_told else None,
            accepted_tokens=self.accepted_tokens + sign * other.accepted_tokens,
            accepted_at=tuple(a + sign * b for a, b in zip_longest(self.accepted_at, other.accepted_at, fillvalue=0)),
        )

    @property
    def is_possible(self) -> bool:
        """False where counters began anew in between."""
        return min(self.drafts, self.draft_tokens or 0, self.accepted_tokens, *self.accepted_at) >= 0

    @property
    def least_drafted(self) -> int:
        """Draft tokens counted, else those accepted."""
        return self.accepted_tokens if self.draft_tokens is None else self.draft_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """An engine's counters at one moment; None where it has no such counter."""

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
    """Of replicas the sum."""
    n_servers: int = 1
    running_requests: int | None = None
    """Requests under way, those that wait not counted."""

    def has_restarted_since(self, earlier: Counters) -> bool:
        if self.n_servers != earlier.n_servers:  # one that died since is counted no more
            return False
        if self.started_at_s != earlier.started_at_s:
            return True
        if self.source is earlier.source is DraftSource.COUNTERS:
            if (self.drafting is None) is not (earlier.drafting is None):
                return True
            if self.drafting and earlier.drafting and not (self.drafting - earlier.drafting).is_possible:
                return True
        names = ("finished_requests", "prompt_tokens", "generated_tokens", "decode_s")
        pairs = ((getattr(self, name), getattr(earlier, name)) for name in names)
        return any(now is not None and before is not None and now < before for now, before in pairs)

    @property
    def tells_drafting(self) -> bool:
        """True where these say what was drafted, or that there is no drafter."""
        return self.source is not DraftSource.NOTHING

    def drafting_since(self, earlier: Counters) -> Drafting | None:
        """None where that cannot be told. Series may begin with the first draft."""
        if self.drafting is None or (earlier.drafting is None and earlier.tells_drafting):
            return None
        return self.drafting - (earlier.drafting or Drafting())


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdentity:
    """Empty or None where the engine does not say."""

    kind: EngineKind
    version: str = ""
    model_root: str = ""
    max_model_len: int | None = None
    kv_cache_tokens: int | None = None
    drafter: str = ""
    """The drafter as configured, as "ngram, 4 tokens"; empty where none is configured or the engine does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine(EngineIdentity):
    config: Mapping[str, str] = field(default_factory=dict)
    counters: Counters | None = None
    has_metrics: bool = False
    names: tuple[str, ...] = ()
    """Names of the model that its answers may give: as asked for, as the engine lists it, as it answered trials."""

    @property
    def tells_drafter(self) -> bool:
        """True where its configuration says that there is a drafter, or that there is none."""
        if self.kind is EngineKind.TENSORRT_LLM:
            return "speculative_config.spec_enabled" in self.config
        return self.kind in (EngineKind.VLLM, EngineKind.SGLANG) and bool(self.config)

    @property
    def has_drafted(self) -> bool:
        """True where its counters show a drafter: vLLM's exist only with one, llama.cpp's always."""
        drafting = self.counters.drafting if self.counters else None
        return drafting is not None and (self.kind is EngineKind.VLLM or drafting.least_drafted > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    stops: bool
    what: Reason
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    engines: dict[ArmName, Engine]
    findings: tuple[Finding, ...]
    pins: tuple[PinFound, ...] = ()
    tokens: dict[ArmName, str] = field(default_factory=dict)
    """Hash of what an arm's tokenizer makes of a few prompts; without an arm that offers none."""

    @property
    def stopping(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.stops)


class PairKind(StrEnum):
    ARMS = "arms"
    NOISE = "noise"


class TokenizedBy(StrEnum):
    BASELINE = "baseline"
    CANDIDATE = "candidate"
    NAMED = "named"


class TokensLack(StrEnum):
    FAILED = "failed"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    task: str
    pairs: PairKind
    n_differ: int
    places: tuple[tuple[int, int, int | None], ...]
    """Item's position, repeat and first different token (from 0; None where all are the same) of tokenized pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensCompared:
    n_differ: int
    n_tokenized: int
    n_same_tokens: int
    first_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTokens:
    task: str
    baseline: TokensCompared | None
    candidate: TokensCompared


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenSummary:
    by: TokenizedBy
    lack: TokensLack | None
    baseline: TokensCompared | None
    candidate: TokensCompared
    tasks: tuple[TaskTokens, ...]


class ObservationKind(StrEnum):
    ENGINE = "engine"
    SEGMENT = "segment"
    PINS = "pins"
    FIRST_TOKENS = "first_tokens"
    AUDIT = "audit"
    REPLICAS = "replicas"
    BANK = "bank"
    SPEED = "speed"
    LIMITS = "limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeen:
    kind: ClassVar[ObservationKind] = ObservationKind.ENGINE
    arm: ArmName
    seen_at: datetime
    engine: Engine
    tokens: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Requests of one task in one arm, with the engine's counters before and after."""

    kind: ClassVar[ObservationKind] = ObservationKind.SEGMENT
    arm: ArmName
    task: str
    part: int
    began_at: datetime
    ended_at: datetime
    before: Counters | None
    after: Counters | None
    attempts: int
    prompt_tokens: int

    @property
    def has_restarted(self) -> bool:
        return bool(self.before and self.after and self.after.has_restarted_since(self.before))

    @property
    def drafting(self) -> Drafting | None:
        """None where it cannot be told."""
        if not self.before or not self.after or self.has_restarted:
            return None
        return self.after.drafting_since(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinsSeen:
    kind: ClassVar[ObservationKind] = ObservationKind.PINS
    seen_at: datetime
    pins: tuple[PinFound, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokensSeen:
    kind: ClassVar[ObservationKind] = ObservationKind.FIRST_TOKENS
    seen_at: datetime
    by: TokenizedBy
    tasks: tuple[FirstTokens, ...]
    lack: TokensLack | None

    def places(self, pairs: PairKind) -> dict[tuple[int, int], int | None]:
        """Map (position, repeat) to the first token that differs."""
        places = (place for task in self.tasks if task.pairs is pairs for place in task.places)
        return {(position, repeat): token for position, repeat, token in places}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSeen:
    """How an audit was done, and what kept it from its end."""

    kind: ClassVar[ObservationKind] = ObservationKind.AUDIT
    seen_at: datetime
    plan: AuditPlan
    """The comparison's own, or that of `qualab audit` where its plan had none."""
    scoring: ScoringForm | None
    """None where the engine cannot score a given text."""
    vocabulary: int | None
    """Tokens that the model knows; None where the engine does not tell."""
    lack: Reason | None = None
    """Why it ended early."""
    notes: tuple[Reason, ...] = ()
    """Parts that the engines do not take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaUse:
    """Work of one server of an arm in a stretch of a run."""

    url: str
    n_answers: int
    finished_requests: int | None = None
    """Requests that its counter saw finish; None where that cannot be told."""
    fingerprints: tuple[str, ...] = ()
    """All that its answers have given so far."""
    lost: str = ""
    """Why it was left out from then on; empty for one that lived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasSeen:
    """A stretch of a run by an arm of several servers."""

    kind: ClassVar[ObservationKind] = ObservationKind.REPLICAS
    arm: ArmName
    seen_at: datetime
    replicas: tuple[ReplicaUse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BankSeen:
    """Check of banked answers by a re-asked sample: one-sided p-values against the bank's own noise."""

    kind: ClassVar[ObservationKind] = ObservationKind.BANK
    seen_at: datetime
    name: str
    comparison_id: str
    """The comparison whose baseline answers stand in."""
    n_sampled: int
    n_compared: int
    """Items answered in the bank and in the sample."""
    n_texts_differ: int
    texts_pvalue: float
    n_scores_differ: int
    scores_pvalue: float
    trouble: Reason | None
    """Why the answers may not stand in; None where they may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Work of one kind and length under one load: a closed loop, or arrivals at a rate."""

    work: Work
    prompt_tokens: int
    concurrency: int | None = None
    rate: float | None = None

    @property
    def load(self) -> Reason:
        if self.concurrency:
            return Reason("speed.at-once", {"n": self.concurrency})
        return Reason("speed.rate", {"rate": self.rate})


def cells_of(plan: SpeedPlan) -> list[Cell]:
    """List the plan's cells in their order. A user's prompts have the length that they have, written as 0."""
    return [
        Cell(work=work, prompt_tokens=length, concurrency=concurrency, rate=rate)
        for work in plan.works
        for length in (plan.prompt_tokens if work is not Work.OWN else (0,))
        for concurrency, rate in (*((n, None) for n in plan.concurrency), *((None, rate) for rate in plan.rates))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """Times of one streamed request."""

    status: AnswerStatus
    first_token_s: float | None
    """None where no token came."""
    latency_s: float
    n_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    """Tokens of the prompt that came from the prefix cache; None where the engine does not tell."""
    is_counted: bool = True
    """False where the server told no count, so that every chunk is taken for a token."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """One repeat of a cell in one arm."""

    kind: ClassVar[ObservationKind] = ObservationKind.SPEED
    arm: ArmName
    seen_at: datetime
    plan: SpeedPlan
    cell: Cell
    repeat: int
    """From 0, apart for warm-up and measured repeats; both arms of a repeat get the same prompts."""
    is_warmup: bool
    wall_s: float
    streams: tuple[StreamTimes, ...]
    gaps: tuple[tuple[int, int], ...]
    """Times between tokens: buckets of `stats.speed.bucket_of`, and how many tokens each holds."""
    drafting: Drafting | None
    """By the engine's counters; None where it does not tell."""
    n_foreign: int | None
    """Requests of others that the engine served meanwhile; None where it does not tell."""

    @property
    def n_tokens(self) -> int:
        return sum(stream.n_tokens for stream in self.streams)

    @property
    def is_usable(self) -> bool:
        """False where nothing was answered, or others loaded the engine meanwhile."""
        return self.is_answered and not self.n_foreign

    @property
    def is_answered(self) -> bool:
        return any(stream.status.is_answer and stream.n_tokens > 0 for stream in self.streams)

    @property
    def is_refused(self) -> bool:
        """True where the server took none of the requests: too long, say."""
        return all(stream.status is AnswerStatus.REJECTED for stream in self.streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What an arm made of one long prompt."""

    kind: ClassVar[ObservationKind] = ObservationKind.LIMITS
    arm: ArmName
    seen_at: datetime
    language: Language
    prompt_tokens: int
    """By the server's tokenizer; up to 4 fewer where no padding gives the very number."""
    output_tokens: int
    """Longest answer that was asked for."""
    told_tokens: int | None
    """As the server counts in its answer or refusal; None where it does not tell."""
    outcome: Outcome
    n_right: int
    n_needles: int
    latency_s: float
    drafting: Drafting | None
    error: str = ""
    died: bool = False
    """True where the server did not answer afterwards."""
    recovered_s: float | None = None
    """Seconds until it answered again; None where it did not die, or never came back."""


Observation = EngineSeen | Segment | PinsSeen | FirstTokensSeen | AuditSeen | ReplicasSeen | BankSeen | Burst | Probe


def engines_seen(observations: Iterable[Observation]) -> dict[ArmName, Engine]:
    """Return each arm's engine as last seen."""
    return {seen.arm: seen.engine for seen in observations if isinstance(seen, EngineSeen)}


def model_names(observations: Iterable[Observation], arm: ArmName) -> set[str]:
    """Collect the names that an arm's answers may call the model."""
    return {
        name for seen in observations if isinstance(seen, EngineSeen) and seen.arm is arm for name in seen.engine.names
    }


def tokens_seen(observations: Iterable[Observation]) -> dict[ArmName, str]:
    """Return the arms' hashes of tokens as last seen."""
    return {seen.arm: seen.tokens for seen in observations if isinstance(seen, EngineSeen) and seen.tokens}


def replicas_seen(observations: Iterable[Observation], arm: ArmName) -> list[ReplicaUse]:
    """List what an arm's replicas did, stretch by stretch; empty for a single server."""
    seen = (own.replicas for own in observations if isinstance(own, ReplicasSeen) and own.arm is arm)
    return [use for uses in seen for use in uses]


def answers_by_replica(observations: Iterable[Observation]) -> dict[ArmName, Counter[str]]:
    """Count each replica's answers by its URL; an arm of a single server has none."""
    seen, n_answers = list(observations), {arm: Counter[str]() for arm in ArmName}
    for arm, counts in n_answers.items():
        for use in replicas_seen(seen, arm):
            counts[use.url] += use.n_answers
    return n_answers


def last_seen(observations: Iterable[Observation], kind: type[T]) -> T | None:
    """Return the last observation of a kind; None without any."""
    return next((seen for seen in reversed(list(observations)) if isinstance(seen, kind)), None)


def pins_seen(observations: Iterable[Observation]) -> tuple[PinFound, ...]:
    """Return both arms' pins as last seen."""
    seen = last_seen(observations, PinsSeen)
    return seen.pins if seen else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDrafting:
    """Drafting by the candidate in one generating task; None where it cannot be told."""

    task: str
    n_answers: int
    rounds: int | None
    draft_tokens: int | None
    accepted_tokens: int | None
    accepted_share: float | None
    mean_length: float | None
    """Tokens a round yields: 1 + accepted tokens / rounds. Over all rounds, so that long answers weigh more."""
    median_length: float | None
    p10_length: float | None
    zero_share: float | None
    histogram: tuple[int, ...]
    request_mean_length: float | None
    first_third: float | None
    last_third: float | None
    break_even_margin: float | None = None
    """Mean length minus break-even length: drafting pays above 0. By the plan's costs, else by `round_cost`."""
    round_cost: float | None = None
    """Cost of a round beyond a step of the baseline, in such steps: draft cost and overhead together, as estimated
    from both engines' decode times in this task. None where these are not told."""

    @property
    def least_drafted(self) -> int | None:
        """Draft tokens counted, else those accepted."""
        return self.accepted_tokens if self.draft_tokens is None else self.draft_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    from_tokens: int
    to_tokens: int
    n_answers: int
    draft_tokens: int | None
    accepted_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSummary(EngineIdentity):
    arm: ArmName

    @classmethod
    def of(cls, arm: ArmName, engine: Engine) -> EngineSummary:
        return cls(arm=arm, **{own.name: getattr(engine, own.name) for own in fields(EngineIdentity)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    is_observed: bool
    engines: tuple[EngineSummary, ...]
    tasks: tuple[TaskDrafting, ...]
    bins: tuple[LengthBin, ...]
    troubles: tuple[Reason, ...]
    notes: tuple[Reason, ...]
    break_even_length: float | None = None
    """Tokens a round must yield for drafting to pay: 1 + draft cost + overhead, where the plan names them. Else each
    task's 1 + `round_cost` is taken."""
