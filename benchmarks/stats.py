"""The statistics that repeat themselves most, each beside a floor measured in the same run.

    python benchmarks/stats.py [--quick]

Max-T: 34 metrics of 0/1 scores, 5 % of items discordant in each, 10,000 sign flips. "Related": the metrics change on
the same fifth of the items, as the metrics of a few benchmarks do. "Unrelated": each changes on its own, so that four
items in five change in some metric, the worst case. The floors draw signs and multiply, for all items or for changed
items alone, and keep nothing. Times are the best of several runs.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.special

from qualab.stats.counts import PairedCounts
from qualab.stats.equivalence import critical_gains, equivalence, provable_margin
from qualab.stats.interval import score_statistic
from qualab.stats.resampling import max_t
from qualab.stats.sizing import items_needed, power_equivalence

Array = npt.NDArray[np.float64]

N_METRICS = 34
N_FLIPS = 10_000


class Row(NamedTuple):
    what: str
    time_s: float
    target_s: float | None
    floor: str
    floor_s: float


def related(n_items: int, rng: np.random.Generator) -> Array:
    """Differences of metrics that change on the same fifth of the items."""
    changed = rng.random((n_items, 1)) < 0.2
    follows = rng.random((n_items, N_METRICS)) < 0.25
    return np.where(changed & follows, rng.choice([-1.0, 1.0], (n_items, 1)), 0.0)


def unrelated(n_items: int, rng: np.random.Generator) -> Array:
    """Differences of metrics that change each on its own items."""
    changed = rng.random((n_items, N_METRICS)) < 0.05
    return np.where(changed, rng.choice([-1.0, 1.0], (n_items, N_METRICS)), 0.0)


def product_floor(rows: Array, n_flips: int = N_FLIPS) -> None:
    """Random signs times the rows, in single precision, block by block; nothing else."""
    rng = np.random.Generator(np.random.SFC64(1))
    weights = rows.astype(np.float32)
    block = max(16, 2_000_000 // max(1, len(rows)))
    for start in range(0, n_flips, block):
        bits = rng.integers(0, 256, size=(min(block, n_flips - start), -(-len(rows) // 8)), dtype=np.uint8)
        _ = (2.0 * np.unpackbits(bits, axis=1, count=len(rows)).astype(np.float32) - 1.0) @ weights


def best(call: Callable[[], object], n_runs: int) -> float:
    """The shortest of several runs, seconds."""
    times = []
    for _ in range(n_runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def max_t_rows(n_items: int, target_s: float, n_runs: int) -> Iterator[Row]:
    for kind, make, target in (("related", related, target_s), ("unrelated", unrelated, None)):
        table = make(n_items, np.random.default_rng(7))
        changed = table[table.any(axis=1)]
        took = best(partial(max_t, table, n_resamples=N_FLIPS, rng=np.random.default_rng(1)), n_runs)
        floor = f"product, {len(changed) / n_items:.0%} of items"
        yield Row(f"max-T, n = {n_items:,}, {kind}", took, target, floor, scaled_floor(changed, n_runs))
        if kind == "related":
            floor = "product, all items"
            yield Row(f"max-T, n = {n_items:,}, {kind}", took, target, floor, scaled_floor(table, 1))


def scaled_floor(rows: Array, n_runs: int) -> float:
    """Time of the product alone; with many items a twentieth of the flips is timed and scaled."""
    part = 20 if len(rows) > 5_000 else 1
    return part * best(partial(product_floor, rows, N_FLIPS // part), n_runs)


def binomial_floor() -> None:
    """The binomial tails that one power value at n = 2,000 and 5 % discordance needs."""
    totals = np.arange(40, 165)
    for gains in (totals // 2 - 5, totals // 2 + 5):
        scipy.special.bdtr(gains, totals, 0.5)


def guard_floor(n_items: int, margin: float, threshold: float) -> float:
    """The exact p-value straight from the definition: a tail for every discordance and number of discordant items."""
    totals = np.arange(n_items + 1)
    critical = critical_gains(totals, n_items=n_items, margin=margin, threshold=threshold)
    angles = np.linspace(math.asin(math.sqrt(margin)), math.pi / 2, 4 * math.ceil(math.sqrt(n_items)) + 1)
    largest = 0.0
    for discordance in (np.sin(angles) ** 2).tolist():
        share = max(0.0, (1.0 - margin / discordance) / 2.0)
        tails = np.where(critical <= 0, 1.0, scipy.special.bdtrc(np.clip(critical - 1, 0, totals), totals, share))
        log_weights = scipy.special.xlogy(totals, discordance) + scipy.special.xlog1py(n_items - totals, -discordance)
        log_choose = -scipy.special.betaln(totals + 1, n_items - totals + 1) - math.log(n_items + 1)
        largest = max(largest, float(np.exp(log_weights + log_choose) @ np.where(critical > totals, 0.0, tails)))
    return largest


def single_rows(n_runs: int) -> list[Row]:
    counts = PairedCounts(n_items=1_319, gains=30, losses=36)
    threshold = score_statistic(30.0, 36.0, n_items=1_319, difference=-0.02)
    guard = best(lambda: equivalence(counts, margin=0.02), n_runs)
    straight = best(lambda: guard_floor(1_319, 0.02, threshold), 2)
    tails = best(binomial_floor, 50)
    return [
        Row(
            "power, n = 2,000",
            best(lambda: power_equivalence(n_items=2_000, discordance=0.05, margin=0.02), 50),
            0.005,
            "its binomial tails",
            tails,
        ),
        Row("equivalence with guard, n = 1,319", guard, 0.1, "one tail of the guard, straight", straight),
        Row("provable margin, n = 1,319", best(lambda: provable_margin(counts), n_runs), None, "equivalence", guard),
        Row(
            "items needed, 5 %, 2 pp",
            best(lambda: items_needed(discordance=0.05, margin=0.02), n_runs),
            None,
            "binomial tails of 27 sizes",
            27 * tails,
        ),
    ]


def all_rows(sizes: dict[int, float]) -> Iterator[Row]:
    yield from single_rows(9)
    for n_items, target_s in sizes.items():
        yield from max_t_rows(n_items, target_s, 9 if n_items < 10_000 else 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="leave out n = 100,000")
    is_quick = parser.parse_args().quick
    sizes = {1_000: 0.010, 10_000: 0.060} | ({} if is_quick else {100_000: 0.600})
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, numpy {np.__version__}, scipy {scipy.__version__}")
    print(f"{'what':<36}{'ms':>9}{'target':>8}   {'floor':<32}{'ms':>9}{'ratio':>8}", flush=True)
    for row in all_rows(sizes):
        target = f"{row.target_s * 1e3:.0f}" if row.target_s else ""
        print(
            f"{row.what:<36}{row.time_s * 1e3:>9.2f}{target:>8}   {row.floor:<32}{row.floor_s * 1e3:>9.2f}"
            f"{row.time_s / row.floor_s:>8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
