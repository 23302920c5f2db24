"""Speed, capacity, limits and advice: what the drafter costs and gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from qualab.model.engine import Cell as TimedCell
from qualab.model.names import ArmName, Outcome, Turn
from qualab.model.reason import Reason, of
from qualab.model.report import NOTHING, Block, Bullets, Cell, PairBar, PairBars, Paragraph, Table, Tone
from qualab.model.speed import Advice, ArmSpeed, Capacity, CellSpeed, Limits, Payoff, Ratio, Speed
from qualab.model.wording import count
from qualab.report.source import Cells, table
from qualab.report.words import FORMS, Words

MOST_BARS = 16
"""Cells in one chart; more are drawn in several."""
SMALLEST_CHANGE = 0.005
"""Of the KV cache, for the line beside the verdict to name it."""
OF_RATIO = {True: Tone.GOOD, False: Tone.BAD, None: Tone.OPEN}
OF_TURN = {Turn.ON: Tone.GOOD, Turn.OFF: Tone.BAD, Turn.NOT_PROVEN: Tone.OPEN}
OF_OUTCOME = {
    Outcome.RIGHT: Tone.GOOD,
    Outcome.WRONG: Tone.BAD,
    Outcome.BROKEN: Tone.BROKEN,
    Outcome.REFUSED: Tone.OPEN,
}
GAINS = {True: "gain faster", False: "gain slower", None: "gain open"}


def gain_line(payoff: Payoff, words: Words) -> str:
    """Say in one line what is gained by the best and the worst kind of work, and what it costs in room."""
    works, room = payoff.speed.works if payoff.speed else (), payoff.capacity
    shown = (*works[:1], *works[1:][-1:])
    gains = [
        words(GAINS[own.ratio.is_faster], own=own, limits=_limits(own.ratio, words, 1 if own.ratio.value >= 2.0 else 2))
        for own in shown
    ]
    parts = [", ".join(gains)] if gains else []
    if room and abs(room.change) >= SMALLEST_CHANGE:
        parts.append(words("gain room less" if room.change < 0.0 else "gain room more", change=abs(room.change)))
    return "; ".join(parts)


def _limits(ratio: Ratio, words: Words, digits: int = 2) -> str:
    if ratio.interval is None:
        return ""
    low, high = (f"{limit:.{digits}f}" for limit in (ratio.interval.low, ratio.interval.high))
    return f" ({words('from to', low=low, high=high)})"


def ratio_cell(ratio: Ratio | None, words: Words) -> Cell:
    """Write a ratio with its interval; toned by whether that lies above 1."""
    if ratio is None:
        return NOTHING
    text = f"{FORMS['times'](ratio.value)}{_limits(ratio, words)}"
    return Cell(text=text, value=ratio.value, tone=OF_RATIO[ratio.is_faster])


def _length(cell: TimedCell) -> str | None:
    return count(cell.prompt_tokens) if cell.prompt_tokens else None  # prompts of a user's file have their own


def speed_blocks(speed: Speed | None, words: Words) -> Iterator[Block]:
    """Show both arms' speed in every cell: bars with the spread of repeats, ratios, and a table."""
    if speed is None:
        return
    yield Paragraph(text=words("speed how", plan=speed.plan), is_muted=True)
    for first in range(0, len(speed.cells), MOST_BARS):
        yield _bars(speed.cells[first : first + MOST_BARS], words)
    rows = [_timed(own, arm, words) for own in speed.cells for arm in (own.baseline, own.candidate)]
    names = tuple(rows[0])
    yield table(words, names, rows, texts=("load", "arm"), is_wide=True, dispensable=names[:8:-1])
    if notes := words.reasons(speed.notes):
        yield Bullets(items=notes)


def _bars(cells: Sequence[CellSpeed], words: Words) -> PairBars:
    rows = []
    for own in cells:
        arms, tokens = (own.baseline, own.candidate), _length(own.cell)
        values = tuple(arm.request_tokens_per_s for arm in arms)
        rows.append(
            PairBar(
                label=words.name(own.cell.work),
                note=" · ".join((*([words("tokens", n=tokens)] if tokens else []), words.reason(own.cell.load))),
                values=values,
                ranges=tuple((min(arm.repeats), max(arm.repeats)) if arm.repeats else None for arm in arms),
                text=" / ".join("–" if value is None else FORMS["rate"](value) for value in values),
                ratio=ratio_cell(own.ratio, words),
            )
        )
    texts = (f"{row.label}, {row.note}: {row.text}, {row.ratio.text}" for row in rows)
    names = tuple(words(arm) for arm in ArmName)
    return PairBars(rows=tuple(rows), names=names, axis=words("bars axis"), description="; ".join(texts))


