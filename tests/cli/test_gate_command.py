"""`qualab gate`, `sign-off` and `verify`, on real runs over scripted endpoints."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as Xml
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from qualab.bootstrap import share
from tests.cli.conftest import Command, naming, write_table
from tests.cli.test_serve_command import serving
from tests.scripted_server import Script, ScriptedServer

EASY = ["--tasks", "demo_arithmetic", "--limit", 40, "--margin", 0.2]


@pytest.fixture(scope="module")
def equal_pair() -> Iterator[list[str]]:
    with ScriptedServer() as baseline, ScriptedServer(Script(drafts=True)) as candidate:
        yield naming(baseline, candidate)


KNOWN = [json.loads(line) for line in (share("tasks") / "demo" / "arithmetic.jsonl").read_text().splitlines()]


class Knowing(Script):
    """Knows the answer of every question in a prompt's last lines, which the plain script does not."""

    def text(self, prompt: str) -> str:
        return next((row["answer"] for row in KNOWN if row["question"] in prompt[-400:]), "0")


def test_a_gate_tells_the_verdict_and_writes_what_a_pipeline_shows(
    qualab: Command, equal_pair: list[str], tmp_path: Path
) -> None:
    done = qualab("run", *equal_pair, *EASY, "--label", "nightly <1>")
    assert done.code == 0, done.out + done.err
    files = {name: tmp_path / name for name in ("junit.xml", "summary.md", "gate.json")}
    options = zip(("--junit", "--markdown", "--json"), files.values(), strict=True)
    pdf = tmp_path / "report.pdf"
    given = [part for option in options for part in option]
    gate = qualab("gate", "--latest", "--label", "nightly <1>", *given, "--pdf", pdf)
    assert gate.code == 0
    assert pdf.read_bytes().startswith(b"%PDF-")
    assert qualab("gate", done.comparison_id, "--pdf", tmp_path / "none" / "report.pdf").code == 2
    assert gate.out.startswith(f"EQUIVALENT: {done.comparison_id} (nightly <1>), plan ")
    suite = Xml.parse(files["junit.xml"]).getroot()[0]
    assert [suite.get(count) for count in ("tests", "failures", "errors", "skipped")] == ["2", "0", "0", "0"]
    assert suite.find("properties/property[@name='label']").get("value") == "nightly <1>"  # type: ignore[union-attr]
    assert files["summary.md"].read_text(encoding="utf-8").startswith("### qualab: EQUIVALENT\n")
    assert r"nightly \<1\>" in files["summary.md"].read_text(encoding="utf-8")
    kept = json.loads(files["gate.json"].read_text(encoding="utf-8"))
    assert (kept["verdict"], kept["id"]) == ("EQUIVALENT", done.comparison_id)
    assert qualab.json("gate", done.comparison_id) == kept


def test_a_regression_fails_the_gate(qualab: Command, tmp_path: Path) -> None:
    with ScriptedServer(Knowing()) as baseline, ScriptedServer(Script(drafts=True)) as candidate:
        done = qualab("run", *naming(baseline, candidate), *EASY)
    assert done.code == 1, done.out
    junit = tmp_path / "junit.xml"
    assert qualab("gate", done.comparison_id, "--junit", junit).code == 1
    suite = Xml.parse(junit).getroot()[0]
    assert int(suite.get("failures", 0)) >= 2
    assert suite.find("testcase[@name='comparison']/failure[@type='REGRESSION']") is not None


