"""pair.yaml files whose program is the fake server."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def lives(pid: int) -> bool:
    """Whether there is such a process that is not just waiting to be waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@dataclass(kw_only=True)
class FakePair:
    """A pair.yaml for the fake server, and what the fakes said of themselves."""

    folder: Path
    ports: list[int] = field(default_factory=lambda: free_ports(2))
    content: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.folder / "pair.yaml"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def write(self, **changes: Any) -> Path:
        self.content |= changes
        self.path.write_text(yaml.safe_dump(self.content, sort_keys=False))
        return self.path

    def started(self, port: int) -> dict[str, Any]:
        return json.loads((self.folder / "records" / f"{port}.json").read_text())

    @property
    def pids(self) -> list[int]:
        """Of every server and child that was ever started."""
        records = [json.loads(path.read_text()) for path in (self.folder / "records").glob("*.json")]
        return [pid for record in records for pid in (record["pid"], *record["children"])]

    @property
    def living(self) -> list[int]:
        return [pid for pid in self.pids if lives(pid)]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePair]:
    for name in [name for name in os.environ if name.startswith("FAKE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "records").mkdir()
    monkeypatch.setenv("FAKE_RECORD", str(tmp_path / "records"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pair = FakePair(folder=tmp_path)
    pair.write(
        model="/models/tiny",
        served_model_name="tiny",
        speculative_config={"method": "ngram", "num_speculative_tokens": 4},
        args={"max_model_len": 512, "enforce-eager": True},
        command=[sys.executable, "-m", "tests.pair.fake_vllm", "serve"],
        baseline={"port": pair.ports[0], "gpus": "0"},
        candidate={"port": pair.ports[1], "gpus": "1"},
        log_dir=str(pair.logs),
        ready_timeout=20,
    )
    yield pair
    for pid in pair.living:  # only where a test has failed
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
