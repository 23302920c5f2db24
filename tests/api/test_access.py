from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from qualab.errors import InvalidValue, Unauthenticated
from qualab.model.registry import Scope
from qualab.service.access import FRESH_S, Actor, Authenticator, create_token, digest_of
from qualab.service.api.state import FORWARDED
from tests.api.conftest import EXPERIMENT, Make, Service, check_problem, make_service
from tests.app.fakes import START

BY = Actor(who="me@here", at=START)


def revoke(service: Service, token_id: str) -> None:
    service.store.revoke_token(token_id, entry=BY.entry("token.revoke", token_id))


def test_nothing_is_needed_on_this_machine_until_there_has_been_a_token(make: Make) -> None:
    assert make().client.get("/v1/comparisons").status_code == 200
    service = make()
    header = service.token()
    refused = service.client.get("/v1/comparisons")
    assert check_problem(refused, 401, "unauthenticated")["errors"][0]["field"] == "Authorization"
    assert refused.headers["www-authenticate"] == "Bearer"
    assert service.client.get("/v1/comparisons", headers=header).status_code == 200
    revoke(service, service.store.tokens()[0].id)
    assert service.client.get("/v1/comparisons").status_code == 401


def test_who_may_come_from_elsewhere_needs_a_token(make: Make) -> None:
    elsewhere = {"client": "192.0.2.7"}, {"host": "0.0.0.0", "allowed_endpoints": ("localhost",)}
    for settings, headers in (*(({}, {name: "127.0.0.1"}) for name in FORWARDED), *((one, {}) for one in elsewhere)):
        client = make(**settings).client
        paths = ("/v1/comparisons", "/metrics", "/healthz")
        assert [client.get(path, headers=headers).status_code for path in paths] == [401, 401, 200]


ONE = "/v1/comparisons/{comparison_id}"
SHOWN = ("verdict", "metrics", "preflight", "acceptance", "plan", "items", "items/{position}", "analyses")
SHOWN += ("analyses/{plan_hash}", "report", "events", "signoffs", "speed", "limits", "advice", "gate", "webhook")
ROUTES = {
    Scope.READ: ["GET /metrics", "POST /v1/plans", "GET /v1/comparisons", f"GET {ONE}", "GET /v1/groups/{group_id}"],
    Scope.RUN: ["POST /v1/comparisons", f"DELETE {ONE}"],
    Scope.ADMIN: ["GET /v1/audit", f"POST {ONE}/signoffs", f"POST {ONE}/verification"],
}
ROUTES[Scope.READ] += [f"GET {ONE}/{name}" for name in SHOWN]
ROUTES[Scope.RUN] += [f"POST {ONE}/{name}" for name in ("cancel", "resume", "analyses")]
BANK = "/v1/baselines/{name}"
ROUTES[Scope.READ] += ["GET /v1/baselines", f"GET {BANK}"]
ROUTES[Scope.RUN] += ["POST /v1/baselines", f"DELETE {BANK}"]
OPEN = {"GET /healthz", "GET /readyz"}


@pytest.fixture(scope="module")
def guarded() -> Any:
    service = make_service()
    headers = {scope: service.token(scope, name=scope.value) for scope in Scope}
    with service.client:
        yield service, headers


def test_every_route_has_a_scope_which_holds_the_ones_before_it_and_no_more(guarded: Any) -> None:
    service, headers = guarded
    paths = service.app.openapi()["paths"]
    there = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert there - OPEN == {route for routes in ROUTES.values() for route in routes}
    order = list(Scope)
    for needed, route in [(needed, route) for needed, routes in ROUTES.items() for route in routes]:
        method, path = route.format(comparison_id="x", group_id="z", name="n", position=0, plan_hash="y").split()
        service.app.state.qualab.failures._left.clear()
        for scope in Scope:
            answer = service.client.request(method, path, headers=headers[scope])
            is_refused = answer.status_code == 403
            assert is_refused == (order.index(scope) < order.index(needed)), (route, scope, answer.text)
            if is_refused:
                assert (answer.json()["code"], needed.value in answer.json()["detail"]) == ("forbidden", True)
        assert service.client.request(method, path).status_code == 401


PRESENTED = (
    *("Bearer", "Bearer ", "Bearer nonsense", "Bearer qlb_", "Bearer qlb_000000000000."),
    *("Bearer qlb_000000000000." + "A" * 43, "Bearer qlb_%(id)s." + "A" * 43, "Bearer qlb_%(id)s." + "A" * 4_000),
    *("Basic %(secret)s", "%(secret)s", "Bearer %(secret)s", "bearer  qlb_%(id)s.%(secret)sx", "Bearer \u00ff\u00fe"),
)


def test_what_is_no_token_is_refused_and_not_repeated(guarded: Any) -> None:
    service, headers = guarded
    token_id, _, secret = headers[Scope.RUN]["Authorization"].removeprefix("Bearer qlb_").partition(".")
    for presented in (*PRESENTED, "Bearer qlb_%(id)s.%(secret)s "):
        text = presented % {"id": token_id, "secret": secret} if "%" in presented else presented
        service.app.state.qualab.failures._left.clear()
        answer = service.client.get("/v1/comparisons", headers={"Authorization": text.encode("latin-1")})
        assert answer.status_code == (401 if presented in PRESENTED else 200), presented
        assert secret not in answer.text


