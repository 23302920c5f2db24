"""The two ways that docs/architecture.md draws: they are short, and a run enters every step."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.cli.conftest import Command, naming
from tests.house.modules import imports, modules
from tests.scripted_server import Script, ScriptedServer

MAP = Path(__file__).parents[2] / "docs" / "architecture.md"
WAYS = {"The way of an answer": 20, "The way of a margin": 10}
"""Heading -> how many modules the way may pass."""


def way(heading: str) -> list[str]:
    """The modules of a way, in order."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", MAP.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert section is not None
    steps = re.findall(r"^\d+\. `([\w/]+)\.py`", section[1], re.MULTILINE)
    return [f"qualab.{step.replace('/', '.')}" for step in steps]


@pytest.mark.parametrize(("heading", "most"), WAYS.items())
def test_a_way_is_short_and_each_step_knows_another(heading: str, most: int) -> None:
    steps = way(heading)
    assert 5 < len(steps) <= most
    assert set(steps) <= modules().keys()
    edges = {frozenset((one.importer, one.imported)) for one in imports()}
    alone = [step for step in steps if not any(frozenset((step, one)) in edges for one in steps)]
    assert alone in ([], ["qualab.cli.main"])  # which loads commands by their names


def test_a_run_enters_every_step(qualab: Command, tmp_path: Path) -> None:
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (name := frame.f_globals.get("__name__", "")).startswith("qualab."):
            entered.add(name)

    with ScriptedServer() as off, ScriptedServer(Script(drafts=True)) as on, watched(note):
        done = qualab("run", *naming(off, on), "--tasks", "demo_arithmetic", "--limit", 3, "--margin", 0.3)
        qualab("report", done.comparison_id, "-o", tmp_path / "report.pdf")
    assert done.code in (0, 3), done.err
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    elsewhere = {"qualab.harness.tasks"}  # in lm-eval's own process
    assert {step for heading in WAYS for step in way(heading)} - entered <= elsewhere


@contextmanager
def watched(note: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
