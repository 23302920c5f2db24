"""What the pages show and do in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from qualab.model.names import ComparisonStatus
from tests.api.conftest import make_service, on_a_socket
from tests.app.fakes import START
from tests.store.samples import ask_for, put
from tests.web.conftest import LOSSES, Site, Watched

Make = Callable[..., Watched]
CURVE = "polyline.curve"
N_LINES = 60


def paths(site: Site) -> dict[str, str]:
    one, many = f"/comparisons/{site.small}", f"/comparisons/{site.large}"
    return {
        "list": "/",
        "comparison": many,
        "items": f"{many}/items",
        "item": f"{one}/items/{site.positions[LOSSES[0]]}",
        "audited item": f"{many}/items/{site.audited}",
        "choices": f"{many}/items/{site.choices}",
        "plan": "/plan",
        "sign in": "/sign-in",
        "error": "/comparisons/none",
    }


def names(watched: Watched) -> list[str]:
    return [str(text) for text in watched.page.locator("td.name a").all_inner_texts()]


def test_every_page_fits_a_phone_and_names_its_fields(make_page: Make, site: Site) -> None:
    for scheme in ("light", "dark"):
        looked = make_page(viewport={"width": 390, "height": 800}, color_scheme=scheme, may_fail=True)
        for name, path in paths(site).items():
            assert looked.open(path).status == (404 if name == "error" else 200)
            assert looked.page.locator("h1").count() == 1
            assert looked.page.evaluate("document.documentElement.scrollWidth") == 390, name
            paper = looked.page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (max(map(int, re.findall(r"\d+", paper))) < 60) == (scheme == "dark")
            unnamed = looked.page.evaluate(
                "[...document.querySelectorAll('input:not([type=hidden]), select, progress')]"
                ".filter(one => !one.labels.length && !one.ariaLabel && !one.getAttribute('aria-labelledby'))"
                ".map(one => one.outerHTML)"
            )
            assert unnamed == []


LATIN = re.compile(r"[A-Za-z]{3,}")
KNOWN = re.compile(
    r"[\w-]+/[\w,-]+|[a-z]+,none|[0-9a-f]{8,}|[\w,]*_[\w,-]*|--?[a-z-]+"
    r"|qualab[\w -]*|English|PDF|HTML|JSON|UTC|curl|URL|POST|NAME|HTTP|signoff"
    r"|release \d+|nightly|waits|published-\d+|custom|sums|gsm8k|haerae|kobest|ifeval|stop|made-up"
)


def test_korean_pages_have_no_english_left(make_page: Make, site: Site) -> None:
    """Names, commands and what is stored stay as they are; what a model said is not looked at."""
    looked = make_page(locale="ko-KR", may_fail=True)
    for name, path in paths(site).items():
        looked.open(path)
        assert looked.page.locator("html").get_attribute("lang") == "ko"
        chrome = looked.page.evaluate(
            "(() => { document.querySelectorAll('pre, option, [lang=en], td, #methods, #running, #flips, svg')"
            ".forEach(one => one.remove()); return document.body.innerText + document.title; })()"
        )
        rest = KNOWN.sub(" ", chrome)
        left = set(LATIN.findall(rest)) - {
            "max",
            "model",
            "len",
            "COR",
            "few",
            "shot",
            "temperature",
            "none",
            "nat",
            "McNemar",
        }
        assert left == set(), (name, rest)


def test_a_chosen_language_is_kept(looked: Watched) -> None:
    looked.open("/")
    looked.page.get_by_role("link", name="한국어").click()
    assert looked.page.locator("h1").inner_text() == "비교 목록"
    looked.open("/plan")
    assert looked.page.locator("h1").inner_text() == "계획 계산기"
    looked.page.get_by_role("link", name="English").click()
    looked.open("/")
    assert looked.page.locator("h1").inner_text() == "Comparisons"


def test_korean_is_drawn_whatever_fonts_there_are(make_page: Make, site: Site) -> None:
    """The policy lets the served font load, and no word is drawn with a font that has no Korean."""
    looked = make_page(locale="ko-KR")
    looked.open("/plan")
    loaded = looked.page.evaluate("document.fonts.load('16px \"Served Korean\"', '가').then(found => found.length)")
    assert loaded == 1
    looked.page.evaluate("document.fonts.ready.then(() => true)")
    session = looked.page.context.new_cdp_session(looked.page)
    session.send("DOM.enable")
    session.send("CSS.enable")
    root = session.send("DOM.getDocument", {"depth": -1})["root"]["nodeId"]
    for selector in ("h1", "nav a", "label", "button", "h2", "dt"):
        node = session.send("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
        n_korean = sum("가" <= character <= "힣" for character in looked.page.locator(selector).first.inner_text())
        drawn = session.send("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]
        latin = ("DejaVu", "Liberation", "Arimo", "Roboto")
        assert sum(font["glyphCount"] for font in drawn if not font["familyName"].startswith(latin)) >= n_korean


@pytest.fixture(scope="module")
def long() -> Iterator[Site]:
    """Sixty requests that failed or wait; the labels' order is not that of time."""
    service = make_service(port=0)
    for number in range(N_LINES):
        at, label = START + timedelta(seconds=number), f"branch {number * 7 % N_LINES:02}"
        ask_for(service.bench.store, f"s-{number}", at=at, label=label, model=f"model-{number % 2}")
        if number % 3 == 0:
            error = {"code": "usage", "message": "No such task", "hint": ""}
            put(service.bench.store, f"s-{number}", status=ComparisonStatus.FAILED, error=error)
    with service.client, on_a_socket(service) as address:
        yield Site(address, service)


