"""Progress while somebody looks, and signing in, in a real browser against services of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qualab.model.registry import Scope
from tests.api.conftest import Service, at_work, make_service, on_a_socket
from tests.web.conftest import Site, Watched, make_site_bench, open_database, watch


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    """A service with a worker that takes some seconds."""
    with open_database(tmp_path) as store:
        bench = make_site_bench(store)
        bench.baseline.delay_s = bench.candidate.delay_s = 0.04
        service = make_service(bench=bench, registry=store.registry, poll_s=0.05, port=0)
        with at_work(service.context), service.client:
            yield service


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """Pages of any service."""
    contexts = []

    def made(service: Service, address: str) -> Watched:
        context = browser.new_context(locale="en-GB")
        context.set_default_timeout(15_000)
        contexts.append(context)
        return watch(context, Site(address, service, "", "", {}))

    yield made
    for context in contexts:
        context.close()


def test_a_running_comparison_is_followed_to_its_verdict(running: Service, opened: Any) -> None:
    with on_a_socket(running) as address:
        looked = opened(running, address)
        comparison_id = running.create(label="slow", concurrency=1, max_missing_share=0.1)
        looked.open(f"/comparisons/{comparison_id}")
        numbers = looked.page.locator("dd[data-arm=candidate] .numbers")
        numbers.get_by_text("of 130").wait_for()
        first = numbers.inner_text()
        looked.page.locator("dd[data-arm=candidate] .numbers").filter(has_not_text=first).wait_for()
        looked.page.locator(".verdict").wait_for()
        assert "INCONCLUSIVE" in looked.page.locator(".verdict").inner_text()
        assert looked.page.locator("#live").count() == 0
        assert looked.troubles == []


def test_a_list_with_something_under_way_is_read_again(running: Service, opened: Any) -> None:
    with on_a_socket(running) as address:
        looked = opened(running, address)
        running.create(label="slow", concurrency=16, max_missing_share=0.1)
        looked.open("/")
        looked.page.locator("tr", has_text="slow").get_by_text("INCONCLUSIVE").wait_for()
        assert looked.page.locator("th a.sort").count() == 3
        assert looked.troubles == []


def test_a_list_says_how_far_how_fast_and_how_long_yet(
    running: Service, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.bench.clock, "monotonic_s", time.monotonic)
    running.bench.baseline.delay_s = running.bench.candidate.delay_s = 0.15
    with on_a_socket(running) as address:
        looked = opened(running, address)
        running.create(label="slow", concurrency=1, max_missing_share=0.1)
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
        assert looked.troubles == []


def test_people_sign_in_with_a_token_and_out_again(running: Service, opened: Any) -> None:
    header = running.token(Scope.READ)
    token = header["Authorization"].removeprefix("Bearer ")
    with on_a_socket(running) as address:
        looked = opened(running, address)
        looked.open("/plan?margin=4")
        assert looked.page.url.endswith("/sign-in?next=%2Fplan%3Fmargin%3D4")
        looked.page.get_by_label("Token").fill("qlb_wrong")
        looked.page.get_by_role("button", name="Sign in").click()
        assert looked.page.get_by_role("alert").inner_text().startswith("The token is not valid")
        looked.page.get_by_label("Token").fill(token)
        looked.page.get_by_role("button", name="Sign in").click()
        assert looked.page.url == f"{address}/plan?margin=4"
        (cookie,) = [one for one in looked.page.context.cookies() if one["name"] == "qualab_token"]
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
        assert looked.page.evaluate("document.cookie") == ""
        looked.page.get_by_role("button", name="Sign out").click()
        assert looked.open("/").url.endswith("/sign-in?next=%2F")
