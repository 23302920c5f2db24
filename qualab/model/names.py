"""The closed vocabularies: arms, kinds of request, statuses, verdicts."""

from __future__ import annotations

from enum import StrEnum


class ArmName(StrEnum):
    """Baseline is the drafter off, candidate the drafter on."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"


class RequestKind(StrEnum):
    """A generation drafts tokens; a log-likelihood request does not."""

    GENERATION = "generation"
    LOGLIKELIHOOD = "loglikelihood"


class Api(StrEnum):
    """Which OpenAI-compatible route a request goes to."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class AnswerStatus(StrEnum):
    """How a request ended. Whatever is neither OK nor TRUNCATED is missing, never wrong by default."""

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
        """Whether there is a text (or a log-likelihood) to score."""
        return self in (AnswerStatus.OK, AnswerStatus.TRUNCATED)

    @property
    def is_failure(self) -> bool:
        """Whether the endpoint or the way to it failed, so that asking again may help."""
        return self in (
            AnswerStatus.BAD_BODY,
            AnswerStatus.HTTP_ERROR,
            AnswerStatus.TIMEOUT,
            AnswerStatus.CONNECTION_ERROR,
        )


class LeakKind(StrEnum):
    """What an answer holds that it should not, or lacks."""

    STOP_STRING = "stop_string"
    SPECIAL_TOKEN = "special_token"
    """A control token written out, as <|im_end|>."""
    BROKEN_CHARACTER = "broken_character"
    """U+FFFD, as where the bytes of a character were torn apart."""
    CUT_SHORT = "cut_short"
    """It ended by itself, and is the beginning of what the other arm said."""
    LENGTH_LIMIT = "length_limit"


class ComparisonStatus(StrEnum):
    """Where a comparison stands, from its request to its end."""

    QUEUED = "queued"
    PLANNED = "planned"
    """Stored by a command, and nothing asked yet."""
    RUNNING = "running"
    ANSWERED = "answered"
    """Every request came back; scoring and analysing."""
    INTERRUPTED = "interrupted"
    """A command was ended. It can be resumed, as everything below but FINISHED."""
    STOPPED = "stopped"
    """Too many requests failed, or the arms cannot be compared any more."""
    FAILED = "failed"
    """Something kept a worker from running it."""
    CANCELLED = "cancelled"
    FINISHED = "finished"

    @property
    def has_ended(self) -> bool:
        """Nothing more comes, unless somebody resumes it."""
        return self not in UNDER_WAY


UNDER_WAY = (ComparisonStatus.QUEUED, ComparisonStatus.PLANNED, ComparisonStatus.RUNNING, ComparisonStatus.ANSWERED)


class Verdict(StrEnum):
    """What a metric, or a comparison, came to."""

    EQUIVALENT = "EQUIVALENT"
    NON_INFERIOR = "NON_INFERIOR"
    REGRESSION = "REGRESSION"
    IMPROVEMENT = "IMPROVEMENT"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    NOT_TESTED = "NOT_TESTED"


class Objective(StrEnum):
    """What a plan sets out to prove of every primary metric."""

    EQUIVALENCE = "equivalence"
    """The difference lies inside ±margin."""
    NON_INFERIORITY = "non_inferiority"
    """No more than the margin is lost."""


class LookDecision(StrEnum):
    """What a look at the answers so far decides, of one metric or of a whole run."""

    CONTINUE = "continue"
    PROVEN = "proven"
    IMPROVEMENT = "improvement"
    HARM = "harm"


class MetricKind(StrEnum):
    """How a metric comes from its items' scores, which decides how it may be tested."""

    BINARY_MEAN = "binary_mean"
    MEAN = "mean"
    LIST_MEAN = "list_mean"
    """The mean over all entries of the items' lists of 0/1 (IFEval's instruction level)."""
    MACRO_F1 = "macro_f1"
    """Macro-averaged F1 of the items' (target, prediction) pairs."""
    GROUP_MEAN = "group_mean"
    """A size-weighted mean of other metrics' values."""
    OTHER = "other"


class EvidenceKind(StrEnum):
    """Which analysis a metric got."""

    COUNTS = "counts"
    """0/1 scores of independent items: gains and losses."""
    CLUSTERS = "clusters"
    """0/1 scores in clusters: items that share a passage, entries of one list, repeats of one item."""
    SCORES = "scores"
    LABELS = "labels"


class MissingPolicy(StrEnum):
    """How answers that are missing enter. Decided before the run: all four must agree on "equivalent"."""

    COMPLETE = "complete pairs"
    WRONG = "missing counted as wrong"
    AGAINST_CANDIDATE = "worst case against the candidate"
    AGAINST_BASELINE = "worst case against the baseline"


class Language(StrEnum):
    ENGLISH = "en"
    KOREAN = "ko"


class ReportFormat(StrEnum):
    """How a report is drawn."""

    PDF = "pdf"
    HTML = "html"
    MARKDOWN = "md"
    JSON = "json"
