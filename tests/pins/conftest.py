"""`kubectl` and `docker` that answer as a test wants, before any real ones on the PATH."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

A, B, C = ("sha256:" + digit * 64 for digit in "abc")

Command = Callable[..., Path]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Makes an executable by name: what it prints for each first words of its arguments. Returns the file that lists
    its calls."""
    folder = tmp_path / "commands"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, answers: dict[str, Any], *, after: str = "exit 1") -> Path:
        calls = tmp_path / f"{name}.calls"
        cases = "\n".join(
            f"{shlex.quote(words)}*) printf '%s' {shlex.quote(json.dumps(answer))}; exit 0;;"
            for words, answer in answers.items()
        )
        script = f'#!/bin/sh\necho "$*" >> {shlex.quote(str(calls))}\ncase "$*" in\n{cases}\nesac\n{after}\n'
        (folder / name).write_text(script, encoding="utf-8")
        (folder / name).chmod(0o755)
        return calls

    return make


def pod(*containers: tuple[str, str], spec_image: str = "vllm/vllm-openai:v1") -> dict[str, Any]:
    """A pod as `kubectl get pod --output json` prints it: (name, imageID) of each container."""
    statuses = [{"name": name, "image": "vllm/vllm-openai:v1", "imageID": image_id} for name, image_id in containers]
    return {
        "kind": "Pod",
        "spec": {"containers": [{"name": name, "image": spec_image} for name, _ in containers]},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }
