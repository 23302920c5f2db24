"""The service under load, on loopback, over a PostgreSQL that this starts: 10,000 comparisons, 10 million outcomes.

    python benchmarks/service.py [--full | --scale 0.1] [--rounds N]

One `qualab serve --no-worker`, asked with a token and without a limit of rate. Beside it, in the same run, a bare
FastAPI app that answers `{}` (the empty endpoint), and the service's own /healthz. The client is a process of its own.
CPU is what the server's process used (PostgreSQL's is not in it): a machine that is shared changes it less than times.

A tenth by default: 1,000 comparisons. Rows of `outcome` are what pages of items are read from; the items with their
requests are there for the comparisons that are asked for singly, not for all.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psycopg

from benchmarks.client import _free_port
from benchmarks.load import Followed, Seen, Target, ask, dawdle, follow, serve_empty
from benchmarks.made_up import MadeUp, Stored, stored
from qualab.model.canonical import plan_hash
from qualab.model.comparison import Comparison
from qualab.model.items import Answer, Change, Item, Outcome, Reply
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus
from qualab.store import Store, open_store, upgrade
from qualab.store.tables import comparison
from tests.store import postgresql

MIGRATIONS = Path(__file__).parents[1] / "migrations"
COMPARISONS, ITEMS = 10_000, 1_000
FLIPPED_EVERY = 15
SHAPE = 0.12
"""Of the five published benchmarks: about as many items, 34 metrics."""
CONNECTIONS, FOLLOWERS, DAWDLERS = 32, 1_000, 200
SECONDS = 3.0
FIRST = "load-0"
Pool = ProcessPoolExecutor


# rows


def fill(folder: str, url: str, n_comparisons: int) -> None:
    """One comparison through the port, and copies of it."""
    made_up = stored(MadeUp(scale=SHAPE))
    with open_store(url, migrations=MIGRATIONS) as store:
        begin(store, FIRST, made_up)
        store.put_outcomes(FIRST, outcomes(made_up.items))
        analysis = replace(made_up.analyse(), comparison_id=FIRST, plan_hash=plan_hash(made_up.comparison.plan))
        store.put_analysis(analysis, now=datetime.now(UTC))
    with psycopg.connect(host=folder, user="qualab", dbname="load", autocommit=True) as connection:
        copy_comparisons(connection, n_comparisons - 1)
        copy_outcomes(connection)
        connection.execute("ANALYZE")
        connection.execute("CHECKPOINT")


def begin(store: Store, name: str, made_up: Stored) -> None:
    """A comparison with its items, and nothing asked."""
    planned = {"status": ComparisonStatus.PLANNED, "created_at": datetime.now(UTC), "started_at": None}
    comparison: Comparison = replace(made_up.comparison, id=name, label="load", **planned)  # type: ignore[arg-type]
    store.create(comparison, made_up.items)


def outcomes(items: Sequence[Item]) -> Iterator[Outcome]:
    """One in fifteen flips."""
    for number, item in enumerate(items):
        flips = number % FLIPPED_EVERY == 0
        change = (Change.GAIN, Change.LOSS)[number % 2] if flips else Change.SAME
        yield Outcome(
            position=item.position,
            repeat=0,
            task=item.task,
            doc_id=item.doc_id,
            kind=item.kind,
            change=change,
            baseline=float(change is not Change.GAIN),
            candidate=float(change is not Change.LOSS),
            different_text=flips,
            length=400,
        )


def copy_comparisons(connection: psycopg.Connection[Any], count: int) -> None:
    """The first one's rows again, a second apart, under ids of their own."""
    own = ("key", "id", "created_at", "verdict_rank")
    same = ", ".join(column.name for column in comparison.columns if column.name not in own)
    connection.execute(
        f"INSERT INTO comparison (id, created_at, {same})"
        f" SELECT 'load-' || i, created_at - i * interval '1 second', {same}"
        f" FROM comparison, generate_series(1, {count}) i WHERE id = '{FIRST}' ORDER BY i"
    )
    same = "created_at, verdict, input_hash, body, plan_hash, previous, seal"
    ours = ", ".join(f"a.{one}" for one in same.split(", "))
    connection.execute(
        f"INSERT INTO analysis (comparison_key, {same}) SELECT c.key, {ours}"
        f" FROM analysis a, comparison c WHERE c.id <> '{FIRST}'"
    )


def copy_outcomes(connection: psycopg.Connection[Any]) -> None:
    """The first one's items, without what they hold, and outcomes, for all others."""
    for table, columns in {
        "item": "position, task, doc_id, kind, n_requests, cluster, target, '{}' AS doc, ''::bytea AS prompts",
        "outcome": "position, repeat, task, doc_id, kind, change, baseline, candidate, different_text, length",
    }.items():
        names = ", ".join(column.rpartition(" ")[2] for column in columns.split(", "))
        connection.execute(
            f"INSERT INTO {table} (comparison_key, {names}) SELECT c.key, t.* FROM comparison c,"
            f" (SELECT {columns} FROM {table} WHERE comparison_key ="
            f" (SELECT key FROM comparison WHERE id = '{FIRST}')) t WHERE c.id <> '{FIRST}'"
        )


# servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A process that is asked."""

    target: Target
    pid: int

    def cpu_s(self) -> float:
        """What it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(url: str, folder: Path) -> Iterator[Server]:
    """`qualab serve` on a port of its own."""
    qualab = [sys.executable, "-m", "qualab"]
    own = os.environ | {"QUALAB_DB": url, "QUALAB_SERVE_RATE": "0"}
    create = [*qualab, "token", "create", "load", "--scope", "read"]
    token = subprocess.run(create, env=own, check=True, capture_output=True, text=True).stdout.strip()
    errors = folder / "serve.err"
    with errors.open("w") as file:
        process = subprocess.Popen([*qualab, "serve", "--port", "0", "--no-worker"], env=own, stderr=file)
    try:
        yield Server(target=Target(port=_port(errors, process), token=token), pid=process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30.0)


def _port(errors: Path, process: subprocess.Popen[bytes]) -> int:
    while process.poll() is None:
        for line in errors.read_text().splitlines():
            if line.startswith("qualab serves "):
                return int(line.split()[2].rpartition(":")[2])
        time.sleep(0.1)
    raise SystemExit(errors.read_text())


@contextmanager
def empty_app() -> Iterator[Server]:
    """The bare FastAPI app."""
    port = _free_port()
    process = get_context("spawn").Process(target=serve_empty, args=(port,), daemon=True)
    process.start()
    time.sleep(3.0)
    try:
        yield Server(target=Target(port=port), pid=process.pid or 0)
    finally:
        process.terminate()
        process.join()


# figures


@dataclass
class Figure:
    """One row of the table, of several rounds."""

    name: str
    server: Server
    paths: Sequence[str]
    connections: int = CONNECTIONS

    def __post_init__(self) -> None:
        self.latencies_s: list[float] = []
        self.rates: list[float] = []
        self.cpu_us: list[float] = []
        self.statuses: Counter[int] = Counter()

    def take(self, pool: Pool, *, seconds: float | None = SECONDS) -> None:
        """One round."""
        before = self.server.cpu_s()
        seen: Seen = pool.submit(
            ask, self.server.target, self.paths, connections=self.connections, seconds=seconds
        ).result()
        n = len(seen.latencies_s)
        self.cpu_us.append(1e6 * (self.server.cpu_s() - before) / n)
        self.rates.append(n / seen.seconds)
        self.latencies_s += seen.latencies_s
        self.statuses += seen.statuses

    @property
    def rate(self) -> float:
        return float(np.median(self.rates))

    def show(self) -> None:
        """A line."""
        p50, p99 = np.percentile(self.latencies_s, [50, 99]) * 1e3
        statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(self.statuses.items()))
        print(
            f"{self.name:<44}{self.connections:>4}{self.rate:>9,.0f}{p50:>9.1f}{p99:>9.1f}"
            f"{np.median(self.cpu_us):>9,.0f}   {statuses}",
            flush=True,
        )


def measure(pool: Pool, service: Server, empty: Server, *, n_comparisons: int, rounds: int) -> Counter[int]:
    """Everything that is asked over and over. Returns the statuses that were seen."""
    print(f"{'':<44}{'conn':>4}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'CPU us':>9}   answers")
    names = [f"/v1/comparisons/load-{number}" for number in np.random.default_rng(1).permutation(n_comparisons)]
    verdicts = [f"{name}/verdict" for name in names]
    first = Figure("a verdict, each comparison the first time", service, verdicts)
    first.take(pool, seconds=None)
    first.show()
    bare, alive = Figure("empty endpoint: bare FastAPI", empty, ["/"]), Figure("/healthz", service, ["/healthz"])
    polled = Figure("a verdict, polled", service, verdicts)
    for _ in range(rounds):
        for figure in (bare, alive, polled):
            figure.take(pool)
    for figure in (bare, alive, polled):
        figure.show()
    print(
        f"  a verdict's rate: {polled.rate / bare.rate:.2f} x bare FastAPI, {polled.rate / alive.rate:.2f} x /healthz"
    )
    flipped = [f"{name}/items?flipped=true" for name in names]
    pages = [Figure("a page of 50 flipped items", service, flipped, connections) for connections in (1, 8, CONNECTIONS)]
    others = [
        Figure("a page of 50 comparisons", service, ["/v1/comparisons?limit=50"], 8),
        Figure("one comparison", service, names, 8),
    ]
    for figure in (*pages, *others):
        for _ in range(rounds):
            figure.take(pool)
        figure.show()
    slow = Figure(f"a verdict, beside {DAWDLERS} slow clients", service, verdicts)
    slows = pool.submit(dawdle, service.target, "/openapi.json", clients=DAWDLERS, seconds=SECONDS * rounds + 1.0)
    for _ in range(rounds):
        slow.take(pool)
    slow.show()
    slows.result()
    figures = (first, bare, alive, polled, *pages, *others, slow)
    return sum((figure.statuses for figure in figures), Counter())


# progress


def progress(pool: Pool, service: Server, url: str) -> None:
    """1,000 clients follow a comparison that is answered and finished meanwhile; verdicts are asked for beside them."""
    made_up, name, me = stored(MadeUp(scale=SHAPE, seed=2)), "followed", "benchmark:0:0"
    with open_store(url, migrations=MIGRATIONS) as store:
        begin(store, name, made_up)
        store.claim(name, runner=me, now=datetime.now(UTC), stale_after_s=30.0)
        store.set_status(name, ComparisonStatus.RUNNING, now=datetime.now(UTC))
        before = service.cpu_s()
        path = f"/v1/comparisons/{name}/events"
        following: Future[Followed] = pool.submit(follow, service.target, path, clients=FOLLOWERS, within_s=120.0)
        beside = Figure(f"a verdict, beside {FOLLOWERS:,} followers", service, [f"/v1/comparisons/{FIRST}/verdict"], 8)
        asking = pool.submit(ask, beside.server.target, beside.paths, connections=8, seconds=10.0)
        for chunk in np.array_split(np.arange(len(made_up.items)), 20):
            store.add_answers(name, [answer(arm, int(position)) for position in chunk for arm in ArmName])
            time.sleep(0.5)
        analysis = replace(made_up.analyse(), comparison_id=name, plan_hash=plan_hash(made_up.comparison.plan))
        store.put_analysis(analysis, now=datetime.now(UTC))
        store.release(name, runner=me)
        found, seen = following.result(), asking.result()
        print(
            f"{found.n_connected:,} of {FOLLOWERS:,} clients connected, {found.n_events:,} events,"
            f" {found.n_ended:,} told the end, problems {dict(found.problems)};"
            f" CPU of the service {service.cpu_s() - before:.1f} s;"
            f" verdicts beside them p99 {1e3 * np.percentile(seen.latencies_s, 99):.1f} ms, {dict(seen.statuses)}"
        )


def answer(arm: ArmName, position: int) -> Answer:
    """An answer of an arm."""
    reply = Reply(
        status=AnswerStatus.OK,
        text=f"answer {position}",
        loglikelihood=None,
        is_greedy=None,
        finish_reason="stop",
        prompt_tokens=100,
        completion_tokens=10,
        attempts=1,
        latency_s=0.1,
        sent_at=datetime(2026, 1, 5, tzinfo=UTC) + timedelta(seconds=position),
        system_fingerprint="",
        error="",
    )
    return Answer(arm=arm, position=position, choice=0, repeat=0, request_hash=bytes(16), reply=reply)


def failures(pool: Pool, service: Server) -> str:
    """What the service itself counted as its own errors."""
    text: str = pool.submit(metrics, service.target).result()
    lines = [line for line in text.splitlines() if line.startswith("qualab_http_requests_total")]
    return "; ".join(line for line in lines if 'status="5' in line) or "none"


def metrics(target: Target) -> str:
    """The service's own counts."""
    head = {"Authorization": f"Bearer {target.token}"}
    return str(httpx2.get(f"http://127.0.0.1:{target.port}/metrics", headers=head).text)


