"""The exception tree. Every class has a stable `code`; edges map classes to exit codes and HTTP statuses.

A message is one sentence about what is wrong; `hint` says what to do about it.
"""

from __future__ import annotations

from typing import ClassVar


class QualabError(Exception):
    """Base of every error that qualab raises on purpose."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class InsufficientData(QualabError):
    """A statistic that these data cannot give: no evidence is not zero."""

    code = "insufficient-data"


class UsageError(QualabError):
    """The caller asked for something that cannot be: arguments, configuration, input files."""

    code = "usage"


class UnknownSetting(UsageError):
    code = "unknown-setting"


class InvalidValue(UsageError):
    code = "invalid-value"

    @classmethod
    def must_be(cls, name: str, allowed: str) -> InvalidValue:
        """For a field of a request: what is allowed in it."""
        return cls(f"{name} must be {allowed}", hint=f"Change {name}", fields={name: f"must be {allowed}"})


class UnknownTask(UsageError):
    code = "unknown-task"


class TooManyTasks(UsageError):
    """More tasks than the service loads for a plan, or for this caller's."""

    code = "too-many-tasks"


class BrokenTask(UsageError):
    code = "broken-task"


class DatasetUnavailable(UsageError):
    code = "dataset-unavailable"


class BadDataFile(UsageError):
    code = "bad-data-file"


class BadLog(UsageError):
    """A folder or file to import is not what it should be."""

    code = "bad-log"


class EmptyDataset(UsageError):
    code = "empty-dataset"


class ScoringUnavailable(UsageError):
    """Something that scoring needs (NLTK data, a language detector, a tokenizer) is missing."""

    code = "scoring-unavailable"


class EndpointMisconfigured(UsageError):
    """The endpoint answers, but not as asked: path, key, model name, a feature that it lacks."""

    code = "endpoint-misconfigured"


class ComparisonNotFound(UsageError):
    code = "comparison-not-found"


class ItemNotFound(UsageError):
    code = "item-not-found"


class TokenNotFound(UsageError):
    code = "token-not-found"


class ComparisonSignedOff(UsageError):
    """A comparison that somebody signed off is kept."""

    code = "comparison-signed-off"


class SignOffRefused(UsageError):
    """Something stands in the way of signing off, and no reason to override it was given."""

    code = "sign-off-refused"


class KeyReused(UsageError):
    """An idempotency key came a second time, with another request."""

    code = "idempotency-key-reused"


class VersionConflict(UsageError):
    """What was to be changed has changed since it was read."""

    code = "version-conflict"


class WrongState(UsageError):
    """What was asked for does not fit where the comparison stands."""

    code = "wrong-state"


class NotYet(UsageError):
    """What was asked for is not made yet: a plan before it is drawn up, an analysis before the end."""

    code = "not-yet"


class Unauthenticated(UsageError):
    code = "unauthenticated"


class Forbidden(UsageError):
    """Who asks may not do this."""

    code = "forbidden"


class TooManyRequests(UsageError):
    """`retry_after_s` in the details says when to try again."""

    code = "too-many-requests"


class EndpointForbidden(UsageError):
    """The service may not call this URL."""

    code = "endpoint-forbidden"


class SecretForbidden(UsageError):
    """A key that is no reference, or a reference that the service may not follow."""

    code = "secret-forbidden"


class PathForbidden(UsageError):
    """A path of the service's machine that requests may not name."""

    code = "path-forbidden"


class Underpowered(UsageError):
    """The items cannot prove the plan's margins, and nobody said that this is accepted."""

    code = "underpowered"


class ComparisonBusy(UsageError):
    """Another process is running this comparison."""

    code = "comparison-busy"


class PlanChanged(UsageError):
    """Tasks, data or settings are no longer those of the stored plan."""

    code = "plan-changed"


class PairDiffers(QualabError):
    """The two arms cannot be compared: no drafter in the candidate, one in the baseline, or something else differs."""

    code = "pair-differs"


class InfrastructureError(QualabError):
    """Something outside qualab failed: an endpoint, the database, the harness."""

    code = "infrastructure"


class EndpointUnreachable(InfrastructureError):
    code = "endpoint-unreachable"


class PinUnreadable(InfrastructureError):
    """What an arm runs was to be verified, and could not be looked into."""

    code = "pin-unreadable"


class RunStopped(InfrastructureError):
    """A run ended before its last item and can be resumed."""

    code = "run-stopped"


class RenderError(InfrastructureError):
    """A report cannot be drawn: fonts are missing, or what draws it failed."""

    code = "render"


class WorkersLost(InfrastructureError):
    """One worker after another was lost while it ran the same comparison."""

    code = "workers-lost"


class GateTimedOut(InfrastructureError):
    """There was no verdict in the time that a gate waits."""

    code = "gate-timed-out"


class HarnessError(InfrastructureError):
    code = "harness"


class ScoringTimedOut(HarnessError):
    """A filter or metric did not come to an end on one answer."""

    code = "scoring-timed-out"


class StillLoading(InfrastructureError):
    """Tasks are being loaded: the same request succeeds a little later."""

    code = "still-loading"


class StoreError(InfrastructureError):
    code = "store"


class StoreUnavailable(StoreError):
    """The database cannot be reached: it is gone, starts, or has no connection left. It may come back."""

    code = "store-unavailable"


class StoreFull(StoreError):
    code = "store-full"


class StoreLocked(StoreError):
    code = "store-locked"


class StoreReadOnly(StoreError):
    code = "store-read-only"


class StoreDamaged(StoreError):
    """A row does not hold what qualab writes there."""

    code = "store-damaged"


class SchemaMismatch(StoreError):
    """The database has another schema than this version of qualab."""

    code = "schema-mismatch"


def error_class(code: str, otherwise: type[QualabError]) -> type[QualabError]:
    """The class of a stable code; `otherwise` for one that this version does not know."""
    kinds = list(QualabError.__subclasses__())
    for kind in kinds:  # grows as it goes: classes below classes
        if kind.code == code:
            return kind
        kinds.extend(kind.__subclasses__())
    return otherwise
