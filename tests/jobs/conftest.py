"""Worker processes, and what they are given to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from qualab.model.canonical import encode_body
from qualab.model.names import ArmName, ComparisonStatus
from qualab.store import Store, open_store, upgrade
from tests.scripted_server import MODEL, Script, ScriptedServer
from tests.store import postgresql
from tests.store.conftest import MIGRATIONS, execute, url_of
from tests.store.samples import ask_for

ROOT = Path(__file__).parents[2]
QUICK = {
    "QUALAB_SERVE_BEAT_S": "0.5",
    "QUALAB_SERVE_STALE_AFTER_S": "3",
    "QUALAB_SERVE_QUEUE_POLL_S": "0.2",
}
"""A tenth of the times that hold in earnest."""


def wait_for(what: Callable[[], Any], *, within_s: float = 120.0, or_say: Callable[[], object] = lambda: "") -> Any:
    ends_at = time.monotonic() + within_s
    while time.monotonic() < ends_at:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {within_s:g} s: {or_say()}")


class Process(subprocess.Popen[bytes]):
    def __init__(self, log: Path, *arguments: str, **environment: str) -> None:
        self.log = log
        own = {"HF_HUB_OFFLINE": "1", **QUICK, **environment}
        with log.open("wb") as out:
            super().__init__([sys.executable, "-m", "qualab", *arguments], cwd=ROOT, env=os.environ | own, stderr=out)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            self.send_signal(signal.SIGCONT)
            self.kill()
        self.wait(10.0)


@dataclass
class Servers:
    arms: dict[ArmName, ScriptedServer]

    def experiment(self, **changes: Any) -> dict[str, Any]:
        urls = {arm.value: server.url for arm, server in self.arms.items()}
        given = {"model": MODEL, "tasks": "demo", "concurrency": 2, "limit": 40}
        return {**urls, **given, **changes}

    def slow_down(self, latency_s: float) -> None:
        for server in self.arms.values():
            server.script.latency_s = latency_s

    def n_asked(self, bodies: set[bytes]) -> int:
        return sum(self.asked(arm, bodies).total() for arm in self.arms)

    def asked(self, arm: ArmName, bodies: set[bytes]) -> Counter[bytes]:
        return Counter(body for _, body in list(self.arms[arm].requests) if body in bodies)


@contextmanager
def pair_of_servers(latency_s: float = 0.0) -> Iterator[Servers]:
    off = ScriptedServer(Script(latency_s=latency_s))
    on = ScriptedServer(Script(latency_s=latency_s, drafts=True, flip_share=0.1))
    with off, on:
        yield Servers({ArmName.BASELINE: off, ArmName.CANDIDATE: on})


def bodies_of(store: Store, comparison_id: str) -> set[bytes]:
    sampling = store.get(comparison_id).plan.sampling
    return {
        encode_body(request.payload, seed=sampling.seed)
        for item in store.items(comparison_id)
        for request in item.requests
    }


@dataclass
class Site:
    url: str
    folder: Path
    stack: ExitStack
    store: Store
    n_started: int = 0

    def start(self, *arguments: str, **environment: str) -> Process:
        self.n_started += 1
        errors = self.folder / f"process-{self.n_started}.log"
        return self.stack.enter_context(Process(errors, *arguments, QUALAB_DB=self.url, **environment))

    def submit(self, comparison_id: str, experiment: dict[str, Any]) -> None:
        urls = {f"{arm}_url": experiment[arm.value] for arm in ArmName}
        ask_for(self.store, comparison_id, at=datetime.now(UTC), request=experiment, **urls)

    def status(self, comparison_id: str) -> ComparisonStatus:
        return self.store.summary(comparison_id).status

    def takeovers(self, comparison_id: str) -> int:
        with self.store.engine.connect() as connection:
            query = text("SELECT takeovers FROM comparison WHERE id = :id")
            return int(connection.execute(query, {"id": comparison_id}).scalar_one())

    def runner(self, comparison_id: str) -> str:
        with self.store.engine.connect() as connection:
            found = connection.scalar(text("SELECT runner FROM comparison WHERE id = :id"), {"id": comparison_id})
        return str(found or "")

    def n_answered(self, comparison_id: str) -> int:
        if self.store.summary(comparison_id).plan_hash == "":
            return 0
        return min(self.store.n_answered(comparison_id).values())


@pytest.fixture(scope="module")
def restartable() -> Iterator[str]:
    if postgresql.binaries() is None:
        pytest.skip(f"needs PostgreSQL {postgresql.OLDEST} or newer: apt-get install postgresql")
    pytest.importorskip("psycopg")
    with postgresql.running() as folder:
        execute(folder, "CREATE DATABASE jobs")
        upgrade(url_of(folder, "jobs"), MIGRATIONS)
        yield folder


@contextmanager
def site_at(url: str, folder: Path) -> Iterator[Site]:
    with ExitStack() as stack, open_store(url, migrations=MIGRATIONS) as store:
        yield Site(url, folder, stack, store)
