"""Sum up timed bursts: each arm's speed in each cell, the arms' ratio, and what to know about the measurement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from qualab.analysis.drafter import round_length, rounds_of
from qualab.model.engine import Burst, Cell, Drafting, Observation, StreamTimes
from qualab.model.names import ArmName, CacheState, IntervalOf
from qualab.model.plan import SpeedPlan
from qualab.model.reason import Reason
from qualab.model.speed import ArmSpeed, CellSpeed, Chain, Mode, Ratio, Speed, Step, WorkSpeed
from qualab.stats.speed import Pairs, Timed, bucket_quantile, modes_of, ratio_interval

CONFIDENCE_LEVEL = 0.95
LEAST_SPREAD = 1.05
"""Fastest repeat over the slowest from which two speeds are looked for."""
COLD_AT_MOST, WARM_AT_LEAST = 0.1, 0.5
"""Shares of prompt tokens from the prefix cache."""


@dataclass(frozen=True, slots=True)
class _Repeat:
    burst: Burst
    streams: tuple[StreamTimes, ...]
    """Those that were answered."""
    timed: Timed

    @property
    def tokens_per_s(self) -> float:
        return self.timed.tokens / self.burst.wall_s

    @property
    def speeds(self) -> list[float]:
        return [stream.n_tokens / stream.latency_s for stream in self.streams]


_Repeats = Mapping[int, _Repeat]


def speed_of(observations: Sequence[Observation], *, seed: int) -> Speed | None:
    """Sum up the bursts of the latest speed plan; None where nothing was timed."""
    bursts = [seen for seen in observations if isinstance(seen, Burst)]
    if not bursts:
        return None
    plan = bursts[-1].plan
    bursts = [burst for burst in bursts if burst.plan == plan]
    cells = tuple(cell_speed(bursts, cell, plan, seed=seed) for cell in dict.fromkeys(burst.cell for burst in bursts))
    pairs = {work: [pairs for cell in cells if cell.cell.work is work if (pairs := _paired(bursts, cell.cell))]
             for work in plan.works}  # fmt: skip
    works = [WorkSpeed(work=work, ratio=ratio) for work in pairs if (ratio := _ratio(pairs[work], seed=seed))]
    return Speed(
        plan=plan,
        cells=cells,
        works=tuple(sorted(works, key=lambda work: -work.ratio.value)),
        notes=tuple(_notes(bursts, cells, plan)),
    )


def cell_speed(bursts: Sequence[Burst], cell: Cell, plan: SpeedPlan, *, seed: int) -> CellSpeed:
    """Sum up both arms' bursts of one cell under one plan."""
    own = [burst for burst in bursts if burst.cell == cell and burst.plan == plan]
    baseline, candidate = (_arm(own, arm, plan) for arm in ArmName)
    return CellSpeed(cell=cell, baseline=baseline, candidate=candidate, ratio=_ratio([_paired(own, cell)], seed=seed))


def is_narrow(ratio: Ratio | None, precision: float) -> bool:
    """Check that half of a ratio's interval is at most this share of it."""
    return bool(ratio and ratio.interval and ratio.interval.high - ratio.interval.low <= 2.0 * precision * ratio.value)


def chain_of(names: Sequence[str], observations: Mapping[str, Sequence[Observation]], *, seed: int) -> Chain | None:
    """Compare each arm with the one before it, over the cells that all arms have; None for fewer than three arms.

    Of the first name's observations the baseline's bursts count, of all others the candidate's.
    """
    arms: list[list[Burst]] = []
    for name in names:
        arm = ArmName.CANDIDATE if arms else ArmName.BASELINE
        arms.append([seen for seen in observations[name] if isinstance(seen, Burst) and seen.arm is arm])
    if len(arms) < 3 or not arms[0]:
        return None
    plan = arms[0][-1].plan
    by_cell = [
        [_repeats([burst for burst in arm if burst.cell == cell and burst.plan == plan]) for arm in arms]
        for cell in dict.fromkeys(burst.cell for burst in arms[0])
    ]
    common = [repeats for repeats in by_cell if all(_pairs(repeats[0], other) for other in repeats)]
    steps = [_ratio([_pairs(cell[at], cell[at + 1]) for cell in common], seed=seed) for at in range(len(arms) - 1)]
    whole = _ratio([_pairs(cell[0], cell[-1]) for cell in common], seed=seed)
    if whole is None or None in steps:
        return None
    known = tuple(Step(name=name, ratio=step) for name, step in zip(names[1:], steps, strict=True) if step)
    product = prod(step.ratio.value for step in known)
    agrees = whole.interval is not None and whole.interval.low <= product <= whole.interval.high
    return Chain(steps=known, whole=whole, product=product, agrees=agrees)


