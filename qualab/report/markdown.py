"""The report as Markdown with tables; a model's answer stands in a fence that it cannot close."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from qualab.model.canonical import plain
from qualab.model.report import (
    Block,
    Bullets,
    Cell,
    Curve,
    Excerpt,
    Fact,
    Facts,
    Flow,
    Forest,
    Histogram,
    PairBars,
    PairHistogram,
    Paragraph,
    Report,
    Splits,
    Table,
)
from qualab.model.wording import count, valid_text

_MARKUP = re.compile(r"([\\`*_\[\]<>#|~!&@])")
_LINE_START = re.compile(r"^(\s*)([-+=]|\d+[.)])(?=\s|$)")


def render_markdown(report: Report) -> bytes:
    """Draw the report as UTF-8."""
    return valid_text("\n".join(_lines(report))).encode()


def render_json(report: Report) -> bytes:
    """Draw the report as indented JSON in UTF-8."""
    return (json.dumps(plain(report), ensure_ascii=False, indent=2) + "\n").encode()


def _lines(report: Report) -> Iterator[str]:
    yield f"# {escaped(report.title)}"
    yield f"\n{escaped(report.subtitle)}"
    yield f"\n> **{_cell(report.verdict)}**"
    for own in report.box:
        label = "" if own.id == "verdict" else f"**{escaped(own.label)}:** "
        yield f">\n> {label}{escaped(own.text)}"
    for section in report.sections:
        yield f"\n## {escaped(section.title)}"
        for block in section.blocks:
            yield ""
            yield from block_lines(block, report.labels)
    yield f"\n---\n\n{escaped(report.footer)}\n"


def block_lines(block: Block, labels: Mapping[str, str]) -> Iterator[str]:
    """Draw one block."""
    match block:
        case Paragraph():
            yield escaped(block.text)
        case Bullets():
            if block.title:
                yield f"**{escaped(block.title)}**\n"
            yield from (f"- {escaped(item)}" for item in block.items)
        case Facts():
            yield from _facts(block.facts)
        case Table():
            rows = [[_cell(cell, is_strong=row.is_strong) for cell in row.cells] for row in block.rows]
            are_numbers = [column.is_number for column in block.columns]
            yield from _table([column.title for column in block.columns], are_numbers, rows)
            if block.legend:
                yield f"\n{escaped(' · '.join(block.legend))}"
        case Forest():
            yield f"{escaped(block.axis)}\n"
            yield from (f"- {escaped(row.label)}: {escaped(row.text)}, {_cell(row.verdict)}" for row in block.rows)
        case Histogram():
            yield f"**{escaped(block.title)}**\n"
            heads = [block.axis, *(bar.label for bar in block.bars)]
            shares = [block.vertical_axis, *(bar.text for bar in block.bars)]
            yield from _table(heads, [False, *[True] * len(block.bars)], [list(map(escaped, shares))])
        case PairHistogram():
            yield f"**{escaped(block.title)}**: {escaped(block.vertical_axis)}\n"
            rows = [[escaped(name), *map(count, own)] for name, own in zip(block.names, block.counts, strict=True)]
            yield from _table([block.axis, *block.edges], [False, *[True] * len(block.edges)], rows)
        case Flow():
            yield " → ".join(f"{escaped(step.title)} {escaped(step.text)}" for step in block.steps)
            yield from (f"- {escaped(step.title)}: {escaped(step.lost)}" for step in block.steps if step.lost)
        case Splits():
            yield f"{escaped(block.axis)}\n"
            yield from (f"- {escaped(row.label)}: {escaped(row.text)}" for row in block.rows)
        case Curve():
            yield escaped(block.description)
        case PairBars():
            yield f"{escaped(block.axis)}, {escaped(' / '.join(block.names))}\n"
            for pair in block.rows:
                yield f"- {escaped(f'{pair.label}, {pair.note}: {pair.text}')}, {_cell(pair.ratio)}"
        case Excerpt():
            yield f"### {escaped(block.title)}\n"
            yield from _facts(block.facts)
            if block.shared:
                yield f"\n{escaped(labels['shared'])}:\n"
                yield _fenced(f"{'…' if block.is_cut else ''}{block.shared}")
            for side in block.sides:
                yield f"\n{escaped(side.title)} ({escaped(side.facts)}):\n"
                yield _fenced(f"{side.text or labels['nothing']}{'…' if side.is_cut else ''}")


def escaped(text: str) -> str:
    """Write text on one line that Markdown shows as it is and that mentions nobody."""
    line = _MARKUP.sub(r"\\\1", " ".join(text.split("\n")))
    return _LINE_START.sub(r"\1\\\2", line)


def _facts(facts: Sequence[Fact]) -> Iterator[str]:
    return (f"- {escaped(fact.label)}: {escaped(fact.text)}" for fact in facts)


def _table(heads: Sequence[str], are_numbers: Sequence[bool], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    rules = ["---:" if is_number else "---" for is_number in are_numbers]
    for texts in (list(map(escaped, heads)), rules, *rows):
        yield f"| {' | '.join(texts)} |"


def _cell(cell: Cell, *, is_strong: bool = False) -> str:
    text = escaped(cell.marked.strip())
    return f"**{text}**" if text and is_strong else text


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
