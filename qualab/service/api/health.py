"""/healthz, /readyz and /metrics: for whatever looks after the service."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from qualab.errors import QualabError, StoreError
from qualab.model.names import ComparisonStatus
from qualab.model.registry import SubmissionStatus
from qualab.service.api.docs import problems
from qualab.service.api.problems import RETRY_AFTER_S
from qualab.service.api.state import READ, State, state_of

router = APIRouter(tags=["health"])
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
TEXT = "text/plain; version=1.0.0; charset=utf-8"
NOT_KEPT = {"Cache-Control": "no-store"}


class Requests:
    """Counts of requests by route and status."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("method", "route", "status")
        self._count = Counter("qualab_http_requests", "Requests answered", labels, registry=registry)
        self._seconds = Histogram(
            "qualab_http_request_seconds", "Time to answer", ("route",), buckets=BUCKETS, registry=registry
        )

        self._of: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Told of every request."""
        known = self._of.get((method, route, status))
        if known is None:  # finding them costs more than counting
            known = self._count.labels(method, route, str(status)), self._seconds.labels(route)
            self._of[method, route, status] = known
        known[0].inc()
        known[1].observe(seconds)


class Stock:
    """What the database and the queue hold, read when somebody asks."""

    def __init__(self, state: State) -> None:
        self._state = state

    def describe(self) -> list[Metric]:
        """Nothing is read before somebody asks."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Comparisons by status, the queue, workers, streams."""
        desk = self._state.desk
        try:
            counts, workers = desk.registry.counts(), desk.jobs.workers()
        except StoreError:
            yield GaugeMetricFamily("qualab_database_up", "Whether the database answers", 0)
            return
        yield GaugeMetricFamily("qualab_database_up", "Whether the database answers", 1)
        by_status = GaugeMetricFamily("qualab_comparisons", "Comparisons by status", labels=("status",))
        for status in dict.fromkeys([*ComparisonStatus, *SubmissionStatus]):
            by_status.add_metric([status], counts.get(status, 0))
        yield by_status
        queued = len(desk.registry.submissions(SubmissionStatus.QUEUED))
        yield GaugeMetricFamily("qualab_queue_length", "Comparisons that wait for a worker", queued)
        yield GaugeMetricFamily("qualab_workers", "Workers that were seen alive lately", workers)
        followed = self._state.broadcast.n_listeners
        yield GaugeMetricFamily("qualab_event_streams", "Clients that follow events", followed)


@router.get(
    "/healthz",
    responses={200: {"description": "Alive", "content": {"application/json": {"example": {"status": "alive"}}}}},
)
async def healthz() -> Response:
    """Whether the process answers. Needs no token."""
    return Response(b'{"status":"alive"}', headers=NOT_KEPT, media_type="application/json")


@router.get(
    "/readyz",
    responses={
        200: {
            "description": "Ready",
            "content": {
                "application/json": {
                    "example": {"status": "ready", "database": "ok", "schema": "ok", "workers": 1, "reasons": []}
                }
            },
        },
        503: {"description": "Not ready: `reasons` says why", "content": {"application/json": {}}},
    },
)
def readyz(request: Request) -> Response:
    """Whether requests can be served: the database answers, its schema is this version's, a worker is alive."""
    state = state_of(request)
    reasons, found = [], {"database": "ok", "schema": "ok", "workers": 0}
    try:
        state.desk.registry.counts()
        current, head = state.schema()
        if current != head:
            found["schema"] = "other"
            reasons.append("the database has another schema than this version: qualab db upgrade")
        found["workers"] = state.desk.jobs.workers()
        if not found["workers"]:
            reasons.append("no worker was seen lately")
    except QualabError:
        found["database"] = "away"
        reasons.append("the database does not answer")
    status = "ready" if not reasons else "not ready"
    content = orjson.dumps({"status": status, **found, "reasons": reasons})
    headers = NOT_KEPT | ({"Retry-After": str(RETRY_AFTER_S)} if reasons else {})
    return Response(content, 503 if reasons else 200, headers=headers, media_type="application/json")


@router.get(
    "/metrics",
    dependencies=READ,
    responses=problems()
    | {200: {"description": "For Prometheus", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(request: Request) -> Response:
    """Requests, comparisons, the queue, workers."""
    return Response(generate_latest(request.app.state.collectors), media_type=TEXT, headers=NOT_KEPT)
