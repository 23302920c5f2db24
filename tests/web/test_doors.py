"""Who gets pages, what a cookie is good for, and what comes with a page; without a browser."""

from __future__ import annotations

import hashlib
import html
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from qualab.model.names import ComparisonStatus, Language
from qualab.model.registry import Scope
from qualab.service.api.pages import safe_path
from qualab.service.viewing.items import command
from qualab.service.words import CATALOGUES
from tests.api.conftest import EXPERIMENT, Service, make_service
from tests.store.samples import put
from tests.web.conftest import Site

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
def guarded() -> Iterator[tuple[Service, str]]:
    service = make_service()
    with service.client:
        yield service, service.token(Scope.ADMIN)["Authorization"].removeprefix("Bearer ")


def sign_in(service: Service, token: str, **headers: str) -> Any:
    body = f"token={token}&next=%2Fplan"
    return service.client.post("/sign-in", content=body, headers={**FORM, **headers}, follow_redirects=False)


def test_pages_have_a_strict_policy_and_nothing_inline(site: Site) -> None:
    base = f"/comparisons/{site.small}"
    for path in ("/", base, f"{base}/items", f"{base}/items/3", "/plan", "/sign-in", "/comparisons/none"):
        answer = site.service.client.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
            "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        for inline in (" style=", "<style", "onclick", 'onerror="', "javascript:", "http://www.", "https://"):
            assert inline not in answer.text.replace('xmlns="http://www.w3.org/2000/svg"', ""), (path, inline)
        assert answer.text.count("<script") == 1


def test_whoever_may_not_come_in_is_led_to_the_door(guarded: tuple[Service, str]) -> None:
    service, _ = guarded
    for path in ("/", "/plan", "/comparisons/x", "/comparisons/x/items", "/comparisons/x/items/0"):
        answer = service.client.get(path, follow_redirects=False)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/sign-in?next=%2F")
    assert service.client.get("/static/viewer.js").status_code == 200
    assert service.client.get("/sign-in").status_code == 200


def test_a_cookie_reads_and_changes_nothing(guarded: tuple[Service, str]) -> None:
    service, token = guarded
    answer = sign_in(service, token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/plan")
    said = answer.headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=strict" in said
    assert "Secure" not in said
    assert service.client.get("/").status_code == 200
    assert service.client.get("/v1/comparisons").status_code == 200
    for method, path in (("POST", "/v1/comparisons"), ("POST", "/v1/plans"), ("DELETE", "/v1/comparisons/x")):
        refused = service.client.request(method, path, json=EXPERIMENT)
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated"), path


def test_a_header_comes_before_a_cookie(guarded: tuple[Service, str]) -> None:
    service, token = guarded
    sign_in(service, token)
    assert service.client.get("/v1/comparisons", headers={"Authorization": "Bearer wrong"}).status_code == 401


@pytest.mark.parametrize("token", ["", "wr0ng", "qlb_000000000000." + "a" * 43])
def test_a_token_that_is_none_opens_nothing(guarded: tuple[Service, str], token: str) -> None:
    service, _ = guarded
    answer = sign_in(service, token)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert token == "" or token not in answer.text


def test_tries_at_the_door_are_counted(guarded: tuple[Service, str]) -> None:
    service, _ = guarded
    assert {sign_in(service, "wrong").status_code for _ in range(40)} == {401, 429}


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_another_sites_page_signs_nobody_in_or_out(guarded: tuple[Service, str], headers: dict[str, str]) -> None:
    service, token = guarded
    assert sign_in(service, token, **headers).status_code == 403
    assert service.client.post("/sign-out", headers=headers).status_code == 403


def test_behind_tls_the_cookie_is_for_tls_alone(guarded: tuple[Service, str]) -> None:
    service, token = guarded
    assert "Secure" in sign_in(service, token, **{"X-Forwarded-Proto": "https"}).headers["set-cookie"]


def test_a_cookie_of_another_service_here_locks_nobody_out() -> None:
    """Cookies know no ports: on this machine another service's comes along."""
    service = make_service()
    with service.client:
        service.client.cookies.set("qualab_token", "qlb_000000000000." + "a" * 43)
        assert service.client.get("/").status_code == 200
        assert service.client.get("/v1/comparisons").status_code == 200


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ("/plan?x=1", "/plan?x=1"),
        ("//evil.example", "/"),
        ("https://evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\nb", "/"),
        ("", "/"),
    ],
)
def test_the_door_leads_nowhere_else(said: str, path: str) -> None:
    assert safe_path(said) == path


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("ko-KR,ko;q=0.9,en;q=0.8", "ko"),
        ("en;q=0.5, ko;q=0.9", "ko"),
        ("fr, ko;q=0", "en"),
        ("de", "en"),
        ("", "en"),
        (";;q=x", "en"),
    ],
)
def test_the_browsers_language_is_spoken(header: str, language: str) -> None:
    service = make_service()
    with service.client:
        answer = service.client.get("/plan", headers={"Accept-Language": header})
    assert f'<html lang="{language}">' in answer.text


