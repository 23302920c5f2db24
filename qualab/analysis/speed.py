"""Sum up timed bursts: each arm's speed in each cell, the arms' ratio, and what to know about the measurement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from qualab.analysis.drafter import round_length, rounds_of
from qualab.model.engine import Burst, Cell, Drafting, Observation, StreamTimes, cells_of
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


_Repeats = Mapping[int, _Repeat]


def speed_of(observations: Sequence[Observation], *, seed: int) -> Speed | None:
    """Sum up the bursts of the latest speed plan; None where nothing was timed."""
    bursts = [seen for seen in observations if isinstance(seen, Burst)]
    if not bursts:
        return None
    plan = bursts[-1].plan
    bursts = [burst for burst in bursts if burst.plan == plan]
    cells = tuple(cell_speed(bursts, cell, plan, seed=seed) for cell in dict.fromkeys(burst.cell for burst in bursts))
    works = []
    for work in plan.works:
        pairs = [_pairs(*_both(bursts, own.cell, plan)) for own in cells if own.cell.work is work]
        if ratio := _ratio(pairs, seed=seed):
            works.append(WorkSpeed(work=work, ratio=ratio))
    works.sort(key=lambda own: -own.ratio.value)
    return Speed(plan=plan, cells=cells, works=tuple(works), notes=tuple(_notes(bursts, cells, plan)))


def cell_speed(bursts: Sequence[Burst], cell: Cell, plan: SpeedPlan, *, seed: int) -> CellSpeed:
    """Sum up both arms' bursts of one cell under one plan."""
    both, own = _both(bursts, cell, plan), [burst for burst in bursts if burst.cell == cell and burst.plan == plan]
    baseline, candidate = (
        _arm([burst for burst in own if burst.arm is arm], arm, [*repeats.values()], plan)
        for arm, repeats in zip(ArmName, both, strict=True)
    )
    return CellSpeed(cell=cell, baseline=baseline, candidate=candidate, ratio=_ratio([_pairs(*both)], seed=seed))


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
    plan, cells = arms[0][-1].plan, dict.fromkeys(burst.cell for burst in arms[0])
    timed = [[_repeats(arm, cell, plan) for arm in arms] for cell in cells]
    common = [repeats for repeats in timed if all(_pairs(repeats[0], other) for other in repeats)]
    steps = [
        Step(name=names[at], ratio=ratio)
        for at in range(1, len(arms))
        if (ratio := _ratio([_pairs(cell[at - 1], cell[at]) for cell in common], seed=seed))
    ]
    whole = _ratio([_pairs(cell[0], cell[-1]) for cell in common], seed=seed)
    if whole is None or len(steps) < len(arms) - 1:
        return None
    product = prod(step.ratio.value for step in steps)
    agrees = whole.interval is not None and whole.interval.low <= product <= whole.interval.high
    return Chain(steps=tuple(steps), whole=whole, product=product, agrees=agrees)


def _repeats(bursts: Iterable[Burst], cell: Cell, plan: SpeedPlan) -> _Repeats:
    """Collect one arm's usable repeats of one cell, the last of each."""
    repeats = {}
    for burst in bursts:
        if burst.cell == cell and burst.plan == plan and burst.is_usable and not burst.is_warmup and burst.wall_s > 0.0:
            streams = tuple(stream for stream in burst.streams if stream.status.is_answer and stream.n_tokens > 0)
            timed = Timed(sum(stream.n_tokens for stream in streams), sum(stream.latency_s for stream in streams))
            if timed.tokens > 0 and timed.seconds > 0.0:
                repeats[burst.repeat] = _Repeat(burst, streams, timed)
    return dict(sorted(repeats.items()))


def _both(bursts: Sequence[Burst], cell: Cell, plan: SpeedPlan) -> tuple[_Repeats, _Repeats]:
    baseline, candidate = (_repeats((burst for burst in bursts if burst.arm is arm), cell, plan) for arm in ArmName)
    return baseline, candidate


def _pairs(baseline: _Repeats, candidate: _Repeats) -> Pairs:
    return [(baseline[at].timed, candidate[at].timed) for at in baseline if at in candidate]


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


