"""The gate over REST: exit code, JUnit, and waiting for the end; webhooks, signed and delivered whatever happens."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import secrets
import time
import xml.etree.ElementTree as Xml
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from qualab.errors import InvalidValue, UsageError
from qualab.model.names import ComparisonStatus, WebhookState
from qualab.model.ports import Clock
from qualab.service.settings import ServiceSettings
from qualab.service.webhooks import WebhookSender
from tests.api.conftest import EXPERIMENT, Make, Service, at_work, check_problem, make_bench, make_service, on_a_socket
from tests.fresh_store import opened
from tests.scripted_server import ScriptedServer, after, reply
from tests.waiting import wait_for

now_utc = Clock().now
SECRET = secrets.token_bytes(32)


def test_the_exit_code_and_junit_of_a_verdict(working: Service) -> None:
    path = f"/v1/comparisons/{working.finished(label='nightly')}"
    read = working.client.get(f"{path}/gate?wait=60")
    detail = read.json()
    assert (read.status_code, read.headers["Qualab-Exit-Code"]) == (200, "3")
    assert (detail["exit_code"], detail["verdict"], detail["label"]) == (3, "INCONCLUSIVE", "nightly")
    assert all(reason["text"] for reason in detail["reasons"])
    assert working.client.get(f"{path}/gate", headers={"If-None-Match": read.headers["ETag"]}).status_code == 304
    junit = working.client.get(f"{path}/report?format=junit")
    assert (junit.headers["content-type"], junit.headers["Qualab-Exit-Code"]) == ("application/xml", "3")
    assert Xml.fromstring(junit.content).find(".//skipped[@type='INCONCLUSIVE']") is not None
    check_problem(working.client.get(f"{path}/report?format=doc"), 422, "invalid-request")


def test_what_ended_without_a_verdict_has_the_code_of_its_error(idle: Service) -> None:
    ended = idle.create()
    idle.client.post(f"/v1/comparisons/{ended}/cancel")
    read = idle.client.get(f"/v1/comparisons/{ended}/gate?wait=60")
    assert (read.status_code, read.headers["Qualab-Exit-Code"], read.json()["verdict"]) == (200, "5", None)
    assert "cancelled" in read.json()["error"]["message"]
    junit = idle.client.get(f"/v1/comparisons/{ended}/report?format=junit")
    assert Xml.fromstring(junit.content).find(".//error[@type='run-stopped']") is not None


def test_waiting_is_bounded_and_ends_with_the_comparison(make: Make) -> None:
    service = make(max_wait_s=0.3)
    path = f"/v1/comparisons/{service.create()}"
    for route, status in (("gate", 202), ("verdict", 200)):
        began = time.monotonic()
        read = service.client.get(f"{path}/{route}?wait=60")
        assert 0.3 <= time.monotonic() - began < 5.0
        assert (read.status_code, read.json()["has_ended"], "Qualab-Exit-Code" in read.headers) == (
            status,
            False,
            False,
        )
    check_problem(service.client.get(f"{path}/report?format=junit"), 409, "not-yet")
    check_problem(service.client.get("/v1/comparisons/none/gate?wait=60"), 404, "comparison-not-found")
    for wrong in ("-1", "nan", "soon"):
        check_problem(service.client.get(f"{path}/gate?wait={wrong}"), 422, "invalid-request")
    full = make(max_streams=1)
    full.app.state.qualab.events.n_clients = 1
    check_problem(full.client.get(f"/v1/comparisons/{full.create()}/gate?wait=9"), 429, "too-many-requests")


def test_many_that_wait_hold_no_threads_and_all_hear_of_the_end() -> None:
    """Of 2 threads none is held by 200 clients that wait."""
    service = make_service(threads=2, poll_s=0.1)

    async def all_of_them(url: str) -> tuple[list[httpx2.Response], float]:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=url, timeout=30.0, limits=limits) as client:
            path = f"/v1/comparisons/{service.create()}"
            waiting = [asyncio.create_task(client.get(f"{path}/gate?wait=20")) for _ in range(200)]
            while service.app.state.qualab.events.n_clients < 200:
                await asyncio.sleep(0.02)
            began = time.monotonic()
            assert (await client.get("/v1/comparisons")).status_code == 200
            took_s = time.monotonic() - began
            with at_work(service.context):
                return await asyncio.gather(*waiting), took_s

    with on_a_socket(service) as url:
        read, took_s = asyncio.run(all_of_them(url))
    assert {one.status_code for one in read} == {200}
    assert took_s < 2.0
    assert service.app.state.qualab.events.n_clients == 0


# webhooks


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "secret"
    path.write_text(f"whsec_{base64.b64encode(SECRET).decode()}\n")
    return {"webhook_secret_file": path, "allowed_webhooks": ("127.0.0.1",), "webhook_pause_s": 0.005}


def is_signed(headers: Mapping[str, str], body: bytes) -> bool:
    """As a receiver checks it."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(SECRET, signed, "sha256").digest()).decode()
    return (
        abs(int(headers["webhook-timestamp"]) - time.time()) < 300 and headers["webhook-signature"] == f"v1,{expected}"
    )


