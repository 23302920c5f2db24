"""Waiting for a verdict: states that change, servers that go away, comparisons that end without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from qualab import errors
from qualab.errors import EndpointMisconfigured, EndpointUnreachable, QualabError, RunStopped
from qualab.model.comparison import Analysis
from qualab.model.names import ComparisonStatus, Verdict
from qualab.model.reason import Reason
from qualab.model.registry import ComparisonSummary
from qualab.run.gate import ServedVerdicts, gate
from tests.store.samples import NOW, filled, make_analysis

QUEUED = ComparisonStatus.QUEUED
WAITING = filled(ComparisonSummary, id="c-1", status=QUEUED, label="nightly", model="m", created_at=NOW)
RUNNING = replace(WAITING, status=ComparisonStatus.RUNNING)
DONE = replace(WAITING, status=ComparisonStatus.FINISHED, verdict=Verdict.EQUIVALENT)
NO_PAIR = {"code": "pair-differs", "message": "the candidate has no drafter", "hint": "turn it on"}
FAILED = replace(WAITING, status=ComparisonStatus.FAILED, error=NO_PAIR)
NO_ANSWERS = Reason("stopped.no-answers", {"total": 5})
STOPPED = replace(RUNNING, status=ComparisonStatus.STOPPED, stop_reason=NO_ANSWERS)
AWAY, BUSY = EndpointUnreachable("Away"), errors.TooManyRequests("Slower")
PROXY = EndpointMisconfigured("A proxy's page")


@dataclass
class Scripted:
    """Gives these answers in turn, and the last one for ever."""

    answers: Sequence[ComparisonSummary | QualabError]
    asked: int = 0
    said: list[str] = field(default_factory=list)
    away_for: float = 0  # times that metrics are asked for in vain

    async def verdict(self, comparison_id: str) -> ComparisonSummary:
        found = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(found, QualabError):
            raise found
        return found

    async def metrics(self, comparison_id: str) -> Analysis:
        self.away_for -= 1
        if self.away_for >= 0:
            raise AWAY
        return make_analysis()


async def waited(*answers: Any, timeout_s: float = 5.0, away_for: float = 0) -> tuple[Verdict, list[str]]:
    source = Scripted(answers, away_for=away_for)
    found = await gate(source, "c-1", timeout_s=timeout_s, poll_s=0.001, say=source.said.append)
    return found.verdict, source.said


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([WAITING, WAITING, RUNNING, RUNNING, DONE], ["c-1 is queued", "c-1 is running"]),
        ([RUNNING, AWAY, AWAY, RUNNING, DONE], ["c-1 is running", f"Still waiting: {AWAY.message}", "c-1 is running"]),
        ([RUNNING, BUSY, BUSY, DONE], ["c-1 is running", f"Still waiting: {BUSY.message}"]),
        ([RUNNING, PROXY, PROXY, DONE], ["c-1 is running", f"Still waiting: {PROXY.message}"]),
        ([BUSY, DONE], [f"Still waiting: {BUSY.message}"]),
    ],
)
async def test_each_state_is_told_once_until_the_verdict(answers: list[Any], said: list[str]) -> None:
    assert await waited(*answers) == (Verdict.EQUIVALENT, said)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (AWAY, EndpointUnreachable, "Away"),
        (PROXY, EndpointMisconfigured, "A proxy's page"),
        (FAILED, errors.PairDiffers, "did not run: the candidate has no drafter"),
        (replace(FAILED, error={"code": "of a later version"}), RunStopped, "did not run"),
        (STOPPED, RunStopped, "is stopped, without a verdict: none of 5 requests got an answer"),
    ],
)
async def test_an_absent_server_and_an_end_without_a_verdict_are_errors(answer: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        await waited(answer, DONE)


async def test_a_server_that_goes_away_after_the_verdict_is_waited_for_until_the_wait_ends() -> None:
    assert (await waited(DONE, away_for=2))[0] is Verdict.EQUIVALENT
    with pytest.raises(errors.InfrastructureError):
        await waited(DONE, away_for=float("inf"), timeout_s=0.05)
    with pytest.raises(errors.InfrastructureError, match="no verdict after 0"):
        await waited(RUNNING, timeout_s=0.05)


@dataclass
class Remote:
    """Answers every path with the same, and remembers it."""

    content: Any
    paths: list[str] = field(default_factory=list)

    async def get(self, path: str) -> Any:
        self.paths.append(path)
        return self.content


@pytest.mark.parametrize("content", [{}, {"entries": 5}, {"entries": [{"x": 1}]}, {"entries": [7]}])
async def test_a_list_that_is_none_of_a_qualab_service_is_said(content: Any) -> None:
    with pytest.raises(EndpointMisconfigured, match="none of a qualab service"):
        await ServedVerdicts(remote=Remote(content)).latest("nightly")


async def test_an_id_stays_one_part_of_the_path() -> None:
    remote = Remote({})
    for ask in (ServedVerdicts(remote=remote).verdict, ServedVerdicts(remote=remote).metrics):
        with pytest.raises(EndpointMisconfigured):
            await ask("../a?b#c")
    assert remote.paths == ["/comparisons/..%2Fa%3Fb%23c/verdict", "/comparisons/..%2Fa%3Fb%23c/metrics"]