def _arm(bursts: Sequence[Burst], arm: ArmName, repeats: Sequence[_Repeat], plan: SpeedPlan) -> ArmSpeed:
    warmup = sorted((burst for burst in bursts if burst.is_warmup), key=lambda burst: burst.repeat)
    streams = [stream for repeat in repeats for stream in repeat.streams]
    asked = [stream for repeat in repeats for stream in repeat.burst.streams]
    wall_s = sum(repeat.burst.wall_s for repeat in repeats)
    speeds = [repeat.timed.tokens / repeat.burst.wall_s for repeat in repeats]
    spread = max(speeds) / min(speeds) if speeds else None
    modes: tuple[tuple[float, float], ...] = ()
    if spread is not None and spread >= LEAST_SPREAD:
        modes = modes_of([[stream.n_tokens / stream.latency_s for stream in repeat.streams] for repeat in repeats])
    tokens, seconds = (sum(repeat.timed[at] for repeat in repeats) for at in (0, 1))
    first = [stream.first_token_s for stream in streams if stream.first_token_s is not None]
    gaps = [gap for repeat in repeats for gap in repeat.burst.gaps]
    told = [(own.cached_tokens, own.prompt_tokens) for own in streams if own.cached_tokens is not None]
    cached = [(n_cached, n) for n_cached, n in told if n]
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
        n_contaminated=sum(bool(burst.n_foreign) for burst in bursts if not burst.is_warmup),
        warmup=tuple(burst.n_tokens / burst.wall_s for burst in warmup if burst.wall_s > 0.0),
        tokens_per_s=tokens / wall_s if repeats else None,
        request_tokens_per_s=tokens / seconds if repeats else None,
        spread=spread,
        first_token_p50_s=float(np.quantile(first, 0.5)) if first else None,
        first_token_p95_s=float(np.quantile(first, 0.95)) if first else None,
        gap_p50_s=p50,
        gap_p95_s=p95,
        gap_p99_s=p99,
        acceptance_length=rounds.mean_length if rounds else round_length(drafting),
        zero_share=rounds.zero_share if rounds else None,
        cached_share=sum(n for n, _ in cached) / sum(n for _, n in cached) if cached else None,
        goodput_per_s=sum(_is_within(stream, plan) for stream in streams) / wall_s if has_target and repeats else None,
        modes=tuple(Mode(tokens_per_s=median, share=share) for median, share in modes),
        repeats=tuple(repeat.timed.tokens / repeat.timed.seconds for repeat in repeats),
    )


def _is_within(stream: StreamTimes, plan: SpeedPlan) -> bool:
    """Check a request against the plan's targets; one whose first token was not timed does not count."""
    if stream.first_token_s is None:
        return False
    mean_gap_s = (stream.latency_s - stream.first_token_s) / max(1, stream.n_tokens - 1)
    limits = ((stream.first_token_s, plan.target_ttft_s), (mean_gap_s, plan.target_gap_s))
    return all(limit is None or seconds <= limit for seconds, limit in limits)


def _notes(bursts: Sequence[Burst], cells: Sequence[CellSpeed], plan: SpeedPlan) -> Iterator[Reason]:
    arms = [(cell, arm) for cell in cells for arm in (cell.baseline, cell.candidate)]
    measured = [burst for burst in bursts if not burst.is_warmup]
    if refused := {burst.cell: burst.streams[-1].error for burst in bursts if burst.is_refused}:
        error = next(reversed(refused.values()))
        yield Reason("speed.refused", {"cells": tuple(map(cell_named, refused)), "error": error})
    if missed := {*cells_of(plan)} - {burst.cell for burst in measured} - {*refused}:
        yield Reason("speed.unreached", {"cells": tuple(cell_named(cell) for cell in cells_of(plan) if cell in missed)})
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
            fast, slow = arm.modes
            told = {"fast": fast.tokens_per_s, "share": fast.share, "slow": slow.tokens_per_s, "rest": slow.share}
            yield Reason("speed.two-modes", {"arm": arm.arm, "cell": cell_named(cell.cell), **told})


def cell_named(cell: Cell) -> Reason:
    """Name a cell as people do: work, length and load."""
    return Reason("speed.cell", {"work": cell.work, "tokens": cell.prompt_tokens, "load": cell.load})


def _named(cells: Sequence[CellSpeed]) -> tuple[Reason, ...]:
    return tuple(cell_named(cell) for cell in dict.fromkeys(cell.cell for cell in cells))