def test_a_list_is_ordered_over_all_pages_and_filtered(make_page: Make, long: Site) -> None:
    looked = make_page(site=long)
    looked.open("/")
    assert looked.page.locator("th[aria-sort=descending]").inner_text().startswith("Created")
    looked.page.get_by_role("link", name="Comparison", exact=True).click()
    assert looked.page.locator("th[aria-sort=ascending]").inner_text().startswith("Comparison")
    first = names(looked)
    looked.page.get_by_role("link", name="Next page").click()
    assert first + names(looked) == [f"branch {number:02}" for number in range(N_LINES)]
    looked.page.get_by_role("link", name="First page").click()
    assert names(looked) == first
    looked.page.get_by_label("Status").select_option("failed")
    looked.page.get_by_role("button", name="Filter", exact=True).click()
    assert names(looked) == sorted(f"branch {number * 7 % N_LINES:02}" for number in range(0, N_LINES, 3))
    assert looked.page.locator("tbody .why").first.inner_text() == "No such task"
    looked.open("/?model=nobody")
    assert looked.page.get_by_text("No comparison").count() == 1


def test_a_list_is_reached_with_the_keyboard(looked: Watched, site: Site) -> None:
    looked.open("/")
    looked.page.keyboard.press("Tab")
    assert looked.page.evaluate("document.activeElement.className") == "skip"
    assert looked.page.locator(".skip").bounding_box()["x"] >= 0
    reached: list[str] = []
    while "nightly" not in reached:
        looked.page.keyboard.press("Tab")
        reached.append(looked.page.evaluate("document.activeElement.name || document.activeElement.textContent.trim()"))
        assert looked.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
        assert len(reached) < 40
    assert {"status", "verdict", "label", "model", "Filter", "Comparison", "release 12", "nightly"} <= set(reached)


def test_a_comparison_shows_the_reports_own_numbers(looked: Watched, site: Site) -> None:
    looked.open(f"/comparisons/{site.large}")
    report = site.service.client.get(f"/v1/comparisons/{site.large}/report?format=json").json()
    box = looked.page.locator(".verdict").inner_text()
    assert [line["text"] for line in report["box"] if line["text"] not in box] == []
    for section in report["sections"]:
        if section["id"] == "signoff":
            continue
        shown = looked.page.locator(f"section#{section['id']}").inner_text()
        for block in section["blocks"]:
            for row in block.get("rows", []) if block["kind"] == "table" else []:
                for cell in row["cells"]:
                    assert cell["text"].strip() in shown, (section["id"], cell)
    assert looked.page.locator("figure.forest svg").count() == 1
    assert looked.page.locator("#acceptance figure.histogram svg").count() == 2
    worst = looked.page.locator("#audit .worst li").all_inner_texts()
    assert [text.partition(" nats")[0].rpartition(" ")[2] for text in worst] == ["49.10", "7.25"]
    looked.page.locator("#audit .worst a").nth(1).click()
    looked.page.wait_for_url(f"**/items/{site.audited}#greedy-candidate-2")
    assert looked.page.locator(".token:target").inner_text().startswith(" 3")
    looked.page.go_back()
    assert looked.page.get_by_text("Not signed off yet.").count() == 1
    looked.page.get_by_role("link", name="Browse flips", exact=True).click()
    assert looked.page.locator("input[value=flipped]").is_checked()


def test_the_calculator_answers_while_it_is_changed(looked: Watched) -> None:
    looked.open("/plan")
    figures, curve = looked.page.locator("#figures").inner_text(), looked.page.locator(CURVE).get_attribute("points")
    looked.page.locator("#discordance-number").fill("12.3")
    looked.page.wait_for_url("**discordance=12.3*")
    assert looked.page.locator("#discordance").input_value() == "12.3"
    assert looked.page.locator(CURVE).get_attribute("points") != curve
    assert "--discordance 0.123" in looked.page.locator("#figures").inner_text() != figures
    looked.page.locator("#margin").focus()
    looked.page.keyboard.press("ArrowRight")
    looked.page.wait_for_url("**margin=2.25&*")
    assert looked.page.locator("#margin-number").input_value() == "2.25"
    assert looked.page.evaluate("document.activeElement.id") == "margin"
    looked.page.locator("#margin-number").fill("99")  # beyond what it takes: nothing is asked
    assert looked.page.locator("#margin-number").evaluate("node => node.validity.rangeOverflow")
    looked.page.locator("#margin-number").fill("4")
    looked.page.wait_for_url("**margin=4&*")
    assert not [url for url in looked.asked if "margin=99" in url]


def test_pages_work_without_scripts(make_page: Make, site: Site) -> None:
    looked = make_page(java_script_enabled=False)
    looked.open("/plan")
    looked.page.locator("#margin-number").fill("4")
    looked.page.get_by_role("button", name="Compute").click()
    assert "--margin 0.04" in looked.page.locator("#figures").inner_text()
    looked.open(f"/comparisons/{site.small}/items?show=flipped")
    looked.page.locator("td.name a").first.click()
    looked.page.locator("a[rel=next]").click()
    assert looked.page.locator("section.side").count() == 2
    looked.page.get_by_role("link", name="Show them").click()
    assert looked.page.locator("#extracted tbody tr").count() == 1
