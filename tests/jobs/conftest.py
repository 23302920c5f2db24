"""Worker processes, and what they are given to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import text

from qualab.model.canonical import encode_body
from qualab.model.names import ArmName, ComparisonStatus
from qualab.store import Store
from tests.fresh_store import opened
from tests.house.modules import ROOT
from tests.scripted_server import MODEL, Script, ScriptedServer
from tests.store.samples import ask_for
from tests.waiting import wait_for

QUICK = {"QUALAB_SERVE_BEAT_S": "0.5", "QUALAB_SERVE_STALE_AFTER_S": "3", "QUALAB_SERVE_QUEUE_POLL_S": "0.2"}
"""A tenth of the times that hold in earnest."""


class Process(subprocess.Popen[bytes]):
    def __init__(self, log: Path, *arguments: str, **environment: str) -> None:
        self.log = log
        own = os.environ | {"HF_HUB_OFFLINE": "1", **QUICK, **environment}
        with log.open("wb") as out:
            super().__init__([sys.executable, "-m", "qualab", *arguments], cwd=ROOT, env=own, stderr=out)

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
        urls = {f"{arm}_url": experiment[arm] for arm in ArmName}
        ask_for(self.store, comparison_id, at=datetime.now(UTC), request=experiment, **urls)

    def status(self, comparison_id: str) -> ComparisonStatus:
        return self.store.summary(comparison_id).status

    def value(self, column: str, comparison_id: str) -> Any:
        with self.store.engine.connect() as connection:
            query = text(f"SELECT {column} FROM comparison WHERE id = :id")
            return connection.execute(query, {"id": comparison_id}).scalar_one()

    def takeovers(self, comparison_id: str) -> int:
        return int(self.value("takeovers", comparison_id))

    def runner(self, comparison_id: str) -> str:
        return str(self.value("runner", comparison_id) or "")

    def pid(self, comparison_id: str) -> int | None:
        """The process that has a comparison."""
        runner = self.runner(comparison_id)
        return int(runner.split(":")[1]) if runner else None

    def wait_for(self, comparison_id: str, status: ComparisonStatus, *processes: Process) -> None:
        wait_for(lambda: self.status(comparison_id) is status, or_say=lambda: [one.said[-3000:] for one in processes])

    def n_answered(self, comparison_id: str) -> int:
        is_planned = self.store.summary(comparison_id).plan_hash
        return min(self.store.n_answered(comparison_id).values()) if is_planned else 0

    def bodies(self, comparison_id: str) -> set[bytes]:
        seed = self.store.get(comparison_id).plan.sampling.seed
        items = self.store.items(comparison_id)
        return {encode_body(request.payload, seed=seed) for item in items for request in item.requests}

    def asked_again(self, servers: Servers, comparison_id: str, *, n_items: int) -> int:
        """How many of both arms' requests came more than once; all came."""
        bodies = self.bodies(comparison_id)
        assert [len(bodies), *(len(servers.asked(arm, bodies)) for arm in ArmName)] == [n_items] * 3
        return servers.n_asked(bodies) - 2 * n_items


@contextmanager
def site_at(url: str, folder: Path) -> Iterator[Site]:
    with ExitStack() as stack, opened(url) as store:
        yield Site(url, folder, stack, store)
