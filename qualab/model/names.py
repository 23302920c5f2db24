"""The closed vocabularies: arms, kinds of request, statuses, verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from qualab.errors import InfrastructureError, InsufficientData, PairDiffers, QualabError, UsageError


class ArmName(StrEnum):
    """Baseline is the drafter off, candidate the drafter on."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"


class RequestKind(StrEnum):
    """A generation drafts tokens; a log-likelihood request does not."""

    GENERATION = "generation"
    LOGLIKELIHOOD = "loglikelihood"


class Api(StrEnum):
    COMPLETIONS = "completions"
    CHAT = "chat"


class AnswerStatus(StrEnum):
    """Status of a request. Whatever is neither OK nor TRUNCATED is missing, never wrong by default."""

    OK = "ok"
    TRUNCATED = "truncated"
    NO_FINAL_ANSWER = "no_final_answer"
    BAD_BODY = "bad_body"
    HTTP_ERROR = "http_error"
    TIMEOUT = "timeout"
    CONNECTION_ERROR = "connection_error"
    REJECTED = "rejected"

    @property
    def is_answer(self) -> bool:
        return self in (AnswerStatus.OK, AnswerStatus.TRUNCATED)

    @property
    def is_failure(self) -> bool:
        """True where asking again may help."""
        return self in (
            AnswerStatus.BAD_BODY,
            AnswerStatus.HTTP_ERROR,
            AnswerStatus.TIMEOUT,
            AnswerStatus.CONNECTION_ERROR,
        )


class LeakKind(StrEnum):
    STOP_STRING = "stop_string"
    SPECIAL_TOKEN = "special_token"
    BROKEN_CHARACTER = "broken_character"
    """U+FFFD, as where the bytes of a character were torn apart."""
    CUT_SHORT = "cut_short"
    """It ended by itself, and is the beginning of what the other arm said."""
    LENGTH_LIMIT = "length_limit"


class ComparisonStatus(StrEnum):
    QUEUED = "queued"
    PLANNED = "planned"
    RUNNING = "running"
    ANSWERED = "answered"
    INTERRUPTED = "interrupted"
    """A command was ended. It can be resumed, as everything below but FINISHED."""
    STOPPED = "stopped"
    """Too many requests failed, or the arms cannot be compared any more."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    FINISHED = "finished"

    @property
    def has_ended(self) -> bool:
        """True where nothing more comes, unless somebody resumes it."""
        return self not in UNDER_WAY


UNDER_WAY = (ComparisonStatus.QUEUED, ComparisonStatus.PLANNED, ComparisonStatus.RUNNING, ComparisonStatus.ANSWERED)


class Tier(StrEnum):
    """What a metric's loss does, where a policy says so."""

    CRITICAL = "critical"
    """Decides the verdict."""
    SUPPORTING = "supporting"
    """Is tested with the others; a loss warns."""
    ADVISORY = "advisory"
    """Is shown, and not tested."""


class Verdict(StrEnum):
    EQUIVALENT = "EQUIVALENT"
    NON_INFERIOR = "NON_INFERIOR"
    REGRESSION = "REGRESSION"
    IMPROVEMENT = "IMPROVEMENT"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    NOT_TESTED = "NOT_TESTED"


INVALID, UNEXPECTED = 4, 5
EXIT_CODES: Mapping[Verdict | type[BaseException], int] = {
    Verdict.EQUIVALENT: 0,
    Verdict.NON_INFERIOR: 0,
    Verdict.REGRESSION: 1,
    Verdict.IMPROVEMENT: 3,
    Verdict.INCONCLUSIVE: 3,
    Verdict.NOT_TESTED: 3,
    Verdict.INVALID: INVALID,
    UsageError: 2,
    InsufficientData: 2,
    PairDiffers: INVALID,
    InfrastructureError: UNEXPECTED,
    QualabError: UNEXPECTED,
}
WORST_FIRST = (1, 5, 4, 2, 3, 0)
"""Exit codes: a regression outweighs a candidate that could not be asked."""


