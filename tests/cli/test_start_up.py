"""What commands that only look something up leave unread: each module counts in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qualab.cli.main import COMMANDS, app

SLOW = ("alembic", "datasets", "lm_eval", "numpy", "pydantic_settings", "pyreqwest", "scipy", "yaml")
CODE = """
import sys
from qualab.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
print(*sys.modules)
"""


@pytest.mark.parametrize(
    ("arguments", "also"),
    [(["--help"], ["sqlalchemy", "rich.console"]), (["list"], []), (["list", "--help"], ["rich"])],
)
def test_a_look_up_does_not_load_what_it_does_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], also: list[str]
) -> None:
    monkeypatch.setenv("QUALAB_DB", str(tmp_path / "qualab.db"))
    subprocess.run([sys.executable, "-m", "qualab", "db", "upgrade"], check=True, capture_output=True, timeout=60)
    ended = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], check=True, capture_output=True, text=True, timeout=60
    )
    loaded = set(ended.stdout.splitlines()[-1].split())
    assert ("qualab.cli.query" in loaded) == (arguments[0] == "list")
    assert loaded & {*SLOW, *also} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app([name, "--help"], prog_name="qualab")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"Usage: qualab {name} ")


def test_a_mistyped_command_gets_the_nearest_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["preflihgt"], prog_name="qualab")
    assert ended.value.code == 2
    assert "Did you mean 'preflight'" in capsys.readouterr().err