def told(service: Service, comparison_id: str, *states: WebhookState) -> dict[str, Any]:
    def settled() -> Any:
        read = service.client.get(f"/v1/comparisons/{comparison_id}/webhook").json()
        return read if read["state"] in (states or (WebhookState.DELIVERED,)) and read["result"] else None

    return dict(wait_for(settled, within_s=15.0))


@contextmanager
def telling(service: Service) -> Iterator[None]:
    """A worker that goes by the time that it is: what is due comes due."""
    services = replace(service.context.services, clock=Clock())
    with at_work(replace(service.context, services=services)):
        yield


@contextmanager
def service_on(url: str, **settings: Any) -> Iterator[Service]:
    bench = make_bench()
    with opened(url) as store:
        bench.store = store
        service = make_service(bench=bench, **settings)
        with service.client:
            yield service


def test_a_receiver_that_fails_twice_is_told_at_last(url: str, settings: dict[str, Any]) -> None:
    with service_on(url, public_url="https://q.example.com/", **settings) as service, ScriptedServer() as receiver:
        receiver.answer(
            reply("", status=500), reply("", status=302, headers={"Location": "/else"}), reply("", status=204)
        )
        comparison_id = service.create(webhook=f"{receiver.root}/hook?of=ci", label="nightly")
        before = service.client.get(f"/v1/comparisons/{comparison_id}/webhook").json()
        assert (before["state"], before["attempts"], before["due_at"]) == ("waiting", 0, None)
        with telling(service):
            after_it = told(service, comparison_id)
            time.sleep(0.1)  # nothing more comes
        assert (after_it["attempts"], after_it["result"], after_it["due_at"]) == (3, "HTTP 204", None)
        assert after_it["url"] == f"{receiver.root}/..."
    assert [one.path for one in receiver.seen] == ["/hook"] * 3, "no redirect is followed"
    assert len({one.headers["webhook-id"] for one in receiver.seen}) == len({one.body for one in receiver.seen}) == 1
    assert all(is_signed(one.headers, one.body) for one in receiver.seen)
    message = json.loads(receiver.seen[0].body)
    assert message["type"] == "comparison.ended"
    assert message["data"] == {
        "id": comparison_id,
        "label": "nightly",
        "model": "m",
        "status": "finished",
        "verdict": "INCONCLUSIVE",
        "exit_code": 3,
        "box": message["data"]["box"],
        "error": "",
        "url": f"https://q.example.com/comparisons/{comparison_id}",
    }


def test_it_goes_on_after_a_restart_and_after_a_worker_that_died_while_it_sent(
    url: str, settings: dict[str, Any]
) -> None:
    with service_on(url, **settings) as service, ScriptedServer() as receiver:
        port = receiver.port
        comparison_id = service.create(webhook=f"{receiver.root}/hook")
        receiver.answer(reply("", status=503))
        with telling(service):
            wait_for(lambda: len(receiver.seen) > 1, within_s=15.0)
        n_tries = service.client.get(f"/v1/comparisons/{comparison_id}/webhook").json()["attempts"]
        now, store = now_utc() + timedelta(hours=1), service.store
        taking = {"stale_after_s": 30.0, "lease_s": 0.5, "limit": 9}
        (taken,) = store.take_webhooks(now=now, **taking)  # by a worker that dies
        assert store.take_webhooks(now=now, **taking) == []
        assert taken.attempts == n_tries + 1
        (again,) = store.take_webhooks(now=now + timedelta(seconds=1), **taking)
        store.settle_webhook(replace(taken, state=WebhookState.DELIVERED, result="late"))  # it was not dead
        assert store.webhook(comparison_id) == replace(again, result=store.webhook(comparison_id).result)
        store.settle_webhook(replace(again, due_at=now_utc()))
    with service_on(url, **settings) as service, telling(service):
        # nobody listens
        wait_for(lambda: "refused" in service.store.webhook(comparison_id).result, within_s=15.0)
        with ScriptedServer(port=port) as receiver:
            receiver.answer(reply("", status=200))
            assert told(service, comparison_id)["result"] == "HTTP 200"


