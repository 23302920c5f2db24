"""Commands load only the modules they need, each in a fresh process; and every command is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qualab.cli.main import COMMANDS
from tests.cli.conftest import Command, write_table

SLOW = {"alembic", "datasets", "lm_eval", "numpy", "pydantic_settings", "pyreqwest", "scipy", "yaml"}
COUNTS = ["--gains", "7", "--losses", "12", "--items", "600", "--margin", "0.02"]
CODE = """
import sys
from qualab.cli.main import main
try:
    main()
except SystemExit as ended:
    assert ended.code in (None, 0, 1)
print(*sys.modules)
"""


@pytest.mark.parametrize(
    ("arguments", "unloaded"),
    [
        (["--help"], {*SLOW, "sqlalchemy", "rich.console", "qualab.cli.query"}),
        (["list"], SLOW),
        (["list", "--help"], {*SLOW, "rich"}),
        (["stats", "test", *COUNTS], {"scipy.stats", "scipy.optimize", "rich", "sqlalchemy", "lm_eval", "pyreqwest"}),
        (["import", "{folder}/scores.csv", "--db", "{folder}/q.db"], {"lm_eval", "datasets", "aiohttp", "torch"}),
        (["report", "2", "-o", "{folder}/x.pdf"], {"lm_eval", "datasets", "jinja2"}),
    ],
)
def test_a_command_does_not_load_what_it_does_not_use(
    tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], unloaded: set[str]
) -> None:
    monkeypatch.setenv("QUALAB_DB", str(database))
    write_table(tmp_path / "scores.csv", [(1, 0)] * 400)
    command = [sys.executable, "-c", CODE, *(part.format(folder=tmp_path) for part in arguments)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert unloaded & set(ended.stdout.splitlines()[-1].split()) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_says(qualab: Command, name: str) -> None:
    done = qualab(name, "--help")
    assert (done.code, f" {name} " in done.out.partition("\n")[0]) == (0, True), done.out + done.err
