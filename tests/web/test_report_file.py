"""The HTML report in a browser: a phone's width and a wide screen, light and dark, nothing asked of anyone."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from qualab.model.names import Language
from qualab.report.html import render_html
from tests.render.samples import hostile_report


@pytest.mark.parametrize("language", Language)
def test_it_fits_the_screen_and_asks_nobody_whatever_a_model_answers(
    browser: Any, tmp_path: Path, language: Language
) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(render_html(hostile_report(language)))
    said: list[str] = []
    for width, scheme in product((390, 1280), ("light", "dark")):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.goto(path.as_uri())
        assert "<img src=x onerror=alert(1)>" in page.inner_text("#flips")
        assert page.query_selector("#flips img") is None
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("document.fonts.size") > 0
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        assert said == []
        page.close()
