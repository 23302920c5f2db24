"""Many clients at once, on a socket: event streams, clients that leave, plans that take long."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx2
import pytest

from qualab.model.names import ComparisonStatus
from tests.api.conftest import Make, Service, at_work, make_bench, make_service, on_a_socket
from tests.api.test_documents import SlowHarness
from tests.store.samples import put
from tests.waiting import wait_for

N_CLIENTS = 50


@pytest.fixture
def served() -> Iterator[tuple[Service, str]]:
    service = make_service(port=0, heartbeat_s=0.2)
    with at_work(service.context), on_a_socket(service) as url:
        yield service, url


def events(text: str) -> list[dict[str, str]]:
    """The messages of a stream, without comments."""
    blocks = [block for block in text.split("\n\n") if block.strip()]
    found = [dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":") for block in blocks]
    return [one for one in found if "event" in one]


def follow(url: str, comparison_id: str, **headers: str) -> list[dict[str, str]]:
    return events(httpx2.get(f"{url}/v1/comparisons/{comparison_id}/events", headers=headers, timeout=20.0).text)


def test_a_run_is_followed_to_its_end_and_what_was_seen_is_not_sent_again(served: tuple[Service, str]) -> None:
    service, url = served
    service.bench.baseline.delay_s = service.bench.candidate.delay_s = 0.05
    comparison_id = service.create(concurrency=1)
    found = follow(url, comparison_id)
    states = [json.loads(one["data"]) for one in found]
    assert [one["event"] for one in found] == ["progress"] * (len(found) - 1) + ["end"]
    answered = [one["answered"]["candidate"] for one in states]
    assert answered == sorted(answered)
    assert len(set(answered)) > 3
    assert "asking" in [one["phase"] for one in states]
    last = states[-1]
    assert (last["status"], last["verdict"], last["n_requests"]) == ("finished", "INCONCLUSIVE", 10)
    assert last["answered"] == {"baseline": 10, "candidate": 10}
    assert len({one["id"] for one in found}) == len(found)
    end = {"Last-Event-ID": found[-1]["id"]}
    again = httpx2.get(f"{url}/v1/comparisons/{comparison_id}/events", headers=end)
    assert (again.status_code, again.content) == (204, b"")
    assert service.app.state.qualab.events.n_clients == 0
    assert follow(url, comparison_id, **{"Last-Event-ID": "older"}) == found[-1:]


def test_a_stream_says_that_it_lives(make: Make) -> None:
    service = make(port=0, heartbeat_s=0.05)
    comparison_id = service.create()
    with on_a_socket(service) as url, httpx2.stream("GET", f"{url}/v1/comparisons/{comparison_id}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        seen = ""
        for text in stream.iter_text():
            seen += text
            if seen.count(": still here") == 3:
                break
    (first,) = events(seen)
    assert json.loads(first["data"])["phase"] == "waiting for a worker"


def test_streams_end_when_the_comparison_is_deleted_and_when_the_server_stops(make: Make) -> None:
    service = make(port=0)
    gone, waiting = service.create(), service.create()

    async def both(url: str) -> tuple[str, str]:
        async with httpx2.AsyncClient(timeout=20.0) as client:
            paths = [f"{url}/v1/comparisons/{comparison_id}/events" for comparison_id in (gone, waiting)]
            streams = [asyncio.ensure_future(client.get(path)) for path in paths]
            while service.app.state.qualab.events.n_clients < len(streams):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            put(service.bench.store, gone, status=ComparisonStatus.CANCELLED)
            service.client.delete(f"/v1/comparisons/{gone}")
            first = await streams[0]
            service.app.state.qualab.events.close()
            return first.text, (await streams[1]).text

    with on_a_socket(service) as url:
        first, second = asyncio.run(both(url))
    assert events(first)[-1]["event"] == "end"
    assert [one["event"] for one in events(second)] == ["progress"]


def test_no_more_clients_follow_than_allowed(make: Make) -> None:
    service = make(port=0, max_streams=2)
    comparison_id = service.create()

    async def ask(url: str) -> list[int]:
        async with httpx2.AsyncClient(timeout=20.0) as client:
            path = f"{url}/v1/comparisons/{comparison_id}/events"
            async with client.stream("GET", path) as one, client.stream("GET", path) as two:
                refused = await client.get(path)
            for _ in range(100):
                await asyncio.sleep(0.02)
                async with client.stream("GET", path) as later:
                    if later.status_code == 200:
                        return [one.status_code, two.status_code, refused.status_code, later.status_code]
        raise AssertionError("the places of those who left are not free again")

    with on_a_socket(service) as url:
        assert asyncio.run(ask(url)) == [200, 200, 429, 200]


def test_clients_of_one_comparison_cost_one_reader(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service, looks = make(port=0, poll_s=0.2), []
    comparison_id, read = service.create(), service.store.summary
    monkeypatch.setattr(service.store, "summary", lambda name: looks.append(name) or read(name))

    async def all_of_them(url: str) -> list[str]:
        path = f"{url}/v1/comparisons/{comparison_id}/events"
        async with httpx2.AsyncClient(timeout=20.0) as client:
            following = [asyncio.ensure_future(client.get(path)) for _ in range(N_CLIENTS)]
            while service.app.state.qualab.events.n_clients < N_CLIENTS:
                await asyncio.sleep(0.01)
            looks.clear()
            await asyncio.sleep(0.5)
            assert len(looks) <= 4
            put(service.bench.store, comparison_id, status=ComparisonStatus.CANCELLED)
            return [answer.text for answer in await asyncio.gather(*following)]

    with on_a_socket(service) as url:
        texts = asyncio.run(all_of_them(url))
    assert all("event: end" in text and '"status":"cancelled"' in text for text in texts)


@pytest.mark.parametrize("rest", [b"Content-Length: 99\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"])
def test_a_client_that_leaves_in_its_body_is_no_error_of_the_server(
    served: tuple[Service, str], caplog: pytest.LogCaptureFixture, rest: bytes
) -> None:
    parts = urlsplit(served[1])
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=5.0) as client:
        client.sendall(b"POST /v1/plans HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + rest)
        time.sleep(0.1)
    wait_for(lambda: 'route="/v1/plans",status="400"' in httpx2.get(f"{served[1]}/metrics").text, within_s=5.0)
    assert 'status="500"' not in httpx2.get(f"{served[1]}/metrics").text
    assert "unexpectedly" not in caplog.text


def test_plans_leave_threads_for_others() -> None:
    """Twelve plans that do not end, where the database has two threads."""
    bench = make_bench()
    comparison_id = make_service(bench=bench).create()
    bench.harness = SlowHarness()
    slow = make_service(bench=bench, port=0, threads=2)
    with on_a_socket(slow) as url, ThreadPoolExecutor(12) as pool:
        body = {"model": "m", "tasks": "sums"}
        plans = [pool.submit(httpx2.post, f"{url}/v1/plans", json=body, timeout=60.0) for _ in range(12)]
        for _ in range(10):
            assert httpx2.get(f"{url}/v1/comparisons/{comparison_id}").status_code == 200
        assert not any(plan.done() for plan in plans)
        bench.harness.may_end.set()
        assert [plan.result().status_code for plan in plans] == [200] * 12
