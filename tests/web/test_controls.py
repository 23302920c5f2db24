"""Controls on pages, with and without script, and with the scope that a token has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from qualab.model.names import AnswerStatus, ComparisonStatus
from qualab.model.registry import Scope
from tests.api.conftest import OFF, ON, Service, at_work, make_service, on_a_socket
from tests.app.fakes import failure, reply
from tests.web.conftest import Site, Watched

Make = Callable[..., Watched]
ANSWERED = tuple(status for status in AnswerStatus if status.is_answer)
SCRIPT = pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])


@pytest.fixture
def own() -> Iterator[Site]:
    """A service with nothing in it, on a socket, and a worker that takes what is queued when it is told to."""
    with ExitStack() as stack:
        service = make_service(port=0)
        stack.enter_context(service.client)
        yield Site(stack.enter_context(on_a_socket(service)), service)


def status(service: Service, comparison_id: str) -> str:
    return str(service.client.get(f"/v1/comparisons/{comparison_id}").json()["status"])


@SCRIPT
def test_a_comparison_is_planned_started_cancelled_resumed_and_signed_off(
    make_page: Make, own: Site, script: bool
) -> None:
    looked, service = make_page(site=own, java_script_enabled=script, may_fail=True), own.service
    page = looked.page
    looked.open("/")
    page.get_by_role("link", name="New comparison").click()
    page.get_by_label("Baseline URL").fill(OFF)
    page.get_by_label("Candidate URL").fill(ON)
    page.get_by_label("Model", exact=True).fill("m")
    page.get_by_label("Tasks or suite").fill("sums")
    page.get_by_label("Label").fill("from a form")
    page.get_by_label("Token audit").uncheck()
    page.get_by_label("Margin (pp)").fill("0.5")
    page.get_by_role("button", name="Show what the items can prove").click()
    planned = page.locator("#planned").inner_text()
    assert "Not provable with these items" in planned
    assert service.store.counts() == {} or not any(service.store.counts().values()), "nothing is stored yet"
    page.get_by_role("button", name="Start", exact=True).click()
    assert "cannot prove" in page.locator(".notice").inner_text()
    assert page.get_by_label("Label").input_value() == "from a form"
    page.get_by_label("Start even if").check()
    page.get_by_role("button", name="Show what the items can prove").click()
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url("**/comparisons/*")
    comparison_id = page.url.rpartition("/")[2]
    assert status(service, comparison_id) == "queued"
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Resume").wait_for()
    assert status(service, comparison_id) == "cancelled"
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Cancel").wait_for()
    assert status(service, comparison_id) == "queued"
    with at_work(service.context):
        service.done(comparison_id)
    looked = make_page(site=own, java_script_enabled=script)  # the other page follows the run, and reads itself again
    page = looked.page
    looked.open(f"/comparisons/{comparison_id}")
    page.get_by_label("Signed by").fill("김하나")
    page.get_by_label("Note").fill("release 12")
    page.get_by_label("Reason for override").fill("seen by eye")
    page.get_by_role("button", name="Sign off").click()
    page.get_by_text("김하나").first.wait_for()
    assert "Signed off by 김하나" in page.locator(".verdict").inner_text()
    (signed,) = service.store.signoffs(comparison_id)
    assert (signed.signed_by, signed.note, signed.override) == ("김하나", "release 12", "seen by eye")


def test_what_is_refused_says_why_and_loses_nothing_that_was_typed(make_page: Make, own: Site) -> None:
    looked, service = make_page(site=own, may_fail=True), own.service
    with at_work(service.context):
        comparison_id = service.finished()
    looked.open(f"/comparisons/{comparison_id}")
    page = looked.page
    page.get_by_label("Signed by").fill("Kim")
    page.get_by_label("Reason for override").fill("first\u00adline" + "x" * 2_001)
    page.get_by_role("button", name="Sign off").click()
    page.locator(".notice").wait_for()
    assert "2,000 characters" in page.locator(".notice").inner_text()
    assert page.get_by_label("Signed by").input_value() == "Kim"
    assert service.store.signoffs(comparison_id) == []
    looked.open("/start")
    for label, text in (("Baseline URL", "ftp://x"), ("Candidate URL", ON), ("Model", "m"), ("Tasks or suite", "sums")):
        page.get_by_label(label, exact=label == "Model").fill(text)
    page.get_by_role("button", name="Show what the items can prove").click()
    assert page.locator("#baseline").get_attribute("aria-invalid") == "true"
    assert page.locator("#baseline-wrong").inner_text()
    assert page.get_by_label("Candidate URL").input_value() == ON


def test_what_changed_since_it_was_seen_is_not_changed_again(make_page: Make, own: Site) -> None:
    looked, service = make_page(site=own, may_fail=True), own.service
    comparison_id = service.create()
    service.client.post(f"/v1/comparisons/{comparison_id}/cancel")
    looked.open(f"/comparisons/{comparison_id}")
    service.client.post(f"/v1/comparisons/{comparison_id}/resume")
    service.client.post(f"/v1/comparisons/{comparison_id}/cancel")
    looked.page.get_by_role("button", name="Resume").click()
    assert "has changed since" in looked.page.locator(".notice").inner_text()
    assert status(service, comparison_id) == "cancelled"


@pytest.mark.parametrize(
    ("scope", "sees"), [(Scope.READ, []), (Scope.RUN, ["Cancel"]), (Scope.ADMIN, ["Cancel", "Sign off"])]
)
def test_a_token_sees_what_it_may_do_and_may_do_no_more(
    make_page: Make, own: Site, scope: Scope, sees: list[str]
) -> None:
    service = own.service
    with at_work(service.context):
        finished = service.finished()
    queued = service.create()
    text = service.token(scope)["Authorization"].removeprefix("Bearer ")
    looked = make_page(site=own, may_fail=True)
    looked.open("/sign-in")
    looked.page.get_by_label("token").fill(text)
    looked.page.keyboard.press("Enter")
    looked.page.locator("td.name").first.wait_for()
    found = []
    for path, name in ((queued, "Cancel"), (finished, "Sign off")):
        looked.open(f"/comparisons/{path}")
        found += [name] if looked.page.get_by_role("button", name=name, exact=True).count() else []
    assert found == sees
    forged = looked.page.request.post(f"{own.address}/comparisons/{finished}/sign-off", form={"signed_by": "me"})
    assert forged.status == (403 if scope is not Scope.ADMIN else 412)
    assert "text/html" in forged.headers["content-type"]
    stranger = looked.page.request.post(
        f"{own.address}/comparisons/{queued}/cancel", headers={"Origin": "http://elsewhere.example"}
    )
    assert stranger.status == 403
    assert status_of(service, queued) is ComparisonStatus.QUEUED


def status_of(service: Service, comparison_id: str) -> ComparisonStatus:
    return service.store.summary(comparison_id).status


@pytest.mark.parametrize("path", ["/nowhere", "/comparisons/none", "/groups/none", "/comparisons/none/items"])
def test_an_unknown_page_is_a_page_with_a_way_back(make_page: Make, site: Site, path: str) -> None:
    for language, back in (("en", "Back to all comparisons"), ("ko", "비교 목록으로 돌아가기")):
        looked = make_page(may_fail=True)
        shown = looked.open(f"{path}?lang={language}")
        assert (shown.status, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
        looked.page.get_by_role("link", name=back).click()
        looked.page.locator("td.name").first.wait_for()
    assert looked.page.request.get(f"{site.address}/v1/nowhere").headers["content-type"] == "application/problem+json"


def test_failed_requests_are_asked_again_from_the_page(make_page: Make, own: Site, site: Site) -> None:
    service, again = own.service, "Ask failed requests again"
    service.bench.candidate.answer = lambda prompt, seed: failure() if prompt == "say 3" else reply(prompt[4:])
    with at_work(service.context):
        comparison_id = service.finished(max_missing_share=0.5)
    n_answered = sum(service.store.n_answered(comparison_id, ANSWERED).values())
    service.bench.candidate.answer = service.bench.baseline.answer
    looked = make_page(site=own)
    looked.open(f"/comparisons/{comparison_id}")
    looked.page.get_by_role("button", name=again).click()
    looked.page.get_by_role("button", name="Cancel").wait_for()
    with at_work(service.context):
        service.done(comparison_id)
    assert sum(service.store.n_answered(comparison_id, ANSWERED).values()) == n_answered + 1
    looked = make_page(site=own)
    looked.open(f"/comparisons/{comparison_id}")
    looked.page.locator(".verdict").wait_for()
    assert looked.page.get_by_role("button", name=again).count() == 0, "nothing is missing any more"
    looked = make_page()
    looked.open(f"/comparisons/{site.large}")
    assert looked.page.get_by_role("button", name=again).count() == 0, "the service did not run it"
