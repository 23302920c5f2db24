"""How long a whole analysis takes, from stored scores to a verdict, imports done before.

    python -m benchmarks.analysis [--profile]

The 34 metrics of the published benchmarks with made-up scores, at their real sizes and at 11,000 items, with few and
with many changed answers, and the audit of 1,000,000 scored tokens. Wall time and processor time, each the best of
three, from a SQLite store.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.made_up import START, MadeUp, stored
from qualab.analysis.audit import audit_of
from qualab.analysis.evidence import forget
from qualab.analysis.samples import Streams
from qualab.model.audit import ScoredAnswer, pack_ids
from qualab.model.engine import AuditSeen
from qualab.model.names import AnswerStatus, ArmName, AuditPart, ScoringForm
from qualab.model.plan import AuditPlan

TARGET_S = 1.0
SIZES = {"real sizes": 1.0, "11,000 items": 1.3077}


def times(analyse: Callable[[], object]) -> tuple[float, float]:
    """The best wall and processor time, seconds."""
    found = []
    for _ in range(3):
        forget()
        wall, processor = time.perf_counter(), time.process_time()
        analyse()
        found.append((time.perf_counter() - wall, time.process_time() - processor))
    return min(wall for wall, _ in found), min(processor for _, processor in found)


def audited(n_answers: int = 2_500, length: int = 100) -> Callable[[], object]:
    """Stores scored answers of both parts and arms, and returns their audit."""
    one, rng = stored(MadeUp(scale=SIZES["11,000 items"])), np.random.default_rng(1)
    answers = []
    for part in (AuditPart.GREEDY, AuditPart.SAMPLED):
        for arm in ArmName:
            for position in range(n_answers):
                table = np.zeros(length, dtype=[("own", "<f4"), ("top", "<f4"), ("rank", "<u4")])
                table["top"] = -rng.random(length)
                lower = rng.random(length) < (0.02 if part is AuditPart.GREEDY else 0.3)
                table["own"] = table["top"] - lower * rng.random(length)
                table["rank"] = 1 + lower
                ids = pack_ids(rng.integers(0, 50_000, length).tolist())
                names = {"status": AnswerStatus.OK, "finish_reason": "stop", "text": None}
                place = {"part": part, "arm": arm, "position": position}
                answers.append(ScoredAnswer(**names, **place, token_ids=ids, scores=table.tobytes()))  # type: ignore[arg-type]
    one.store.put_scored(one.comparison.id, answers)
    seen = AuditSeen(seen_at=START, plan=AuditPlan(), scoring=ScoringForm.PROMPT_LOGPROBS, vocabulary=50_000)
    one.store.add_observation(one.comparison.id, seen)
    return partial(audit_of, one.store, one.comparison, one.items, Streams.of("audit"))


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
            wall, processor = times(one.analyse)
            what = f"{name}, {100 * changed:g} % answered anew"
            print(f"{what:<44}{len(one.items):>8,}{wall:>9.2f}{processor:>13.2f}", flush=True)
    one = stored(MadeUp(scale=SIZES["11,000 items"], changed=0.01, missing={ArmName.CANDIDATE: 0.005}))
    wall, processor = times(one.analyse)
    print(f"{'11,000 items, 1 %, some missing':<44}{len(one.items):>8,}{wall:>9.2f}{processor:>13.2f}")
    wall, processor = times(audited())
    print(f"{'audit of 1,000,000 tokens':<44}{10_000:>8,}{wall:>9.2f}{processor:>13.2f}")


if __name__ == "__main__":
    main()