def test_one_that_hangs_keeps_no_other_waiting_and_one_that_is_gone_is_given_up(
    make: Make, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qualab.service.webhooks.TIMEOUT_S", 1.0)
    service = make(**settings)
    with ScriptedServer() as slow, ScriptedServer() as quick, ScriptedServer() as gone, telling(service):
        slow.answer(after(60.0, reply("")))
        quick.answer(reply("", status=201))
        gone.answer(reply("", status=410))
        hangs, works, ends = (service.create(webhook=f"{one.root}/hook") for one in (slow, quick, gone))
        told(service, works)
        assert told(service, ends, WebhookState.GIVEN_UP)["attempts"] == 1
        assert "no whole answer" in told(service, hangs, WebhookState.WAITING)["result"]
        page = service.client.get(f"/comparisons/{works}").text
        assert f"Webhook: delivered to 127.0.0.1:{quick.port} (HTTP 201, try 1" in page
        assert "중단했습니다" in service.client.get(f"/comparisons/{ends}?lang=ko").text
        # ended anew: told anew
        service.client.post(f"/v1/comparisons/{works}/resume", json={"retry_failed": True})
        wait_for(lambda: len(quick.seen) == 2, within_s=15.0)
    assert len({one.headers["webhook-id"] for one in quick.seen}) == 2


def test_tries_are_given_up_in_the_end(make: Make, settings: dict[str, Any]) -> None:
    service = make(**settings | {"webhook_pause_s": 1e-6})
    with ScriptedServer() as receiver, telling(service):
        receiver.answer(reply("", status=500))
        comparison_id = service.create(webhook=receiver.root)
        read = told(service, comparison_id, WebhookState.GIVEN_UP)
    assert (read["attempts"], len(receiver.seen), read["result"]) == (10, 10, "HTTP 500")


@pytest.mark.parametrize(
    ("allowed", "url", "said"),
    [
        ((), "https://192.0.2.1/hook", "is not on its list"),
        (("*.example.com",), "http://127.0.0.1/hook", "this machine's address"),
        (("localhost",), "http://127.0.0.1/hook", "not on its list"),
        (("127.0.0.1:99",), "http://127.0.0.1:98/hook", "not on its list"),
        (("*",), "http://10.0.0.1/hook", "a private address"),
        (("*",), "http://169.254.169.254/hook", "a link-local or metadata address"),
        (("*",), "http://no-such-host.invalid/", "has no address"),
        (("127.0.0.1",), "ftp://127.0.0.1/", "must be an http or https URL"),
        (("127.0.0.1",), "http://me:you@127.0.0.1/", "without user name"),
        (("127.0.0.1",), "http://127.0.0.1/#part", "fragment"),
        (("127.0.0.1",), "http://127.0.0.1/a b", "ASCII"),
        (("127.0.0.1",), "127.0.0.1", "must be"),
        (("127.0.0.1",), ["http://127.0.0.1"], "must be a URL"),
    ],
)
def test_a_url_that_is_not_allowed_is_refused_at_once(
    make: Make, settings: dict[str, Any], allowed: tuple[str, ...], url: Any, said: str
) -> None:
    service = make(**settings | {"allowed_webhooks": allowed})
    answer = service.client.post("/v1/comparisons", json=EXPERIMENT | {"webhook": url})
    problem = check_problem(answer, 422, answer.json()["code"])
    assert problem["code"] in ("endpoint-forbidden", "invalid-value")
    assert [one["field"] for one in problem["errors"]] == ["webhook"]
    assert said in problem["detail"]
    assert "me:you" not in str(problem)
    assert service.client.get("/v1/comparisons").json()["entries"] == []


def test_webhooks_need_a_secret(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("whsec_c2hvcnQ=")
    for path, error in ((None, InvalidValue), (tmp_path / "short", InvalidValue), (tmp_path / "none", UsageError)):
        with pytest.raises(error, match="secret"):
            WebhookSender(ServiceSettings(allowed_webhooks=("127.0.0.1",), webhook_secret_file=path))


def test_the_signature_is_that_of_the_standards_example() -> None:
    """https://github.com/standard-webhooks/standard-webhooks: its libraries' test vector."""
    sender = WebhookSender(ServiceSettings())
    sender._secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    signature = sender.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_several_candidates_have_one_message_about_the_worst(make: Make, settings: dict[str, Any]) -> None:
    from tests.api.test_candidates import CANDIDATES, Three
    from tests.app.fakes import FakeEndpoint, FakeHarness, FakeTasks

    bench = Three(
        baseline=FakeEndpoint("http://127.0.0.1:8001/v1"),
        candidate=FakeEndpoint("http://127.0.0.1:8002/v1", drafts=True),
        harness=FakeHarness(FakeTasks(n_items=40)),
    )
    service = make(bench=bench, **settings)
    with ScriptedServer() as receiver, telling(service):
        receiver.answer(reply("", status=200))
        comparison_id = service.create(candidate=None, candidates=CANDIDATES, webhook=receiver.root)
        told(service, comparison_id)
        data = json.loads(receiver.seen[0].body)["data"]
    assert len(receiver.seen) == 1
    assert [one["id"].rpartition("-")[2] for one in data["candidates"]] == [*CANDIDATES]
    assert all(one["verdict"] for one in data["candidates"])


def test_an_end_without_a_verdict_is_told_too(make: Make, settings: dict[str, Any]) -> None:
    service = make(**settings)
    with ScriptedServer() as receiver:
        receiver.answer(reply("", status=200))
        comparison_id = service.create(webhook=receiver.root)
        service.client.post(f"/v1/comparisons/{comparison_id}/cancel")
        with telling(service):
            told(service, comparison_id)
        data = json.loads(receiver.seen[0].body)["data"]
    assert (data["status"], data["verdict"], data["exit_code"]) == (ComparisonStatus.CANCELLED, None, 5)
