"""The app: routes, errors as problems, and what they share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

from anyio import CapacityLimiter
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from qualab import __version__
from qualab.model.ports import Jobs, Registry
from qualab.model.registry import Token
from qualab.run.services import Services
from qualab.service.access import Door
from qualab.service.api import (
    analyses,
    audit,
    comparisons,
    events,
    health,
    items,
    pages,
    plans,
    problems,
    reports,
    signin,
    signoffs,
)
from qualab.service.api.docs import describe
from qualab.service.api.polled import Polled
from qualab.service.api.server import Front
from qualab.service.api.state import State, Together
from qualab.service.api.streams import Broadcast
from qualab.service.api.verdicts import VerdictCache
from qualab.service.bootstrap import desk_of
from qualab.service.desk import Desk
from qualab.service.limits import RateLimit
from qualab.service.reading import Followers, verdicts_of
from qualab.service.settings import ServiceSettings
from qualab.service.viewing.comparison import Reports

FAILURES_A_SECOND, FAILURES_AT_ONCE = 1.0, 30
"""Tries without a valid token, of one address."""
HEAVY_AT_ONCE = 8
"""Plans and analyses."""

Schema = Callable[[], tuple[str | None, str]]


def create_app(
    services: Services,
    registry: Registry,
    jobs: Jobs,
    settings: ServiceSettings,
    *,
    schema: Schema = lambda: ("", ""),
) -> FastAPI:
    """The app on these ports. `schema` tells the database's schema and this version's."""
    return app_of(desk_of(services, registry, jobs, settings), settings, schema=schema)


def app_of(desk: Desk, settings: ServiceSettings, *, schema: Schema, own_token: Token | None = None) -> FastAPI:
    """The app on a desk. `own_token` opens it beside those of the database."""
    state = State(
        desk=desk,
        settings=settings,
        door=Door(desk.registry, desk.services.clock, own=own_token),
        limit=RateLimit(rate=settings.rate, burst=settings.burst),
        failures=RateLimit(rate=FAILURES_A_SECOND, burst=FAILURES_AT_ONCE),
        broadcast=Broadcast(desk, poll_s=settings.poll_s, heartbeat_s=settings.heartbeat_s, most=settings.max_streams),
        followers=Followers(desk),
        reports=Reports(desk),
        verdicts=VerdictCache(),
        reads=Together(partial(verdicts_of, desk)),
        schema=schema,
        heavy=CapacityLimiter(HEAVY_AT_ONCE),
        heavy_by_caller=WeakValueDictionary(),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = settings.threads
        try:
            yield
        finally:
            state.broadcast.close()

    app = FastAPI(title="qualab", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.state.qualab = state
    app.state.collectors = CollectorRegistry()
    counts = health.Requests(app.state.collectors)
    app.state.collectors.register(health.Stock(state))
    routers = [part.router for part in (comparisons, items, analyses, reports, signoffs, events, plans, audit, health)]
    everything = (*routers, pages.router, signin.router)
    for router in everything:
        app.include_router(router)
    app.state.routes = [route for router in everything for route in router.routes]
    problems.install(app)
    app.add_middleware(Polled, route=comparisons.verdict_route())
    app.add_middleware(Front, settings=settings, observe=counts.observe)
    app.openapi = lambda: describe(app, routers)  # type: ignore[method-assign]  # as FastAPI's documentation does
    return app
