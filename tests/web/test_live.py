"""Progress while somebody looks, and signing in, in a real browser against services of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from qualab.model.registry import Scope
from tests.api.conftest import at_work, make_service, on_a_socket
from tests.web.conftest import Site, make_site_bench


@pytest.fixture
def running() -> Iterator[Site]:
    service = make_service(bench=make_site_bench(), poll_s=0.05, port=0)
    with at_work(service.context), service.client, on_a_socket(service) as address:
        yield Site(address, service)


def test_a_running_comparison_is_followed_to_its_verdict_on_its_page_and_on_the_list(
    running: Site, make_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = running.service.bench
    monkeypatch.setattr(bench.clock, "monotonic_s", time.monotonic)
    bench.baseline.delay_s = bench.candidate.delay_s = 0.15
    looked, beside = make_page(site=running), make_page(site=running)
    comparison_id = running.service.create(label="slow", concurrency=1, max_missing_share=0.1)
    beside.open(f"/comparisons/{comparison_id}")
    numbers = beside.page.locator("dd[data-arm=candidate] .numbers")
    numbers.get_by_text("of 130").wait_for()
    first = numbers.inner_text()
    numbers.filter(has_not_text=first).wait_for()
    looked.open("/")
    line = looked.page.locator("tr", has_text="slow")
    line.get_by_text("of 130 each").wait_for()
    assert line.locator("progress").get_attribute("max") == "260"
    before = line.locator("progress").get_attribute("value")
    looked.page.get_by_role("link", name="slow").focus()
    line.get_by_text("answers a second · about").wait_for()
    assert " left" in line.inner_text()
    line.locator(f"progress:not([value='{before}'])").wait_for()
    assert looked.page.evaluate("document.activeElement.textContent") == "slow"
    bench.baseline.delay_s = bench.candidate.delay_s = 0.0
    line.get_by_text("INCONCLUSIVE").wait_for()
    beside.page.locator(".verdict").get_by_text("INCONCLUSIVE").first.wait_for()
    assert beside.page.locator("#live").count() == 0


def test_people_sign_in_with_a_token_and_out_again(running: Site, make_page: Any) -> None:
    token = running.service.token(Scope.READ)["Authorization"].removeprefix("Bearer ")
    looked = make_page(site=running, may_fail=True)
    looked.open("/plan?margin=4")
    assert looked.page.url.endswith("/sign-in?next=%2Fplan%3Fmargin%3D4")
    looked.page.get_by_label("Token").fill("qlb_wrong")
    looked.page.get_by_role("button", name="Sign in").click()
    assert looked.page.get_by_role("alert").inner_text().startswith("The token is not valid")
    looked.page.get_by_label("Token").fill(token)
    looked.page.get_by_role("button", name="Sign in").click()
    assert looked.page.url == f"{running.address}/plan?margin=4"
    (cookie,) = [one for one in looked.page.context.cookies() if one["name"] == "qualab_token"]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
    assert looked.page.evaluate("document.cookie") == ""
    looked.page.get_by_role("button", name="Sign out").click()
    assert looked.open("/").url.endswith("/sign-in?next=%2F")
