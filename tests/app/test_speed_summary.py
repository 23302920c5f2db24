"""What is made of timed bursts: speeds, ratios, notes, and a chain of arms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from qualab.analysis.speed import cell_speed, chain_of, is_narrow, speed_of
from qualab.model.engine import Burst, Cell, Drafting, StreamTimes
from qualab.model.names import AnswerStatus, ArmName, CacheState, Work
from qualab.model.plan import SpeedPlan
from qualab.report.words import ENGLISH
from qualab.stats.speed import bucket_of
from tests.said import KOREAN

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PLAN = SpeedPlan(works=(Work.COPY, Work.PROSE))
COPY, PROSE = (Cell(work=work, prompt_tokens=256, concurrency=8) for work in PLAN.works)
BASELINE, CANDIDATE = ArmName


def stream(speed: float, **changes: Any) -> StreamTimes:
    """100 tokens at so many a second, the first after 0.1 s."""
    told: dict[str, Any] = {"status": AnswerStatus.TRUNCATED, "first_token_s": 0.1, "latency_s": 100 / speed}
    told |= {"n_tokens": 100, "prompt_tokens": 256, "cached_tokens": 0}
    return StreamTimes(**told | changes)


def burst(arm: ArmName, repeat: int, speeds: Sequence[float], *, cell: Cell = COPY, **changes: Any) -> Burst:
    """All at once."""
    streams = tuple(stream(speed) for speed in speeds)
    told: dict[str, Any] = {"seen_at": NOW, "plan": PLAN, "is_warmup": False, "drafting": None, "n_foreign": 0}
    told |= {"streams": streams, "wall_s": max(own.latency_s for own in streams)}
    told |= {"gaps": tuple((bucket_of(1 / speed), 99) for speed in speeds)}
    return Burst(arm=arm, repeat=repeat, cell=cell, **told | changes)


def repeats(arm: ArmName, speed: float, *, n: int = 5, seed: int = 1, **changes: Any) -> list[Burst]:
    generator = np.random.default_rng(seed)
    return [
        burst(arm, at, (speed * np.exp(generator.normal(0, 0.02, 8))).tolist(), **changes) for at in range(n)
    ]  # fmt: skip


def test_nothing_timed_is_no_speed() -> None:
    assert speed_of([], seed=1) is None


def test_a_cell_is_summed_up() -> None:
    drafting = Drafting(drafts=40, draft_tokens=120, accepted_tokens=60, accepted_at=(30, 20, 10))
    plan = replace(PLAN, target_ttft_s=0.2, target_gap_s=0.015)
    bursts = [
        *(burst(BASELINE, at, [5.0 + at] * 4, is_warmup=True, plan=plan) for at in range(3)),
        *(burst(BASELINE, at, [50.0] * 4, plan=plan) for at in range(3)),
        *(burst(CANDIDATE, at, [100.0] * 4, plan=plan, drafting=drafting) for at in range(3)),
    ]
    cell = cell_speed(bursts, COPY, plan, seed=1)
    baseline, candidate = cell.baseline, cell.candidate
    assert baseline.warmup == pytest.approx((20.0, 24.0, 28.0))
    assert (baseline.n_repeats, baseline.n_streams, baseline.n_failed, baseline.spread) == (3, 12, 0, 1.0)
    assert (baseline.tokens_per_s, baseline.request_tokens_per_s) == (200.0, 50.0)
    assert (baseline.gap_p50_s, candidate.gap_p99_s) == (pytest.approx(0.02, 0.01), pytest.approx(0.01, 0.01))
    assert (baseline.acceptance_length, baseline.zero_share) == (None, None)
    assert (candidate.acceptance_length, candidate.zero_share) == (2.5, 0.25)
    assert (baseline.goodput_per_s, candidate.goodput_per_s) == (0.0, 4.0)  # 0.019 and 0.009 s between tokens
    assert cell.ratio is not None
    assert cell.ratio.value == pytest.approx(2.0)
    assert (cell.ratio.is_faster, cell.ratio.n_repeats, is_narrow(cell.ratio, 0.05)) == (True, 3, True)


def test_what_was_not_measured_again_or_in_both_arms_gives_no_ratio() -> None:
    speed = speed_of(
        [*repeats(BASELINE, 50.0), *repeats(CANDIDATE, 60.0, n=1), burst(BASELINE, 0, [9.0], cell=PROSE)], seed=1
    )
    assert speed is not None
    copy, prose = speed.cells
    assert copy.ratio is not None
    assert (copy.ratio.interval, copy.ratio.n_repeats, copy.ratio.is_faster, prose.ratio) == (None, 1, None, None)
    assert [work.work for work in speed.works] == [Work.COPY]
    assert (prose.candidate.n_repeats, prose.candidate.tokens_per_s, prose.candidate.spread) == (0, None, None)


def test_a_repeat_that_others_disturbed_does_not_count_and_is_made_up_for() -> None:
    slow = burst(CANDIDATE, 2, [20.0] * 8, n_foreign=3)
    bursts = [*repeats(BASELINE, 50.0), *repeats(CANDIDATE, 75.0)]
    clean = cell_speed(bursts, COPY, PLAN, seed=1)
    for place in (len(bursts) - 3, len(bursts)):  # before the repeat that counts, or after it
        told = cell_speed([*bursts[:place], slow, *bursts[place:]], COPY, PLAN, seed=1)
        assert (told.candidate.n_contaminated, told.candidate.n_repeats) == (1, 5)
        assert told.ratio == clean.ratio


def test_the_latest_plan_counts_and_works_are_ordered_by_gain() -> None:
    old = replace(PLAN, output_tokens=16)
    bursts = repeats(BASELINE, 10.0, plan=old)
    for cell, gain in ((COPY, 0.9), (PROSE, 2.0)):
        bursts += [*repeats(BASELINE, 50.0, cell=cell), *repeats(CANDIDATE, 50.0 * gain, cell=cell, seed=2)]
    speed = speed_of(bursts, seed=1)
    assert speed is not None
    assert (speed.plan, [note.code for note in speed.notes]) == (PLAN, ["speed.unreached"])
    assert [(work.work, work.ratio.is_faster) for work in speed.works] == [(Work.PROSE, True), (Work.COPY, False)]


def changed(**changes: Any) -> Callable[[Burst], Burst]:
    return lambda own: replace(own, streams=tuple(replace(one, **changes) for one in own.streams))


FAILED = (stream(50.0), stream(50.0, status=AnswerStatus.TIMEOUT, n_tokens=3, latency_s=300.0))
IN = "copying, 256 tokens, 8 at once"


@pytest.mark.parametrize(
    ("change", "notes"),
    [
        (lambda own: own, []),
        (changed(is_counted=False), ["speed.by-chunks"]),
        (changed(cached_tokens=None), ["speed.cache-untold"]),
        (changed(cached_tokens=200), ["speed.not-cold"]),
        (lambda own: replace(own, plan=replace(PLAN, cache=CacheState.WARM)), ["speed.not-warm"]),
        (lambda own: replace(own, n_foreign=None), ["speed.load-untold"]),
        (lambda own: replace(own, streams=FAILED), ["speed.failed"]),
        (lambda own: replace(own, plan=replace(PLAN, precision=0.001)), ["speed.wide"]),
        (lambda own: replace(own, n_foreign=int(own.repeat == 4)), ["speed.contaminated"]),
    ],
)  # fmt: skip
def test_notes_say_what_to_know(change: Callable[[Burst], Burst], notes: list[str]) -> None:
    bursts = [change(own) for own in (*repeats(BASELINE, 50.0), *repeats(CANDIDATE, 75.0, seed=2))]
    speed = speed_of(bursts, seed=1)
    assert speed is not None
    assert [note.code for note in speed.notes] == ["speed.unreached", *notes]
    for note in speed.notes:
        assert "{" not in ENGLISH.reason(note) + KOREAN.reason(note)


def test_a_request_that_failed_does_not_slow_an_arm_down() -> None:
    bursts = [*(burst(BASELINE, at, [50.0] * 2) for at in range(5))]
    bursts += [replace(burst(CANDIDATE, at, [50.0] * 2), streams=FAILED) for at in range(5)]
    cell = cell_speed(bursts, COPY, PLAN, seed=1)
    assert cell.ratio is not None
    assert (cell.ratio.value, cell.candidate.n_failed) == (pytest.approx(1.0), 5)


@pytest.mark.parametrize("n", [5, 15])
def test_a_spread_that_repeats_do_not_shrink_is_two_speeds(n: int) -> None:
    generator = np.random.default_rng(4)
    speeds = np.where(generator.random((n, 16)) < 0.4, 90.0, 60.0) * np.exp(generator.normal(0, 0.02, (n, 16)))
    bursts = [*(burst(CANDIDATE, at, own.tolist()) for at, own in enumerate(speeds)), *repeats(BASELINE, 50.0, n=n)]
    bursts = [replace(own, wall_s=sum(one.latency_s for one in own.streams) / 16) for own in bursts]
    speed = speed_of(bursts, seed=1)
    assert speed is not None
    (cell,) = speed.cells
    assert (len(cell.candidate.modes), cell.baseline.modes) == (2, ())
    (note,) = (note for note in speed.notes if note.code == "speed.two-modes")
    assert "two speeds (" in ENGLISH.reason(note)
    # the same spread by one slow repeat at first is none of these
    early = [burst(BASELINE, at, [20.0 if at == 0 else 50.0 + at / 10] * 8) for at in range(n)]
    assert cell_speed(early, COPY, PLAN, seed=1).baseline.modes == ()


def test_a_chain_of_arms_multiplies_to_the_whole() -> None:
    arms = {"old": repeats(BASELINE, 10.0), "new": repeats(CANDIDATE, 54.0, seed=2)}
    arms["new with drafter"] = repeats(CANDIDATE, 119.0, seed=3) + repeats(CANDIDATE, 50.0, cell=PROSE)
    chain = chain_of(list(arms), arms, seed=1)
    assert chain is not None
    assert [(step.name, round(step.ratio.value, 1)) for step in chain.steps] == [
        ("new", 5.4),
        ("new with drafter", 2.2),
    ]
    assert (round(chain.whole.value, 1), chain.product, chain.agrees) == (11.9, pytest.approx(chain.whole.value), True)
    assert chain_of(["old", "new"], arms, seed=1) is None
    # the new engine slows down after the old one's last repeat, so that its two steps hold different speeds of it
    slowed = [*arms["new"][:4], *repeats(CANDIDATE, 27.0, n=7, seed=2)[4:]]
    later = {"old": arms["old"][:4], "new": slowed, "new with drafter": repeats(CANDIDATE, 119.0, n=7, seed=3)[2:]}
    parted = chain_of(list(arms), later, seed=1)
    assert parted is not None
    assert (parted.agrees, parted.whole.n_repeats, round(parted.product / parted.whole.value, 1)) == (False, 2, 1.6)
