"""Looks into every server of an arm before, during and after a run: each is checked as a single one is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qualab.endpoints.replicas import Replicas, merged_engine
from qualab.model.engine import Engine, Finding, Preflight, ReplicasSeen, engines_seen
from qualab.model.items import Item
from qualab.model.names import ArmName
from qualab.model.plan import Plan
from qualab.model.reason import Reason
from qualab.run import preflight
from qualab.run.preflight import Before, Endpoints, changed_settings, stop_at
from qualab.run.prepare import Run

if TYPE_CHECKING:
    from qualab.endpoints.client import HttpEndpoint

ALIKE = "Start all replicas of an arm from one image, one checkpoint and one configuration, or leave this one out"


def _replicated(endpoints: Endpoints) -> dict[ArmName, Replicas]:
    return {arm: endpoint for arm, endpoint in endpoints.items() if isinstance(endpoint, Replicas)}


async def check_arms(
    endpoints: Endpoints, plan: Plan, items: Sequence[Item], tokenize: Mapping[ArmName, bool], before: Before
) -> Preflight:
    """Check the arms as `preflight.check_arms` does, each replica with one of the other arm, and among themselves."""
    several = _replicated(endpoints)
    if not several:
        return await preflight.check_arms(endpoints, plan, items, tokenize, before)
    pairs = list(_pairs(endpoints))
    checks = await asyncio.gather(*(preflight.check_arms(pair, plan, items, tokenize, before) for pair in pairs))
    common = [own for own in checks[0].findings if all(own in check.findings for check in checks)]
    findings = list(common)
    for pair, check in zip(pairs, checks, strict=True):
        urls = ", ".join(pair[arm].url for arm in several)
        for own in check.findings:
            named = replace(own, what=Reason("preflight.at", {"urls": urls, "finding": own.what}))
            if own not in common and named not in findings:
                findings.append(named)
    engines: dict[ArmName, Engine] = {}
    tokens: dict[ArmName, str] = {}
    for arm in endpoints:
        by_url = {pair[arm].url: check.engines[arm] for pair, check in zip(pairs, checks, strict=True)}
        engines[arm] = merged_engine([*by_url.values()])
        tokens.update({arm: checks[0].tokens[arm]} if arm in checks[0].tokens else {})
        first_url, first = next(iter(by_url.items()))
        for pair, check in zip(pairs, checks, strict=True):
            if check.tokens.get(arm) != tokens.get(arm):
                findings.append(_finding("preflight.replica-tokenizes", arm, pair[arm].url, other=first_url))
        findings += [own for url, engine in by_url.items() for own in _differing(arm, url, engine, first)]
        instances = [own.config["instance_id"] for own in by_url.values() if own.config.get("instance_id")]
        if len(instances) > len(set(instances)):
            findings.append(_finding("preflight.one-replica", arm, ", ".join(by_url)))
    return Preflight(engines=engines, findings=tuple(findings), tokens=tokens)


def _pairs(endpoints: Endpoints) -> Iterator[dict[ArmName, HttpEndpoint]]:
    parts = {arm: own.parts if isinstance(own, Replicas) else [own] for arm, own in endpoints.items()}
    for number in range(max(map(len, parts.values()))):
        yield {arm: own[number % len(own)] for arm, own in parts.items()}


def _differing(arm: ArmName, url: str, engine: Engine, like: Engine) -> Iterator[Finding]:
    for part in changed_settings(like, engine):
        values = {"setting": part.name, "value": part.candidate, "other": part.baseline}
        yield _finding("preflight.replica-differs", arm, url, **values)
    if bool(like.config) is not bool(engine.config):
        yield _finding("preflight.replica-closed", arm, url)
    counted = [own.counters for own in (like, engine) if own.counters and own.counters.tells_drafting]
    if len({own.drafting is None for own in counted}) > 1:
        yield _finding("preflight.replica-drafts", arm, url)


def _finding(code: str, arm: ArmName, url: str, **values: str) -> Finding:
    return Finding(stops=True, what=Reason(code, {"arm": arm, "url": url, **values}), hint=ALIKE)


async def leave_out_dead(endpoints: Endpoints) -> None:
    """Leave out replicas that have died since a comparison began."""
    await asyncio.gather(*(own.leave_out_dead() for own in _replicated(endpoints).values()))


async def record_replicas(run: Run, endpoints: Endpoints) -> None:
    """Store what each replica did since it was last told of, and which ones were left out."""
    for arm, own in _replicated(endpoints).items():
        await own.counters()
        uses = own.uses()
        if any(use.n_answers or use.lost for use in uses):
            seen = ReplicasSeen(arm=arm, seen_at=run.services.clock.now(), replicas=uses)
            await asyncio.to_thread(run.services.store.add_observation, run.id, seen)


async def look_again(run: Run) -> None:
    """Check that every replica is what its arm was before, and record them. Raises PairDiffers."""
    several = _replicated(run.endpoints)
    if not several:
        return
    await record_replicas(run, run.endpoints)
    before = engines_seen(await asyncio.to_thread(run.services.store.observations, run.id))
    model = run.plan.sampling.model
    described = await asyncio.gather(*(own.engines(model=model) for own in several.values()))
    stop_at(
        finding
        for arm, engines in zip(several, described, strict=True)
        for url, engine in engines.items()
        for finding in _differing(arm, url, engine, before[arm])
    )


def replica_pauses(run: Run, ends: Iterable[int]) -> list[tuple[int, Callable[[], Awaitable[bool]]]]:
    """Plan pauses at these positions in which replicas are looked at again; none where there are none."""

    async def look() -> bool:
        await look_again(run)
        return True

    return [(end, look) for end in ends] if _replicated(run.endpoints) else []
