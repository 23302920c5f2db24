"""The report as Markdown with tables; a model's answer stands in a fence that it cannot close."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qualab.model.canonical import plain
from qualab.model.report import (
    MARKS,
    Bullets,
    Cell,
    Excerpt,
    Facts,
    Forest,
    Histogram,
    Paragraph,
    ReportModel,
    Row,
    Side,
    SignOff,
    Table,
)
from qualab.model.wording import valid_text

_MARKUP = re.compile(r"([\\`*_\[\]<>#|~!&])")
_LINE_START = re.compile(r"^(\s*)([-+=]|\d+[.)])(?=\s|$)")


def render_markdown(report: ReportModel) -> bytes:
    """UTF-8."""
    return valid_text("\n".join(_lines(report))).encode()


def _lines(report: ReportModel) -> Iterator[str]:
    yield f"# {escaped(report.title)}"
    yield f"\n{escaped(report.subtitle)}"
    yield f"\n> **{_cell(report.verdict)}**  \n> {escaped(report.headline)}"
    for section in report.sections:
        yield f"\n## {escaped(section.title)}"
        for block in section.blocks:
            yield from DRAWERS[type(block)](block, report.labels)
    yield f"\n---\n\n{escaped(report.footer)}\n"


def escaped(text: str) -> str:
    """Text on one line that Markdown shows as it is."""
    line = _MARKUP.sub(r"\\\1", " ".join(text.split("\n")))
    return _LINE_START.sub(r"\1\\\2", line)


def _paragraph(block: Paragraph, _: Mapping[str, str]) -> Iterator[str]:
    yield f"\n{escaped(block.text)}"


def _bullets(block: Bullets, _: Mapping[str, str]) -> Iterator[str]:
    if block.title:
        yield f"\n**{escaped(block.title)}**"
    yield ""
    yield from (f"- {escaped(item)}" for item in block.items)


def _facts(block: Facts, _: Mapping[str, str]) -> Iterator[str]:
    yield ""
    yield from (f"- {escaped(fact.label)}: {escaped(fact.text)}" for fact in block.facts)


def _table(block: Table, _: Mapping[str, str]) -> Iterator[str]:
    yield ""
    yield _row([escaped(column.title) for column in block.columns])
    yield _row(["---:" if column.is_number else "---" for column in block.columns])
    yield from (_row(_cells(row)) for row in block.rows)
    if block.legend:
        yield f"\n{escaped(' · '.join(block.legend))}"


def _cells(row: Row) -> list[str]:
    texts = [_cell(cell).strip() for cell in row.cells]
    return [f"**{text}**" if text and row.is_strong else text for text in texts]


def _cell(cell: Cell) -> str:
    return escaped(f"{MARKS[cell.tone]} {cell.text}" if MARKS[cell.tone] else cell.text)


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _forest(block: Forest, _: Mapping[str, str]) -> Iterator[str]:
    yield f"\n{escaped(block.axis)}\n"
    yield from (f"- {escaped(row.label)}: {escaped(row.text)}, {_cell(row.verdict)}" for row in block.rows)


def _histogram(block: Histogram, _: Mapping[str, str]) -> Iterator[str]:
    yield f"\n**{escaped(block.title)}**\n"
    yield _row([escaped(block.axis), *(bar.label for bar in block.bars)])
    yield _row(["---", *("---:" for _ in block.bars)])
    yield _row([escaped(block.vertical_axis), *(escaped(bar.text) for bar in block.bars)])


def _excerpt(block: Excerpt, labels: Mapping[str, str]) -> Iterator[str]:
    yield f"\n### {escaped(block.title)}\n"
    yield from (f"- {escaped(fact.label)}: {escaped(fact.text)}" for fact in block.facts)
    if block.shared:
        yield f"\n{escaped(labels['shared'])}:\n"
        yield _fenced(f"{'…' if block.is_cut else ''}{block.shared}")
    for side in (block.baseline, block.candidate):
        yield f"\n{escaped(side.title)} ({escaped(side.facts)}):\n"
        yield _fenced(_side(side, labels))


def _side(side: Side, labels: Mapping[str, str]) -> str:
    return f"{side.text or labels['nothing']}{'…' if side.is_cut else ''}"


def _fenced(text: str) -> str:
    """In a fence longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _signoff(block: SignOff, _: Mapping[str, str]) -> Iterator[str]:
    yield ""
    yield from (f"- [ ] {escaped(choice)}" for choice in block.choices)
    yield ""
    yield _row(["", *map(escaped, block.fields)])
    yield _row(["---"] * (len(block.fields) + 1))
    yield from (_row([escaped(role), *[""] * len(block.fields)]) for role in block.roles)


DRAWERS: Mapping[type, Callable[[Any, Mapping[str, str]], Iterator[str]]] = {
    Paragraph: _paragraph,
    Bullets: _bullets,
    Facts: _facts,
    Table: _table,
    Forest: _forest,
    Histogram: _histogram,
    Excerpt: _excerpt,
    SignOff: _signoff,
}


def render_json(report: ReportModel) -> bytes:
    """Indented UTF-8."""
    return (json.dumps(plain(report), ensure_ascii=False, indent=2) + "\n").encode()
