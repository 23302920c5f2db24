"""Waits for a comparison's verdict, wherever it is kept, so that a pipeline goes on or stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from pydantic import TypeAdapter, ValidationError

from qualab.errors import (
    ComparisonNotFound,
    EndpointMisconfigured,
    InfrastructureError,
    QualabError,
    RunStopped,
    TooManyRequests,
    UsageError,
    error_class,
)
from qualab.model.comparison import Analysis
from qualab.model.names import ComparisonStatus
from qualab.model.ports import Clock, ComparisonFilter
from qualab.model.registry import ComparisonSummary, Page, not_found
from qualab.model.report import BoxLine, GateResult
from qualab.report.words import ENGLISH
from qualab.run.prune import runner_of

if TYPE_CHECKING:
    from qualab.endpoints.remote import Service
    from qualab.store import Store

T = TypeVar("T")
Say = Callable[[str], None]
PASSING = (InfrastructureError, TooManyRequests, EndpointMisconfigured)
"""Errors of a service that answered before: it is away or busy, or a proxy speaks in its place for a while."""


@dataclass(frozen=True, slots=True)
class StoredVerdicts:
    """A database that this process opens itself."""

    store: Store
    clock: Clock

    async def latest(self, label: str) -> str:
        """Find the newest comparison with a label. Raises ComparisonNotFound."""
        return _newest(self.store.page(ComparisonFilter(label=label, limit=1)), label)

    async def verdict(self, comparison_id: str) -> ComparisonSummary:
        try:  # a beginning of its id will do, once it has a plan
            summary = self.store.summary(self.store.get(comparison_id).id)
        except ComparisonNotFound as unknown:
            with suppress(ComparisonNotFound):
                return self.store.summary(comparison_id)
            raise unknown
        is_running = summary.status is ComparisonStatus.RUNNING and not summary.is_requested
        if is_running and runner_of(self.store, summary.id, now=self.clock.now()) is None:
            summary = replace(summary, status=ComparisonStatus.INTERRUPTED)
        return summary

    async def metrics(self, comparison_id: str) -> Analysis:
        if analysis := self.store.analysis(comparison_id):
            return analysis
        raise not_found(comparison_id)


@dataclass(frozen=True, slots=True)
class ServedVerdicts:
    remote: Service

    async def latest(self, label: str) -> str:
        """Find the newest comparison with a label. Raises ComparisonNotFound."""
        page = await self.remote.get(f"/comparisons?{urlencode({'label': label, 'limit': 1})}")
        return _newest(_read(Page[ComparisonSummary], page), label)

    async def verdict(self, comparison_id: str) -> ComparisonSummary:
        return _read(ComparisonSummary, await self.remote.get(f"/comparisons/{quote(comparison_id, safe='')}/verdict"))

    async def metrics(self, comparison_id: str) -> Analysis:
        return _read(Analysis, await self.remote.get(f"/comparisons/{quote(comparison_id, safe='')}/metrics"))

    async def box(self, comparison_id: str) -> tuple[BoxLine, ...]:
        """Read the report's box; empty from an older server."""
        try:
            detail = await self.remote.get(f"/comparisons/{quote(comparison_id, safe='')}/gate")
        except EndpointMisconfigured:
            return ()
        return _read(tuple[BoxLine, ...], detail.get("box", ()))

    async def pdf(self, comparison_id: str) -> bytes:
        return await self.remote.download(f"/comparisons/{quote(comparison_id, safe='')}/report?format=pdf")


def _read(kind: type[T], content: object) -> T:
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as exc:
        message = "The server's answer is none of a qualab service"
        raise EndpointMisconfigured(
            message, hint="Name a server of `qualab serve`, of this version or a newer one"
        ) from exc


def _newest(page: Page[ComparisonSummary], label: str) -> str:
    if not page.entries:
        raise ComparisonNotFound(f"There is no comparison labelled '{label}'", hint="Labels are listed by: qualab list")
    return page.entries[0].id


