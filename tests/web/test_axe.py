"""Accessibility of every page, as axe-core sees it (WCAG 2.2 A and AA, and its best practices)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import pytest

from tests.web.conftest import Site, Watched
from tests.web.test_pages import paths

Make = Callable[..., Watched]
RUN = "async () => (await axe.run()).violations.map(one => [one.id, one.nodes.map(node => node.html.slice(0, 200))])"


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize(("scheme", "width"), [("light", 1_200), ("dark", 390)])
def test_axe_finds_nothing_on_any_page(make_page: Make, site: Site, language: str, scheme: str, width: int) -> None:
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    looked = make_page(viewport={"width": width, "height": 900}, color_scheme=scheme, locale=language, may_fail=True)
    found = {}
    for name, path in {**paths(site), "unknown": "/nowhere", "baselines": "/baselines"}.items():
        looked.open(path)
        looked.page.evaluate(axe)
        if violations := looked.page.evaluate(RUN):
            found[name] = violations
    assert found == {}
