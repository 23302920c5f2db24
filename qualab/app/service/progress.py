"""How far a comparison is, as anybody can read it from the database."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from qualab.app.service.desk import Desk
from qualab.app.service.reading import About, about
from qualab.domain.canonical import canonical_json, sha256
from qualab.domain.names import ArmName, ComparisonStatus, Verdict
from qualab.domain.submissions import SubmissionStatus

RATE_OVER = 10
"""Looks that the rate is taken over."""

PHASES = {
    SubmissionStatus.QUEUED: "waiting for a worker",
    SubmissionStatus.RUNNING: "preparing",
    ComparisonStatus.PLANNED: "preparing",
    ComparisonStatus.RUNNING: "asking",
    ComparisonStatus.ANSWERED: "scoring and analysing",
    ComparisonStatus.INTERRUPTED: "interrupted",
    ComparisonStatus.STOPPED: "stopped",
    ComparisonStatus.FINISHED: "finished",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look."""

    id: str
    status: ComparisonStatus | SubmissionStatus
    phase: str
    answered: dict[ArmName, int]
    n_requests: int | None
    """Of each arm; None while there is no plan."""
    rate: float | None
    """Answers a second of both arms, lately; None before the second look."""
    verdict: Verdict | None
    stop_reason: str
    has_ended: bool

    @property
    def mark(self) -> str:
        """The same for the same state, whichever process looks: the id of an event."""
        return sha256(canonical_json([self.status, self.answered, self.verdict, self.has_ended]))[:16]


class Follower:
    """Looks at one comparison again and again."""

    def __init__(self, desk: Desk, comparison_id: str) -> None:
        self._desk = desk
        self._id = comparison_id
        self._n_requests: int | None = None
        self._looks: deque[tuple[float, int]] = deque(maxlen=RATE_OVER)

    def look(self) -> Progress:
        """Raises ComparisonNotFound, StoreError."""
        found = about(self._desk, self._id)
        answered = self._answered(found)
        self._looks.append((self._desk.services.clock.monotonic_s(), sum(answered.values())))
        return Progress(
            id=self._id,
            status=found.summary.status,
            phase=PHASES.get(found.summary.status, found.summary.status.value),
            answered=answered,
            n_requests=self._n_requests,
            rate=self._rate(),
            verdict=found.summary.verdict,
            stop_reason=found.summary.stop_reason,
            has_ended=found.has_ended,
        )

    def _answered(self, found: About) -> dict[ArmName, int]:
        store = self._desk.services.store
        if not found.summary.plan_hash:
            return dict.fromkeys(ArmName, 0)
        if self._n_requests is None:
            repeats = store.get(self._id).plan.sampling.repeats
            self._n_requests = repeats * sum(len(item.requests) for item in store.items(self._id))
        return dict(store.n_answered(self._id))

    def _rate(self) -> float | None:
        (then, before), (now, after) = self._looks[0], self._looks[-1]
        return round((after - before) / (now - then), 2) if now > then else None
