"""The web pages: templates with what they show, and the few files that they load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from qualab.model.wording import valid_text
from qualab.report.fonts import korean_font
from qualab.report.html import PAGES, environment

STATIC = {
    "report.css": ("report.css", "text/css; charset=utf-8"),
    "viewer.css": ("static/viewer.css", "text/css; charset=utf-8"),
    "viewer.js": ("static/viewer.js", "text/javascript; charset=utf-8"),
}

FONT = "korean.woff"


def render_page(name: str, values: Mapping[str, object]) -> bytes:
    """UTF-8. Everything that is no chart is escaped."""
    return valid_text(environment().get_template(f"web/{name}.html").render(values)).encode()


@cache
def static_file(name: str) -> tuple[bytes, str] | None:
    """Content and media type; None for what pages do not load. The font takes a moment, once."""
    if name == FONT:
        return korean_font(), "font/woff"
    if name not in STATIC:
        return None
    path, media_type = STATIC[name]
    return (PAGES / path).read_bytes(), media_type
