"""The command in this process, and a pair of scripted endpoints."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qualab.cli.main import app, main
from qualab.settings import FIELDS, KEY_FIELDS
from tests.scripted_server import Script, ScriptedServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def comparison_id(self) -> str:
        """The comparison that a run named on its progress output."""
        return next(line.split()[1] for line in self.err.splitlines() if line.startswith("Comparison "))


@dataclass
class Command:
    """Call `qualab` in this process."""

    run: Callable[..., Outcome]

    def __call__(self, *arguments: object) -> Outcome:
        return self.run(*arguments)

    def json(self, *arguments: object) -> Any:
        return json.loads(self.run(*arguments, "--format", "json").out)


def naming(baseline: ScriptedServer, candidate: ScriptedServer) -> list[str]:
    """Return the flags that name a pair."""
    return ["--baseline", baseline.url, "--candidate", candidate.url, "--model", "scripted"]


def write_table(path: Path, scores: Iterable[tuple[object, object]]) -> Path:
    """Write a table that `qualab import` reads: a row an item, with the score of each arm."""
    path.write_text("item,baseline,candidate\n" + "".join(f"{n},{off},{on}\n" for n, (off, on) in enumerate(scores)))
    return path


@pytest.fixture(scope="session")
def shared() -> Path:
    """The directory with real data sets and handed cases; tests are skipped where it is not."""
    if not (folder := os.environ.get("QUALAB_SHARED")):
        pytest.skip("QUALAB_SHARED names no directory with the real data sets")
    return Path(folder)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one comparison, of a table in which a quarter is lost."""
    folder = tmp_path_factory.mktemp("database")
    table = write_table(folder / "scores.csv", ((1, int(n % 4 > 0)) for n in range(400)))
    with pytest.raises(SystemExit):
        app(["import", str(table), "--db", str(folder / "qualab.db")], prog_name="qualab")
    return folder / "qualab.db"


def forget_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", *(f"QUALAB_{name.upper()}" for name in (*FIELDS, *KEY_FIELDS))):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def qualab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    forget_settings(monkeypatch)
    monkeypatch.setenv("QUALAB_DB", str(tmp_path / "qualab.db"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["qualab", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        text = capsys.readouterr()
        return Outcome(code=code, out=text.out, err=text.err)

    return Command(run)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    """Two servers; the candidate answers a tenth of the prompts otherwise."""
    with ScriptedServer() as baseline, ScriptedServer(Script(flip_share=0.1, drafts=True)) as candidate:
        yield baseline, candidate


@pytest.fixture
def arms(pair: tuple[ScriptedServer, ScriptedServer]) -> list[str]:
    return naming(*pair)
