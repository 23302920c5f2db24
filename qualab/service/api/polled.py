"""Final verdicts, answered before any route: CI polls them, and finding the route costs more than all the rest."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from qualab.errors import TooManyRequests
from qualab.model import registry as access
from qualab.service.api.answers import tagged
from qualab.service.api.state import remembered, state_of, take_turn


class Polled:
    """Answers what is in memory to whom is known; whatever else there is to say about a request, the app says."""

    def __init__(self, app: ASGIApp, *, route: Route) -> None:
        """`route`: what the same request would be led to; its path has one parameter."""
        self._app = app
        self._route = route
        self._before, self._after = route.path.split("{comparison_id}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._known(scope) if scope["type"] == "http" and scope["method"] == "GET" else None
        if answer is not None:
            scope["route"] = self._route
        await (answer or self._app)(scope, receive, send)

    def _known(self, scope: Scope) -> Response | None:
        path: str = scope["path"]
        if not (path.endswith(self._after) and path.startswith(self._before)):
            return None
        request = Request(scope)
        kept = state_of(request).verdicts.get(path[len(self._before) : -len(self._after)])
        caller = None if kept is None else remembered(request)
        if kept is None or caller is None or not caller.scope.allows(access.Scope.READ):
            return None
        try:
            take_turn(request, caller)
        except TooManyRequests:
            return None
        return tagged(request, *kept)
