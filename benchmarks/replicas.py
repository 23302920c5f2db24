"""CPU time a request, and how evenly the replicas share: two arms of eight servers, 50 ms latency, 1,024 in flight.

    QUALAB_SHARED=DIR python benchmarks/replicas.py [--quick]

Needs `cc` and bench/mock.c in the directory that QUALAB_SHARED names. One process asks both arms; its CPU time is its
own (getrusage), the least disturbed round of several. Each server counts its requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import urllib.request
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from resource import RUSAGE_SELF, getrusage

from benchmarks.client import Cost, Job, generations, mock_server, reset
from qualab.bootstrap import run_async
from qualab.endpoints.client import HttpEndpoint
from qualab.endpoints.replicas import Endpoint, opening
from qualab.model.plan import RequestPolicy

ARMS, REPLICAS, IN_FLIGHT, LATENCY_S = 2, 8, 1_024, 0.05
REQUESTS = 16_384
MOST_CPU_US, MOST_UNEVEN = 300.0, 0.1


async def ask_both(arms: Sequence[Endpoint], jobs: Sequence[Job]) -> Cost:
    async def work(arm: Endpoint, waiting: Sequence[Job]) -> None:
        for request, body in waiting:
            assert (await arm.ask(request, body)).status.is_answer

    n_workers = IN_FLIGHT // ARMS
    before, started = cpu_s(), time.perf_counter()
    await asyncio.gather(*(work(arm, jobs[number::n_workers]) for arm in arms for number in range(n_workers)))
    return Cost(time.perf_counter() - started, 1e6 * (cpu_s() - before) / (ARMS * len(jobs)))


def cpu_s() -> float:
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def n_asked(port: int) -> int:
    return int(json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/stats").read())["req"])


async def measure(ports: Sequence[Sequence[int]], jobs: Sequence[Job], *, rounds: int) -> list[Cost]:
    policy = RequestPolicy(concurrency=IN_FLIGHT // ARMS)
    async with AsyncExitStack() as stack:
        arms = [
            await stack.enter_async_context(
                opening(HttpEndpoint)(", ".join(f"http://127.0.0.1:{port}" for port in own), policy=policy, key="k")
            )
            for own in ports
        ]
        return [await ask_both(arms, jobs) for _ in range(rounds)]


def main(*, quick: bool) -> None:
    with ExitStack() as stack:
        ports = [[stack.enter_context(mock_server()) for _ in range(REPLICAS)] for _ in range(ARMS)]
        for port in (port for own in ports for port in own):
            reset(port, fixed=1_000 * LATENCY_S)
        jobs = generations(REQUESTS // ARMS // (4 if quick else 1))
        costs = run_async(measure(ports, jobs, rounds=2 if quick else 4))
        best = min(costs, key=lambda cost: cost.cpu_us)
        n_each = ARMS * len(jobs)
        print(
            f"{ARMS} x {REPLICAS} replicas, {1_000 * LATENCY_S:g} ms latency, {IN_FLIGHT} in flight, {n_each} requests"
        )
        print(f"  {best.wall_s:.2f} s, {best.cpu_us:.0f} us CPU a request (at most {MOST_CPU_US:g})")
        uneven = 0.0
        for name, own in zip(("baseline", "candidate"), ports, strict=True):
            shares = [n_asked(port) for port in own]
            even = sum(shares) / len(shares)
            uneven = max(uneven, *(abs(share / even - 1) for share in shares))
            print(f"  {name:10}{min(shares)} to {max(shares)} requests a replica, {even:g} would be even")
        print(f"  farthest from even {100 * uneven:.1f} % (at most {100 * MOST_UNEVEN:g})")
        raise SystemExit(best.cpu_us > MOST_CPU_US or uneven > MOST_UNEVEN)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests, twice")
    main(quick=parser.parse_args().quick)
