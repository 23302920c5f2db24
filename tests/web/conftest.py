"""The service on a real socket with a SQLite database, and a browser that looks at it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from qualab.model.items import Reply
from qualab.model.names import RequestKind
from tests.api.conftest import Service, at_work, idle, make, make_bench, make_service, on_a_socket, working
from tests.app.fakes import Bench, failure, reply
from tests.web.made import publish

__all__ = ["idle", "make", "working"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]
N_ITEMS = 130
LOSSES, GAINS, MISSING, OTHER = (3, 23, 43, 63, 83), (7, 57), (11, 91), 17
"""Numbers of items: hostile answers of the candidate are losses; OTHER is wrong in both arms, differently."""
HOSTILE = (
    "<script>alert(1)</script>",
    "</pre><img src=x onerror=alert(2)>",
    "\u202egnp.exe\u202c and \x07bell \x00nul \u200bzero",
    "شكرا جزيلا 123 abc",
    "{{ 7*7 }}{% raw %}",
)
"""What a model may answer that must do nothing."""


@dataclass
class Site:
    address: str
    service: Service
    small: str = ""
    """130 items that a model answered with anything."""
    large: str = ""
    """34 metrics, made up."""
    positions: dict[int, int] = field(default_factory=dict)
    """Of the small one's items, by their number."""
    choices: int = 0
    """The position of an item of choices in the large one."""
    audited: int = 0
    """The position of the large one's item with foreign tokens."""


@dataclass
class Watched:
    page: Any
    site: Site
    troubles: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self, path: str, **more: Any) -> Any:
        return self.page.goto(self.site.address + path, **more)


def baseline(prompt: str, seed: int) -> Reply:
    number = int(prompt.removeprefix("say "))
    return reply(f"no {number}" if number in (*GAINS, OTHER) else str(number))


def candidate(prompt: str, seed: int) -> Reply:
    number = int(prompt.removeprefix("say "))
    if number in MISSING:
        return failure()
    if number in LOSSES:
        return reply(f"{number} {HOSTILE[LOSSES.index(number)]}")
    if number == OTHER:
        return reply(f"never {number}", reasoning="hm\x1b[31m", reasoning_characters=7)
    return reply(str(number))


def make_site_bench() -> Bench:
    bench = make_bench(n_items=N_ITEMS)
    bench.baseline.answer, bench.candidate.answer = baseline, candidate
    return bench


@pytest.fixture(scope="package")
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        busy = make_service(bench=make_site_bench())
        store = stack.enter_context(busy.store)
        with at_work(busy.context), busy.client:
            small = busy.finished(label="nightly", max_missing_share=0.1)
        large = publish(store, "20260301-214000-5ca1ab1e", label="release 12")
        served = make_service(bench=busy.bench, port=0)
        with served.client:
            served.create(label="waits")
        items = {item.doc_id: item.position for item in store.items(small)}
        address = stack.enter_context(on_a_socket(served))
        choices = next(item.position for item in store.items(large.id) if item.task == "kobest_boolq")
        audited = next(item.position for item in store.items(large.id) if item.kind is RequestKind.GENERATION)
        yield Site(address, served, small, large.id, items, choices, audited)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Headless Chromium; tests that need it are skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def make_page(browser: Any, site: Site) -> Iterator[Any]:
    """Pages in contexts of their own; nothing may go wrong on them, and nothing but the service be asked."""
    contexts, pages = [], []

    def made(*, site: Site = site, may_fail: bool = False, **options: Any) -> Watched:
        context = browser.new_context(**{"locale": "en-GB", **options})
        context.set_default_timeout(15_000)
        contexts.append(context)
        watched = Watched(context.new_page(), site)

        def note(message: Any) -> None:
            if message.type == "error" and not (may_fail and "Failed to load resource" in message.text):
                watched.troubles.append(message.text)

        watched.page.on("console", note)
        watched.page.on("pageerror", lambda error: watched.troubles.append(str(error)))
        watched.page.on(
            "dialog", lambda dialog: (watched.troubles.append(f"dialog {dialog.message}"), dialog.dismiss())
        )
        watched.page.on("request", lambda request: watched.asked.append(request.url))
        pages.append(watched)
        return watched

    yield made
    for context in contexts:
        context.close()
    for one in pages:
        assert one.troubles == []
        elsewhere = [url for url in one.asked if not url.startswith(("data:", "blob:", one.site.address))]
        assert elsewhere == []


@pytest.fixture
def looked(make_page: Any) -> Watched:
    found: Watched = make_page()
    return found
