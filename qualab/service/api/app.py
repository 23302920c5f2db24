"""The app: its routes, health and metrics, and what they share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException

from qualab import __version__
from qualab.errors import QualabError, StoreError
from qualab.model.names import ComparisonStatus
from qualab.model.registry import Token
from qualab.service.access import Authenticator, RateLimit
from qualab.service.api import controls, pages, routes
from qualab.service.api.answers import RETRY_AFTER_S
from qualab.service.api.openapi import describe, problems
from qualab.service.api.server import RequestMiddleware
from qualab.service.api.state import EventStreams, Polls, Reader, State
from qualab.service.context import Context

router = APIRouter(tags=["health"])
NO_STORE = {"Cache-Control": "no-store"}


class StateCollector(Collector):
    """Metrics of the database and the queue, read when Prometheus asks."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        context = self._state.context
        try:
            counts, workers = context.store.counts(), context.workers()
        except StoreError:
            yield GaugeMetricFamily("qualab_database_up", "Whether the database answers", 0)
            return
        yield GaugeMetricFamily("qualab_database_up", "Whether the database answers", 1)
        by_status = GaugeMetricFamily("qualab_comparisons", "Comparisons by status", labels=("status",))
        for status in ComparisonStatus:
            by_status.add_metric([status], counts.get(status, 0))
        yield by_status
        yield GaugeMetricFamily(
            "qualab_queue_length", "Comparisons that wait for a worker", counts.get(ComparisonStatus.QUEUED, 0)
        )
        yield GaugeMetricFamily("qualab_workers", "Workers that were seen alive lately", workers)
        n_clients = self._state.events.n_clients
        yield GaugeMetricFamily("qualab_event_streams", "Clients that follow events", n_clients)


OPEN: dict[str, Any] = {"openapi_extra": {"security": []}}


@router.get("/healthz", responses={200: {"description": "Alive", "content": {"application/json": {}}}}, **OPEN)
async def healthz() -> Response:
    """Tell whether the process answers. Needs no token."""
    return Response(b'{"status":"alive"}', headers=NO_STORE, media_type="application/json")


@router.get(
    "/readyz",
    responses={
        200: {"description": "Ready", "content": {"application/json": {}}},
        503: {"description": "Not ready: `reasons` says why", "content": {"application/json": {}}},
    },
    **OPEN,
)
def readyz(request: Request) -> Response:
    """Tell whether the database answers with this version's schema, and a worker is alive."""
    state: State = request.app.state.qualab
    reasons, checks = [], {"database": "ok", "schema": "ok", "workers": 0}
    try:
        state.context.store.counts()
        current, head = state.schema()
        if current != head:
            checks["schema"] = "other"
            reasons.append("the database has another schema than this version: qualab db upgrade")
        checks["workers"] = state.context.workers()
        if not checks["workers"]:
            reasons.append("no worker was seen lately")
    except QualabError:
        checks["database"] = "away"
        reasons.append("the database does not answer")
    content = orjson.dumps({"status": "not ready" if reasons else "ready", **checks, "reasons": reasons})
    headers = NO_STORE | ({"Retry-After": str(RETRY_AFTER_S)} if reasons else {})
    return Response(content, 503 if reasons else 200, headers=headers, media_type="application/json")


@router.get(
    "/metrics",
    responses=problems()
    | {200: {"description": "For Prometheus", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(call: Reader) -> Response:
    """Count requests, comparisons, the queue, workers."""
    content = generate_latest(call.request.app.state.collectors)
    return Response(content, media_type=CONTENT_TYPE_LATEST, headers=NO_STORE)


def create_app(
    context: Context, *, schema: Callable[[], tuple[str | None, str]], own_token: Token | None = None
) -> FastAPI:
    """Make the app. `schema` tells the database's schema and this version's."""
    settings = context.settings
    state = State(
        context=context,
        authenticator=Authenticator(context.store, context.services.clock, own=own_token),
        limit=RateLimit(rate=settings.rate, burst=settings.burst),
        events=EventStreams(context),
        polls=Polls(context),
        schema=schema,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = settings.threads
        try:
            yield
        finally:
            state.events.close()

    app = FastAPI(title="qualab", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.state.qualab = state
    app.state.collectors = CollectorRegistry()
    app.state.collectors.register(StateCollector(state))
    for each in (router, routes.router, pages.router, controls.router):
        app.router.routes += each.routes  # `include_router` would match every request twice
    for kind in (QualabError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, pages.answer_page_or_problem)
    app.add_middleware(RequestMiddleware, settings=settings, registry=app.state.collectors)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]  # as FastAPI's documentation does
    return app
