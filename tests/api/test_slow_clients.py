"""Clients that leave, and plans that take long: a socket's own business."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx2
import pytest

from qualab.model.ports import TaskOptions
from tests.api.conftest import Service, make_bench, make_service, on_a_socket
from tests.app.fakes import FakeHarness, FakeTasks


@pytest.fixture
def served() -> Iterator[tuple[Service, str]]:
    service = make_service(port=0)
    with on_a_socket(service) as url:
        yield service, url


@pytest.mark.parametrize("rest", [b"Content-Length: 99\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"])
def test_a_client_that_leaves_in_its_body_is_no_error_of_the_server(
    served: tuple[Service, str], caplog: pytest.LogCaptureFixture, rest: bytes
) -> None:
    parts = urlsplit(served[1])
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=5.0) as client:
        client.sendall(b"POST /v1/plans HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + rest)
        time.sleep(0.1)
    ends_at = time.monotonic() + 5.0
    while 'route="/v1/plans",status="400"' not in (said := httpx2.get(f"{served[1]}/metrics").text):
        assert time.monotonic() < ends_at, said
    assert 'status="500"' not in said
    assert "unexpectedly" not in caplog.text


def test_plans_leave_threads_for_others() -> None:
    """Twelve plans that do not end, where the database has two threads."""
    may_end = threading.Event()

    class Waiting(FakeHarness):
        def load(self, options: TaskOptions) -> FakeTasks:
            may_end.wait(20.0)
            return super().load(options)

    bench = make_bench()
    comparison_id = make_service(bench=bench).create()
    bench.harness = Waiting(FakeTasks())
    slow = make_service(bench=bench, port=0, threads=2)
    with on_a_socket(slow) as url, ThreadPoolExecutor(12) as pool:
        body = {"model": "m", "tasks": "sums"}
        plans = [pool.submit(httpx2.post, f"{url}/v1/plans", json=body, timeout=60.0) for _ in range(12)]
        for _ in range(10):
            assert httpx2.get(f"{url}/v1/comparisons/{comparison_id}").status_code == 200
        assert not any(plan.done() for plan in plans)
        may_end.set()
        assert [plan.result().status_code for plan in plans] == [200] * 12