PIPES = """
set -o pipefail
for reader in true "head -1"; do "$@" 2>&1 | $reader > /dev/null; echo $?; done
"$@" >&- 2>&-; echo $?
"""
"""Readers that leave before and after the first line; and nobody at all."""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["gate", "ID", "--format", "json"], 1),
        (["import", "TABLE", "--margin", "0.005"], 1),
        (["report", "ID", "-o", "-", "--format", "html"], 0),
        (["show", "no-such-id"], 2),
        (["run", "PAIR", "--tasks", "demo_arithmetic", "--limit", "2"], 3),
        (["run", "--limit", "many"], 2),
    ],
)
def test_a_reader_that_leaves_changes_no_exit_code(
    qualab: Command, equal_pair: list[str], tmp_path: Path, arguments: list[str], code: int
) -> None:
    table = write_table(tmp_path / "scores.csv", ((1, int(n > 40)) for n in range(400)))
    imported = qualab("import", table, "--margin", "0.005")
    assert imported.code == 1
    named = {"ID": [imported.out.split("comparison ")[-1].split()[0]], "TABLE": [str(table)], "PAIR": equal_pair}
    command = [sys.executable, "-m", "qualab", *(part for one in arguments for part in named.get(one, [one]))]
    done = subprocess.run(["bash", "-c", PIPES, "bash", *command], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == ([str(code)] * 3, "")
    assert all(one["status"] == "finished" for one in qualab.json("list"))


def test_a_gate_that_finds_nothing_leaves_an_error_for_the_pipeline(qualab: Command, tmp_path: Path) -> None:
    junit, markdown, json_file = files = [tmp_path / name for name in ("junit.xml", "summary.md", "gate.json")]
    for file in files:
        file.write_text("EQUIVALENT, of an earlier gate")
    written = ("--junit", junit, "--markdown", markdown, "--json", json_file)
    (tmp_path / "report.pdf").write_text("of an earlier gate")
    missing = qualab("gate", "--latest", "--label", "nightly", *written, "--pdf", tmp_path / "report.pdf")
    assert missing.code == 2
    assert not (tmp_path / "report.pdf").exists()
    assert missing.err.startswith("qualab: There is no comparison labelled 'nightly'")
    assert Xml.parse(junit).getroot()[0].find("testcase/error[@type='comparison-not-found']") is not None
    assert markdown.read_text().startswith("### qualab: no verdict\n")
    assert "There is no comparison labelled 'nightly'" in markdown.read_text()
    told = json.loads(json_file.read_text())
    assert (told["verdict"], told["error"]["code"]) == (None, "comparison-not-found")
    assert qualab("gate", "no-such-id").code == 2


def test_a_token_that_is_more_than_one_line_is_refused_and_not_repeated(
    qualab: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("qlb_secret\nqlb_other\n")
    monkeypatch.setenv("QUALAB_TOKEN", "qlb_secret\x01")
    for arguments in (("--token-file", tmp_path / "token"), ()):
        done = qualab("gate", "x", "--server", "http://127.0.0.1:9", *arguments)
        assert (done.code, "holds more than a token" in done.err, "secret" in done.err) == (2, True, False)


def test_who_has_no_token_is_told_where_a_gate_takes_one(
    qualab: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUALAB_TOKEN", raising=False)
    assert qualab("token", "create", "ci").code == 0
    with serving(tmp_path) as (url, _):
        bare = qualab("gate", "x", "--server", url)
        monkeypatch.setenv("QUALAB_TOKEN", "qlb_0")
        wrong = qualab("gate", "x", "--server", url)
    assert (bare.code, wrong.code) == (2, 2)
    assert "--token-file" in bare.err
    assert "--token-file" not in wrong.err


def test_sign_off_is_refused_or_overridden_and_verify_finds_what_was_altered(
    qualab: Command, equal_pair: list[str], tmp_path: Path
) -> None:
    done = qualab("run", *equal_pair, *EASY)
    sign_off = ("sign-off", done.comparison_id, "--as", "Kim Minji")
    refused = qualab(*sign_off)
    assert (refused.code, "limited to 40 items a task; no image is named" in refused.err) == (2, True)
    signed = qualab(*sign_off, "--override", "a trial run")
    assert signed.code == 0
    assert "EQUIVALENT signed off by Kim Minji" in signed.out
    assert "In spite of: limited to 40 items a task" in signed.out
    resumed = qualab("resume", done.comparison_id, "--retry-failed")
    assert (resumed.code, "is signed off, and kept as it is" in resumed.err) == (2, True)
    whole = qualab("verify", done.comparison_id)
    assert whole.code == 0, whole.out + whole.err
    assert "ALTERED" not in whole.out
    with closing(sqlite3.connect(tmp_path / "qualab.db")) as database, database:
        database.execute("UPDATE score SET value = 1 - value WHERE position = 0")
    altered = qualab("verify", done.comparison_id)
    assert (altered.code, "ALTERED scores" in altered.out) == (4, True)
    assert qualab.json("verify", done.comparison_id)["is_altered"] is True


def test_what_was_imported_is_verified_as_far_as_logs_tell(qualab: Command, tmp_path: Path) -> None:
    assert qualab("import", write_table(tmp_path / "scores.csv", [(1, 1)] * 400)).code == 0
    found = qualab.json("verify", qualab.json("list")[0]["id"])
    checks = {check["name"]: check["is_ok"] for check in found["checks"]}
    unknown = dict.fromkeys(("requests", "scores", "outcomes", "sign-off"))
    assert checks == dict.fromkeys(("plan", "seals", "row", "answers", "analysis"), True) | unknown


def test_a_label_commands_no_terminal(qualab: Command, tmp_path: Path) -> None:
    label = "a\x1b[31m\x07\nb\u202e"
    assert qualab("import", write_table(tmp_path / "scores.csv", [(1, 1)] * 400), "--label", label).code == 0
    gate, listed = qualab("gate", "--latest", "--label", label), qualab("list", "--label", label)
    missing = qualab("gate", "--latest", "--label", f"no {label}")
    for said in (gate.out, listed.out, missing.err):
        assert not {"\x1b", "\x07", "\u202e"} & set(said)
    assert " (a‹U+001B›[31m‹U+0007›\\nb‹U+202E›), plan " in gate.out
    assert "no a‹U+001B›[31m" in missing.err


def test_the_newest_of_several_candidates_does_not_hide_one_that_got_worse(
    qualab: Command, equal_pair: list[str]
) -> None:
    scripts = (Knowing(), Script(drafts=True, flip_share=0.9), Knowing(drafts=True))
    with ExitStack() as stack:
        off, broken, fine = (stack.enter_context(ScriptedServer(script)).url for script in scripts)
        pair = ["--baseline", off, "--candidates", f"broken={broken},fine={fine}", *equal_pair[4:]]
        done = qualab("run", *pair, *EASY, "--label", "both")
    assert done.code == 1, done.out + done.err
    verdicts = {own["name"]: own["verdict"] for own in qualab.json("show", done.comparison_id)["candidates"]}
    assert verdicts == {"broken": "REGRESSION", "fine": "EQUIVALENT"}
    gate = qualab("gate", "--latest", "--label", "both")
    assert (gate.code, f"REGRESSION: {done.comparison_id}-broken" in gate.out) == (1, True)
    assert qualab("gate", f"{done.comparison_id}-fine").code == 0
