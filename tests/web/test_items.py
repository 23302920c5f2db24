"""Items in a real browser: lists, both answers, what was extracted, and requests in a shell."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import pytest

from qualab.errors import DatasetUnavailable
from qualab.model.names import ArmName
from qualab.service.api.item_page import command
from tests.api.conftest import OFF, ON, Service
from tests.web.conftest import GAINS, HOSTILE, LOSSES, MISSING, N_ITEMS, OTHER, Site, Watched
from tests.web.test_pages import names

Make = Callable[..., Watched]
JSON = "Content-Type: application/json"


def numbers(watched: Watched) -> set[int]:
    return {int(name.partition("/")[2]) for name in names(watched)}


def test_items_are_filtered_and_paged(looked: Watched, site: Site) -> None:
    base = f"/comparisons/{site.small}/items"
    by_filter = {"flipped": (*LOSSES, *GAINS), "losses": LOSSES, "gains": GAINS, "missing": MISSING}
    looked.open(base)
    for show, expected in (by_filter | {"different": (*LOSSES, *GAINS, OTHER)}).items():
        looked.page.locator(f"input[value={show}]").check()
        looked.page.get_by_role("button", name="Filter").click()
        assert numbers(looked) == set(expected), show
    looked.page.locator("input[value=all]").check()
    looked.page.get_by_label("at least").fill("4")
    looked.page.get_by_label("at most").fill("8")
    looked.page.keyboard.press("Enter")
    looked.page.wait_for_url("**min_length=4&max_length=8*")
    assert numbers(looked) == {*GAINS, OTHER}
    looked.page.locator("td.name a").first.click()
    looked.page.wait_for_url(lambda url: "/items/" in url and "min_length=4&max_length=8" in url)
    looked.page.locator("main a[rel=up]").click()
    looked.page.wait_for_url(lambda url: "/items?" in url and "min_length=4" in url)
    assert looked.page.get_by_label("at most").input_value() == "8"
    looked.open(base)
    seen = names(looked)
    while looked.page.locator("a[rel=next]").count():
        looked.page.locator("a[rel=next]").click()
        seen += names(looked)
    assert len(seen) == len(set(seen)) == N_ITEMS
    looked.open(f"{base}?min_length=9&max_length=2")
    assert looked.page.get_by_text("No item").count() == 1
    looked.open(f"/comparisons/{site.large}/items")
    looked.page.get_by_label("Task").select_option("ifeval")
    looked.page.get_by_role("button", name="Filter").click()
    assert {name.partition("/")[0] for name in names(looked)} == {"ifeval"}


def test_an_item_shows_both_answers_and_where_they_part_or_both_likelihoods(looked: Watched, site: Site) -> None:
    looked.open(f"/comparisons/{site.small}/items/{site.positions[OTHER]}")
    off, on = (looked.page.locator("section.side").nth(place) for place in range(2))
    assert (off.locator("pre").inner_text(), on.locator("> pre").inner_text()) == ("no 17", "never 17")
    assert (off.locator(".same").inner_text(), off.locator("mark").inner_text()) == ("n", "o")
    assert on.locator("mark").inner_text() == "ever"
    assert "stop" in off.inner_text()
    assert "7 characters" in on.inner_text()
    on.locator("summary").click()
    assert on.locator("details pre").inner_text() == "hm‹U+001B›[31m"
    assert looked.page.get_by_text("say 17", exact=True).count() == 1
    assert looked.page.locator("tr.strong td.number").all_inner_texts() == ["0", "0"]
    looked.open(f"/comparisons/{site.small}/items/{site.positions[MISSING[0]]}")
    assert looked.page.get_by_text("No answer", exact=True).count() == 1
    assert looked.page.get_by_text("500 broken").count() == 1
    looked.open(f"/comparisons/{site.large}/items/{site.choices}")
    _, answers, _ = site.service.store.pair(site.large, site.choices)
    table = looked.page.locator("table").first
    for answer in answers:
        assert f"{answer.reply.loglikelihood:.4f}".replace("-", "−") in table.inner_text()
    assert table.locator(".good").count() == 2
    assert table.locator("tbody tr").count() == 3
    assert looked.page.locator("#extracted").count() == 0
    for number, row in {
        LOSSES[1]: ["none", "(the whole answer)", str(LOSSES[1]), "same"],
        OTHER: ["none", "no", "never", "≠ differs"],
        MISSING[0]: ["none", "(the whole answer)", "–", "≠ differs"],
    }.items():
        looked.open(f"/comparisons/{site.small}/items/{site.positions[number]}")
        looked.page.locator("#extracted table").wait_for()
        assert looked.page.locator("#extracted tbody td").all_inner_texts() == row


TITLES = {"en": ("Token audit", "1 of 9 tokens are foreign"), "ko": ("토큰 감사", "토큰 9개 중 1개가 이상 토큰")}
NUMBERS = {"en": "7.25 nats below the model's choice “<b>”, rank 312"}
NUMBERS["ko"] = "모델의 1순위 “<b>”보다 7.25 nat 낮음, 312순위"
LUMINANCE = """nodes => nodes.map(node => getComputedStyle(node)).map(style => [style.backgroundColor, style.color].map(
    text => text.match(/\\d+/g).slice(0, 3).map(n => n / 255).map(
        n => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4).reduce(
            (sum, n, place) => sum + n * [0.2126, 0.7152, 0.0722][place], 0)))"""
"""Of background and text, as WCAG 2 defines it."""


def test_an_answers_tokens_are_shaded_by_gap_and_tell_their_numbers(make_page: Make, site: Site) -> None:
    url = f"/comparisons/{site.large}/items/{site.audited}#greedy-candidate-2"
    for language, scheme in (("en", "light"), ("ko", "dark")):
        looked = make_page(locale=language, color_scheme=scheme)
        looked.open(url)
        section = looked.page.locator("section#tokens")
        title, facts = TITLES[language]
        assert section.locator("h2").inner_text() == title
        sides = section.locator("section.side")
        assert sides.count() == 6
        candidate = sides.nth(1)
        assert facts in candidate.inner_text()
        near, foreign = (candidate.locator(".token").nth(place) for place in range(2))
        assert [one.get_attribute("class") for one in (near, foreign)] == ["token shade-1", "token shade-4 foreign"]
        assert sides.nth(0).locator(".token").count() == 0
        numbers = foreign.locator(".numbers")
        assert numbers.text_content().strip() == f"[{NUMBERS[language]}]"
        assert numbers.bounding_box()["width"] > 100  # it is the one that the link leads to
        assert near.locator(".numbers").bounding_box()["width"] <= 1
        near.hover()
        assert near.locator(".numbers").bounding_box()["width"] > 100
        candidate.locator("pre").focus()
        for token in (near, foreign):
            looked.page.keyboard.press("ArrowRight")
            assert token.evaluate("node => node === document.activeElement")
        looked.page.keyboard.press("ArrowLeft")
        assert near.evaluate("node => node === document.activeElement")
        pairs = section.locator(".shades .token:not(.shade-0):not(.foreign)").evaluate_all(LUMINANCE)
        backgrounds = [background for background, _ in pairs]
        assert backgrounds == sorted(backgrounds, reverse=scheme == "light")
        assert all((max(pair) + 0.05) / (min(pair) + 0.05) >= 4.5 for pair in pairs)
        copied = candidate.locator("pre").evaluate(
            "node => { getSelection().selectAllChildren(node); return getSelection().toString(); }"
        )
        assert "7.25" not in copied
        assert "<script>alert(3)</script>" in copied
        looked.open(f"/comparisons/{site.large}/items?show=foreign")
        assert len(names(looked)) == 1
        looked.page.locator("td.name a").click()
        looked.page.wait_for_url(f"**/items/{site.audited}?show=foreign")
        assert looked.page.locator("main a[rel=next]").count() == 0
    looked.open(f"/comparisons/{site.small}/items")
    assert looked.page.locator("input[value=foreign]").count() == 0


def test_what_a_model_answers_is_text(looked: Watched, site: Site) -> None:
    """The fixture would see a dialog, an error or a request."""
    for number, text in zip(LOSSES, HOSTILE, strict=True):
        looked.open(f"/comparisons/{site.small}/items/{site.positions[number]}")
        shown = looked.page.locator("section.side").nth(1).locator("pre").inner_text()
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
    looked.open(f"/comparisons/{site.small}/items/{flips[-1]}?show=flipped&task=sums")
    assert looked.page.locator("a[rel=next]").count() == 0
    looked.page.get_by_role("link", name="Link to this item").click()
    looked.page.wait_for_url(f"**/comparisons/{site.small}/items/{flips[-1]}")


def extracted(service: Service, comparison_id: str, language: str = "en") -> str:
    page = service.client.get(f"/comparisons/{comparison_id}/items/0?extract=1&lang={language}")
    assert page.status_code == 200
    return str(page.text.partition('<section id="extracted"')[2].partition("</section>")[0])


def test_what_cannot_be_extracted_is_said(working: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service, comparison_id = working, working.finished()
    assert "<table>" in extracted(service, comparison_id)
    store = service.bench.store
    elsewhere = replace(store.get(comparison_id), local={"include_path": "/somewhere"})
    with monkeypatch.context() as patched:
        patched.setattr(store, "get", lambda _: elsewhere)
        assert "no page loads their code" in extracted(service, comparison_id)
        assert "페이지에서는 그 코드를 불러오지 않습니다" in extracted(service, comparison_id, "ko")
    service.bench.harness.tasks.config_hash = "another"
    service.context.planner._tasks.clear()
    assert "no longer match the plan" in extracted(service, comparison_id)
    gone = DatasetUnavailable("Data set x, split y, is not in z: looked for w", hint="")
    monkeypatch.setattr(service.bench.harness, "load", Mock(side_effect=gone))
    service.context.planner._tasks.clear()
    service.context.planner._plans.clear()
    assert "looked for w" in extracted(service, comparison_id)
    assert "데이터셋이 없습니다" in extracted(service, comparison_id, "ko")


def arguments(line: str) -> list[str]:
    script = f"curl() {{ printf '%s\\0' \"$@\"; }}\n{line}\n"
    environment = {"API_KEY": "hush", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", script], check=True, capture_output=True, env=environment, timeout=20)
    return done.stdout.decode().split("\0")[:-1]


def test_copied_requests_send_the_same_bytes(make_page: Make, site: Site) -> None:
    looked = make_page(permissions=["clipboard-read", "clipboard-write"])
    position = site.positions[LOSSES[1]]
    looked.open(f"/comparisons/{site.small}/items/{position}")
    hashes = {one.arm: one.request_hash.hex() for one in site.service.store.pair(site.small, position)[1]}
    for place, (arm, url) in enumerate(((ArmName.BASELINE, OFF), (ArmName.CANDIDATE, ON))):
        looked.page.get_by_role("button", name="Copy", exact=True).first.click()
        looked.page.get_by_role("button", name="Copied").wait_for()
        copied = looked.page.locator(f"#curl-text-{place + 1}").inner_text()
        if place == 0:
            assert looked.page.evaluate("navigator.clipboard.readText()") == copied
        *options, flag, body = arguments(copied)
        assert options == ["-sS", f"{url}/completions", "-H", JSON, "-H", "Authorization: Bearer hush"]
        assert flag == "--data-raw"
        assert hashlib.sha256(body.encode()).hexdigest().startswith(hashes[arm])
        looked.page.get_by_role("button", name="Copied").wait_for(state="detached")


def test_no_text_breaks_out_of_a_command() -> None:
    body = '{"prompt": "it\'s $HOME `id` \\"x\\" \\n @file\n한 \u202e"}'
    assert arguments(command("http://h/v1", body))[-1] == body
