"""The demo's pair on real llama.cpp servers. How servers are started and stopped is tested in tests/pair."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from qualab.errors import InfrastructureError
from qualab.managed import embedded
from qualab.managed.embedded import embedded_pair, prepare_model
from tests.pair.conftest import eventually

OWNER = """
import sys, time
from pathlib import Path
from qualab.managed.embedded import embedded_pair
with embedded_pair(Path(sys.argv[1]), log_dir=Path(sys.argv[2])) as urls:
    print(*urls, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="session")
def model(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model, kept between test runs in pytest's own cache."""
    pytest.importorskip("xllamacpp", reason="needs the extra `demo`")
    pytest.importorskip("gguf", reason="needs the extra `demo`")
    cache = getattr(pytestconfig, "cache", None)
    folder = cache.mkdir("embedded-models") if cache else tmp_path_factory.mktemp("models")
    return prepare_model(folder, say=lambda _: None)


def ask(url: str, text: str) -> dict[str, Any]:
    body = {"model": embedded.MODEL_ALIAS, "prompt": text, "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        return json.load(response)


def accepts_connections(url: str) -> bool:
    address = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((address.hostname or "", address.port or 0)) == 0


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """As a program has them that is asked by many, or asks many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    yield
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.real
@pytest.mark.usefixtures("many_open_files")
def test_the_candidate_alone_drafts_and_both_are_stopped(model: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with embedded_pair(model, log_dir=tmp_path, say=said.append) as urls:
        baseline, candidate = (ask(url, "Count: one, two, three, four, five,") for url in urls)
    assert baseline["choices"][0]["text"]
    assert candidate["choices"][0]["text"]
    assert baseline["model"] == candidate["model"] == "smollm2"
    assert "draft_n" not in baseline["timings"]
    assert candidate["timings"]["draft_n"] >= candidate["timings"]["draft_n_accepted"] > 0
    assert not any(map(accepts_connections, urls))
    assert said == ["Starting two llama.cpp servers", "Stopping both servers"]
    assert {path.name for path in tmp_path.iterdir()} == {"baseline.log", "candidate.log"}


@pytest.mark.real
def test_both_end_when_their_owner_is_killed(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(model), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        urls = owner.stdout.readline().split()
        assert len(urls) == 2
        assert all(map(accepts_connections, urls))
        os.kill(owner.pid, signal.SIGKILL)
    assert eventually(lambda: not any(map(accepts_connections, urls)))


@pytest.mark.real
def test_a_model_that_does_not_load_is_told_with_the_end_of_the_log(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="needs the extra `demo`")
    with (
        pytest.raises(InfrastructureError, match=r"(baseline|candidate) server ended with code 1") as caught,
        embedded_pair(Path("no-model.gguf"), log_dir=tmp_path),
    ):
        pass
    assert "failed to load model, 'no-model.gguf'" in caught.value.hint
