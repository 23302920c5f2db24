from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from qualab.errors import InfrastructureError
from qualab.managed.embedded import pair
from qualab.managed.embedded.models import EmbeddedModels, prepare_models
from qualab.managed.embedded.pair import embedded_pair

ROOT = Path(__file__).parents[2]
NO_MODELS = EmbeddedModels(model=Path("no-model.gguf"), drafter=Path("no-drafter.gguf"))
LINES = "The cat sat on the mat. " * 3 + "The cat sat on"
KEEPER = """
import sys, time
from collections.abc import Iterator
from pathlib import Path
from qualab.managed.embedded.models import EmbeddedModels
from qualab.managed.embedded.pair import embedded_pair
model, drafter, logs = map(Path, sys.argv[1:])
with embedded_pair(EmbeddedModels(model=model, drafter=drafter), drafter="off", log_dir=logs, parallel=1) as urls:
    print(*urls, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Every process that the test starts."""
    processes: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    return processes


@pytest.fixture(scope="session")
def models(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedModels:
    """The real model, kept between test runs in pytest's own cache."""
    pytest.importorskip("xllamacpp", reason="needs the extra `demo`")
    pytest.importorskip("gguf", reason="needs the extra `demo`")
    cache = getattr(pytestconfig, "cache", None)
    return prepare_models(
        cache.mkdir("embedded-models") if cache else tmp_path_factory.mktemp("models"), say=lambda _: None
    )


def ask(url: str, text: str) -> dict[str, Any]:
    body = {"model": pair.MODEL_ALIAS, "prompt": text, "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        return json.load(response)


def accepts_connections(url: str) -> bool:
    address = urlsplit(url)
    assert address.hostname is not None
    with socket.socket() as probe:
        return probe.connect_ex((address.hostname, address.port or 0)) == 0


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
def test_the_candidate_alone_drafts_and_both_are_stopped(
    models: EmbeddedModels, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    said: list[str] = []
    with embedded_pair(models, drafter="draft", log_dir=tmp_path, say=said.append) as urls:
        assert urls[0] != urls[1]
        baseline, candidate = (ask(url, "Count: one, two, three, four, five,") for url in urls)
        assert [process.poll() for process in started] == [None, None]
    assert baseline["choices"][0]["text"]
    assert candidate["choices"][0]["text"]
    assert baseline["model"] == candidate["model"] == "smollm2"
    assert "draft_n" not in baseline["timings"]
    assert candidate["timings"]["draft_n"] >= candidate["timings"]["draft_n_accepted"] > 0
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)
    assert not any(map(accepts_connections, urls))
    assert said == ["Starting two llama.cpp servers", "Stopping both servers"]
    assert {path.name for path in tmp_path.iterdir()} == {"baseline.log", "candidate.log"}


@pytest.mark.real
def test_an_n_gram_drafter_needs_no_second_model(models: EmbeddedModels, tmp_path: Path) -> None:
    alone = EmbeddedModels(model=models.model, drafter=Path("not-there.gguf"))
    with embedded_pair(alone, drafter="ngram", log_dir=tmp_path, parallel=1) as (_, candidate):
        assert ask(candidate, LINES)["timings"]["draft_n_accepted"] > 0


@pytest.mark.real
def test_an_error_inside_stops_both(
    models: EmbeddedModels, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        embedded_pair(models, drafter="off", log_dir=tmp_path, parallel=1),
    ):
        raise KeyboardInterrupt
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


@pytest.mark.real
def test_both_end_when_their_owner_is_killed(models: EmbeddedModels, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KEEPER, str(models.model), str(models.drafter), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        urls = owner.stdout.readline().split()
        assert all(map(accepts_connections, urls))
        os.kill(owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(map(accepts_connections, urls)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(urls) == 2
    assert not any(map(accepts_connections, urls))


@pytest.mark.real
def test_a_model_that_does_not_load_is_told_with_the_end_of_the_log(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    pytest.importorskip("xllamacpp", reason="needs the extra `demo`")
    with (
        pytest.raises(InfrastructureError, match=r"baseline server .* ended with code 1") as caught,
        embedded_pair(NO_MODELS, drafter="off", log_dir=tmp_path),
    ):
        pass
    assert "failed to load model, 'no-model.gguf'" in caught.value.hint
    assert all(process.poll() is not None for process in started)


def test_a_server_that_ends_at_once_is_told_with_its_code_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(pair, "SERVER_MODULE", "json.tool")
    with (
        pytest.raises(InfrastructureError, match="ended with code 2 before it was ready") as caught,
        embedded_pair(NO_MODELS, drafter="off", log_dir=tmp_path),
    ):
        pass
    assert "can't open 'no-model.gguf'" in caught.value.hint
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_a_server_that_never_gets_ready_is_told_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(pair, "SERVER_MODULE", "tests.embedded.silent_server")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with (
        pytest.raises(InfrastructureError, match="did not get ready in time") as caught,
        embedded_pair(NO_MODELS, drafter="off", log_dir=tmp_path, start_timeout_s=1.0),
    ):
        pass
    assert "still loading" in caught.value.hint
    assert [process.poll() for process in started] == [-signal.SIGTERM, -signal.SIGTERM]


def test_a_log_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(InfrastructureError, match="baseline server cannot be started") as caught,
        embedded_pair(NO_MODELS, drafter="off", log_dir=tmp_path / "missing"),
    ):
        pass
    assert "missing" in caught.value.hint