def _timed(own: CellSpeed, arm: ArmSpeed, words: Words) -> Cells:
    first, gaps = (arm.first_token_p50_s, arm.first_token_p95_s), (arm.gap_p50_s, arm.gap_p95_s, arm.gap_p99_s)
    warmup = f"{arm.warmup[0]:.1f} → {arm.warmup[-1]:.1f} ({len(arm.warmup)})" if arm.warmup else None
    return {
        "work": words.name(own.cell.work),
        "prompt": _length(own.cell),
        "load": words.reason(own.cell.load),
        "arm": words(arm.arm),
        "a request": (arm.request_tokens_per_s, "rate"),
        "in all": (arm.tokens_per_s, "rate"),
        "spread": (arm.spread, "times"),
        "to first token": _quantiles(first),
        "between tokens": _quantiles(gaps),
        "length": (arm.acceptance_length, "tokens"),
        "zero": (arm.zero_share, "share"),
        "cached": (arm.cached_share, "share"),
        "goodput": (arm.goodput_per_s, "tokens"),
        "measured": (arm.n_repeats, "count"),
        "contaminated": (arm.n_contaminated or None, "count"),
        "failed": (arm.n_failed or None, "count"),
        "warm-up": warmup,
    }


def _quantiles(values_s: Sequence[float | None]) -> str | None:
    texts = ["–" if value is None else f"{1_000.0 * value:,.{int(value < 0.1)}f}" for value in values_s]
    return " / ".join(texts) if any(value is not None for value in values_s) else None


def capacity_blocks(capacity: Capacity | None, words: Words) -> Iterator[Block]:
    """Show the KV cache of both arms, and how many requests fit into it at once."""
    if capacity is None:
        return
    yield Paragraph(text=words("capacity is", capacity=capacity))
    rows: list[Cells] = [
        {"prompt": count(room.tokens), "baseline": (room.baseline, "ratio"), "candidate": (room.candidate, "ratio")}
        for room in capacity.rooms
    ]
    if rows:
        titles = {"prompt": words("length of request")}
        yield table(words, tuple(rows[0]), rows, titles=titles, legends={}, notes=[words("rooms how")])


def limits_blocks(limits: Limits | None, words: Words) -> Iterator[Block]:
    """Show each arm's limits, and the ladder of lengths that they were found on."""
    if limits is None:
        return
    parts = ("advertised", "verified", "refused from", "fails from", "n deaths", "set to")
    of_arms: list[Cells] = [
        {"arm": words(own.arm)} | {name: (getattr(own, name.replace(" ", "_")), "count") for name in parts}
        for own in limits.arms
    ]
    yield table(words, ("arm", *parts), of_arms, legends={}, notes=[words("limits how")])
    tried = {own.arm: {length.prompt_tokens: length for length in own.lengths} for own in limits.arms}
    rows: list[Cells] = []
    for tokens in sorted(set(chain.from_iterable(tried.values()))):
        lengths = {arm: own[tokens] for arm, own in tried.items() if tokens in own}
        row: Cells = {"prompt": count(tokens)}
        for arm, own in lengths.items():
            text = f"{words.name(own.outcome)}, {FORMS['seconds'](own.latency_s)}"
            row[str(arm)] = Cell(text=text, tone=OF_OUTCOME[own.outcome])
        if candidate := lengths.get(ArmName.CANDIDATE):
            row["length"] = (candidate.acceptance_length, "tokens")
        rows.append(row)
    titles = {"length": words("per round")}
    yield table(words, ("prompt", *ArmName, "length"), rows, n_texts=3, titles=titles, legends={})
    notes = [words("content unchecked", arm=own.arm) for own in limits.arms if not own.is_content_checked]
    notes += [words.reason(of(words(own.arm), note)) for own in limits.arms for note in own.notes]
    if notes:
        yield Bullets(items=tuple(notes))


def advice_blocks(payoff: Payoff, words: Words) -> Iterator[Block]:
    """Show where to turn the drafter on, with the evidence."""
    advice = payoff.advice
    if advice is None:
        return
    yield advice_table(advice, words)
    if advice.flags:
        yield Paragraph(text=words("flags", flags=" ".join(advice.flags)))
    yield Bullets(items=words.reasons(advice.reasons))


def advice_table(advice: Advice, words: Words, *, has_evidence: bool = True) -> Table:
    """Lay out the routes, the first that matches on top."""
    rows: list[Cells] = [
        {
            "work": words.name(route.work) if route.work else words("other work"),
            "up to tokens": words("any") if route.max_prompt_tokens is None else count(route.max_prompt_tokens),
            "up to load": words.reason(Reason("speed.at-once", {"n": n}))
            if (n := route.max_concurrency)
            else words("any"),
            "drafter": Cell(text=words.name(route.turn), tone=OF_TURN[route.turn]),
            **({"evidence": "; ".join(words.reasons(route.evidence))} if has_evidence else {}),
        }
        for route in advice.routes
    ]
    return table(words, tuple(rows[0]), rows, n_texts=5, notes=[words("routes how")])
