"""Exit codes: one table for verdicts, one for errors."""

from __future__ import annotations

from qualab.domain.names import Verdict
from qualab.errors import InfrastructureError, InsufficientData, PairDiffers, QualabError, UsageError

INTERRUPTED = 130
UNEXPECTED = 5

OF_VERDICT = {
    Verdict.EQUIVALENT: 0,
    Verdict.NON_INFERIOR: 0,
    Verdict.REGRESSION: 1,
    Verdict.IMPROVEMENT: 3,
    Verdict.INCONCLUSIVE: 3,
    Verdict.NOT_TESTED: 3,
    Verdict.INVALID: 4,
}

OF_ERROR: tuple[tuple[type[QualabError], int], ...] = (
    (UsageError, 2),
    (InsufficientData, 2),
    (PairDiffers, 4),
    (InfrastructureError, 5),
    (QualabError, UNEXPECTED),
)


def of_error(error: QualabError) -> int:
    """The exit code of the first class in the table that fits."""
    return next(code for kind, code in OF_ERROR if isinstance(error, kind))
