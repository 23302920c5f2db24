"""One item in a real browser: what was extracted, its requests in a shell, and the length filter."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from qualab.errors import DatasetUnavailable, StillLoading
from qualab.model.names import ArmName
from tests.api.conftest import Service, at_work, make_service
from tests.fresh_store import fresh_store
from tests.web.conftest import (
    GAINS,
    LOSSES,
    MISSING,
    N_ITEMS,
    OTHER,
    Site,
    Watched,
    baseline,
    candidate,
    make_site_bench,
)
from tests.web.test_doors import noting  # noqa: F401
from tests.web.test_pages import names

Make = Callable[..., Watched]


def rows(watched: Watched) -> list[list[str]]:
    watched.page.locator("#extracted table").wait_for()
    return [row.locator("td").all_inner_texts() for row in watched.page.locator("#extracted tbody tr").all()]


def test_extracted_answers_of_both_arms_are_shown(make_page: Make, site: Site) -> None:
    for has_scripts in (True, False):
        looked = make_page(java_script_enabled=has_scripts)
        base = f"/comparisons/{site.small}/items"
        looked.open(f"{base}/{site.positions[LOSSES[1]]}")
        if not has_scripts:
            looked.page.get_by_role("link", name="Show them").click()
        assert rows(looked) == [["none", "(the whole answer)", str(LOSSES[1]), "same"]]
        looked.open(f"{base}/{site.positions[OTHER]}?extract=1")
        assert rows(looked) == [["none", "no", "never", "≠ differs"]]
        looked.open(f"{base}/{site.positions[MISSING[0]]}?extract=1")
        assert rows(looked) == [["none", "(the whole answer)", "–", "≠ differs"]]


def test_choices_have_nothing_extracted(make_page: Make, site: Site) -> None:
    items = site.service.context.services.store.items(site.large)
    position = next(item.position for item in items if item.task == "kobest_boolq")
    looked = make_page()
    looked.open(f"/comparisons/{site.large}/items/{position}")
    assert looked.page.locator("#choices-title").count() == 1
    assert looked.page.locator("#extracted").count() == 0


@pytest.fixture
def finished() -> Iterator[tuple[Service, str]]:
    service = make_service(bench=make_site_bench(fresh_store()))
    with at_work(service.context), service.client:
        yield service, service.finished(max_missing_share=0.1)


def extracted(service: Service, comparison_id: str, language: str = "en") -> str:
    page = service.client.get(f"/comparisons/{comparison_id}/items/0?extract=1&lang={language}")
    assert page.status_code == 200
    return str(page.text.partition('<section id="extracted"')[2].partition("</section>")[0])


def test_what_cannot_be_extracted_is_said(finished: tuple[Service, str], monkeypatch: pytest.MonkeyPatch) -> None:
    service, comparison_id = finished
    assert "<table>" in extracted(service, comparison_id)
    store = service.bench.store
    elsewhere = replace(store.get(comparison_id), local={"include_path": "/somewhere"})
    with monkeypatch.context() as patched:
        patched.setattr(store, "get", lambda _: elsewhere)
        assert "no page loads their code" in extracted(service, comparison_id)
        assert "페이지에서는 그 코드를 불러오지 않습니다" in extracted(service, comparison_id, "ko")
    service.bench.harness.tasks.config_hash = "another"
    service.context.planner._single.clear()
    assert "are not those of the plan any more" in extracted(service, comparison_id)

    def gone(*_: Any) -> Any:
        raise DatasetUnavailable("Data set x, split y, is not in z: looked for w", hint="")

    monkeypatch.setattr(service.bench.harness, "load", gone)
    service.context.planner._single.clear()
    service.context.planner._plans.clear()
    assert "looked for w" in extracted(service, comparison_id)
    assert "The scores hold no extracted answer" in extracted(service, comparison_id)
    assert "데이터셋이 없습니다" in extracted(service, comparison_id, "ko")


def test_a_page_waits_for_no_task(finished: tuple[Service, str], monkeypatch: pytest.MonkeyPatch) -> None:
    service, comparison_id = finished

    def loading(*_: Any, **__: Any) -> Any:
        raise StillLoading("still", hint="")

    monkeypatch.setattr(service.context.planner, "with_tasks", loading)
    shown = extracted(service, comparison_id)
    assert "The task is being loaded" in shown
    assert (
        f'data-fill="/comparisons/{comparison_id}/items/0?show=flipped&amp;extract=1"'
        in service.client.get(f"/comparisons/{comparison_id}/items/0?extract=1").text
    )


def test_copied_requests_run_in_a_shell(
    make_page: Make,
    site: Site,
    noting: tuple[str, list[Any]],  # noqa: F811
) -> None:
    """What the button copies is pasted as it is, but for the host, into bash; the bytes are those that were sent."""
    if shutil.which("curl") is None or shutil.which("bash") is None:
        pytest.skip("needs bash and curl")
    url, seen = noting
    looked = make_page(permissions=["clipboard-read", "clipboard-write"])
    position = site.positions[LOSSES[1]]
    looked.open(f"/comparisons/{site.small}/items/{position}")
    hashes = {one.arm: one.request_hash.hex() for one in site.service.registry.pair(site.small, position)[1]}
    for place, (arm, port) in enumerate(((ArmName.BASELINE, 8001), (ArmName.CANDIDATE, 8002))):
        looked.page.get_by_role("button", name="Copy", exact=True).first.click()
        looked.page.get_by_role("button", name="Copied").wait_for()
        copied = looked.page.locator(f"#curl-text-{place + 1}").inner_text()
        if place == 0:
            assert looked.page.evaluate("navigator.clipboard.readText()") == copied
        pasted = copied.replace(f"http://127.0.0.1:{port}/v1/completions", url)
        assert pasted != copied
        subprocess.run(["bash"], input=f"{pasted}\n", text=True, check=True, timeout=20)
        path, _, body = seen[place]
        assert path == "/v1/completions"
        assert hashlib.sha256(body).hexdigest().startswith(hashes[arm])
        looked.page.get_by_role("button", name="Copied").wait_for(state="detached")


def test_items_are_filtered_by_length(make_page: Make, site: Site) -> None:
    lengths = {}
    for number in range(N_ITEMS):
        texts = [answer(f"say {number}", 0).text or "" for answer in (baseline, candidate)]
        lengths[number] = max(map(len, texts))
    looked = make_page()
    looked.open(f"/comparisons/{site.small}/items")
    looked.page.get_by_label("at least").fill("4")
    looked.page.get_by_label("at most").fill("8")
    looked.page.keyboard.press("Enter")
    looked.page.wait_for_url("**min_length=4&max_length=8")
    found = {int(name.partition("/")[2]) for name in names(looked)}
    assert found == {number for number, length in lengths.items() if 4 <= length <= 8}
    assert {*GAINS, OTHER} <= found
    looked.page.locator("td.name a").first.click()
    looked.page.wait_for_url(lambda url: "/items/" in url and "min_length=4&max_length=8" in url)
    looked.page.locator("main a[rel=up]").click()
    looked.page.wait_for_url(lambda url: "/items?" in url and "min_length=4" in url)
    assert looked.page.get_by_label("at most").input_value() == "8"
    looked.open(f"/comparisons/{site.small}/items?min_length=9&max_length=2")
    assert looked.page.get_by_text("No item fits the filter.").count() == 1


def test_a_link_to_one_item_holds_nothing_else(make_page: Make, site: Site) -> None:
    looked = make_page()
    position = site.positions[GAINS[0]]
    looked.open(f"/comparisons/{site.small}/items/{position}?show=gains&task=sums&min_length=1")
    looked.page.get_by_role("link", name="Link to this item").click()
    looked.page.wait_for_url(f"**/comparisons/{site.small}/items/{position}")
    assert looked.page.locator("h1").inner_text() == f"sums/{GAINS[0]}"


def test_an_item_is_gone_through_with_tab_alone(make_page: Make, site: Site) -> None:
    """In the order of the page, each stop to be seen; texts that may scroll are stops."""
    looked = make_page()
    looked.open(f"/comparisons/{site.small}/items/{site.positions[LOSSES[1]]}?extract=1")
    stops = []
    for _ in range(60):
        looked.page.keyboard.press("Tab")
        found = looked.page.evaluate(
            "(() => { const one = document.activeElement, box = one.getBoundingClientRect(); return ["
            "one.textContent.trim(), getComputedStyle(one).outlineStyle, box.top + scrollY,"
            "one === document.body]; })()"
        )
        if found[3] or (stops and found[0] == stops[0][0]):
            break
        stops.append(found)
    assert {outline for _, outline, _, _ in stops} == {"solid"}
    tops = [top for _, _, top, _ in stops[1:]]
    assert all(later > before - 40 for before, later in pairwise(tops))
    names_of_stops = [name for name, *_ in stops]
    for wanted in ("Skip to content", "한국어", "← Previous", "Next →", "Link to this item", "Copy"):
        assert wanted in names_of_stops
