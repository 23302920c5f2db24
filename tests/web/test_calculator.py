"""The plan calculator in a real browser: with the mouse, by typing, with keys alone, and with a served font."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.web.conftest import Site, Watched

Make = Callable[..., Watched]
CURVE = "polyline.curve"


def values(watched: Watched, name: str) -> tuple[str, str]:
    return watched.page.locator(f"#{name}").input_value(), watched.page.locator(f"#{name}-number").input_value()


def test_what_is_typed_moves_the_slider_and_the_curve(looked: Watched) -> None:
    looked.open("/plan")
    before = looked.page.locator(CURVE).get_attribute("points")
    looked.page.locator("#discordance-number").fill("12.3")
    looked.page.wait_for_url("**discordance=12.3*")
    assert values(looked, "discordance") == ("12.3", "12.3")
    assert looked.page.locator(CURVE).get_attribute("points") != before
    assert "--discordance 0.123" in looked.page.locator("#figures").inner_text()


def test_a_value_that_cannot_be_changes_nothing(looked: Watched) -> None:
    looked.open("/plan")
    before = looked.page.locator("#figures").inner_text()
    looked.page.locator("#margin-number").fill("99")
    looked.page.wait_for_timeout(500)
    assert looked.page.locator("#figures").inner_text() == before
    assert looked.page.locator("#margin-number").evaluate("node => node.validity.rangeOverflow")


@pytest.mark.parametrize(("key", "margin"), [("ArrowRight", "2.25"), ("ArrowLeft", "1.75"), ("End", "20")])
def test_a_slider_moves_with_keys(looked: Watched, key: str, margin: str) -> None:
    looked.open("/plan")
    reached: list[Any] = []
    while "margin" not in reached:
        looked.page.keyboard.press("Tab")
        reached.append(looked.page.evaluate("document.activeElement.id"))
        assert len(reached) < 20
        assert looked.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    before = looked.page.locator(CURVE).get_attribute("points")
    looked.page.keyboard.press(key)
    looked.page.wait_for_url(f"**margin={margin}&*")
    assert values(looked, "margin") == (margin, margin)
    assert looked.page.evaluate("document.activeElement.id") == "margin"
    assert looked.page.locator(CURVE).get_attribute("points") != before


def test_the_calculators_fields_come_in_the_order_that_is_seen(looked: Watched) -> None:
    looked.open("/plan")
    order = []
    while "compute" not in order:
        looked.page.keyboard.press("Tab")
        order.append(
            looked.page.evaluate("document.activeElement.id || document.activeElement.textContent.toLowerCase()")
        )
        assert len(order) < 30
    fields = ["discordance", "discordance-number", "margin", "margin-number", "items", "power", "power-number", "alpha"]
    assert [one for one in order if one in (*fields, "objective")] == [*fields, "objective"]


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
        text = looked.page.locator(selector).first.inner_text()
        n_korean = sum("가" <= character <= "힣" for character in text)
        drawn = session.send("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]
        latin = ("DejaVu", "Liberation", "Arimo", "Roboto")
        korean = sum(font["glyphCount"] for font in drawn if not font["familyName"].startswith(latin))
        assert korean >= n_korean, (selector, text, drawn)
