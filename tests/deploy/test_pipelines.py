"""The pipelines to copy: valid by their schemas, and every command in them run as the CI would run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as Xml
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema import Draft7Validator

from tests.cli.test_serve_command import serving
from tests.house.modules import ROOT
from tests.scripted_server import MODEL, Script, ScriptedServer, reply

GITLAB = yaml.safe_load((ROOT / "deploy" / "gitlab-ci.yml").read_text())
GITHUB = yaml.safe_load((ROOT / "deploy" / "github-workflow.yml").read_text())
GITHUB["on"] = GITHUB.pop(True)  # YAML 1.1 reads `on` as a truth value; GitHub does not
OF_THE_CI = {"CI_PIPELINE_ID": "17", "CI_PROJECT_ID": "4", "GITHUB_RUN_ID": "18", "GITHUB_REPOSITORY_ID": "5"}
EASY = {"tasks": "demo_arithmetic", "limit": 40, "margin": 0.2}


def qualab_in(folder: Path) -> Path:
    """The command as an installation lays it."""
    folder.mkdir(exist_ok=True)
    program = folder / "qualab"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qualab "$@"\n')
    program.chmod(0o755)
    return program


def schema_errors(name: str, document: Any) -> list[str]:
    return [error.message for error in Draft7Validator(get_builtin_schema(name)).iter_errors(document)]


def test_the_pipelines_are_valid_and_only_an_inconclusive_gate_may_fail() -> None:
    assert schema_errors("vendor.gitlab-ci", GITLAB) == []
    assert schema_errors("vendor.github-workflows", GITHUB) == []
    assert schema_errors("vendor.gitlab-ci", GITLAB | {"x": {"script": ["true"], "allow_failure": {"codes": [3]}}})
    assert schema_errors("vendor.github-workflows", GITHUB | {"jobs": {"x": {"runs_on": "y", "steps": []}}})
    for name in ("qualab-gate", ".qualab-run"):
        assert GITLAB[name]["allow_failure"] == {"exit_codes": [3]}
        assert GITLAB[name]["artifacts"]["reports"] == {"junit": "qualab-junit.xml"}
        assert GITLAB[name]["artifacts"]["when"] == "always"


def test_nothing_that_others_may_write_gets_into_a_script() -> None:
    """What GitHub puts in the place of an expression is read by the shell as a program."""
    scripts = [step["run"] for job in GITHUB["jobs"].values() for step in job["steps"] if "run" in step]
    assert len(scripts) == 3
    assert not any("${{" in script for script in scripts)


@dataclass(frozen=True, kw_only=True)
class Ci:
    """A service, a pair, a token, and a folder with `qualab` on its path."""

    folder: Path
    off: str
    on: str
    environment: dict[str, str]

    def wants(self, **changes: Any) -> None:
        """Writes what is to be compared."""
        pair = {"baseline": self.off, "candidate": self.on, "model": MODEL, "accept_underpowered": True}
        (self.folder / "qualab.json").write_text(json.dumps(pair | EASY | changes))

    def shell(self, script: str, **variables: str) -> tuple[int, str]:
        """As a runner does: the first command that fails ends it."""
        own = self.environment | variables
        given = {"cwd": self.folder, "env": own, "capture_output": True, "text": True, "timeout": 120}
        ran = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], **given, check=False)
        return ran.returncode, ran.stdout + ran.stderr

    def gitlab(self, job: str, **variables: str) -> tuple[int, str]:
        defaults = GITLAB["variables"] | GITLAB[job].get("variables", {})
        expanded = {name: value.replace("$CI_PROJECT_DIR", str(self.folder)) for name, value in defaults.items()}
        return self.shell("\n".join(GITLAB[job]["script"]), **(expanded | variables))

    def github(self, job: str, **variables: str) -> tuple[int, str]:
        (script,) = [step["run"] for step in GITHUB["jobs"][job]["steps"] if "run" in step]
        defaults = {name: value for name, value in GITHUB["env"].items() if "${{" not in value}
        return self.shell(script, **(defaults | variables))


@pytest.fixture(scope="module")
def ci(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ci]:
    folder = tmp_path_factory.mktemp("ci")
    program = qualab_in(folder / "bin")
    served = folder / "served"
    served.mkdir()
    plain = {name: value for name, value in os.environ.items() if not name.startswith("QUALAB_")}
    with ScriptedServer() as off, ScriptedServer(Script(drafts=True)) as on, serving(served) as (url, _):
        create = [program, "token", "create", "ci", "--scope", "run", "--db", served / "qualab.db"]
        token = subprocess.run(create, capture_output=True, text=True, check=True).stdout.strip()
        environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "QUALAB_SERVER": url, "QUALAB_TOKEN": token}
        yield Ci(folder=folder, off=off.url, on=on.url, environment=plain | OF_THE_CI | environment)


def outcome(ci: Ci) -> tuple[str, str]:
    """The verdict as JSON and Markdown have it; JUnit must be there."""
    Xml.parse(ci.folder / "qualab-junit.xml")
    summary = (ci.folder / "qualab-summary.md").read_text(encoding="utf-8").splitlines()[0]
    return json.loads((ci.folder / "qualab-gate.json").read_text(encoding="utf-8"))["verdict"], summary


@pytest.mark.slow
def test_the_gitlab_pipeline_runs(ci: Ci) -> None:
    ci.wants()
    code, said = ci.gitlab("qualab-ask")
    assert code == 0, said
    named = (ci.folder / "qualab.env").read_text().strip()
    assert ci.gitlab("qualab-ask")[0] == 0  # tried again
    assert (ci.folder / "qualab.env").read_text().strip() == named
    name, _, comparison = named.partition("=")
    code, said = ci.gitlab("qualab-gate", **{name: comparison})
    assert (code, outcome(ci)) == (0, ("EQUIVALENT", "### qualab: EQUIVALENT")), said
    with ScriptedServer() as forge:
        forge.answer(reply("", status=201))
        note = {"CI_API_V4_URL": forge.root, "CI_MERGE_REQUEST_IID": "3", "QUALAB_NOTE_TOKEN": "secret"}
        assert ci.gitlab("qualab-note", **note)[0] == 0
    (posted,) = forge.seen
    assert (posted.method, posted.path) == ("POST", "/projects/4/merge_requests/3/notes")
    assert posted.headers["PRIVATE-TOKEN"] == "secret"
    assert parse_qs(posted.body.decode())["body"][0].startswith("### qualab: EQUIVALENT\n")


@pytest.mark.slow
def test_the_github_workflow_runs_and_warns_of_what_is_inconclusive(ci: Ci) -> None:
    ci.wants(limit=5, margin=0.02)
    files = {name: str(ci.folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    code, said = ci.github("ask", **files)
    assert code == 0, said
    comparison = re.fullmatch(r"comparison=(\S+)\n", Path(files["GITHUB_OUTPUT"]).read_text())
    assert comparison is not None, said
    code, said = ci.github("gate", QUALAB_COMPARISON=comparison[1], **files)
    assert (code, outcome(ci)[0]) == (0, "INCONCLUSIVE"), said
    assert "::warning title=qualab::Inconclusive" in said
    assert Path(files["GITHUB_STEP_SUMMARY"]).read_text().startswith("### qualab: INCONCLUSIVE\n")
    strict = files | {"QUALAB_ALLOW_INCONCLUSIVE": "false"}
    assert ci.github("gate", QUALAB_COMPARISON=comparison[1], **strict)[0] == 3
    assert ci.github("gate", QUALAB_COMPARISON="nothing-like-it", **files)[0] == 2


@pytest.mark.slow
def test_the_jobs_without_a_service_run(ci: Ci) -> None:
    pair = {"baseline": ci.off, "candidate": ci.on, "model": MODEL}
    (ci.folder / "experiment.yaml").write_text(yaml.safe_dump(pair | EASY))
    alone = {"QUALAB_SERVER": "", "QUALAB_TOKEN": ""}
    code, said = ci.gitlab(".qualab-run", **alone)
    assert (code, outcome(ci)[0]) == (0, "EQUIVALENT"), said
    (ci.folder / "experiment.yaml").write_text(yaml.safe_dump(pair | EASY | {"min_accepted_share": 0.99}))
    files = {"GITHUB_WORKSPACE": str(ci.folder), "GITHUB_STEP_SUMMARY": str(ci.folder / "run-summary")}
    code, said = ci.github("run-here", **alone, **files)
    assert (code, outcome(ci)[0]) == (4, "INVALID"), said
    assert (ci.folder / "run-summary").read_text().startswith("### qualab: INVALID\n")


@pytest.mark.parametrize("kind", ["gitlab", "github"])
def test_a_service_that_is_busy_is_asked_again_with_the_same_key(tmp_path: Path, kind: str) -> None:
    """The first tries fail, with a body that must not get into the way of the last."""
    (tmp_path / "qualab.json").write_text("{}")
    busy = '{"id_of_no":"comparison", "longer": "body"}'
    created = '{"id":"20260101-000000-abcd","x":1}'
    with ScriptedServer() as service:
        service.answer(reply(busy, status=503), reply(busy, status=502), reply(created, status=202))
        environment = {"PATH": os.environ["PATH"], "QUALAB_SERVER": service.root, "QUALAB_TOKEN": "qlb"} | OF_THE_CI
        ci = Ci(folder=tmp_path, off="", on="", environment=environment)
        output = tmp_path / ("qualab.env" if kind == "gitlab" else "output")
        code, said = ci.gitlab("qualab-ask") if kind == "gitlab" else ci.github("ask", GITHUB_OUTPUT=str(output))
    assert code == 0, said
    assert output.read_text().strip().endswith("=20260101-000000-abcd"), said
    keys = [(posted.headers["Idempotency-Key"], posted.headers["Authorization"]) for posted in service.seen]
    assert keys == [(keys[0][0], "Bearer qlb")] * 3
