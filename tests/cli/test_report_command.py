"""`qualab report` writes what its file's name says, and clear errors."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qualab.bootstrap import store_at
from qualab.model.ports import ComparisonFilter
from tests.app.payoffs import observe
from tests.cli.conftest import Command


@pytest.fixture(scope="module")
def name(database: Path) -> str:
    """The id of the database's comparison."""
    with store_at(str(database)) as store:
        return store.list(ComparisonFilter())[0].id


BEGINNINGS = {".pdf": b"%PDF", ".html": b"<!doctype html>", ".md": b"# ", ".json": b"{"}


@pytest.mark.parametrize("suffix", BEGINNINGS)
def test_the_files_name_says_the_format(
    qualab: Command, database: Path, name: str, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"out{suffix}"
    done = qualab("report", name[:-2], "-o", path, "--lang", "ko", "--db", database)
    assert done.code == 0, done.err
    assert done.out == f"Wrote {path}\n"
    assert path.read_bytes().lstrip().startswith(BEGINNINGS[suffix])
    qualab("report", name, "-o", path, "--format", "json", "--db", database)  # goes before the file's name
    assert json.loads(path.read_bytes())["comparison_id"] == name


def test_a_dash_is_the_standard_output(database: Path, name: str) -> None:
    command = [sys.executable, "-m", "qualab", "report", name, "-o", "-", "--format", "md", "--db", str(database)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout.decode().startswith("# Speculative decoding quality report: ")


def test_without_a_file_a_report_is_written_here_and_of_a_plan_after_the_data_under_a_name_of_its_own(
    qualab: Command, database: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert qualab("report", name, "--db", database).out == f"Wrote qualab-{name}.pdf\n"
    assert (tmp_path / f"qualab-{name}.pdf").read_bytes().startswith(b"%PDF")
    plan = qualab("compare", name, "--margin", 0.05, "--db", database).err.partition("--plan ")[2][:12]
    for more, file in ((("--plan", plan[:5]), f"qualab-{name}-{plan}.md"), ((), f"qualab-{name}.md")):
        done = qualab("report", name, *more, "--format", "md", "--db", database)
        assert done.out == f"Wrote {file}\n"
        text = (tmp_path / file).read_text()
        assert ("this plan was made after the data" in text) == ("±5.00 pp" in text) == bool(more)


def test_what_cannot_be_written_is_one_line(qualab: Command, database: Path, name: str) -> None:
    done = qualab("report", name, "-o", "no/such/folder/x.pdf", "--db", database)
    assert (done.code, "Cannot write no/such/folder/x.pdf" in done.err, "Traceback" in done.err) == (2, True, False)
    assert qualab("report", name, "--plan", "zz", "--db", database).code == 2


def test_advise_tells_where_to_turn_the_drafter_on_once_something_was_measured(
    qualab: Command, database: Path, name: str, tmp_path: Path
) -> None:
    own = tmp_path / "qualab.db"
    shutil.copy(database, own)
    done = qualab("advise", name, "--db", own)
    assert (done.code, done.out) == (2, "")
    assert f"qualab speed {name}" in done.err
    with store_at(str(own)) as store:
        observe(store, name)
    shown = qualab("advise", name, "--db", own).out
    assert re.search(r"everything else +any +any +▼ OFF +quality is worse", shown)
    (route,) = qualab.json("advise", name, "--db", own)["routes"]
    assert (route["turn"], route["evidence"][0]["code"]) == ("off", "advice.regression")
    told = qualab("show", name, "--db", own).out
    assert "2.2 × faster on copying" in told
    assert re.search(r"everything else +any +any +▼ OFF *\n", told)
