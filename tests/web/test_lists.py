"""Long lists in a real browser: their orders over all pages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from qualab.model.names import ComparisonStatus
from tests.api.conftest import make_service, on_a_socket
from tests.app.fakes import START
from tests.store.samples import ask_for, put
from tests.web.conftest import Site, Watched, watch
from tests.web.test_pages import names

N_LINES = 60


@pytest.fixture(scope="module")
def long() -> Iterator[Site]:
    """Sixty requests that failed or wait; the labels' order is not that of time."""
    service = make_service(port=0)
    for number in range(N_LINES):
        label = f"branch {number * 7 % N_LINES:02}"
        at, model = START + timedelta(seconds=number), f"model-{number % 2}"
        ask_for(service.bench.store, f"s-{number}", at=at, label=label, model=model)
        if number % 3 == 0:
            error = {"code": "usage", "message": "No such task", "hint": ""}
            put(service.bench.store, f"s-{number}", status=ComparisonStatus.FAILED, error=error)
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
    looked.page.get_by_role("link", name="Comparison", exact=True).click()
    first = names(looked)
    looked.page.get_by_role("link", name="Next page").click()
    assert first + names(looked) == [f"branch {number:02}" for number in range(N_LINES)]
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
    assert looked.site.service.client.get("/?sort=items").status_code == 422
