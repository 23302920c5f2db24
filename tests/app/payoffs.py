"""Made-up speed, room and limits."""

from __future__ import annotations

from typing import Any

from qualab.model.engine import Cell
from qualab.model.names import ArmName, IntervalOf, Outcome, Work
from qualab.model.plan import SpeedPlan
from qualab.model.speed import (
    ArmLimits,
    ArmSpeed,
    Capacity,
    CellSpeed,
    LengthTried,
    Limits,
    Ratio,
    Room,
    Speed,
    WorkSpeed,
)
from tests.store.samples import filled

CAPACITY = Capacity(
    baseline_tokens=1_808_112,
    candidate_tokens=1_354_786,
    rooms=(Room(tokens=8_192, baseline=220.7, candidate=165.4), Room(tokens=1_000_000, baseline=1.81, candidate=1.35)),
)


def ratio(value: float, *, is_open: bool = False) -> Ratio:
    """A ratio whose interval is 5 % wide on either side, or holds 1."""
    low, high = (0.9 * min(value, 1.0), 1.1 * max(value, 1.0)) if is_open else (0.95 * value, 1.05 * value)
    return Ratio(value=value, interval=IntervalOf(low=low, high=high, confidence_level=0.95), n_repeats=5)


def arm_speed(arm: ArmName, speed: float, **values: Any) -> ArmSpeed:
    own = {"n_repeats": 5, "n_streams": 40, "warmup": (0.1 * speed, 0.9 * speed, speed), "tokens_per_s": 4.0 * speed}
    own |= {"request_tokens_per_s": speed, "spread": 1.15, "repeats": (0.93 * speed, speed, 1.07 * speed)}
    own |= {"first_token_p50_s": 0.12, "first_token_p95_s": 0.31}
    own |= {"gap_p50_s": 1.0 / speed, "gap_p95_s": 1.4 / speed, "gap_p99_s": 2.0 / speed}
    return filled(ArmSpeed, arm=arm, **own | values)


def cell(
    work: Work, value: float | None, *, tokens: int = 256, at_once: int | None = 1, is_open: bool = False, **values: Any
) -> CellSpeed:
    """A cell in which the candidate is `value` times as fast; None measured no ratio."""
    own = Cell(work=work, prompt_tokens=tokens, concurrency=at_once, rate=None if at_once else 0.5)
    return CellSpeed(
        cell=own,
        baseline=arm_speed(ArmName.BASELINE, 20.0),
        candidate=arm_speed(ArmName.CANDIDATE, 20.0 * (value or 1.0), acceptance_length=2.5, zero_share=0.2, **values),
        ratio=None if value is None else ratio(value, is_open=is_open),
    )


def speed(*cells: CellSpeed) -> Speed:
    works = {own.cell.work: own.ratio for own in cells if own.ratio}
    ordered = sorted(works.items(), key=lambda one: -one[1].value)
    speeds = tuple(WorkSpeed(work=work, ratio=own) for work, own in ordered)
    return Speed(plan=SpeedPlan(works=tuple(works)), cells=cells, works=speeds, notes=())


def arm_limits(arm: ArmName = ArmName.CANDIDATE, **values: Any) -> ArmLimits:
    tried = ((1_024, Outcome.RIGHT), (245_760, Outcome.RIGHT), (300_000, Outcome.BROKEN))
    lengths = [
        LengthTried(prompt_tokens=tokens, outcome=outcome, acceptance_length=1.42, latency_s=tokens / 5_000.0)
        for tokens, outcome in tried
    ]
    own = {"advertised": 1_000_000, "verified": 245_760, "fails_from": 300_000, "n_deaths": 1, "set_to": 246_784}
    return filled(ArmLimits, arm=arm, lengths=tuple(lengths), is_content_checked=True, **own | values)


def limits(**values: Any) -> Limits:
    baseline = arm_limits(ArmName.BASELINE, verified=999_000, fails_from=None, set_to=None, n_deaths=0)
    return Limits(arms=(baseline, arm_limits(**values)))
