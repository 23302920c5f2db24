"""How much the baseline differs from itself, beside what the candidate changes."""

from __future__ import annotations

from collections.abc import Iterator

from qualab.app.reporting.source import Source, cells, columns
from qualab.app.reporting.tokens import token_notes, token_rows
from qualab.app.reporting.words import Words
from qualab.domain.comparison import MetricNoise, NoiseFloor, OddOneOut, RepeatNoise, RepeatSummary, TextsCompared
from qualab.domain.numbers import count, pvalue, share
from qualab.domain.report import Block, Cell, Column, Paragraph, Row, Section, Table

NOTHING = Cell(text="–")
Texts = TextsCompared | None


def noise_section(source: Source, words: Words) -> Section:
    """The noise floor, or that none was measured; then what repeats of an item show."""
    found, repeats = source.analysis.noise, source.analysis.repeats
    blocks: list[Block] = []
    if found is None:
        blocks.append(Paragraph(text=words("no noise")))
        blocks.append(Paragraph(text=_arms_alone(source, words)))
        rows = tuple(cells(one.label, one.candidate) for one in token_rows(source.analysis.tokens, words))
        blocks += _with_notes(columns(words, "noise what", "noise arms"), rows, (), source, words)
    else:
        blocks += _floor(found, source, words)
    if repeats:
        blocks += _repeats(repeats, source, words)
    return Section(id="noise", title=words("noise"), blocks=tuple(blocks))


def _with_notes(
    heads: tuple[Column, ...], rows: tuple[Row, ...], legend: tuple[str, ...], source: Source, words: Words
) -> Iterator[Block]:
    """The table with what is to be said of tokens under it, or that alone."""
    notes = tuple(token_notes(source.plan, source.analysis, words))
    if rows:
        yield Table(columns=heads, rows=rows, legend=(*legend, *notes))
    else:
        yield from (Paragraph(text=note, is_muted=True) for note in notes)


def _arms_alone(source: Source, words: Words) -> str:
    pairs = source.analysis.pairs
    if not pairs.n_pairs:
        return words("no generations")
    same = share(pairs.same_text / pairs.n_pairs)
    places = {"n": count(pairs.same_text), "total": count(pairs.n_pairs), "finish": count(pairs.finish_reasons_differ)}
    return words("arms only", share=same, **places)


def _floor(found: NoiseFloor, source: Source, words: Words) -> Iterator[Block]:
    runs = words("runs one") if found.n_runs == 1 else words("runs many", n=found.n_runs)
    asked = {"n": count(found.n_answered), "total": count(found.n_asked), "concurrency": found.concurrency}
    yield Paragraph(text=words("noise how", runs=runs, arms=source.plan.policy.concurrency, **asked))
    if found.note:
        yield Paragraph(text=words.sentence(found.note))
    heads = columns(words, "noise what", "noise baseline", "noise arms", "noise odd")
    primaries = {row.id for row in source.primaries}
    rows = [
        *_text_rows(found, words),
        *_token_rows(source, words),
        *(_flips(one, words) for one in found.metrics if one.metric in primaries),
    ]
    yield from _with_notes(heads, tuple(rows), (words("noise legend"),), source, words)
    if found.sampled:
        yield Paragraph(
            text=words("sampled baseline", p=pvalue(found.sampled.pvalue), n=count(found.sampled.n_prompts))
        )


def _text_rows(found: NoiseFloor, words: Words) -> Iterator[Row]:
    both = (found.baseline, found.candidate)
    if not all(both):
        return
    yield cells(
        words("same text"), *(_of(one, one.same_text, words) for one in both if one), _odd(found.odd_texts, words)
    )
    yield cells(words("changed"), *(_of(one, one.changed, words) for one in both if one), NOTHING)
    yield cells(words("first difference"), *(_place(one) for one in both if one), NOTHING)


def _token_rows(source: Source, words: Words) -> Iterator[Row]:
    for one in token_rows(source.analysis.tokens, words):
        yield cells(one.label, one.baseline or NOTHING, one.candidate, NOTHING)


def _of(texts: TextsCompared, number: int, words: Words) -> Cell:
    part = number / texts.n_pairs
    text = words("share of", n=count(number), total=count(texts.n_pairs), share=share(part))
    return Cell(text=text, value=part)


def _place(texts: TextsCompared) -> Cell:
    if texts.first_difference is None:
        return NOTHING
    return Cell(text=f"{texts.first_difference:,.0f}", value=texts.first_difference)


def _flips(one: MetricNoise, words: Words) -> Row:
    rates = (one.flip_rate_baseline, one.flip_rate_candidate)
    shown = (NOTHING if rate is None else Cell(text=words.units(share(rate)), value=rate) for rate in rates)
    return cells(words("flips in", metric=one.metric), *shown, _odd(one.odd, words))


def _odd(found: OddOneOut | None, words: Words) -> Cell:
    if found is None:
        return NOTHING
    if not found.n_odd:
        return Cell(text=words("no odd"))
    places = {"n": count(found.n_candidate_odd), "total": count(found.n_odd), "p": pvalue(found.pvalue)}
    return Cell(text=words("odd of", **places), value=found.pvalue)


def _repeats(found: RepeatSummary, source: Source, words: Words) -> Iterator[Block]:
    primaries = {row.id for row in source.primaries}
    rows = tuple(_repeat(one, words) for one in found.metrics if one.metric in primaries)
    yield Paragraph(text=words("repeats"), is_muted=True)
    if rows:
        heads = columns(words, "metric", "repeat arm", "n", "flip rate", "between", "icc", "icc mean", n_texts=2)
        yield Table(columns=heads, rows=rows)
    if found.sampled:
        yield Paragraph(text=words("sampled arms", p=pvalue(found.sampled.pvalue), n=count(found.sampled.n_prompts)))


def _repeat(one: RepeatNoise, words: Words) -> Row:
    items = Cell(text=count(one.n_items), value=one.n_items)
    flips = NOTHING if one.flip_rate is None else Cell(text=words.units(share(one.flip_rate)), value=one.flip_rate)
    return cells(one.metric, words(one.arm.value), items, flips, *_variance(one, words))


def _variance(one: RepeatNoise, words: Words) -> Iterator[Cell]:
    yield NOTHING if one.icc is None else Cell(text=words.units(share(one.icc)), value=one.icc)
    for value in (one.icc, one.icc_mean):
        yield NOTHING if value is None else Cell(text=f"{value:.2f}", value=value)
