"""The exception tree. A class's name is its stable `code`, unless one is given; edges map classes to exit codes and
HTTP statuses.

A message is one sentence about what is wrong; `hint` says what to do about it.
"""

from __future__ import annotations

import re


class QualabError(Exception):
    """An error that qualab raises on purpose."""

    code = "error"

    def __init_subclass__(cls) -> None:
        """Name the code after the class: "unknown-task" of UnknownTask, "store" of StoreError."""
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, message: str, *, hint: str = "", code: str = "", **details: object) -> None:
        super().__init__(message)
        self.code = code or self.code
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class InsufficientData(QualabError):
    """No evidence is not zero."""


class UsageError(QualabError):
    """The caller asked for something that cannot be: arguments, configuration, input files."""


class UnknownSetting(UsageError): ...


class InvalidValue(UsageError):
    @classmethod
    def must_be(cls, name: str, allowed: str) -> InvalidValue:
        """Say what is allowed in a field of a request."""
        return cls(f"{name} must be {allowed}", hint=f"Change {name}", fields={name: f"must be {allowed}"})


class UnknownTask(UsageError): ...


class BrokenTask(UsageError): ...


class DatasetUnavailable(UsageError): ...


class BadDataFile(UsageError): ...


class BadLog(UsageError): ...


class ScoringUnavailable(UsageError):
    """Something that scoring needs (NLTK data, a language detector, a tokenizer) is missing."""


class EndpointMisconfigured(UsageError):
    """The endpoint answers, but not as asked: path, key, model name, a feature that it lacks."""


class ComparisonNotFound(UsageError): ...


class ItemNotFound(UsageError): ...


class BankNotFound(UsageError): ...


class ComparisonSignedOff(UsageError): ...


class ComparisonBanked(UsageError): ...


class VersionConflict(UsageError): ...


class WrongState(UsageError):
    """A comparison is not, or not yet, what this needs."""


class Unauthenticated(UsageError): ...


class Forbidden(UsageError): ...


class TooManyRequests(UsageError):
    """`retry_after_s` in the details says when to try again."""


class EndpointForbidden(UsageError): ...


class SecretForbidden(UsageError):
    """A key that is no reference, or a reference that the service may not follow."""


class PathForbidden(UsageError): ...


class ComparisonBusy(UsageError): ...


class PlanChanged(UsageError): ...


class PairDiffers(QualabError):
    """The two arms cannot be compared: no drafter in the candidate, one in the baseline, or something else differs."""


class InfrastructureError(QualabError):
    """Something outside qualab failed: an endpoint, the database, the harness."""


class EndpointUnreachable(InfrastructureError): ...


class PinUnreadable(InfrastructureError): ...


class RunStopped(InfrastructureError):
    """A run ended before its last item and can be resumed."""


class HarnessError(InfrastructureError): ...


class ScoringTimedOut(HarnessError): ...


class StoreError(InfrastructureError): ...


class StoreUnavailable(StoreError):
    """The database cannot be reached: it is gone, starts, or has no connection left. It may come back."""


class StoreFull(StoreError): ...


class StoreLocked(StoreError): ...


class StoreReadOnly(StoreError): ...


class StoreDamaged(StoreError): ...


class SchemaMismatch(StoreError): ...


def error_class(code: str, otherwise: type[QualabError]) -> type[QualabError]:
    """Find the class of a stable code; `otherwise` for one that this version does not know."""
    kinds = list(QualabError.__subclasses__())
    for kind in kinds:  # grows as it goes: classes below classes
        if kind.code == code:
            return kind
        kinds.extend(kind.__subclasses__())
    return otherwise
