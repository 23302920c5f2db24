"""Made-up speed, room and limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

from qualab.model.engine import Burst, Cell, Drafting, Engine, EngineKind, EngineSeen, Probe, StreamTimes
from qualab.model.names import AnswerStatus, ArmName, IntervalOf, Language, Outcome, Work
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
from qualab.stats.speed import bucket_of
from qualab.store import Store
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


AT = datetime(2026, 3, 1, 22, 0, tzinfo=UTC)
SPEEDS = {Work.COPY: (15.0, 33.0), Work.PROSE: (15.0, 13.5)}
TIMED = SpeedPlan(works=tuple(SPEEDS), prompt_tokens=(256, 2_048), concurrency=(1, 8))


def observe(store: Store, comparison_id: str) -> None:
    """Store what timing a pair, and looking for its limits, leaves behind: copying is faster, prose slower."""
    for arm, tokens in zip(ArmName, (1_808_112, 1_354_786), strict=True):
        engine = Engine(kind=EngineKind.VLLM, version="0.32.0", max_model_len=16_384, kv_cache_tokens=tokens)
        store.add_observation(comparison_id, EngineSeen(arm=arm, seen_at=AT, engine=engine))
        for tokens_tried in (512, 1_024, 8_192, 12_000):
            for language in Language:
                store.add_observation(comparison_id, probe(arm, tokens_tried, language))
        for work, length, at_once in product(TIMED.works, TIMED.prompt_tokens, TIMED.concurrency):
            own = Cell(work=work, prompt_tokens=length, concurrency=at_once)
            speed_of_arm = SPEEDS[work][arm is ArmName.CANDIDATE] / (1.0 + length / 20_000.0)
            for place in range(8):
                is_warmup = place < 3
                factor = (0.1, 0.8, 1.0, 0.99, 1.02, 1.0, 0.97, 1.03)[place]
                repeat = place if is_warmup else place - 3
                store.add_observation(
                    comparison_id, burst(arm, own, repeat, factor * speed_of_arm, is_warmup=is_warmup)
                )


def burst(arm: ArmName, own: Cell, repeat: int, speed: float, *, is_warmup: bool) -> Burst:
    streams = tuple(
        StreamTimes(
            status=AnswerStatus.OK,
            first_token_s=0.1 + n / 1_000.0,
            latency_s=128.0 / (speed * (1.0 + n / 100.0)),
            n_tokens=128,
            prompt_tokens=own.prompt_tokens,
            cached_tokens=0,
        )
        for n in range(8)
    )
    drafting = Drafting(drafts=400, draft_tokens=1_600, accepted_tokens=600, accepted_at=(320, 180, 70, 30))
    return Burst(
        arm=arm,
        seen_at=AT + timedelta(seconds=repeat),
        plan=TIMED,
        cell=own,
        repeat=repeat,
        is_warmup=is_warmup,
        wall_s=sum(one.latency_s for one in streams) / (own.concurrency or 1),
        streams=streams,
        gaps=((bucket_of(1.0 / speed), 8 * 127),),
        drafting=drafting if arm is ArmName.CANDIDATE else None,
        n_foreign=0,
    )


def probe(arm: ArmName, tokens: int, language: Language) -> Probe:
    """All needles up to 8,192 tokens; beyond, the candidate dies."""
    is_dead = arm is ArmName.CANDIDATE and tokens > 8_192
    return Probe(
        arm=arm,
        seen_at=AT,
        language=language,
        output_tokens=64,
        prompt_tokens=tokens,
        told_tokens=None if is_dead else tokens,
        outcome=Outcome.BROKEN if is_dead else Outcome.RIGHT,
        n_right=0 if is_dead else 3,
        n_needles=3,
        latency_s=tokens / 4_000.0,
        drafting=None,
        error="Connection reset" if is_dead else "",
        died=is_dead,
        recovered_s=10.0 if is_dead else None,
    )
