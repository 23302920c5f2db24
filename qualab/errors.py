"""The exception tree. Every class has a stable `code`; edges map classes to exit codes and HTTP statuses.

A message is one sentence about what is wrong; `hint` says what to do about it.
"""

from __future__ import annotations

from typing import ClassVar


class QualabError(Exception):
    """An error that qualab raises on purpose."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class InsufficientData(QualabError):
    code = "insufficient-data"  # no evidence is not zero


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
    code = "too-many-tasks"


class BrokenTask(UsageError):
    code = "broken-task"


class DatasetUnavailable(UsageError):
    code = "dataset-unavailable"


class BadDataFile(UsageError):
    code = "bad-data-file"


class BadLog(UsageError):
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
    code = "comparison-signed-off"


class SignOffRefused(UsageError):
    code = "sign-off-refused"


class KeyReused(UsageError):
    code = "idempotency-key-reused"


class VersionConflict(UsageError):
    code = "version-conflict"


class WrongState(UsageError):
    code = "wrong-state"


class NotYet(UsageError):
    """What was asked for is not made yet: a plan before it is drawn up, an analysis before the end."""

    code = "not-yet"


class Unauthenticated(UsageError):
    code = "unauthenticated"


class Forbidden(UsageError):
    code = "forbidden"


class TooManyRequests(UsageError):
    """`retry_after_s` in the details says when to try again."""

    code = "too-many-requests"


class EndpointForbidden(UsageError):
    code = "endpoint-forbidden"


class SecretForbidden(UsageError):
    """A key that is no reference, or a reference that the service may not follow."""

    code = "secret-forbidden"


class PathForbidden(UsageError):
    code = "path-forbidden"


class Underpowered(UsageError):
    """The items cannot prove the plan's margins, and nobody said that this is accepted."""

    code = "underpowered"


class ComparisonBusy(UsageError):
    code = "comparison-busy"


class PlanChanged(UsageError):
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
    code = "pin-unreadable"


class RunStopped(InfrastructureError):
    """A run ended before its last item and can be resumed."""

    code = "run-stopped"


class RenderError(InfrastructureError):
    code = "render"


class WorkersLost(InfrastructureError):
    code = "workers-lost"


class GateTimedOut(InfrastructureError):
    code = "gate-timed-out"


class HarnessError(InfrastructureError):
    code = "harness"


class ScoringTimedOut(HarnessError):
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
    code = "store-damaged"


class SchemaMismatch(StoreError):
    code = "schema-mismatch"


def error_class(code: str, otherwise: type[QualabError]) -> type[QualabError]:
    """Find the class of a stable code; `otherwise` for one that this version does not know."""
    kinds = list(QualabError.__subclasses__())
    for kind in kinds:  # grows as it goes: classes below classes
        if kind.code == code:
            return kind
        kinds.extend(kind.__subclasses__())
    return otherwise
