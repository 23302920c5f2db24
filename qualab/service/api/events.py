"""/v1/comparisons/{id}/events: progress as server-sent events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from qualab.service.api import samples
from qualab.service.api.docs import problems
from qualab.service.api.state import READ, state_of

router = APIRouter(prefix="/v1/comparisons/{comparison_id}/events", tags=["events"])
NOT_BUFFERED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """A stream that says when it is over, whoever ended it."""

    media_type = "text/event-stream"
    left: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.left()


@router.get(
    "",
    dependencies=READ,
    response_class=EventStream,
    responses=problems(404)
    | {
        200: {
            "description": "`progress` for each change; `end` when nothing more comes; a comment as a sign of life",
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": samples.EVENT}},
        },
        204: {"description": "The end was seen: there is nothing to ask again for"},
    },
)
async def events(
    request: Request,
    comparison_id: str,
    last_event_id: Annotated[str, Header(description="What was seen last is not sent again")] = "",
) -> Response:
    """Follow a comparison: answers by arm, rate, phase, status, verdict."""
    broadcast = state_of(request).broadcast
    channel = await broadcast.join(comparison_id)
    if channel.is_over and channel.mark == last_event_id:  # an EventSource asks again for ever, until it is told this
        broadcast.leave(channel)
        return Response(status_code=204)
    stream = EventStream(broadcast.messages(channel, last_event_id), headers=NOT_BUFFERED)
    stream.left = lambda: broadcast.leave(channel)
    return stream
