"""The integers that stand for closed vocabularies in the database, 0 and up. A code never gets another meaning.

A new member gets the next code, and a migration that widens the CHECK constraint.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from qualab.model.engine import ObservationKind
from qualab.model.items import Change
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus, RequestKind, Verdict
from qualab.model.registry import Scope, SubmissionStatus

E = TypeVar("E", bound=StrEnum)


class Codes(Generic[E]):
    """One vocabulary: names to codes and back."""

    def __init__(self, codes: Mapping[E, int]) -> None:
        self.of = dict(codes)
        self.name = {code: member for member, code in codes.items()}

    def check(self, column: str) -> str:
        """The SQL condition that holds a column to this vocabulary: a range, which is quicker to check than a list."""
        return f"{column} BETWEEN 0 AND {len(self.name) - 1}"


ARM = Codes({ArmName.BASELINE: 0, ArmName.CANDIDATE: 1})

KIND = Codes({RequestKind.GENERATION: 0, RequestKind.LOGLIKELIHOOD: 1})

ANSWER_STATUS = Codes(
    {
        AnswerStatus.OK: 0,
        AnswerStatus.TRUNCATED: 1,
        AnswerStatus.NO_FINAL_ANSWER: 2,
        AnswerStatus.BAD_BODY: 3,
        AnswerStatus.HTTP_ERROR: 4,
        AnswerStatus.TIMEOUT: 5,
        AnswerStatus.CONNECTION_ERROR: 6,
        AnswerStatus.REJECTED: 7,
    }
)

COMPARISON_STATUS = Codes(
    {
        ComparisonStatus.PLANNED: 0,
        ComparisonStatus.RUNNING: 1,
        ComparisonStatus.INTERRUPTED: 2,
        ComparisonStatus.STOPPED: 3,
        ComparisonStatus.ANSWERED: 4,
        ComparisonStatus.FINISHED: 5,
    }
)

OBSERVATION = Codes(
    {
        ObservationKind.ENGINE: 0,
        ObservationKind.SEGMENT: 1,
        ObservationKind.PINS: 2,
        ObservationKind.FIRST_TOKENS: 3,
    }
)

VERDICT = Codes(
    {
        Verdict.EQUIVALENT: 0,
        Verdict.NON_INFERIOR: 1,
        Verdict.REGRESSION: 2,
        Verdict.IMPROVEMENT: 3,
        Verdict.INCONCLUSIVE: 4,
        Verdict.INVALID: 5,
        Verdict.NOT_TESTED: 6,
    }
)

CHANGE = Codes({Change.SAME: 0, Change.GAIN: 1, Change.LOSS: 2, Change.UNKNOWN: 3})

SUBMISSION = Codes(
    {
        SubmissionStatus.QUEUED: 0,
        SubmissionStatus.RUNNING: 1,
        SubmissionStatus.DONE: 2,
        SubmissionStatus.FAILED: 3,
        SubmissionStatus.CANCELLED: 4,
    }
)

SCOPE = Codes({Scope.READ: 0, Scope.RUN: 1, Scope.ADMIN: 2})
