"""Long lists in a real browser: their orders over all pages, and their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from qualab.model.registry import AuditEntry, Submission, SubmissionStatus
from tests.api.conftest import make_service, on_a_socket
from tests.app.fakes import START
from tests.web.conftest import GAINS, LOSSES, Site, Watched, watch
from tests.web.test_pages import names

Make = Callable[..., Watched]
N_LINES = 60


@pytest.fixture(scope="module")
def long() -> Iterator[Site]:
    """Sixty requests that failed or wait; the labels' order is not that of time."""
    service = make_service(port=0)
    for number in range(N_LINES):
        label = f"branch {number * 7 % N_LINES:02}"
        one = Submission(
            id=f"s-{number}",
            experiment={},
            label=label,
            model=f"model-{number % 2}",
            created_at=START + timedelta(seconds=number),
            created_by="me",
        )
        service.registry.submit(one, entry=AuditEntry(at=START, who="me", action="x", subject=one.id, details={}))
        if number % 3 == 0:
            error = {"code": "usage", "message": "No such task", "hint": ""}
            service.registry.set_submission(one.id, SubmissionStatus.FAILED, error=error)
    with service.client, on_a_socket(service) as address:
        yield Site(address, service, "", "", {})


@pytest.fixture
def opened(browser: Any, long: Site) -> Iterator[Any]:
    contexts = []

    def made(**options: Any) -> Watched:
        context = browser.new_context(locale="en-GB", **options)
        context.set_default_timeout(8_000)
        contexts.append(context)
        return watch(context, long)

    yield made
    for context in contexts:
        context.close()


@pytest.mark.parametrize("has_scripts", [True, False])
def test_an_order_goes_over_all_pages(opened: Any, has_scripts: bool) -> None:
    looked = opened(java_script_enabled=has_scripts)
    looked.open("/")
    assert looked.page.locator("th[aria-sort=descending]").inner_text().startswith("Created")
    wanted = [f"branch {number:02}" for number in range(N_LINES)]
    for way in (wanted, wanted[::-1]):
        looked.page.get_by_role("link", name="Comparison", exact=True).click()
        first = names(looked)
        looked.page.get_by_role("link", name="Next page").click()
        assert first + names(looked) == way
        assert looked.page.locator("th[aria-sort]").inner_text().startswith("Comparison")
        looked.page.get_by_role("link", name="First page").click()
        assert names(looked) == first


def test_an_order_and_a_filter_keep_one_another(opened: Any) -> None:
    looked = opened()
    looked.open("/?sort=label")
    looked.page.get_by_label("Status").select_option("failed")
    looked.page.get_by_role("button", name="Filter", exact=True).click()
    failed = sorted(f"branch {number * 7 % N_LINES:02}" for number in range(0, N_LINES, 3))
    assert names(looked) == failed
    looked.page.get_by_role("link", name="Comparison", exact=True).click()
    assert names(looked) == failed[::-1]
    looked.open("/?sort=status")
    assert looked.page.locator("td .status").first.inner_text() == "queued"
    looked.page.get_by_role("link", name="Status", exact=True).click()
    assert looked.page.locator("td .status").first.inner_text() == "failed"
    assert looked.site.service.client.get("/?sort=items").status_code == 422


def test_keys_walk_through_lines_and_turn_pages(opened: Any) -> None:
    looked = opened()
    looked.open("/?sort=label")
    focused = "document.activeElement.textContent"
    press = looked.page.keyboard.press
    for key, wanted in (("j", 0), ("j", 1), ("j", 2), ("k", 1), ("k", 0), ("k", 0)):
        press(key)
        assert looked.page.evaluate(focused) == f"branch {wanted:02}"
    outline = looked.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    press("n")
    looked.page.wait_for_url("**cursor=**")
    looked.page.get_by_label("Label").focus()
    press("u")
    press("?")
    assert looked.page.get_by_label("Label").input_value() == "u?"
    assert not looked.page.locator("dialog").is_visible()


def test_keys_are_told(make_page: Make, site: Site) -> None:
    looked = make_page()
    flips = sorted(site.positions[number] for number in (*LOSSES, *GAINS))
    looked.open(f"/comparisons/{site.small}/items/{flips[0]}")
    dialog = looked.page.locator("dialog")
    looked.page.keyboard.press("?")
    assert "next item" in dialog.inner_text()
    looked.page.keyboard.press("j")
    looked.page.keyboard.press("?")
    assert not dialog.is_visible()
    looked.page.get_by_role("button", name="Keys").click()
    looked.page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert looked.page.url.endswith(f"/items/{flips[0]}")
    looked.page.locator("pre.answer").first.focus()
    looked.page.keyboard.press("ArrowRight")
    assert looked.page.url.endswith(f"/items/{flips[0]}")
