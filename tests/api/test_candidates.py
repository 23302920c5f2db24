"""Several candidates over the service: one request, a comparison each, and what ranks them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.api.conftest import EXPERIMENT, OFF, ON, Make, Service, at_work, check_problem
from tests.app.fakes import Bench, FakeEndpoint, FakeHarness, FakeTasks, failure
from tests.app.payoffs import observe
from tests.waiting import wait_for

SECOND = "http://127.0.0.1:8003/v1"
CANDIDATES = {"k3": ON, "eagle": SECOND}


@dataclass
class Three(Bench):
    second: FakeEndpoint = field(default_factory=lambda: FakeEndpoint(SECOND, drafts=True))

    @asynccontextmanager
    async def _open(self, url: str, **_: Any) -> Any:
        yield {OFF: self.baseline, ON: self.candidate, SECOND: self.second}[url]


@pytest.fixture
def three(make: Make) -> Iterator[Service]:
    bench = Three(
        baseline=FakeEndpoint(OFF),
        candidate=FakeEndpoint(ON, drafts=True),
        harness=FakeHarness(FakeTasks(n_items=40)),
    )
    service = make(bench=bench)
    with at_work(service.context):
        yield service


def group_of(service: Service, comparison_id: str) -> dict[str, Any]:
    assert comparison_id.endswith("-k3")

    def ended() -> Any:
        read = service.client.get(f"/v1/groups/{comparison_id.removesuffix('-k3')}")
        found = read.json()
        is_over = read.status_code == 200 and all(
            one["status"] in ("finished", "stopped") for one in found["candidates"]
        )
        return found if is_over else None

    return dict(wait_for(ended, within_s=10.0))


def sent(**changes: Any) -> dict[str, Any]:
    return (
        {name: value for name, value in EXPERIMENT.items() if name != "candidate"}
        | {"candidates": CANDIDATES}
        | changes
    )


def test_one_request_gives_each_candidate_a_comparison_and_a_page_that_ranks_them(three: Service) -> None:
    answer = three.client.post("/v1/comparisons", json=sent())
    assert answer.status_code == 202, answer.text
    comparison_id = answer.json()["id"]
    group = group_of(three, comparison_id)
    assert {one["name"] for one in group["candidates"]} == {"k3", "eagle"}
    assert three.done(comparison_id)["status"] == "finished"
    assert len(three.bench.baseline.bodies) == 40
    for language, title in (("en", "2 candidates against one baseline"), ("ko", "같은 기준과 비교한 후보 2개")):
        page = three.client.get(f"/groups/{group['id']}?lang={language}")
        assert page.status_code == 200
        assert title in page.text
        for one in group["candidates"]:
            assert f'href="/comparisons/{one["comparison_id"]}"' in page.text
    own = three.client.get(f"/comparisons/{group['id']}-eagle").text
    assert f'href="/groups/{group["id"]}"' in own
    check_problem(three.client.get("/v1/groups/none"), 404, "comparison-not-found")
    assert three.client.get("/groups/none").status_code == 404


def test_a_first_candidate_that_stops_is_told_and_resumed_with_its_group(three: Service) -> None:
    good = three.bench.candidate.answer
    three.bench.candidate.answer = lambda prompt, seed: failure()
    comparison_id = three.client.post("/v1/comparisons", json=sent()).json()["id"]
    assert three.done(comparison_id)["status"] == "stopped"
    group = group_of(three, comparison_id)
    assert [(one["name"], one["status"]) for one in group["candidates"]] == [("eagle", "finished"), ("k3", "stopped")]
    assert "stopped" in three.client.get(f"/groups/{group['id']}").text
    three.bench.candidate.answer = good
    again = three.client.post(f"/v1/comparisons/{comparison_id}/resume", json={"retry_failed": True})
    assert again.status_code == 202
    assert three.done(comparison_id)["status"] == "finished"


def test_a_group_is_cancelled_and_resumed_by_any_of_its_comparisons(three: Service) -> None:
    client = three.client
    three.bench.candidate.delay_s = 10.0
    comparison_id = client.post("/v1/comparisons", json=sent()).json()["id"]
    group_id = comparison_id.removesuffix("-k3")
    both = [comparison_id, f"{group_id}-eagle"]

    def states() -> list[str]:
        return [client.get(f"/v1/comparisons/{one}/verdict").json().get("status", "") for one in both]

    wait_for(lambda: states() == ["running", "running"])
    assert client.post(f"/v1/comparisons/{both[1]}/cancel").json()["status"] == "cancelled"
    three.bench.candidate.delay_s = 0.0
    wait_for(lambda: not three.store.runners(both, now=three.bench.clock.now(), stale_after_s=60))
    assert states() == ["cancelled", "cancelled"]
    listed = client.get(f"/v1/comparisons?group={group_id}").json()["entries"]
    assert sorted(one["id"] for one in listed) == sorted(both)
    assert f'href="/comparisons/{both[1]}"' in client.get(f"/?group={group_id}").text
    again = client.post(f"/v1/comparisons/{both[1]}/resume")
    assert (again.status_code, again.json()["status"]) == (202, "planned")
    check_problem(client.post(f"/v1/comparisons/{both[0]}/resume"), 409, "wrong-state")
    assert {one["status"] for one in group_of(three, comparison_id)["candidates"]} == {"finished"}
    wait_for(lambda: states() == ["finished", "finished"])
    check_problem(client.post(f"/v1/comparisons/{both[1]}/cancel"), 409, "wrong-state")


def test_a_first_candidate_that_fails_early_stands_for_its_group_to_the_end(three: Service) -> None:
    """Else a worker that dies meanwhile would leave the others to nobody."""
    three.bench.candidate.answer = lambda prompt, seed: failure()
    three.bench.second.delay_s = 0.05
    comparison_id = three.create(candidate=None, candidates=CANDIDATES)
    second = comparison_id.replace("-k3", "-eagle")
    assert three.done(comparison_id)["status"] == "stopped"
    assert three.store.summary(second).status == "finished"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"candidate": ON}, "candidates"),
        ({"candidates": {"a": ON, "b": OFF}}, "candidates"),
        ({"candidates": {"a": ON, "b": ON}}, "candidates"),
        ({"candidates": {"a": [ON, SECOND], "b": ["http://127.0.0.1:8004/v1", SECOND]}}, "candidates"),
        ({"candidates": {"a": ON, "b": 7}}, "candidates.b"),
        ({"candidates": {}}, "candidate"),
    ],
)
def test_bad_candidates_are_refused(three: Service, changes: dict[str, Any], field: str) -> None:
    problem = check_problem(three.client.post("/v1/comparisons", json=sent(**changes)), 422, "invalid-value")
    assert [one["field"] for one in problem["errors"]] == [field]


def test_a_group_shows_speed_by_kind_of_work_and_the_chain_of_its_arms(three: Service) -> None:
    group = group_of(three, three.client.post("/v1/comparisons", json=sent()).json()["id"])
    assert (group["chain"], {len(one["works"]) for one in group["candidates"]}) == (None, {0})
    with three.store as store:
        for one in group["candidates"]:
            observe(store, one["comparison_id"])
    timed = three.client.get(f"/v1/groups/{group['id']}").json()
    assert [[own["work"] for own in one["works"]] for one in timed["candidates"]] == [["copy", "prose"]] * 2
    chain = timed["chain"]
    assert [own["name"] for own in chain["steps"]] == list(CANDIDATES)
    assert chain["agrees"]
    assert chain["product"] == pytest.approx(chain["whole"]["value"], rel=0.01)
    page = three.client.get(f"/groups/{group['id']}?lang=en").text
    for text in ("copying", "baseline → k3", "k3 → eagle", "baseline → eagle", "agrees with it"):
        assert text in page
