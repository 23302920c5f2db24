"""The report as one HTML file that fetches nothing and runs no script, and the web pages with the files they load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from qualab.model.report import MARKS, Chart, Report
from qualab.model.wording import valid_text
from qualab.report.charts import draw
from qualab.report.fonts import faces, korean_font

FACES = "/* fonts */"
"""Where the style sheet has them, once it is known which characters there are."""
PAGES = Path(__file__).parent / "pages"
FONT = "korean.otf"
STATIC = {
    "report.css": ("report.css", "text/css; charset=utf-8"),
    "viewer.css": ("static/viewer.css", "text/css; charset=utf-8"),
    "viewer.js": ("static/viewer.js", "text/javascript; charset=utf-8"),
}


def render_html(report: Report) -> bytes:
    """Draw the report as UTF-8, its fonts inside."""
    page = valid_text(_environment().get_template("report.html").render(report=report))
    return page.replace(FACES, faces(page), 1).encode()


def render_page(name: str, values: Mapping[str, object]) -> bytes:
    """Draw a web page of this name as UTF-8."""
    return valid_text(_environment().get_template(f"web/{name}.html").render(values)).encode()


@cache
def static_file(name: str) -> tuple[bytes, str] | None:
    """Return a file that pages load with its media type; None where there is none. The font takes a moment, once."""
    if name == FONT:
        return korean_font(), "font/otf"
    if name not in STATIC:
        return None
    path, media_type = STATIC[name]
    return (PAGES / path).read_bytes(), media_type


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(PAGES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def chart(block: Chart, *, is_narrow: bool = False) -> Markup:
        return Markup(draw(block, is_narrow=is_narrow))  # draw escapes its texts

    environment.globals.update(chart=chart, marks=dict(MARKS))
    return environment