def exit_code(outcome: Verdict | QualabError) -> int:
    """Look up the exit code of a verdict, or of the nearest class of an error."""
    kinds = (outcome,) if isinstance(outcome, Verdict) else type(outcome).__mro__
    return next(EXIT_CODES[kind] for kind in kinds if kind in EXIT_CODES)


class Objective(StrEnum):
    EQUIVALENCE = "equivalence"
    NON_INFERIORITY = "non_inferiority"


class LookDecision(StrEnum):
    CONTINUE = "continue"
    PROVEN = "proven"
    IMPROVEMENT = "improvement"
    HARM = "harm"


class MetricKind(StrEnum):
    """How a metric aggregates its items' scores, which decides how it may be tested."""

    BINARY_MEAN = "binary_mean"
    MEAN = "mean"
    LIST_MEAN = "list_mean"
    """The mean over all entries of the items' lists of 0/1 (IFEval's instruction level)."""
    MACRO_F1 = "macro_f1"
    GROUP_MEAN = "group_mean"
    OTHER = "other"


class EvidenceKind(StrEnum):
    REPEATED = "repeated"
    """0/1 scores of independent items that the baseline answered several times."""
    COUNTS = "counts"
    CLUSTERS = "clusters"
    """0/1 scores in clusters: items that share a passage, entries of one list, repeats of one item."""
    SCORES = "scores"
    LABELS = "labels"


class MissingPolicy(StrEnum):
    """Ways to count missing answers. All four must agree on "equivalent"."""

    COMPLETE = "complete pairs"
    WRONG = "missing counted as wrong"
    AGAINST_CANDIDATE = "worst case against the candidate"
    AGAINST_BASELINE = "worst case against the baseline"


class WebhookState(StrEnum):
    WAITING = "waiting"
    """For the comparison's end, or for the next try."""
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


class Language(StrEnum):
    ENGLISH = "en"
    KOREAN = "ko"


class ReportFormat(StrEnum):
    PDF = "pdf"
    HTML = "html"
    MARKDOWN = "md"
    JSON = "json"


class AuditPart(StrEnum):
    GREEDY = "greedy"
    """Answers of the comparison itself."""
    SAMPLED = "sampled"
    """Items asked again at temperature 1."""
    STRUCTURED = "structured"
    """Items asked again with a response format or tools: held against their schema, not scored."""


class ScoringForm(StrEnum):
    """How an engine scores a given text."""

    PROMPT_LOGPROBS = "prompt_logprobs"
    """vLLM."""
    ECHO = "echo"
    """Completions with echo and logprobs."""
    GENERATE = "generate"
    """SGLang."""
    TOKEN_BY_TOKEN = "token_by_token"
    """llama.cpp: one request a token."""


class AuditRuling(StrEnum):
    FOREIGN = "FOREIGN"
    CLEAN = "CLEAN"
    INCONCLUSIVE = "INCONCLUSIVE"
    UNOBSERVED = "UNOBSERVED"
    """The engine cannot score a given text."""
    INVALID = "INVALID"
    """The control fails: the baseline's own answers hold foreign tokens."""


class Work(StrEnum):
    """Kinds of work whose speed is measured."""

    COPY = "copy"
    PROSE = "prose"
    CODE = "code"
    JSON = "json"
    KOREAN = "korean"
    """Korean prose."""
    OWN = "own"
    """Prompts of a user's file."""


class CacheState(StrEnum):
    """Whether an engine has seen a prompt before."""

    COLD = "cold"
    WARM = "warm"


class Outcome(StrEnum):
    """What an arm made of a prompt of some length."""

    RIGHT = "right"
    WRONG = "wrong"
    """200, and not what was asked for."""
    REFUSED = "refused"
    BROKEN = "broken"
    """A server error, a broken connection or no answer in time."""


class Turn(StrEnum):
    """Whether a drafter is worth turning on for some work."""

    ON = "on"
    OFF = "off"
    NOT_PROVEN = "not_proven"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalOf:
    low: float
    high: float
    confidence_level: float
