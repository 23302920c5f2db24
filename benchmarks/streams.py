"""What our reading of streams adds to the times between tokens: 256 streams of 50 tokens/s at once, on one core.

    python -m benchmarks.streams [--rounds N] [--in-step] [--realtime]

A bare asyncio reader and `HttpEndpoint.stream` take turns against the same scripted server, which has a process and a
core of its own; the readers have another. The target is less than 1 ms more at p99. `--in-step`: all streams send at
the same moments, as a batch does. `--realtime` keeps what else the machine does out of the figures (needs root).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import uvloop

from qualab.endpoints.client import HttpEndpoint
from qualab.endpoints.streaming import Streamed
from qualab.model.canonical import encode_body
from qualab.model.items import Request
from qualab.model.names import Api
from qualab.model.plan import RequestPolicy

STREAMS, TOKENS_PER_S, TOKENS = 256, 50, 250
REQUEST = Request(choice=0, api=Api.COMPLETIONS, payload={"model": "scripted", "prompt": "Once", "max_tokens": TOKENS})
BODY = encode_body(REQUEST.payload, seed=1)
Read = Callable[[], Awaitable[list[float]]]


class Cost(NamedTuple):
    p50_ms: float
    p99_ms: float
    cpu_share: float


async def bare(url: str) -> list[list[float]]:
    """The floor: note when bytes come."""
    parts = urlsplit(url)
    body = BODY[:-1] + b',"stream":true,"stream_options":{"include_usage":true}}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def read() -> list[float]:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(head + body)
        await reader.readuntil(b"\r\n\r\n")
        times: list[float] = []
        while part := await reader.read(65_536):
            if b'"text"' in part:
                times.append(time.perf_counter())
            if part.endswith(b"0\r\n\r\n"):
                break
        writer.close()
        return [after - before for before, after in pairwise(times)]

    return await _at_once(read)


async def ours(url: str) -> list[list[float]]:
    async with HttpEndpoint(url, policy=RequestPolicy(), key=None) as endpoint:
        await endpoint.stream(REQUEST, BODY.replace(b"%d" % TOKENS, b"1"))  # imports and options are not what is timed
        streamed: list[Streamed] = []

        async def read() -> list[float]:
            streamed.append(await endpoint.stream(REQUEST, BODY))
            return []

        await _at_once(read)
        return [own.gaps_s for own in streamed]


async def _at_once(read: Read) -> list[list[float]]:
    async def delayed(index: int) -> list[float]:
        await asyncio.sleep(index / STREAMS)  # spread over a second, as no client starts all at one moment
        return await read()

    return list(await asyncio.gather(*map(delayed, range(STREAMS))))


def cost(reader: Callable[[str], Coroutine[None, None, list[list[float]]]], url: str) -> Cost:
    before, started = _cpu_s(), time.perf_counter()
    gaps = uvloop.run(reader(url))
    share = (_cpu_s() - before) / (time.perf_counter() - started)
    gaps_ms = 1e3 * np.concatenate([np.asarray(one) for one in gaps])
    return Cost(float(np.quantile(gaps_ms, 0.5)), float(np.quantile(gaps_ms, 0.99)), share)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(*, rounds: int, in_step: bool, realtime: bool) -> None:
    cores = sorted(os.sched_getaffinity(0))
    knobs = [f"tokens_per_s={TOKENS_PER_S}", f"in_step={str(in_step).lower()}"]
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.streaming_server", *knobs], stdout=subprocess.PIPE, text=True
    )
    try:
        os.sched_setaffinity(server.pid, cores[:1])
        os.sched_setaffinity(0, cores[-1:])
        if realtime:
            for pid in (0, server.pid):
                os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(5))
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        readers = {"bare asyncio": bare, "qualab": ours}
        costs: dict[str, list[Cost]] = {name: [] for name in readers}
        for turn in range(rounds):
            for name in sorted(readers, reverse=turn % 2 == 1):
                costs[name].append(cost(readers[name], url))
    finally:
        server.kill()
        server.wait()
    for name, own in costs.items():
        p50, p99, share = (statistics.median(values) for values in zip(*own, strict=True))
        every = " ".join(f"{one.p99_ms:.2f}" for one in own)
        print(f"{name:13} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   CPU {share:4.0%} of a core   (p99 of each: {every})")
    added = [our.p99_ms - floor.p99_ms for our, floor in zip(costs["qualab"], costs["bare asyncio"], strict=True)]
    print(f"added to p99: {statistics.median(added):+.2f} ms (target: less than 1)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-step", action="store_true")
    parser.add_argument("--realtime", action="store_true")
    main(**vars(parser.parse_args()))
