"""What the drafter did, task by task. Never one number for all: tasks draft differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from qualab.model.engine import LengthBin, TaskDrafting, Treatment
from qualab.model.report import Bar, Block, Cell, Column, Histogram, Paragraph, Row, Section, Table
from qualab.model.wording import count, share, tokens
from qualab.report.source import Source, cells, columns
from qualab.report.words import Words

NOTHING = Cell(text="–")
EXPLAINED = {
    "accepted": "legend accepted",
    "length": "legend length",
    "median": "legend median",
    "zero": "legend zero",
    "an answer": "legend an answer",
    "thirds": "legend thirds",
}
"""Columns that the legend explains."""


def acceptance_section(source: Source, words: Words) -> Section:
    """The table of tasks and a histogram for each, or why there is none."""
    found = source.analysis.treatment
    if found is None:
        blocks: tuple[Block, ...] = (Paragraph(text=words("no treatment")),)
    elif not found.is_observed:
        blocks = (Paragraph(text=words("not observed")),)
    else:
        blocks = tuple(_blocks(found, words))
    return Section(id="acceptance", title=words("acceptance"), blocks=blocks)


def _blocks(found: Treatment, words: Words) -> Iterator[Block]:
    yield drafting_table(found.tasks, words)
    histograms = [one for task in found.tasks if (one := histogram(task, words))]
    highest = max((bar.share for one in histograms for bar in one.bars), default=0.0)
    yield from (replace(one, highest=highest) for one in histograms)
    if not histograms:
        yield Paragraph(text=words("no histogram"))
    if any(one.round_cost is not None for one in found.tasks):
        yield Paragraph(text=words("cost is"))
    if found.break_even_length is not None:
        yield Paragraph(text=words("break even is", length=tokens(found.break_even_length)))
    if found.bins:
        yield Paragraph(text=words("bins"), is_muted=True)
        yield _bin_table(found.bins, words)


def drafting_table(tasks: Sequence[TaskDrafting], words: Words) -> Table:
    """One row a task that generates, without columns of which nothing is known."""
    known = [name for name, cell in CELLS.items() if any(cell(one, words) for one in tasks)]
    heads = (Column(id="task", title=words("task"), is_number=False), *columns(words, *known, n_texts=0))
    rows = [Row(cells=(Cell(text=one.task), *(CELLS[name](one, words) or NOTHING for name in known))) for one in tasks]
    legend = tuple(words(key) for name, key in EXPLAINED.items() if name in known)
    return Table(columns=heads, rows=tuple(rows), legend=legend)


def _count(value: int | None) -> Cell | None:
    return None if value is None else Cell(text=count(value), value=value)


def _share(value: float | None, words: Words) -> Cell | None:
    return None if value is None else Cell(text=words.units(share(value)), value=value)


def _length(value: float | None) -> Cell | None:
    return None if value is None else Cell(text=tokens(value), value=value)


def _thirds(one: TaskDrafting, words: Words) -> Cell | None:
    if one.first_third is None or one.last_third is None:
        return None
    return Cell(text=words("thirds of", first=tokens(one.first_third), last=tokens(one.last_third)))


def _over(one: TaskDrafting) -> Cell | None:
    margin = one.break_even_margin
    return None if margin is None else Cell(text=f"{margin:+.2f}".replace("-", "−"), value=margin)


CELLS: Mapping[str, Callable[[TaskDrafting, Words], Cell | None]] = {
    "answers": lambda one, _: _count(one.n_answers),
    "rounds": lambda one, _: _count(one.rounds),
    "drafted": lambda one, _: _count(one.draft_tokens),
    "accepted": lambda one, words: _share(one.accepted_share, words),
    "length": lambda one, _: _length(one.mean_length),
    "median": lambda one, _: _length(one.median_length),
    "p10": lambda one, _: _length(one.p10_length),
    "zero": lambda one, words: _share(one.zero_share, words),
    "an answer": lambda one, _: _length(one.request_mean_length),
    "thirds": _thirds,
    "cost": lambda one, _: _length(one.round_cost),
    "break even": lambda one, _: _over(one),
}
"""What a table says of a task, by column."""


def histogram(one: TaskDrafting, words: Words) -> Histogram | None:
    """Rounds by accepted tokens; None where they are not known."""
    total = sum(one.histogram)
    if not total:
        return None
    bars = tuple(_bar(accepted, n, total, words) for accepted, n in enumerate(one.histogram))
    said = ", ".join(words("histogram share", label=bar.label, share=bar.text) for bar in bars)
    return Histogram(
        title=words("histogram title", task=one.task, n=count(total)),
        bars=bars,
        axis=words("histogram axis"),
        vertical_axis=words("histogram vertical"),
        description=words("histogram alt", task=one.task, shares=said),
    )


def _bar(accepted: int, n: int, total: int, words: Words) -> Bar:
    return Bar(label=str(accepted), count=n, share=n / total, text=words.units(share(n / total)))


def _bin_table(bins: Sequence[LengthBin], words: Words) -> Table:
    return Table(
        columns=columns(words, "prompt tokens", "answers", "drafted", "accepted"),
        rows=tuple(_bin(one, words) for one in bins),
    )


def _bin(one: LengthBin, words: Words) -> Row:
    accepted = one.accepted_tokens / one.draft_tokens if one.draft_tokens else None
    prompts = words("from to", low=count(one.from_tokens), high=count(one.to_tokens))
    numbers = (_count(one.n_answers), _count(one.draft_tokens), _share(accepted, words))
    return cells(prompts, *(cell or NOTHING for cell in numbers))