def test_both_languages_say_the_same_things() -> None:
    english, korean = (CATALOGUES[language] for language in Language)
    assert english.keys() == korean.keys()
    for key, text in english.items():
        places = {part.partition("}")[0] for part in text.split("{")[1:]}
        assert {part.partition("}")[0] for part in korean[key].split("{")[1:]} == places, key


@pytest.mark.parametrize("path", ["/?status=x", "/?verdict=x", "/?cursor=x", "/plan?margin=x", "/plan?items=0"])
def test_what_cannot_be_is_said_on_a_page(site: Site, path: str) -> None:
    answer = site.service.client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "text/html; charset=utf-8")


def test_what_is_not_there_is_said_on_a_page(site: Site) -> None:
    for path in ("/comparisons/x", "/comparisons/x/items", f"/comparisons/{site.small}/items/99999", "/static/x.js"):
        answer = site.service.client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")


class Noting(http.server.BaseHTTPRequestHandler):
    """Keeps what it is sent."""

    seen: list[tuple[str, str | None, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, self.headers["Authorization"], body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def noting() -> Iterator[tuple[str, list[Any]]]:
    seen: list[Any] = []
    server = http.server.HTTPServer(("127.0.0.1", 0), type("Handler", (Noting,), {"seen": seen}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/completions", seen
    server.shutdown()


def test_the_command_sends_the_bytes_that_were_sent(noting: tuple[str, list[Any]], site: Site) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    url, seen = noting
    body = json.dumps({"prompt": 'it\'s $HOME `id` "x" \\n @file\n한 \u202e', "seed": 1}, ensure_ascii=False)
    environment = {"API_KEY": "hush", "PATH": "/usr/bin:/bin"}
    subprocess.run(["sh", "-c", command(url, body)], check=True, env=environment, timeout=20)
    assert seen == [("/v1/completions", "Bearer hush", body.encode())]
    item = site.service.client.get(f"/v1/comparisons/{site.small}/items/0").json()
    sent = item["requests"][0]["body"]
    assert hashlib.sha256(sent.encode()).hexdigest().startswith(item["answers"][0]["request_hash"])
    page = site.service.client.get(f"/comparisons/{site.small}/items/0").text
    assert command("http://127.0.0.1:8001/v1/completions", sent) in html.unescape(page)
    assert "hush" not in page
    assert page.count("$API_KEY") == 2


@pytest.mark.parametrize(
    ("kind", "media_type", "begins"),
    [
        ("pdf", "application/pdf", b"%PDF"),
        ("html", "text/html; charset=utf-8", b"<!doctype"),
        ("md", "text/markdown; charset=utf-8", b"# "),
        ("json", "application/json", b"{"),
    ],
)
def test_the_report_comes_as_a_file(site: Site, kind: str, media_type: str, begins: bytes) -> None:
    path = f"/v1/comparisons/{site.small}/report?format={kind}&lang=ko"
    answer = site.service.client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
    assert answer.content.lstrip().startswith(begins)
    assert f'filename="qualab-{site.small}.{kind}"' in answer.headers["content-disposition"]
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    again = site.service.client.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    if kind in ("md", "json"):
        assert "판단 보류" in answer.text


def test_a_report_that_cannot_be(site: Site) -> None:
    waiting = next(
        one["id"] for one in site.service.client.get("/v1/comparisons").json()["entries"] if one["status"] == "queued"
    )
    get = site.service.client.get
    assert get(f"/v1/comparisons/{waiting}/report").status_code == 409
    assert get("/v1/comparisons/none/report").status_code == 404
    assert get(f"/v1/comparisons/{site.small}/report?format=doc").status_code == 422


def test_a_form_with_too_many_fields_is_no_error_of_the_server(guarded: tuple[Service, str]) -> None:
    service, _ = guarded
    assert service.client.post("/sign-in", content="&".join("abcdefghijklmn"), headers=FORM).status_code == 400


def test_a_sign_in_leads_nowhere_else_whatever_the_link_says(guarded: tuple[Service, str]) -> None:
    service, _ = guarded
    for wanted in ("//evil.example", "https://evil.example", "//[::1", "/\\evil.example"):
        page = service.client.get("/sign-in", params={"next": wanted})
        assert page.status_code == 200
        assert 'name="next" value="/"' in page.text


def test_errors_are_said_in_the_readers_language() -> None:
    service = make_service()
    with service.client:
        failed = service.create(label="x")
        error = {
            "code": "endpoint-unreachable",
            "message": "http://127.0.0.1:8001/v1/models cannot be reached: the connection was refused, "
            "nothing listens there",
            "hint": "Start the server, or correct host and port",
        }
        put(service.bench.store, failed, status=ComparisonStatus.FAILED, error=error)
        korean = service.client.get(f"/comparisons/{failed}?lang=ko").text
        for said in (
            "<strong>엔드포인트에 연결할 수 없습니다</strong>",
            '<span lang="ko">http://127.0.0.1:8001/v1/models에 연결할 수 없습니다: 연결이 거부됨',
            "서버를 시작하거나 호스트와 포트를 고치세요",
        ):
            assert said in korean
        english = html.unescape(service.client.get(f"/comparisons/{failed}?lang=en").text)
        for said in ("An endpoint cannot be reached", error["message"], error["hint"]):
            assert said in english
        put(service.bench.store, failed, status=ComparisonStatus.FAILED, error={**error, "message": "Quite new"})
        assert '<span lang="en">Quite new</span>' in service.client.get(f"/comparisons/{failed}?lang=ko").text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/comparisons/none", "비교를 찾을 수 없습니다"),
        ("/plan?margin=x", "margin: 숫자여야 합니다"),
        ("/plan?items=0", "items: 1 이상이어야 합니다"),
        ("/plan?items=1.5", "items: 정수여야 합니다"),
        ("/plan?power=100", "power: 99 이하여야 합니다"),
        ("/?verdict=x", "verdict: 다음 중 하나여야 합니다"),
        ("/?cursor=x", "이 목록의 커서가 아닙니다"),
    ],
)
def test_what_a_page_is_asked_wrongly_is_said_in_korean(site: Site, path: str, said: str) -> None:
    page = site.service.client.get(path, headers={"Accept-Language": "ko"}).text
    assert said in page
    assert "Input should" not in page


def test_a_page_that_the_browser_has_is_not_sent_again(site: Site) -> None:
    for path in ("/", f"/comparisons/{site.large}", f"/comparisons/{site.small}/items/3", "/plan"):
        first = site.service.client.get(path)
        again = site.service.client.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        other = site.service.client.get(path, headers={"If-None-Match": first.headers["etag"], "Accept-Language": "ko"})
        assert other.status_code == 200
    assert "etag" not in site.service.client.get("/comparisons/none").headers
