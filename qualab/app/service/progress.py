"""How far a comparison is, as anybody can read it from the database."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Thread

from qualab.app.service.desk import Desk
from qualab.app.service.reading import About, about
from qualab.domain.canonical import canonical_json, sha256
from qualab.domain.names import ArmName, ComparisonStatus, Verdict
from qualab.domain.submissions import SubmissionStatus
from qualab.errors import QualabError

RATE_OVER = 10
"""Looks that the rate is taken over."""
RATE_WITHIN_S = 60.0
"""Older looks say nothing of what it is lately."""
MOST_FOLLOWED = 256
"""Comparisons that are under way, of which what was seen is remembered."""

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

COUNTED = (ComparisonStatus.RUNNING, ComparisonStatus.ANSWERED)
"""Statuses of what is under way: few at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look."""

    id: str
    status: ComparisonStatus | SubmissionStatus
    phase: str
    answered: dict[ArmName, int]
    unanswered: dict[ArmName, int]
    """Requests that came back without an answer."""
    n_requests: int | None
    """Of each arm; None while there is no plan."""
    rate: float | None
    """Answers a second of both arms, lately; None before the second look."""
    eta_s: float | None
    """Seconds until every request has its answer, at that rate; None while that is not known."""
    verdict: Verdict | None
    stop_reason: str
    has_ended: bool

    @property
    def mark(self) -> str:
        """The same for the same state, whichever process looks: the id of an event."""
        return sha256(canonical_json([self.status, self.answered, self.unanswered, self.verdict, self.has_ended]))[:16]


class Follower:
    """Looks at one comparison again and again."""

    def __init__(self, desk: Desk, comparison_id: str) -> None:
        self._desk = desk
        self._id = comparison_id
        self._n_requests: int | None = None
        self._looks: deque[tuple[float, int]] = deque(maxlen=RATE_OVER)
        self._lock = Lock()
        self._is_counting = False

    @property
    def is_counted(self) -> bool:
        """Whether it is known how many requests there are."""
        return self._n_requests is not None

    def count(self) -> None:
        """Goes through the items, once. Raises ComparisonNotFound, StoreError."""
        store = self._desk.services.store
        repeats = store.get(self._id).plan.sampling.repeats
        self._n_requests = repeats * sum(len(item.requests) for item in store.items(self._id))

    def count_meanwhile(self) -> None:
        """Counts in a thread, unless that is done or under way."""
        with self._lock:
            if self.is_counted or self._is_counting:
                return
            self._is_counting = True
        Thread(target=self._count_quietly, daemon=True).start()

    def _count_quietly(self) -> None:
        with suppress(QualabError):  # the next look tries again
            self.count()
        self._is_counting = False

    def look(self, *, may_count: bool = True) -> Progress:
        """Raises ComparisonNotFound, StoreError. Going through the items may take a second, where that is allowed."""
        found = about(self._desk, self._id)
        if may_count and found.summary.plan_hash and not self.is_counted:
            self.count()
        came_back, unanswered = self._came_back(found)
        with self._lock:
            rate = self._rate_with(sum(came_back.values()))
        return Progress(
            id=self._id,
            status=found.summary.status,
            phase=PHASES.get(found.summary.status, found.summary.status.value),
            answered={arm: came_back[arm] - unanswered[arm] for arm in ArmName},
            unanswered=unanswered,
            n_requests=self._n_requests,
            rate=rate,
            eta_s=self._eta_s(came_back, rate),
            verdict=found.summary.verdict,
            stop_reason=found.summary.stop_reason,
            has_ended=found.has_ended,
        )

    def _came_back(self, found: About) -> tuple[Mapping[ArmName, int], dict[ArmName, int]]:
        """Requests of each arm that came back, and those of them that have no answer, which are counted first."""
        if not found.summary.plan_hash:
            return dict.fromkeys(ArmName, 0), dict.fromkeys(ArmName, 0)
        store = self._desk.services.store
        unanswered = dict(store.n_unanswered(self._id))
        return store.n_answered(self._id), unanswered

    def _rate_with(self, n_came_back: int) -> float | None:
        now = self._desk.services.clock.monotonic_s()
        while self._looks and now - self._looks[0][0] > RATE_WITHIN_S:
            self._looks.popleft()
        self._looks.append((now, n_came_back))
        then, before = self._looks[0]
        return round((n_came_back - before) / (now - then), 2) if now > then else None

    def _eta_s(self, came_back: Mapping[ArmName, int], rate: float | None) -> float | None:
        if self._n_requests is None or not rate or rate < 0.0:
            return None
        left = sum(self._n_requests - n for n in came_back.values())
        return round(left / rate, 1) if left > 0 else None


class Followers:
    """Looks at the comparisons of a list, as often as somebody reads it. Threads may share it."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._known: dict[str, Follower] = {}
        self._lock = Lock()

    def look(self, comparison_id: str) -> Progress:
        """Says at once what is known; how many requests there are is counted meanwhile, for the next look. Raises
        ComparisonNotFound, StoreError."""
        follower = self._follower(comparison_id)
        found = follower.look(may_count=False)
        if found.has_ended:
            self._known.pop(comparison_id, None)
        elif found.status in COUNTED:
            follower.count_meanwhile()
        return found

    def _follower(self, comparison_id: str) -> Follower:
        with self._lock:
            if comparison_id not in self._known:
                if len(self._known) >= MOST_FOLLOWED:
                    self._known.clear()
                self._known[comparison_id] = Follower(self._desk, comparison_id)
            return self._known[comparison_id]