def _repeats(bursts: Sequence[Burst]) -> _Repeats:
    """Collect one arm's usable repeats of one cell, the last of each."""
    repeats = {}
    for burst in bursts:
        streams = tuple(stream for stream in burst.streams if stream.status.is_answer and stream.n_tokens > 0)
        timed = Timed(sum(stream.n_tokens for stream in streams), sum(stream.latency_s for stream in streams))
        if burst.is_usable and not burst.is_warmup and streams and burst.wall_s > 0.0 < timed.seconds:
            repeats[burst.repeat] = _Repeat(burst, streams, timed)
    return dict(sorted(repeats.items()))


def _pairs(baseline: _Repeats, candidate: _Repeats) -> Pairs:
    return [(baseline[at].timed, candidate[at].timed) for at in baseline if at in candidate]


def _paired(bursts: Sequence[Burst], cell: Cell) -> Pairs:
    own = [burst for burst in bursts if burst.cell == cell]
    return _pairs(*(_repeats([burst for burst in own if burst.arm is arm]) for arm in ArmName))


def _ratio(cells: Sequence[Pairs], *, seed: int) -> Ratio | None:
    """Compute the ratio of cells with two paired repeats, else of those with one."""
    timed = [pairs for pairs in cells if len(pairs) > 1] or [pairs for pairs in cells if pairs]
    if not timed:
        return None
    value, interval = ratio_interval(timed, confidence_level=CONFIDENCE_LEVEL, seed=seed)
    return Ratio(
        value=value,
        interval=interval and IntervalOf(low=interval[0], high=interval[1], confidence_level=CONFIDENCE_LEVEL),
        n_repeats=sum(map(len, timed)),
    )


def _arm(bursts: Sequence[Burst], arm: ArmName, plan: SpeedPlan) -> ArmSpeed:
    own = [burst for burst in bursts if burst.arm is arm]
    measured = [burst for burst in own if not burst.is_warmup]
    warmup = sorted((burst for burst in own if burst.is_warmup), key=lambda burst: burst.repeat)
    repeats = list(_repeats(own).values())
    streams = [stream for repeat in repeats for stream in repeat.streams]
    asked = [stream for repeat in repeats for stream in repeat.burst.streams]
    wall_s, speeds = sum(repeat.burst.wall_s for repeat in repeats), [repeat.tokens_per_s for repeat in repeats]
    tokens, seconds = (sum(repeat.timed[at] for repeat in repeats) for at in (0, 1))
    first = [stream.first_token_s for stream in streams if stream.first_token_s is not None]
    gaps = [gap for repeat in repeats for gap in repeat.burst.gaps]
    cached = [(stream.cached_tokens, stream.prompt_tokens) for stream in streams]
    told = [(n_cached, n) for n_cached, n in cached if n_cached is not None and n]
    known = [repeat.burst.drafting for repeat in repeats if repeat.burst.drafting is not None]
    drafting = sum(known, Drafting()) if known else None
    rounds = rounds_of(drafting)
    has_target = plan.target_ttft_s is not None or plan.target_gap_s is not None
    p50, p95, p99 = (bucket_quantile(gaps, q) if gaps else None for q in (0.5, 0.95, 0.99))
    return ArmSpeed(
        arm=arm,
        n_repeats=len(repeats),
        n_streams=len(asked),
        n_failed=len(asked) - len(streams),
        n_contaminated=sum(bool(burst.n_foreign) for burst in measured),
        warmup=tuple(burst.n_tokens / burst.wall_s for burst in warmup if burst.wall_s > 0.0),
        tokens_per_s=tokens / wall_s if repeats else None,
        request_tokens_per_s=tokens / seconds if repeats else None,
        spread=max(speeds) / min(speeds) if repeats else None,
        first_token_p50_s=float(np.quantile(first, 0.5)) if first else None,
        first_token_p95_s=float(np.quantile(first, 0.95)) if first else None,
        gap_p50_s=p50,
        gap_p95_s=p95,
        gap_p99_s=p99,
        acceptance_length=rounds.mean_length if rounds else round_length(drafting),
        zero_share=rounds.zero_share if rounds else None,
        cached_share=sum(n for n, _ in told) / sum(n for _, n in told) if told else None,
        goodput_per_s=sum(_is_within(stream, plan) for stream in streams) / wall_s if has_target and repeats else None,
        modes=tuple(Mode(tokens_per_s=median, share=share) for median, share in _modes(repeats)),
        repeats=tuple(repeat.timed.tokens / repeat.timed.seconds for repeat in repeats),
    )


