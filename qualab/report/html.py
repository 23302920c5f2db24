"""The report as one HTML file: nothing is fetched, no script runs, and a model's answer is text."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from qualab.model.report import MARKS, Chart, ReportModel
from qualab.model.wording import valid_text
from qualab.report.charts import draw
from qualab.report.fonts import faces

FACES = "/* fonts */"
"""Where the style sheet has them, once it is known which characters there are."""
PAGES = Path(__file__).parent / "pages"


def render_html(report: ReportModel) -> bytes:
    """UTF-8."""
    page = valid_text(environment().get_template("report.html").render(report=report))
    return page.replace(FACES, faces(page), 1).encode()


@cache
def environment() -> Environment:
    """Escapes everything but charts; a name that is not there is an error."""
    made = Environment(
        loader=FileSystemLoader(PAGES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(chart=_chart, marks=dict(MARKS))
    return made


def _chart(block: Chart) -> Markup:
    """Drawn here, every text in it escaped."""
    return Markup(draw(block))