def test_expired_and_revoked_tokens_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service, seconds = make(), [0.0]
    _, text = create_token(service.store, name="ci", scope=Scope.READ, lifetime=timedelta(hours=1), by=BY)
    header = {"Authorization": f"Bearer {text}"}
    assert service.client.get("/v1/comparisons", headers=header).status_code == 200
    service.bench.clock.instant = START + timedelta(minutes=61)
    assert service.client.get("/v1/comparisons", headers=header).status_code == 401
    authenticator = Authenticator(service.store, service.bench.clock)
    monkeypatch.setattr(service.bench.clock, "monotonic_s", lambda: seconds[0])
    token, text = create_token(service.store, name="ci", scope=Scope.READ, lifetime=None, by=BY)
    assert asyncio.run(authenticator.token(text, is_local=False)).name == "ci"
    revoke(service, token.id)
    assert asyncio.run(authenticator.token(text, is_local=False)).name == "ci"
    seconds[0] = FRESH_S
    with pytest.raises(Unauthenticated):
        asyncio.run(authenticator.token(text, is_local=False))


def test_of_a_secret_only_its_hash_is_kept(idle: Service) -> None:
    for name in ("", "  ", "x" * 101, "a\nb", "a\x00b"):
        with pytest.raises(InvalidValue):
            create_token(idle.store, name=name, scope=Scope.READ, lifetime=None, by=BY)
    token, text = create_token(idle.store, name="ci", scope=Scope.READ, lifetime=None, by=BY)
    kept = idle.store.token(token.id)
    secret = text.partition(".")[2]
    assert kept is not None
    assert kept.digest == digest_of(secret)
    assert secret not in repr(kept)
    assert secret not in repr(idle.store.audit())


def test_the_record_names_the_token(make: Make) -> None:
    service = make()
    header = service.token(Scope.ADMIN, name="release-bot")
    assert service.client.post("/v1/comparisons", json=EXPERIMENT, headers=header).status_code == 202
    created, token = service.client.get("/v1/audit", headers=header).json()["entries"]
    assert (created["who"], created["action"]) == ("release-bot", "comparison.create")
    assert created["details"]["token"] == token["subject"]
    assert (token["who"], token["action"], token["details"]["scope"]) == ("me@here", "token.create", "admin")
    pages = service.client.get("/v1/audit?limit=1", headers=header).json()
    rest = service.client.get(f"/v1/audit?limit=1&cursor={pages['next_cursor']}", headers=header).json()
    assert [pages["entries"][0], rest["entries"][0], rest["next_cursor"]] == [created, token, None]


FOREIGN = ("evil.example", "127.0.0.1.evil.example:8080", "", "10.0.0.1", "localhost.evil.example")
OWN = ("localhost", "LOCALHOST:8080", "127.0.0.1", "[::1]:8080", "[::1]", "lab.example:80")


def test_only_this_machines_own_and_allowed_names_are_taken(make: Make) -> None:
    client = make(allowed_hosts=("lab.example",)).client
    answers = {host: client.get("/v1/comparisons", headers={"Host": host}) for host in (*FOREIGN, *OWN)}
    assert [{answers[host].status_code for host in hosts} for hosts in (FOREIGN, OWN)] == [{421}, {200}]
    assert check_problem(answers["evil.example"], 421, "misdirected")["errors"][0]["field"] == "Host"


def test_a_page_of_another_site_neither_changes_nor_reads(idle: Service) -> None:
    cancel = f"/v1/comparisons/{idle.create()}/cancel"
    elsewhere = [{"Origin": url} for url in ("http://evil.example", "null", "http://[::1]:9", "http://[::1")]
    for headers in (*elsewhere, {"Sec-Fetch-Site": "cross-site"}):
        check_problem(idle.client.post(cancel, headers=headers), 403, "cross-origin")
    same = {"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}
    assert idle.client.post(cancel, headers=same).status_code == 200
    read = idle.client.get("/v1/comparisons", headers=elsewhere[0])
    assert not [name for name in read.headers if name.startswith("access-control")]
    assert idle.client.options("/v1/comparisons", headers=elsewhere[0]).status_code in (403, 405)


def test_callers_are_slowed_down(make: Make) -> None:
    service = make(rate=0.5, burst=3)
    one, other = service.token(name="one"), service.token(name="other")
    answers = [service.client.get("/v1/comparisons", headers=one) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 2
    assert service.client.get("/v1/comparisons", headers=other).status_code == 200


def test_guessing_tokens_is_slowed_down(make: Make) -> None:
    service = make(client="192.0.2.7")
    header = {"Authorization": "Bearer qlb_000000000000." + "A" * 43}
    codes = [service.client.get("/v1/comparisons", headers=header).status_code for _ in range(40)]
    assert codes[:30] == [401] * 30
    assert 429 in codes[30:]
    assert service.client.get("/v1/comparisons", headers=service.token()).status_code == 200
