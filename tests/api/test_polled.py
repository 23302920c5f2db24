"""Final verdicts are answered before any route, and say the same as through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qualab.model.registry import Scope
from qualab.service.api import polled
from tests.api.conftest import Service
from tests.inline_jobs import InlineJobs


@pytest.fixture
def finished(make: Callable[..., Service]) -> Any:
    """A service with a limit of rate, and the path of a verdict that is final."""
    jobs = InlineJobs()
    service = make(jobs=jobs, rate=0.001, burst=200)
    jobs.begin(service.desk)
    yield service, f"/v1/comparisons/{service.finished()}/verdict"
    jobs.close()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was answered before any route."""
    seen: list[str] = []

    class Counting(polled.Polled):
        def _known(self, scope: Any) -> Any:
            answer = super()._known(scope)
            if answer is not None:
                seen.append(scope["path"])
            return answer

    monkeypatch.setattr("qualab.service.api.app.Polled", Counting)
    return seen


def test_the_shortcut_answers_as_the_route_does(taken: list[str], finished: tuple[Service, str]) -> None:
    service, path = finished
    service.app.state.qualab.verdicts.drop(path.split("/")[3])
    routed = service.client.get(path)
    assert taken == []
    again = service.client.get(path)
    assert taken == [path]
    assert (again.status_code, again.content) == (200, routed.content)
    names = ("etag", "cache-control", "content-type", "x-content-type-options")
    assert [again.headers[name] for name in names] == [routed.headers[name] for name in names]
    assert service.client.get(path, headers={"If-None-Match": routed.headers["etag"]}).status_code == 304
    assert len(taken) == 2
    route = "/v1/comparisons/{comparison_id}/verdict"
    assert f'method="GET",route="{route}",status="304"}} 1.0' in service.client.get("/metrics").text


def test_the_shortcut_lets_in_whom_the_route_lets_in(taken: list[str], finished: tuple[Service, str]) -> None:
    service, path = finished
    service.client.get(path)
    headers = service.token(Scope.READ)
    service.desk.registry.tokens()
    service.app.state.qualab.door._has_tokens = (float("-inf"), True)
    taken.clear()
    assert service.client.get(path).status_code == 401
    assert service.client.get(path, headers={"Authorization": "Bearer nonsense"}).status_code == 401
    assert taken == []
    assert [service.client.get(path, headers=headers).status_code for _ in range(2)] == [200, 200]
    assert taken == [path]  # the first was not known yet


def test_the_limit_of_rate_holds_on_the_shortcut(taken: list[str], finished: tuple[Service, str]) -> None:
    service, path = finished
    statuses = [service.client.get(path).status_code for _ in range(250)]
    refused = service.client.get(path)
    assert (refused.status_code, refused.json()["code"]) == (429, "too-many-requests")
    assert 100 < statuses.count(200) == len(taken) < 201


def test_other_methods_and_paths_take_their_route(taken: list[str], finished: tuple[Service, str]) -> None:
    service, path = finished
    service.client.get(path)
    taken.clear()
    assert service.client.post(path).status_code == 405
    assert service.client.get(path.replace("/v1/", "/v2/")).status_code == 404
    assert service.client.get(f"{path}/").status_code == 404
    assert taken == []
