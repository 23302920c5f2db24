"""Speed, capacity, limits and quality -> where a drafter is worth turning on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean

from qualab.analysis.limits import capacity_of, limits_of
from qualab.model.comparison import Analysis
from qualab.model.engine import Burst, EngineKind, Observation, Treatment, engines_seen
from qualab.model.names import ArmName, AuditRuling, Turn, Verdict, Work
from qualab.model.reason import Reason
from qualab.model.speed import Advice, ArmLimits, Capacity, CellSpeed, Limits, Payoff, Route, Speed

LONG_BIN = re.compile(r"long_(\d+)k(?=_|$)")
"""Tasks of the suite `long`: one for each length of prompt, in thousands of tokens."""
ANY = Route(work=None, max_prompt_tokens=None, max_concurrency=None, turn=Turn.OFF, evidence=())


def payoff_of(analysis: Analysis, observations: Sequence[Observation], *, seed: int) -> Payoff:
    """Compute what was measured of speed, room and limits, and what follows from it and the quality."""
    speed, capacity, limits = None, capacity_of(observations), limits_of(observations)
    if any(isinstance(seen, Burst) for seen in observations):
        from qualab.analysis.speed import speed_of  # noqa: PLC0415  scipy: few comparisons are timed

        speed = speed_of(observations, seed=seed)
    engine = engines_seen(observations).get(ArmName.CANDIDATE)
    advice = advice_of(analysis, speed, capacity, limits, kind=engine.kind if engine else EngineKind.UNKNOWN)
    return Payoff(speed=speed, capacity=capacity, limits=limits, advice=advice)


def advice_of(
    analysis: Analysis, speed: Speed | None, capacity: Capacity | None, limits: Limits | None, *, kind: EngineKind
) -> Advice | None:
    """Tell where to turn the drafter on; None where neither speed nor limits were measured.

    ON takes a speed-up whose interval lies above 1, without harm to the answers; OFF a slow-down, or harm.
    """
    if speed is None and limits is None:
        return None
    arms = {own.arm: own for own in limits.arms} if limits else {}
    harm = min(_harm(analysis, arms.get(ArmName.CANDIDATE)), key=lambda own: own[0], default=None)
    is_sound, most = analysis.verdict is not Verdict.INVALID, harm[0] if harm else None
    cells = [own for own in speed.cells if most is None or own.cell.prompt_tokens <= most] if speed else []
    routes = list(_routes(cells, is_sound, most))
    if most != 0:
        reasons = (Reason("advice.not-timed"),)
        routes.append(replace(ANY, max_prompt_tokens=most, turn=Turn.NOT_PROVEN, evidence=reasons))
    routes += [replace(ANY, evidence=(harm[1],))] if harm else []
    is_on = any(route.turn is Turn.ON for route in routes)
    served = arms.get(ArmName.CANDIDATE if is_on else ArmName.BASELINE)
    flags = (f"--max-model-len {served.set_to}",) if served and served.set_to and kind is EngineKind.VLLM else ()
    told = [
        Reason("advice.quality", {"verdict": analysis.verdict}) if analysis.metrics else Reason("advice.no-quality"),
        *([] if speed else [Reason("advice.no-speed")]),
        *([] if limits else [Reason("advice.no-limits")]),
        *(_of_treatment(analysis.treatment) if analysis.treatment else ()),
        *([Reason("advice.room", {"loss": -capacity.change})] if capacity and capacity.change < 0.0 else []),
        *([] if is_on else [Reason("advice.leave-out")]),
        *(_schedule(cells, is_sound) if kind is EngineKind.VLLM else ()),
    ]
    return Advice(routes=tuple(routes), flags=flags, reasons=tuple(told))


def _harm(analysis: Analysis, limits: ArmLimits | None) -> Iterator[tuple[int, Reason]]:
    """Yield the longest prompt that the drafter does no harm to, 0 for none, and the harm to longer ones."""
    if analysis.audit and analysis.audit.ruling is AuditRuling.FOREIGN:
        yield 0, Reason("advice.foreign")
    worse = [row for row in analysis.metrics if row.verdict is Verdict.REGRESSION]
    if worse or analysis.verdict is Verdict.REGRESSION:
        bins = {row.task: 1_000 * int(length[1]) for row in analysis.metrics if (length := LONG_BIN.match(row.task))}
        least = min((bins.get(row.task, 0) for row in worse), default=0)
        spared = max((tokens for tokens in bins.values() if tokens < least), default=0)
        yield spared, Reason("advice.regression", {"names": tuple(row.id for row in worse)})
    if limits is None or not limits.lengths:
        return
    is_early = limits.refused_from and not (limits.advertised and limits.refused_from > limits.advertised)
    if limits.verified is None:
        yield 0, Reason("advice.never-right")
    elif limits.fails_from or is_early:
        yield limits.verified, Reason("advice.beyond", {"verified": limits.verified})


def _routes(cells: Sequence[CellSpeed], is_sound: bool, most: int | None) -> Iterator[Route]:
    """Yield routes by work, length and load; neighbours with the same turn are one route.

    Prompts of a user's file have no one length: they are routed at any length up to `most`.
    """
    for work in (work for work in Work if any(own.cell.work is work for own in cells)):
        lengths = sorted({own.cell.prompt_tokens for own in cells if own.cell.work is work})
        bands = [
            _bands([own for own in cells if (own.cell.work, own.cell.prompt_tokens) == (work, tokens)], is_sound)
            for tokens in lengths
        ]
        for _, alike in groupby(range(len(lengths)), key=lambda place: [band[:2] for band in bands[place]]):
            places = list(alike)
            for at, (load, turn, _) in enumerate(bands[places[0]]):
                evidence = tuple(_evidence([own for place in places for own in bands[place][at][2]], turn, is_sound))
                tokens = lengths[places[-1]] or most
                yield Route(work=work, max_prompt_tokens=tokens, max_concurrency=load, turn=turn, evidence=evidence)


def _bands(cells: Sequence[CellSpeed], is_sound: bool) -> list[tuple[int | None, Turn, list[CellSpeed]]]:
    """Group cells of one length by the turn that is right for them, up to a load."""
    closed = sorted((own for own in cells if own.cell.concurrency), key=lambda own: own.cell.concurrency or 0)
    if not closed:  # arrivals at a rate alone: a router sees no rates, so that all of them have to agree
        turns = {_turn(own, is_sound) for own in cells}
        return [(None, turns.pop() if len(turns) == 1 else Turn.NOT_PROVEN, list(cells))]
    grouped = ((turn, list(own)) for turn, own in groupby(closed, key=lambda own: _turn(own, is_sound)))
    return [(own[-1].cell.concurrency, turn, own) for turn, own in grouped]


def _turn(own: CellSpeed, is_sound: bool) -> Turn:
    is_faster = own.ratio.is_faster if own.ratio else None
    if is_faster is None or (is_faster and not is_sound):
        return Turn.NOT_PROVEN
    return Turn.ON if is_faster else Turn.OFF


def _evidence(cells: Sequence[CellSpeed], turn: Turn, is_sound: bool) -> Iterator[Reason]:
    """Yield the ratio that is closest to 1, what its drafter yields, and what stands against it."""
    timed = [(own.ratio.value, own.ratio.interval, own) for own in cells if own.ratio and own.ratio.interval]
    if timed:
        value, interval, closest = min(timed, key=lambda one: abs(one[0] - 1.0))
        yield Reason("advice.ratio", {"value": value, "low": interval.low, "high": interval.high, "n": len(cells)})
        if (length := closest.candidate.acceptance_length) is not None:
            yield Reason("advice.acceptance", {"length": length})
    else:
        yield Reason("advice.no-ratio")
    if not is_sound and turn is Turn.NOT_PROVEN:
        yield Reason("advice.invalid")


def _of_treatment(treatment: Treatment) -> Iterator[Reason]:
    """Yield break-even, the tasks on either side of it, and how acceptance changes with length."""
    costs = [task.round_cost for task in treatment.tasks if task.round_cost is not None]
    if (least := treatment.break_even_length or (1.0 + fmean(costs) if costs else None)) is not None:
        yield Reason("advice.break-even", {"length": least})
    margins = {task.task: task.break_even_margin for task in treatment.tasks if task.break_even_margin is not None}
    for code, sign in (("advice.pays", 1.0), ("advice.costs", -1.0)):
        if names := tuple(name for name, margin in margins.items() if sign * margin > 0.0):
            yield Reason(code, {"names": names})
    drafted = [(own, own.accepted_tokens / own.draft_tokens) for own in treatment.bins if own.draft_tokens]
    if len(drafted) > 1:
        (short, before), (long, after) = drafted[0], drafted[-1]
        values = {"short": short.to_tokens, "before": before, "long": long.from_tokens, "after": after}
        yield Reason("advice.by-length", values)


def _schedule(cells: Iterable[CellSpeed], is_sound: bool) -> Iterator[Reason]:
    """Yield the load up to which drafting pays for whatever was timed, where it costs time beyond."""
    loads: dict[Turn, list[int]] = {turn: [] for turn in Turn}
    for own in cells:
        if own.cell.concurrency:
            loads[_turn(own, is_sound)].append(own.cell.concurrency)
    if loads[Turn.ON] and loads[Turn.OFF] and (most := max(loads[Turn.ON])) < min(loads[Turn.OFF]):
        yield Reason("advice.schedule", {"most": most, "above": most + 1})