def _is_within(stream: StreamTimes, plan: SpeedPlan) -> bool:
    """Check a request against the plan's targets; one whose first token was not timed does not count."""
    if stream.first_token_s is None:
        return False
    mean_gap_s = (stream.latency_s - stream.first_token_s) / max(1, stream.n_tokens - 1)
    limits = ((stream.first_token_s, plan.target_ttft_s), (mean_gap_s, plan.target_gap_s))
    return all(limit is None or seconds <= limit for seconds, limit in limits)


def _modes(repeats: Sequence[_Repeat]) -> tuple[tuple[float, float], ...]:
    """Find two speeds of requests, where repeats spread: one slow repeat or a drift is not a second speed."""
    speeds = [repeat.tokens_per_s for repeat in repeats]
    is_spread = len(speeds) > 1 and max(speeds) / min(speeds) >= LEAST_SPREAD
    return modes_of([repeat.speeds for repeat in repeats]) if is_spread else ()


def _notes(bursts: Sequence[Burst], cells: Sequence[CellSpeed], plan: SpeedPlan) -> Iterator[Reason]:
    """Say what a reader of the figures has to know."""
    arms = [(cell, arm) for cell in cells for arm in (cell.baseline, cell.candidate)]
    measured = [burst for burst in bursts if not burst.is_warmup]
    streams = [(burst.arm, stream) for burst in measured for stream in burst.streams if stream.status.is_answer]
    if dirty := [cell for cell, arm in arms if arm.n_contaminated]:
        n = sum(arm.n_contaminated for _, arm in arms)
        yield Reason("speed.contaminated", {"n": n, "cells": _named(dirty)})
    if n_failed := sum(arm.n_failed for _, arm in arms):
        yield Reason("speed.failed", {"n": n_failed, "total": sum(arm.n_streams for _, arm in arms)})
    lacks = {
        "speed.by-chunks": {arm for arm, stream in streams if not stream.is_counted},
        "speed.cache-untold": {arm for arm, _ in streams}
        - {arm for arm, stream in streams if stream.cached_tokens is not None},
        "speed.load-untold": {burst.arm for burst in measured if burst.n_foreign is None},
    }
    for code, lacking in lacks.items():
        if lacking:
            yield Reason(code, {"arms": tuple(sorted(lacking))})
    cold = plan.cache is CacheState.COLD
    shares = [(cell, arm.cached_share) for cell, arm in arms if arm.cached_share is not None]
    if wrong := [cell for cell, share in shares if (share > COLD_AT_MOST if cold else share < WARM_AT_LEAST)]:
        yield Reason(f"speed.not-{plan.cache}", {"cells": _named(wrong)})
    if wide := [cell for cell in cells if cell.ratio and not is_narrow(cell.ratio, plan.precision)]:
        yield Reason("speed.wide", {"precision": plan.precision, "cells": _named(wide)})
    for cell, arm in arms:
        if arm.modes:
            yield Reason("speed.two-modes", {"arm": arm.arm, "cell": cell_named(cell.cell), **_told(arm)})


def _told(arm: ArmSpeed) -> Mapping[str, Any]:
    fast, slow = arm.modes
    return {"fast": fast.tokens_per_s, "share": fast.share, "slow": slow.tokens_per_s, "rest": slow.share}


def at_once(n: int) -> Reason:
    """Name a load of so many requests under way."""
    return Reason("speed.at-once", {"n": n})


def cell_named(cell: Cell) -> Reason:
    """Name a cell as people do: work, length and load."""
    load = at_once(cell.concurrency) if cell.concurrency else Reason("speed.rate", {"rate": cell.rate})
    return Reason("speed.cell", {"work": cell.work, "tokens": cell.prompt_tokens, "load": load})


def _named(cells: Sequence[CellSpeed]) -> tuple[Reason, ...]:
    return tuple(cell_named(cell) for cell in dict.fromkeys(cell.cell for cell in cells))
