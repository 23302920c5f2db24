"""Verdicts over HTTP from PostgreSQL: 32 connections ask for verdicts of 10,000 comparisons, beside an empty route.

`python benchmarks/verdicts.py` starts a PostgreSQL of its own and the service as a process, and asks from another one.
Prints requests a second, the latency's quantiles, and what the service's process uses for a request: on a machine with
other work that alone can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from qualab.bootstrap import share
from qualab.store import open_store, upgrade
from tests.store import postgresql
from tests.store.samples import NOW, make_analysis, make_comparison, make_items

CONNECTIONS = 32


def fill(url: str, n_comparisons: int) -> list[str]:
    """Finished comparisons of one item each."""
    ids = [f"20260102-030405-{number:08x}" for number in range(n_comparisons)]
    upgrade(url, share("migrations"))
    with open_store(url, migrations=share("migrations")) as store:
        for one in ids:
            store.create(make_comparison(one), make_items(1))
            store.put_analysis(make_analysis(one), now=NOW)
    return ids


async def ask(url: str, paths: Sequence[str], *, seconds: float) -> list[float]:
    """Latencies of all answers, seconds."""
    parts, latencies = urlsplit(url), list[float]()
    ends_at = time.perf_counter() + seconds

    async def client(seed: int) -> None:
        rng = random.Random(seed)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while time.perf_counter() < ends_at:
            began = time.perf_counter()
            writer.write(f"GET {rng.choice(paths)} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            latencies.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(client(seed) for seed in range(CONNECTIONS)))
    return latencies


def measured(name: str, address: str, paths: Sequence[str], *, seconds: float, pid: int) -> str:
    """A line of the table."""
    before = cpu_s(pid)
    ordered = sorted(asyncio.run(ask(address, paths, seconds=seconds)))
    used = 1e3 * (cpu_s(pid) - before) / len(ordered)
    p50, p99 = (1e3 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return f"{name:<28}{len(ordered) / seconds:>12,.0f}{p50:>10.1f}{p99:>10.1f}{used:>12.2f}"


def cpu_s(pid: int) -> float:
    """What a process has used, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(url: str) -> tuple[subprocess.Popen[str], str]:
    """The service as a process, and its address."""
    command = [sys.executable, "-m", "qualab", "serve", "--port", "0", "--db", url]
    environment = {"QUALAB_SERVE_RATE": "0", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("qualab serves "):
            return process, line.split()[2]
    raise RuntimeError("the service did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    with postgresql.running() as folder:
        url = f"postgresql://qualab@/postgres?host={folder}"
        began = time.perf_counter()
        ids = fill(url, given.comparisons)
        print(f"{len(ids):,} comparisons stored in {time.perf_counter() - began:.0f} s")
        process, address = serve(url)
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        try:
            print(f"{'GET, 32 connections':<28}{'a second':>12}{'p50 ms':>10}{'p99 ms':>10}{'CPU ms each':>12}")
            of_all = [f"/v1/comparisons/{one}/verdict" for one in ids]
            for name, paths in (
                ("an empty route", ["/healthz"]),
                ("verdicts, each a first time", of_all),
                ("verdicts, again", of_all),
                ("one verdict", of_all[:1]),
            ):
                print(measured(name, address, paths, seconds=given.seconds, pid=process.pid), flush=True)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20.0)
            drain.terminate()


if __name__ == "__main__":
    main()
