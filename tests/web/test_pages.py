"""What the pages show and do in a real browser."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from tests.web.conftest import GAINS, LOSSES, MISSING, N_ITEMS, OTHER, Site, Watched
from tests.web.made import hostile_texts

Make = Callable[..., Watched]


def paths(site: Site) -> dict[str, str]:
    one, many = f"/comparisons/{site.small}", f"/comparisons/{site.large}"
    return {
        "list": "/",
        "comparison": many,
        "items": f"{many}/items",
        "item": f"{one}/items/{site.positions[3]}",
        "choices": f"{many}/items/{choices_position(site)}",
        "plan": "/plan",
        "sign in": "/sign-in",
    }


def choices_position(site: Site) -> int:
    items = site.service.context.services.store.items(site.large)
    return next(item.position for item in items if item.task == "kobest_boolq")


def names(watched: Watched) -> list[str]:
    return [str(text) for text in watched.page.locator("td.name a").all_inner_texts()]


def test_every_page_loads_and_fits_a_phone(make_page: Make, site: Site) -> None:
    for scheme in ("light", "dark"):
        looked = make_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
        for name, path in paths(site).items():
            assert looked.open(path).status == 200, name
            assert looked.page.locator("h1").count() == 1
            assert looked.page.evaluate("document.documentElement.scrollWidth") == 390, name


def test_dark_pages_are_dark_and_light_ones_light(make_page: Make) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        looked = make_page(color_scheme=scheme)
        looked.open("/plan")
        colours[scheme] = looked.page.evaluate("getComputedStyle(document.body).backgroundColor")
        line = looked.page.locator("svg polyline.curve").evaluate("node => getComputedStyle(node).stroke")
        colours[f"{scheme} line"] = line
    assert colours["light"] == "rgb(255, 255, 255)"
    assert max(map(int, re.findall(r"\d+", colours["dark"]))) < 60
    assert colours["light line"] != colours["dark line"]


def test_the_list_filters_and_sorts(looked: Watched, site: Site) -> None:
    looked.open("/")
    assert sorted(names(looked)) == ["nightly", "release 12", "waits"]
    looked.page.get_by_role("link", name="Comparison", exact=True).click()
    assert names(looked) == ["nightly", "release 12", "waits"]
    assert looked.page.locator("th[aria-sort=ascending]").inner_text().startswith("Comparison")
    looked.page.get_by_label("Status").select_option("queued")
    looked.page.get_by_role("button", name="Filter", exact=True).click()
    assert names(looked) == ["waits"]
    looked.open("/?status=&verdict=&label=nightly&model=")
    assert names(looked) == ["nightly"]
    looked.open("/?model=nobody")
    assert looked.page.get_by_text("No comparison fits the filter.").count() == 1


def test_a_comparison_shows_the_reports_own_numbers(looked: Watched, site: Site) -> None:
    looked.open(f"/comparisons/{site.large}")
    report = site.service.client.get(f"/v1/comparisons/{site.large}/report?format=json").json()
    assert report["headline"] in looked.page.locator(".verdict").inner_text()
    for section in report["sections"]:
        if section["id"] == "signoff":
            continue
        shown = looked.page.locator(f"section#{section['id']}").inner_text()
        for block in section["blocks"]:
            for row in block.get("rows", []) if block["kind"] == "table" else []:
                for cell in row["cells"]:
                    assert cell["text"].strip() in shown, (section["id"], cell)
    assert looked.page.locator("figure.forest svg").count() == 1
    assert looked.page.locator("figure.histogram svg").count() == 2
    assert looked.page.get_by_text("Nobody has signed this off.").count() == 1
    looked.page.get_by_role("link", name="Browse flips", exact=True).click()
    assert looked.page.locator("input[value=flipped]").is_checked()


def test_items_are_filtered_and_paged(looked: Watched, site: Site) -> None:
    base = f"/comparisons/{site.small}/items"
    by_filter = {
        "flipped": {*LOSSES, *GAINS},
        "losses": set(LOSSES),
        "gains": set(GAINS),
        "missing": set(MISSING),
        "different": {*LOSSES, *GAINS, OTHER},
    }
    looked.open(base)
    for show, numbers in by_filter.items():
        looked.page.locator(f"input[value={show}]").check()
        looked.page.get_by_role("button", name="Filter").click()
        assert {int(name.partition("/")[2]) for name in names(looked)} == numbers, show
    looked.page.locator("input[value=all]").check()
    looked.page.get_by_label("at least").fill("8")
    looked.page.get_by_role("button", name="Filter").click()
    assert {int(name.partition("/")[2]) for name in names(looked)} >= {OTHER, *LOSSES[:2]}
    assert "84" not in " ".join(names(looked))
    looked.open(base)
    seen = names(looked)
    while looked.page.locator("a[rel=next]").count():
        looked.page.locator("a[rel=next]").click()
        seen += names(looked)
    assert len(seen) == len(set(seen)) == N_ITEMS


def test_a_task_can_be_picked(looked: Watched, site: Site) -> None:
    looked.open(f"/comparisons/{site.large}/items")
    looked.page.get_by_label("Task").select_option("ifeval")
    looked.page.get_by_role("button", name="Filter").click()
    assert len(names(looked)) == 50
    assert {name.partition("/")[0] for name in names(looked)} == {"ifeval"}


def test_an_item_shows_both_answers_and_where_they_part(looked: Watched, site: Site) -> None:
    looked.open(f"/comparisons/{site.small}/items/{site.positions[OTHER]}")
    off, on = (looked.page.locator("section.side").nth(place) for place in range(2))
    assert (off.locator("pre").inner_text(), on.locator("pre").inner_text()) == ("no 17", "never 17")
    assert (off.locator(".same").inner_text(), off.locator("mark").inner_text()) == ("n", "o")
    assert on.locator("mark").inner_text() == "ever"
    assert "stop" in off.inner_text()
    assert looked.page.get_by_text("say 17", exact=True).count() == 1
    assert looked.page.locator("tr.strong td.number").all_inner_texts() == ["0", "0"]
    looked.open(f"/comparisons/{site.small}/items/{site.positions[MISSING[0]]}")
    assert looked.page.get_by_text("No answer", exact=True).count() == 1
    assert looked.page.get_by_text("500 broken").count() == 1


def test_choices_show_both_arms_likelihoods(looked: Watched, site: Site) -> None:
    position = choices_position(site)
    looked.open(f"/comparisons/{site.large}/items/{position}")
    _, answers, _ = site.service.registry.pair(site.large, position)
    table = looked.page.locator("table").first
    for answer in answers:
        assert f"{answer.reply.loglikelihood:.4f}".replace("-", "−") in table.inner_text()
    assert table.locator(".good").count() == 2
    assert table.locator("tbody tr").count() == 3


@pytest.mark.parametrize("number", LOSSES)
def test_what_a_model_answers_is_text(looked: Watched, site: Site, number: int) -> None:
    """The fixture would see a dialog, an error or a request."""
    looked.open(f"/comparisons/{site.small}/items/{site.positions[number]}")
    shown = looked.page.locator("section.side").nth(1).locator("pre").inner_text()
    text = hostile_texts()[LOSSES.index(number)]
    plain = re.sub("[\u202e\u202c\u200b\x07\x00]", lambda found: f"‹U+{ord(found[0]):04X}›", text)
    assert shown.replace("␣", " ") == f"{number} {plain}"
    assert looked.page.locator("main img, main script, main iframe").count() == 0
    looked.open(f"/comparisons/{site.small}")
    assert looked.page.locator("main img, main script").count() == 0


def test_links_go_through_the_flips_and_back(looked: Watched, site: Site) -> None:
    flips = sorted(site.positions[number] for number in (*LOSSES, *GAINS))
    looked.open(f"/comparisons/{site.small}/items?show=flipped")
    looked.page.locator("td.name a").first.click()
    for rel, place in (("next", 1), ("next", 2), ("prev", 1)):
        looked.page.locator(f"main a[rel={rel}]").click()
        looked.page.wait_for_url(f"**/items/{flips[place]}?show=flipped")
    looked.open(f"/comparisons/{site.small}/items/{flips[-1]}?show=flipped")
    assert looked.page.locator("a[rel=next]").count() == 0
    looked.page.locator("main a[rel=up]").click()
    looked.page.wait_for_url("**/items?show=flipped")
    looked.open(f"/comparisons/{site.small}/items/{flips[0]}?show=gains")
    gains = sorted(site.positions[number] for number in GAINS)
    following = next(gain for gain in gains if gain > flips[0])
    assert f"/items/{following}?" in looked.page.locator("a[rel=next]").get_attribute("href")


def test_everything_is_reached_with_the_keyboard(looked: Watched, site: Site) -> None:
    looked.open("/")
    looked.page.keyboard.press("Tab")
    assert looked.page.evaluate("document.activeElement.className") == "skip"
    assert looked.page.locator(".skip").bounding_box()["x"] >= 0
    reached = []
    for _ in range(40):
        looked.page.keyboard.press("Tab")
        reached.append(looked.page.evaluate("document.activeElement.name || document.activeElement.textContent.trim()"))
        outline = looked.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or looked.page.evaluate("document.activeElement === document.body"), reached[-1]
        if "nightly" in reached:
            break
    assert {"status", "verdict", "label", "model", "Filter", "Comparison", "release 12", "nightly"} <= set(reached)


def test_every_field_has_a_name(looked: Watched, site: Site) -> None:
    for path in paths(site).values():
        looked.open(path)
        unnamed = looked.page.evaluate(
            "[...document.querySelectorAll('input:not([type=hidden]), select, progress')]"
            ".filter(one => !one.labels.length && !one.ariaLabel && !one.getAttribute('aria-labelledby'))"
            ".map(one => one.outerHTML)"
        )
        assert unnamed == []


def test_the_calculator_answers_while_it_is_changed(looked: Watched) -> None:
    looked.open("/plan")
    before = looked.page.locator("#figures").inner_text()
    curve = looked.page.locator("polyline.curve").get_attribute("points")
    looked.page.locator("#margin").fill("4")
    looked.page.wait_for_url("**/plan?*margin=4*")
    assert looked.page.locator("#margin-number").input_value() == "4"
    after = looked.page.locator("#figures").inner_text()
    assert after != before
    assert "--margin 0.04" in after
    assert looked.page.locator("polyline.curve").get_attribute("points") != curve


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


def test_requests_are_copied(make_page: Make, site: Site) -> None:
    looked = make_page(permissions=["clipboard-read", "clipboard-write"])
    looked.open(f"/comparisons/{site.small}/items/{site.positions[3]}")
    looked.page.get_by_role("button", name="Copy").nth(1).click()
    looked.page.get_by_text("Copied").wait_for()
    copied = looked.page.evaluate("navigator.clipboard.readText()")
    assert copied == looked.page.locator("#curl-text-2").inner_text()
    assert copied.startswith("curl -sS http://127.0.0.1:8002/v1/completions")


LATIN = re.compile(r"[A-Za-z]{3,}")
KNOWN = re.compile(
    r"[\w-]+/[\w,-]+|[a-z]+,none|[0-9a-f]{8,}|[\w,]*_[\w,-]*|--?[a-z-]+"
    r"|qualab[\w -]*|English|PDF|HTML|JSON|UTC|curl|URL|POST|NAME|signoff"
    r"|release \d+|nightly|waits|published-\d+|custom|sums|gsm8k|haerae|kobest|ifeval|stop|made-up"
)


def test_korean_pages_have_no_english_left(make_page: Make, site: Site) -> None:
    """Names, commands and what is stored stay as they are; what a model said is not looked at."""
    looked = make_page(locale="ko-KR")
    for name, path in paths(site).items():
        looked.open(path)
        assert looked.page.locator("html").get_attribute("lang") == "ko"
        chrome = looked.page.evaluate(
            "(() => { document.querySelectorAll('pre, option, [lang=en], td, #methods, #running, #flips, svg')"
            ".forEach(one => one.remove()); return document.body.innerText + document.title; })()"
        )
        rest = KNOWN.sub(" ", chrome)
        left = set(LATIN.findall(rest)) - {"max", "model", "len", "COR", "few", "shot", "temperature"}
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


def test_the_service_is_waited_for_at_most_a_moment(looked: Watched, site: Site) -> None:
    looked.open("/")
    for path in paths(site).values():
        began = time.perf_counter()
        looked.open(path)
        assert time.perf_counter() - began < 3.0
