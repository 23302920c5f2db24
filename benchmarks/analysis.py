"""How long a whole analysis takes, from stored scores to a verdict, imports done before.

    python -m benchmarks.analysis [--profile]

The 34 metrics of the published benchmarks with made-up scores, at their real sizes and at 11,000 items, with few and
with many changed answers. Wall time and processor time, each the best of three; scores are read from memory.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import time

from benchmarks.made_up import MadeUp, Stored, stored
from qualab.analysis.evidence import forget
from qualab.model.names import ArmName

TARGET_S = 1.0
SIZES = {"real sizes": 1.0, "11,000 items": 1.3077}


def times(one: Stored) -> tuple[float, float]:
    """The best wall and processor time, seconds."""
    found = []
    for _ in range(3):
        forget()
        wall, processor = time.perf_counter(), time.process_time()
        one.analyse()
        found.append((time.perf_counter() - wall, time.process_time() - processor))
    return min(wall for wall, _ in found), min(processor for _, processor in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--profile", action="store_true", help="show where the time goes, at 11,000 items")
    if parser.parse_args().profile:
        one = stored(MadeUp(scale=SIZES["11,000 items"]))
        one.analyse()
        forget()
        cProfile.runctx("one.analyse()", {"one": one}, {}, sort="cumulative")
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; target {TARGET_S:g} s at 11,000 items")
    print(f"{'what':<44}{'items':>8}{'wall s':>9}{'processor s':>13}", flush=True)
    for name, scale in SIZES.items():
        for changed in (0.0, 0.01, 0.04, 0.2):
            one = stored(MadeUp(scale=scale, changed=changed))
            wall, processor = times(one)
            what = f"{name}, {100 * changed:g} % answered anew"
            print(f"{what:<44}{len(one.items):>8,}{wall:>9.2f}{processor:>13.2f}", flush=True)
    one = stored(MadeUp(scale=SIZES["11,000 items"], changed=0.01, missing={ArmName.CANDIDATE: 0.005}))
    wall, processor = times(one)
    print(f"{'11,000 items, 1 %, some missing':<44}{len(one.items):>8,}{wall:>9.2f}{processor:>13.2f}")


if __name__ == "__main__":
    main()