Source = StoredVerdicts | ServedVerdicts


async def gate(source: Source, comparison_id: str, *, timeout_s: float, poll_s: float, say: Say) -> GateResult:
    """Wait for the verdict. `say` is told the comparison's status each time that it changes.

    Raises InfrastructureError after `timeout_s`; ComparisonNotFound; what kept the comparison from running, or
    RunStopped where it ended without a verdict.
    """
    try:
        async with asyncio.timeout(timeout_s):
            state = await _ended(source, comparison_id, poll_s=poll_s, say=say)
            if state.verdict is None:
                raise unfinished(state)
            metrics = await _patiently(lambda: source.metrics(state.id), poll_s=poll_s, say=say)
    except TimeoutError as exc:
        raise InfrastructureError(
            f"Comparison {comparison_id} had no verdict after {timeout_s:g} s",
            hint="Give it longer with --timeout; the comparison itself goes on",
            code="gate-timed-out",
        ) from exc
    return gate_result(state, metrics)


def gate_result(state: ComparisonSummary, analysis: Analysis) -> GateResult:
    """Say what a gate says of a comparison that has its verdict."""
    names = ("plan_hash", "verdict", "reasons", "caveats", "metrics", "audit")
    shared = {name: getattr(analysis, name) for name in names}
    return GateResult(id=state.id, label=state.label, model=state.model, **shared)


def check_policy(result: GateResult, policy: Mapping[str, Any], *, where: str) -> None:
    """Hold what was compared against a policy. Raises UsageError where the plan was weaker."""
    weaker = []
    for name in policy["critical"]:
        own = [row for row in result.metrics if fnmatchcase(row.id, name) or fnmatchcase(row.task, name)]
        if not any(row.is_primary for row in own):
            weaker.append(f"{name} {'decides nothing' if own else 'was not compared'}")
    for row in result.primaries if "margin" in policy else ():
        if row.margin is not None and row.margin > policy["margin"] + 1e-12:
            weaker.append(f"the margin of {row.id} is {row.margin:g}, above {policy['margin']:g}")
    if weaker:
        raise UsageError(
            f"Comparison {result.id} does not follow {where}: {'; '.join(weaker)}",
            hint=f"Compare again with --policy-file {where}: tiers and margins are chosen before the data",
            code="policy-not-followed",
        )


async def _ended(source: Source, comparison_id: str, *, poll_s: float, say: Say) -> ComparisonSummary:
    """Wait for the end, also of a server that is away for a while, except at the very first."""
    look, last = partial(source.verdict, comparison_id), ""

    def tell(news: str) -> None:
        nonlocal last
        if news != last:
            say(news)
        last = news

    state = await _patiently(look, poll_s=poll_s, say=tell, passing=(TooManyRequests,))
    while not state.has_ended:
        tell(f"{state.id} is {state.status.value}")
        await asyncio.sleep(poll_s)
        state = await _patiently(look, poll_s=poll_s, say=tell)
    return state


async def _patiently(
    look: Callable[[], Awaitable[T]], *, poll_s: float, say: Say, passing: tuple[type[QualabError], ...] = PASSING
) -> T:
    while True:
        try:
            return await look()
        except passing as error:
            say(f"Still waiting: {error.message}")
        await asyncio.sleep(poll_s)


def unfinished(state: ComparisonSummary) -> QualabError:
    """Say why a comparison that has ended has no verdict."""
    if state.error:
        code, message, hint = (state.error.get(name, "") for name in ("code", "message", "hint"))
        kind = error_class(code, RunStopped)
        return kind(f"Comparison {state.id} did not run: {message}", hint=hint, code=code)
    why = f": {ENGLISH.reason(state.stop_reason)}" if state.stop_reason else ""
    return RunStopped(
        f"Comparison {state.id} is {state.status.value}, without a verdict{why}", hint=f"qualab resume {state.id}"
    )
