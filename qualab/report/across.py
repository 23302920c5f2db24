"""Two comparisons beside each other, and the comparisons of one label over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from qualab.model.canonical import plain
from qualab.model.comparison import MetricResult
from qualab.model.plan import Plan, deciding_metrics
from qualab.model.report import TONES, Block, Bullets, Cell, Forest, Paragraph
from qualab.report.box import acceptance_of
from qualab.report.source import Cells, Source, table, verdict_cell, weightiest
from qualab.report.speed import ratio_cell
from qualab.report.verdict import difference_text, forest_row
from qualab.report.words import Words

if TYPE_CHECKING:
    from qualab.store import Store

MOST_FLIPS = 40
"""Items that flipped in one comparison alone, by name."""
MOST_SETTINGS = 60


def trend_blocks(sources: Sequence[Source], words: Words) -> Iterator[Block]:
    """Show the deciding metric of each comparison as a forest, newest first, and a table of what was measured."""
    rows = [(source, row) for source in sources if (row := weightiest(source))]
    if rows:
        yield Forest(
            rows=tuple(forest_row(source, row, words, label=f"{_day(source)}/{row.id}") for source, row in rows),
            axis=words("forest axis"),
            left=words("worse"),
            right=words("better"),
            band=words("margin"),
            description="; ".join(f"{_day(source)}: {row.id} {_size(row, words)}" for source, row in rows),
        )
    cells: list[Cells] = [
        {"date": _day(source), "comparison": source.comparison.id, **_facts(source, words)} for source in sources
    ]
    yield table(words, ("date", "comparison", *FACTS), cells, n_texts=2, texts=FACTS, legends={})


FACTS = ("verdict", "metric", "difference", "section audit", "length", "speed")


def _facts(source: Source, words: Words) -> Cells:
    row, audit, works = weightiest(source), source.analysis.audit, source.payoff.speed and source.payoff.speed.works
    acceptance = acceptance_of(source)
    return {
        "verdict": verdict_cell(source.analysis.verdict, words),
        "metric": row.id if row else None,
        "difference": _size(row, words) if row else None,
        "section audit": words.name(audit.ruling) if audit else None,
        "length": (acceptance[0] if acceptance else None, "tokens"),
        "speed": ratio_cell(works[0].ratio, words) if works else None,
    }


def _day(source: Source) -> str:
    ended = source.comparison.finished_at or source.comparison.created_at
    return f"{ended:%Y-%m-%d}"


def _size(row: MetricResult, words: Words) -> str:
    return difference_text(row.evidence, words) if row.evidence else words("none")


def pair_blocks(store: Store, one: Source, other: Source, words: Words) -> Iterator[Block]:
    """Show both comparisons' results beside each other, how their plans differ, and what flipped in one alone."""
    if foreign := [name for name in ("model", "tasks") if _about(one)[name] != _about(other)[name]]:
        yield Paragraph(text=words("across foreign", what=tuple(map(words, foreign))))
    sources = {"first": one, "second": other}
    facts = {name: _facts(source, words) for name, source in sources.items()}
    rows: list[Cells] = [
        {"part": words(key), **{name: own[key] for name, own in facts.items()}}
        for key in ("verdict", "section audit", "length", "speed")
    ]
    results = {name: {row.id: row for row in source.primaries} for name, source in sources.items()}
    for id_ in dict.fromkeys(id_ for own in results.values() for id_ in own):
        cells: Cells = {"part": id_}
        for name, own in results.items():
            if row := own.get(id_):
                cells[name] = Cell(text=_size(row, words), tone=TONES[row.verdict])
        rows.append(cells)
    titles = {name: f"{source.comparison.label} {source.comparison.id}".strip() for name, source in sources.items()}
    yield table(words, ("part", *sources), rows, n_texts=3, titles=titles, legends={})
    yield from _flips(store, sources, titles, words)
    changed = list(_changes(one.plan, other.plan))
    yield Paragraph(text=words("across same plan") if not changed else words("across plan", n=len(changed)))
    if changed:
        settings: list[Cells] = [
            {"setting": name, "first": before, "second": after} for name, before, after in changed[:MOST_SETTINGS]
        ]
        yield table(words, ("setting", *sources), settings, n_texts=3, titles=titles, legends={})


def _about(source: Source) -> dict[str, object]:
    return {"model": source.plan.sampling.model, "tasks": {task.name for task in source.plan.tasks}}


def _flips(store: Store, sources: dict[str, Source], titles: dict[str, str], words: Words) -> Iterator[Block]:
    flipped: dict[str, dict[tuple[str, int], int]] = {}
    for name, source in sources.items():
        deciding = {spec.key for spec in deciding_metrics(source.plan.metrics).values()}
        positions = {flip.position for flip in store.flips(source.comparison.id, metrics=deciding)}
        items = store.items(source.comparison.id, positions=positions)
        flipped[name] = {(item.task, item.doc_id): item.position for item in items}
    both = set.intersection(*map(set, flipped.values()))
    yield Paragraph(text=words("across flips", both=len(both), **{name: len(own) for name, own in flipped.items()}))
    for name, own in flipped.items():
        alone = sorted(own.keys() - both)
        if alone:
            shown = tuple(f"{task}/{doc_id}" for task, doc_id in alone[:MOST_FLIPS])
            more = (words("across more", n=len(alone) - MOST_FLIPS),) if len(alone) > MOST_FLIPS else ()
            yield Paragraph(text=words("across alone", name=titles[name]))
            yield Bullets(items=(", ".join(shown), *more))


def _changes(one: Plan, other: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield settings that differ, by dotted names."""
    before, after = (dict(_leaves("", plain(plan))) for plan in (one, other))
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield name, before.get(name, "–"), after.get(name, "–")


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), part)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, part in enumerate(value):
            yield from _leaves(f"{name}.{part.get('id') or part.get('name') or number}", part)
    else:
        yield name, str(value)
