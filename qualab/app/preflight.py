"""What has to hold before a run asks its first item: both arms answer, and to requests like the plan's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from qualab.app.services import Services
from qualab.domain.canonical import encode_body
from qualab.domain.items import Item, Reply, Request
from qualab.domain.names import AnswerStatus, Api, ArmName, RequestKind
from qualab.domain.plan import RequestPolicy
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, InvalidValue, QualabError
from qualab.ports import Endpoint, EndpointInfo

NO_ECHO = (
    "{task} scores log-likelihoods (echo with logprobs, as vLLM serves them); "
    "use the generative forms in suite release instead"
)
TRIAL_TOKENS = 16
"""Enough for a reasoning model to begin; one token may come back as nothing at all."""

Keys = Mapping[ArmName, str | None]
Endpoints = Mapping[ArmName, Endpoint]


@asynccontextmanager
async def open_arms(
    services: Services, urls: Mapping[ArmName, str], *, policy: RequestPolicy, keys: Keys
) -> AsyncIterator[Endpoints]:
    """Both arms' endpoints. Raises InvalidValue when the two URLs are one server."""
    if services.is_same_server(urls[ArmName.BASELINE], urls[ArmName.CANDIDATE]):
        raise InvalidValue(
            f"Baseline and candidate are the same server ({urls[ArmName.BASELINE]})",
            hint="Give two endpoints: --baseline with the drafter off, --candidate with it on",
        )
    async with AsyncExitStack() as stack:
        yield {
            arm: await stack.enter_async_context(services.open_endpoint(urls[arm], policy=policy, key=keys.get(arm)))
            for arm in ArmName
        }


async def inspect_arms(endpoints: Endpoints, *, model: str) -> dict[ArmName, EndpointInfo]:
    """What both arms say of themselves. Raises the first arm's trouble, named."""
    found = await asyncio.gather(*(endpoints[arm].inspect(model=model) for arm in ArmName), return_exceptions=True)
    infos: dict[ArmName, EndpointInfo] = {}
    for arm, info in zip(ArmName, found, strict=True):
        if isinstance(info, QualabError):
            raise type(info)(f"{arm.value.capitalize()}: {info.message}", hint=info.hint) from info
        if isinstance(info, BaseException):
            raise info
        infos[arm] = info
    return infos


async def try_requests(endpoints: Endpoints, items: Sequence[Item], *, seed: int) -> None:
    """Sends both arms the shortest request of each kind that the plan has: a long one may be too long for the model.

    Raises EndpointMisconfigured, EndpointUnreachable.
    """
    for kind in RequestKind:
        of_kind = [item for item in items if item.kind is kind]
        if of_kind:
            await _try(endpoints, min(of_kind, key=lambda item: len(item.prompts[0].text)), seed)


async def _try(endpoints: Endpoints, item: Item, seed: int) -> None:
    first = item.requests[0]
    max_tokens = 1 if item.kind is RequestKind.LOGLIKELIHOOD else TRIAL_TOKENS
    request = replace(first, payload={**first.payload, "max_tokens": max_tokens})
    body = encode_body(request.payload, seed=seed)
    replies = await asyncio.gather(*(endpoints[arm].ask(request, body) for arm in ArmName))
    for arm, reply in zip(ArmName, replies, strict=True):
        _check_tried(reply, item, f"{arm.value.capitalize()} at {endpoints[arm].url}", request)


def _check_tried(reply: Reply, item: Item, arm: str, request: Request) -> None:
    if reply.status.is_answer or not reply.error:
        return
    is_generation = item.kind is RequestKind.GENERATION
    # a body without log-likelihoods is what a server gives that cannot serve them
    if reply.status.is_failure and (is_generation or reply.status is not AnswerStatus.BAD_BODY):
        raise EndpointUnreachable(f"{arm} did not answer a trial request of {item.task}: {reply.error}")
    hint = _route_hint(request) if is_generation else NO_ECHO.format(task=item.task)
    raise EndpointMisconfigured(f"{arm} does not serve requests of {item.task}: {reply.error}", hint=hint)


def _route_hint(request: Request) -> str:
    if request.api is Api.CHAT:
        return "The trial request went to the chat route; --no-apply_chat_template uses completions"
    return "The trial request went to the completions route"
