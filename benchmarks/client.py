"""CPU and wall time of the endpoint client against a bare aiohttp client that sends the same bytes, in one run.

    QUALAB_SHARED=DIR python benchmarks/client.py [--quick]

Needs `cc` and bench/mock.c in the directory that QUALAB_SHARED names. Both clients work a list of requests off through
the same number of workers against the same mock server; the CPU time is this process's own (getrusage).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import orjson

from qualab.endpoints.client import HttpEndpoint
from qualab.model.canonical import encode_body
from qualab.model.items import Prompt, Request, generation_request, loglikelihood_request
from qualab.model.names import Api
from qualab.model.plan import RequestPolicy, SamplingPlan

CONCURRENCY = 128
GENERATIONS, LOGLIKELIHOODS = 2_000, 8_000
LATENCY_S = 0.2
Job = tuple[Request, bytes]
Ask = Callable[[Request, bytes], Awaitable[object]]


class Cost(NamedTuple):
    """What a list of requests took."""

    wall_s: float
    cpu_us: float
    """This process's CPU microseconds for each request."""


def generations(count: int) -> list[Job]:
    sampling = SamplingPlan(model="m", api=Api.COMPLETIONS)
    settings = {"until": ["Question:", "</s>", "<|im_end|>"], "max_gen_toks": 256, "do_sample": False}
    prompts = (Prompt(text=f"Question: {n} " + "word " * 600 + "\nAnswer:", gen_kwargs=settings) for n in range(count))
    return _encoded(generation_request(prompt, sampling=sampling) for prompt in prompts)


def loglikelihoods(count: int) -> list[Job]:
    contexts = ([n, *range(1_000, 1_080)] for n in range(count))
    return _encoded(
        loglikelihood_request(choice=0, context_ids=ids, whole_ids=[*ids, 7, 8, 9], model="m") for ids in contexts
    )


def _encoded(requests: Iterator[Request]) -> list[Job]:
    return [(request, encode_body(request.payload, seed=1234)) for request in requests]


@contextmanager
def mock_server() -> Iterator[int]:
    """Builds and starts the mock; yields its port."""
    shared = os.environ.get("QUALAB_SHARED")
    if not shared:
        sys.exit("Set QUALAB_SHARED to the directory that holds bench/mock.c")
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "mock"
        subprocess.run(["cc", "-O2", "-w", "-o", program, Path(shared) / "bench" / "mock.c", "-lm"], check=True)
        port = _free_port()
        process = subprocess.Popen([program, "--port", str(port)])
        try:
            _wait(port)
            yield port
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    sys.exit("The mock server does not start")


def reset(port: int, **settings: object) -> None:
    query = "&".join(f"{name}={value}" for name, value in settings.items())
    urllib.request.urlopen(f"http://127.0.0.1:{port}/reset?{query}").read()


@asynccontextmanager
async def bare_client(port: int) -> AsyncIterator[Ask]:
    """The floor: post, read, parse, nothing else."""
    url = f"http://127.0.0.1:{port}/v1/completions"
    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer benchmark-key"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def ask(_: Request, body: bytes) -> object:
            async with session.post(url, data=body) as response:
                return orjson.loads(await response.read())

        yield ask


@asynccontextmanager
async def our_client(port: int) -> AsyncIterator[Ask]:
    policy = RequestPolicy(concurrency=CONCURRENCY)
    async with HttpEndpoint(f"http://127.0.0.1:{port}", policy=policy, key="benchmark-key") as endpoint:
        yield endpoint.ask


async def work_off(ask: Ask, jobs: Sequence[Job]) -> Cost:
    waiting = iter(jobs)

    async def work() -> None:
        for request, body in waiting:
            await ask(request, body)

    before, started = _cpu_s(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
    wall = time.perf_counter() - started
    return Cost(wall, 1e6 * (_cpu_s() - before) / len(jobs))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


CLIENTS = {"bare aiohttp": bare_client, "qualab ask": our_client}


async def compare(port: int, jobs: Sequence[Job], *, rounds: int) -> dict[str, Cost]:
    """Each client's least disturbed round; the clients take turns, which goes first alternating."""
    costs: dict[str, list[Cost]] = {name: [] for name in CLIENTS}
    for turn in range(rounds):
        for name in sorted(CLIENTS, reverse=turn % 2 == 1):
            async with CLIENTS[name](port) as ask:
                costs[name].append(await work_off(ask, jobs))
    return {
        name: Cost(min(cost.wall_s for cost in found), min(cost.cpu_us for cost in found))
        for name, found in costs.items()
    }


def show(title: str, costs: dict[str, Cost], *, floor_s: float | None = None) -> None:
    print(title)
    bare = costs["bare aiohttp"]
    for name, cost in costs.items():
        ideal = f"   {cost.wall_s / floor_s:5.2f} x ceil(n/c) x latency" if floor_s else ""
        print(
            f"  {name:14}{cost.wall_s:8.2f} s{cost.cpu_us:9.1f} us CPU a request"
            f"{cost.cpu_us / bare.cpu_us:8.2f} x CPU{cost.wall_s / bare.wall_s:8.2f} x wall{ideal}"
        )


async def main(*, quick: bool) -> None:
    rounds, share = (2, 4) if quick else (6, 1)
    texts, scores = generations(GENERATIONS // share), loglikelihoods(LOGLIKELIHOODS // share)
    with mock_server() as port:
        reset(port)
        show(f"{len(texts)} generations, no latency", await compare(port, texts, rounds=rounds))
        show(f"{len(scores)} log-likelihoods, no latency", await compare(port, scores, rounds=rounds))
        reset(port, fixed=1_000 * LATENCY_S)
        ideal = -(-len(texts) // CONCURRENCY) * LATENCY_S
        waited = await compare(port, texts, rounds=min(rounds, 2))
        show(f"{len(texts)} generations, {LATENCY_S:g} s latency, {CONCURRENCY} at a time", waited, floor_s=ideal)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests, twice")
    asyncio.run(main(quick=parser.parse_args().quick))