def timed(title: str, action: Callable[[], object]) -> None:
    """Says what it took."""
    began = time.perf_counter()
    action()
    print(f"{title} in {time.perf_counter() - began:.1f} s", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.1, help="of 10,000 comparisons (default: 0.1)")
    parser.add_argument("--full", action="store_true", help="the same as --scale 1")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if postgresql.binaries() is None:
        raise SystemExit(f"needs PostgreSQL {postgresql.OLDEST} or newer: apt-get install postgresql")
    n = max(10, round(COMPARISONS * (1.0 if given.full else given.scale)))
    with postgresql.running() as folder, tempfile.TemporaryDirectory() as own:
        with psycopg.connect(host=folder, user="qualab", dbname="postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE load")
        url = f"postgresql://qualab@/load?host={folder}"
        upgrade(url, MIGRATIONS)
        timed(f"{n:,} comparisons and {n * ITEMS:,} outcomes written", lambda: fill(folder, url, n))
        with (
            ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool,
            serving(url, Path(own)) as service,
            empty_app() as empty,
        ):
            statuses = measure(pool, service, empty, n_comparisons=n, rounds=given.rounds)
            progress(pool, service, url)
            print(f"answers in all {dict(statuses)}; 5xx that the service counted: {failures(pool, service)}")


if __name__ == "__main__":
    main()
