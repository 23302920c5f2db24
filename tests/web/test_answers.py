"""Who gets pages, what a cookie is good for, what comes with a page, and errors for people; without a browser."""

from __future__ import annotations

import html
from dataclasses import asdict
from typing import Any

import pytest

from qualab import errors
from qualab.errors import QualabError
from qualab.model.names import ComparisonStatus, Language
from qualab.model.reason import Reason
from qualab.model.registry import Scope
from qualab.report.words import catalogue
from qualab.service.words import Wording
from tests.api.conftest import EXPERIMENT, Make, Service
from tests.api.test_front import away
from tests.store.samples import put
from tests.web.conftest import Site

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
KOREAN = {"Accept-Language": "ko"}


@pytest.fixture
def guarded(make: Make) -> tuple[Service, str]:
    service = make(max_body_bytes=1_000)
    return service, service.token(Scope.ADMIN)["Authorization"].removeprefix("Bearer ")


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


def test_a_page_that_the_browser_has_is_not_sent_again(site: Site) -> None:
    for path in ("/", f"/comparisons/{site.large}", f"/comparisons/{site.small}/items/3", "/plan"):
        first = site.service.client.get(path)
        known = {"If-None-Match": first.headers["etag"]}
        again = site.service.client.get(path, headers=known)
        assert (again.status_code, again.content) == (304, b"")
        assert site.service.client.get(path, headers={**known, **KOREAN}).status_code == 200
    assert "etag" not in site.service.client.get("/comparisons/none").headers


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
    path, get = f"/v1/comparisons/{site.small}/report", site.service.client.get
    answer = get(f"{path}?format={kind}&lang=ko")
    assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
    assert answer.content.lstrip().startswith(begins)
    assert f'filename="qualab-{site.small}.{kind}"' in answer.headers["content-disposition"]
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    again = get(f"{path}?format={kind}&lang=ko", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert kind in ("pdf", "html") or "판단 보류" in answer.text
    waiting = get("/v1/comparisons?status=queued").json()["entries"][0]["id"]
    assert get(f"/v1/comparisons/{waiting}/report").status_code == 409
    assert get("/v1/comparisons/none/report").status_code == 404
    assert get(f"{path}?format=doc").status_code == 422


def test_whoever_is_not_recognized_is_led_to_the_sign_in(guarded: tuple[Service, str]) -> None:
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
    cookie = answer.headers["set-cookie"]
    assert ("HttpOnly" in cookie, "SameSite=strict" in cookie, "Secure" in cookie) == (True, True, False)
    assert service.client.get("/").status_code == 200
    assert service.client.get("/v1/comparisons").status_code == 200
    for method, path in (("POST", "/v1/comparisons"), ("POST", "/v1/plans"), ("DELETE", "/v1/comparisons/x")):
        refused = service.client.request(method, path, json=EXPERIMENT)
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated"), path
    assert service.client.get("/v1/comparisons", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert "Secure" in sign_in(service, token, **{"X-Forwarded-Proto": "https"}).headers["set-cookie"]
    for elsewhere in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert sign_in(service, token, **elsewhere).status_code == 403
        assert service.client.post("/sign-out", headers=elsewhere).status_code == 403


def test_a_token_that_is_none_opens_nothing_and_tries_are_counted(guarded: tuple[Service, str]) -> None:
    service, _ = guarded
    for token in ("", "wr0ng", "qlb_000000000000." + "a" * 43):
        answer = sign_in(service, token)
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        assert token == "" or token not in answer.text
    assert {sign_in(service, token).status_code for _ in range(40)} == {401, 429}


def test_a_cookie_of_another_service_at_another_port_locks_nobody_out(idle: Service) -> None:
    idle.client.cookies.set("qualab_token", "qlb_000000000000." + "a" * 43)
    assert [idle.client.get(path).status_code for path in ("/", "/v1/comparisons")] == [200, 200]


def test_a_sign_in_leads_nowhere_else(guarded: tuple[Service, str]) -> None:
    elsewhere = ("//evil.example", "//[::1", "https://evil.example/", "/\\evil.example", "javascript:alert(1)")
    for given, path in {"/plan?x=1": "/plan?x=1", **dict.fromkeys((*elsewhere, "/a\nb", ""), "/")}.items():
        page = guarded[0].client.get("/sign-in", params={"next": given})
        assert f'name="next" value="{path}"' in page.text, given


def test_a_form_that_is_too_large_or_has_too_many_fields_is_refused(guarded: tuple[Service, str]) -> None:
    service, _ = guarded
    assert service.client.post("/sign-in", content="&".join("abcdefghijklmn"), headers=FORM).status_code == 400
    large = service.client.post("/sign-in", content="token=" + "x" * 2_000, headers={**FORM, **KOREAN})
    assert large.status_code == 413
    assert "보낸 내용이 너무 큽니다" in large.text
    assert "1000바이트까지" in large.text


def test_the_browsers_language_is_spoken(site: Site) -> None:
    korean = ("ko-KR,ko;q=0.9,en;q=0.8", "en;q=0.5, ko;q=0.9")
    for header in (*korean, "fr, ko;q=0", "de", "", ";;q=x"):
        answer = site.service.client.get("/plan", headers={"Accept-Language": header})
        assert f'<html lang="{"ko" if header in korean else "en"}">' in answer.text, header


def test_codes_of_korean_errors_are_those_of_errors() -> None:
    codes = {one.code for one in vars(errors).values() if isinstance(one, type) and issubclass(one, QualabError)}
    ours = {"no-such-route", "not-yet", "request-too-large", "workers-lost"}
    assert catalogue(Language.KOREAN)["errors"].keys() - codes == ours
    unknown = Wording(language=Language.KOREAN).notice("of a later version", "Quite new", "Do that")
    assert (unknown.title, unknown.message, unknown.hint) == ("처리하지 못했습니다", "Quite new", "Do that")


@pytest.mark.parametrize(
    ("path", "status", "english", "korean"),
    [
        ("/comparisons/none", 404, "There is no comparison &#39;none&#39;", "ID가 none인 비교가 없습니다"),
        ("/comparisons/{small}/items/99999", 404, "item at position 99999", "이 비교에는 99999번 문항이 없습니다"),
        ("/static/x.js", 404, "There is no such file", "페이지를 찾을 수 없습니다"),
        ("/plan?margin=x", 422, "margin: Input should be a valid number", "margin: 숫자여야 합니다"),
        ("/plan?items=0", 422, "items: Input should be greater", "items: 1 이상이어야 합니다"),
        ("/plan?items=1.5", 422, "items: Input should be a valid integer", "items: 정수여야 합니다"),
        ("/plan?power=100", 422, "power: Input should be less", "power: 99 이하여야 합니다"),
        ("/?verdict=x", 422, "verdict: Input should be &#39;EQUIVALENT&#39;", "verdict: 다음 중 하나여야 합니다"),
        ("/?sort=items", 422, "sort: Input should be", "sort: 다음 중 하나여야 합니다"),
        ("/?cursor=x", 422, "the cursor is none of this list", '<span lang="ko">cursor</span>'),
    ],
)
def test_an_error_is_a_page_in_both_languages(site: Site, path: str, status: int, english: str, korean: str) -> None:
    for language, text in (("en", english), ("ko", korean)):
        answer = site.service.client.get(path.format(small=site.small), headers={"Accept-Language": language})
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert text in answer.text
    assert '<span lang="en">' not in answer.text


def test_a_page_says_when_to_come_back(guarded: tuple[Service, str], monkeypatch: pytest.MonkeyPatch) -> None:
    service, token = guarded
    sign_in(service, token)
    away(service, monkeypatch, errors.StoreUnavailable("postgresql://me@db: refused"))
    page = service.client.get("/", headers=KOREAN)
    assert (page.status_code, page.headers["retry-after"], "postgresql" in page.text) == (503, "5", False)
    assert "데이터베이스에 연결할 수 없습니다" in page.text
    assert "잠시 후 다시 시도하세요" in page.text


def test_what_stopped_a_comparison_has_a_korean_title_above_its_own_words(idle: Service) -> None:
    def page(path: str) -> str:
        return html.unescape(idle.client.get(path).text)

    failed = idle.create(label="x")
    error = {"code": "endpoint-unreachable", "message": "http://h/v1 cannot be reached", "hint": "Start the server"}
    put(idle.bench.store, failed, status=ComparisonStatus.FAILED, error=error)
    korean, english = page(f"/comparisons/{failed}?lang=ko"), page(f"/comparisons/{failed}?lang=en")
    assert "<strong>엔드포인트에 연결할 수 없습니다</strong>" in korean
    assert '<span lang="en">http://h/v1 cannot be reached</span>' in korean
    assert error["hint"] in korean
    assert [part for part in (error["message"], error["hint"]) if part not in english] == []
    no_answers = Reason("stopped.no-answers", {"total": 5})
    values = {"arm": "candidate", "url": "http://h", "why": no_answers, "error": "HTTP 500"}
    stopped = {"stop_reason": Reason("stopped.arm-fails", values), "error": {}}
    put(idle.bench.store, failed, status=ComparisonStatus.STOPPED, **stopped)
    for path in (f"/comparisons/{failed}", "/"):
        shown = page(f"{path}?lang=ko")
        assert "http://h의 후보 서버가 정상적으로 응답하지 않습니다: 요청 5건 모두에 답이 없음" in shown
    assert idle.client.get(f"/v1/comparisons/{failed}/verdict").json()["stop_reason"] == {
        "code": "stopped.arm-fails",
        "values": values | {"why": asdict(no_answers)},
        "text": "The candidate at http://h fails: none of 5 requests got an answer; the last error was: HTTP 500",
    }
