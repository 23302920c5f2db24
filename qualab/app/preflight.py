"""Both arms, opened: they answer, and they are two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from qualab.app.services import Services
from qualab.domain.engine import Counters
from qualab.domain.names import ArmName
from qualab.domain.plan import RequestPolicy
from qualab.errors import InvalidValue, QualabError
from qualab.ports import Endpoint, EndpointInfo, Store

Keys = Mapping[ArmName, str | None]
Endpoints = Mapping[ArmName, Endpoint]
FINGERPRINTED = range(500)
"""Items whose answers tell an arm's fingerprints: replicas behind one URL take turns."""


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


@asynccontextmanager
async def open_arm(
    services: Services, arm: ArmName, url: str, *, policy: RequestPolicy, keys: Keys
) -> AsyncIterator[Endpoints]:
    """One arm's endpoint alone, where the arms take turns."""
    async with services.open_endpoint(url, policy=policy, key=keys.get(arm)) as endpoint:
        yield {arm: endpoint}


async def counters_of(endpoints: Endpoints) -> dict[ArmName, Counters | None]:
    """Each engine's counters now, taken at once."""
    found = await asyncio.gather(*(endpoint.counters() for endpoint in endpoints.values()))
    return dict(zip(endpoints, found, strict=True))


def fingerprints_of(store: Store, comparison_id: str) -> dict[ArmName, frozenset[str]]:
    """Each arm's fingerprints among its first stored answers: what goes on has to answer under one of them."""
    found = {arm: store.answers(comparison_id, arm=arm, positions=FINGERPRINTED) for arm in ArmName}
    return {arm: frozenset(one.reply.system_fingerprint for one in own) - {""} for arm, own in found.items()}


async def inspect_arms(endpoints: Endpoints, *, model: str) -> dict[ArmName, EndpointInfo]:
    """What each arm says of itself. Raises the first arm's trouble, named."""
    asked = (endpoint.inspect(model=model) for endpoint in endpoints.values())
    found = await asyncio.gather(*asked, return_exceptions=True)
    infos: dict[ArmName, EndpointInfo] = {}
    for arm, info in zip(endpoints, found, strict=True):
        if isinstance(info, QualabError):
            raise type(info)(f"{arm.value.capitalize()}: {info.message}", hint=info.hint) from info
        if isinstance(info, BaseException):
            raise info
        infos[arm] = info
    return infos
