"""What lies in deploy/: valid by its schemas, and run as a CI and compose would run it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import xml.etree.ElementTree as Xml
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx2
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema.validators import validator_for

from qualab import __version__
from qualab.service.settings import ServiceSettings
from qualab.settings import Settings
from tests.cli.test_serve_command import serving
from tests.house.modules import ROOT
from tests.scripted_server import MODEL, Script, ScriptedServer, reply
from tests.store import postgresql

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
    schema = get_builtin_schema(f"vendor.{name}")
    return [error.message for error in validator_for(schema)(schema).iter_errors(document)]


def test_the_pipelines_are_valid_and_only_an_inconclusive_gate_may_fail() -> None:
    assert schema_errors("gitlab-ci", GITLAB) == []
    assert schema_errors("github-workflows", GITHUB) == []
    assert schema_errors("gitlab-ci", GITLAB | {"x": {"script": ["true"], "allow_failure": {"codes": [3]}}})
    assert schema_errors("github-workflows", GITHUB | {"jobs": {"x": {"runs_on": "y", "steps": []}}})
    for name in ("qualab-gate", ".qualab-run"):
        assert GITLAB[name]["allow_failure"] == {"exit_codes": [3]}
        assert GITLAB[name]["artifacts"]["reports"] == {"junit": "qualab-junit.xml"}
        assert GITLAB[name]["artifacts"]["when"] == "always"
    scripts = [step["run"] for job in GITHUB["jobs"].values() for step in job["steps"] if "run" in step]
    assert len(scripts) == 4
    writing = {name: job["permissions"] for name, job in GITHUB["jobs"].items() if "permissions" in job}
    assert (GITHUB["permissions"], writing) == ({"contents": "read"}, {"comment": {"pull-requests": "write"}})
    assert not any("${{" in script for script in scripts), "the shell reads an expression's text as a program"


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
    """The verdict as JSON and Markdown have it; JUnit and PDF must be there."""
    Xml.parse(ci.folder / "qualab-junit.xml")
    assert (ci.folder / "qualab-report.pdf").read_bytes().startswith(b"%PDF-")
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
    job = {"CI_PROJECT_URL": "https://git.example.com/g/p", "CI_JOB_ID": "77"}
    assert ci.shell("\n".join(GITLAB["qualab-gate"]["after_script"]), **job)[0] == 0
    with ScriptedServer() as forge:
        note = {"CI_API_V4_URL": forge.root, "CI_MERGE_REQUEST_IID": "3", "QUALAB_NOTE_TOKEN": "secret"}
        first, others = NOTE | {"id": 9}, [NOTE | {"body": "LGTM"}, NOTE | {"system": True}]
        forge.answer(reply(others), reply([]), reply({}, status=201), reply(others), reply([first]), reply({}))
        for _ in range(2):
            assert ci.gitlab("qualab-note", **note)[0] == 0
    path = "/projects/4/merge_requests/3/notes"
    assert [(one.method, one.path) for one in forge.seen if one.method != "GET"] == [
        ("POST", path),
        ("PUT", f"{path}/9"),
    ]
    assert {one.headers["PRIVATE-TOKEN"] for one in forge.seen} == {"secret"}
    body = parse_qs(forge.seen[-1].body.decode())["body"][0]
    assert body.startswith("<!-- qualab -->\n### qualab: EQUIVALENT\n")
    assert "[Report (PDF)](https://git.example.com/g/p/-/jobs/77/artifacts/file/qualab-report.pdf)" in body


NOTE = {"id": 1, "body": "<!-- qualab -->\n", "system": False}


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
    (curl_alone,) = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "gate.md").read_text(), re.DOTALL)
    assert ci.shell(curl_alone, ID=comparison[1])[0] == 3
    assert Xml.parse(ci.folder / "junit.xml").find(".//skipped") is not None
    assert ci.shell(curl_alone, ID="nothing-like-it")[0] == 5
    strict = files | {"QUALAB_ALLOW_INCONCLUSIVE": "false"}
    assert ci.github("gate", QUALAB_COMPARISON=comparison[1], **strict)[0] == 3
    with ScriptedServer() as forge:
        by_bot = {"id": 8, "body": "<!-- qualab -->\nold", "user": {"type": "Bot"}}
        others = [by_bot | {"id": n, "body": "LGTM"} for n in range(99)] + [by_bot | {"user": {"type": "User"}}]
        forge.answer(reply(others), reply([]), reply({}, status=201), reply(others), reply([by_bot]), reply({}))
        on = {"GITHUB_API_URL": forge.root, "GITHUB_REPOSITORY": "me/it", "GITHUB_TOKEN": "ghs", "PULL_REQUEST": "3"}
        for _ in range(2):
            assert ci.github("comment", QUALAB_FILES="https://files.example.com/1", **on)[0] == 0
    posted = [(one.method, one.path, json.loads(one.body)["body"]) for one in forge.seen if one.method != "GET"]
    path = "/repos/me/it/issues"
    assert [one[:2] for one in posted] == [("POST", f"{path}/3/comments"), ("PATCH", f"{path}/comments/8")]
    assert {one.headers["Authorization"] for one in forge.seen} == {"Bearer ghs"}
    assert all(body.startswith("<!-- qualab -->\n### qualab: INCONCLUSIVE\n") for _, _, body in posted)
    assert "(https://files.example.com/1)" in posted[0][2]
    assert ci.github("gate", QUALAB_COMPARISON="nothing-like-it", **files)[0] == 2
    assert not (ci.folder / "qualab-report.pdf").exists(), "the report of an earlier gate"


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


DEPLOY = ROOT / "deploy"
IMAGE = f"qualab:{__version__}"
SECRET = re.compile(r"password|secret|token|api_?key", re.IGNORECASE)


@cache
def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


@cache
def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    documents = [one for path in files for one in yaml.safe_load_all(path.read_text())]
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def pod(name: str) -> Any:
    specs = [one.get("spec", {}) for (_, own), one in manifests().items() if own == name]
    (spec,) = [spec for spec in specs if "template" in spec]
    return spec["template"]["spec"]


@cache
def instructions() -> list[tuple[str, str]]:
    """(instruction, its text) of the Containerfile, in order."""
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def of(name: str) -> list[str]:
    return [text for instruction, text in instructions() if instruction == name]


def test_the_image_is_of_named_versions_locked_by_hash_has_all_of_the_package_and_runs_as_nobody_special() -> None:
    assert of("FROM") == ["python:3.12-slim AS build", "python:3.12-slim"]
    installs = [part.rstrip() for run in of("RUN") for part in run.split("&&") if "pip install" in part]
    for install, source in zip(installs, ("requirements-build.lock", "requirements.lock", "."), strict=True):
        assert install.endswith(
            f"-r {source}" if source.endswith("lock") else f"--no-deps --no-build-isolation {source}"
        )
        assert ("--require-hashes" in install) is source.endswith("lock")
    copied = {one for text in of("COPY") if not text.startswith("--from") for one in shlex.split(text)[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    packed = {"pyproject.toml", "README.md", "qualab", "tasks", "migrations"}
    assert copied == packed | {"requirements-build.lock", "requirements.lock"}
    assert of("COPY")[-1] == "--from=build /opt/qualab /opt/qualab"
    names = [name for name, _ in instructions()]
    assert of("USER") == ["10001:10001"]
    assert not {"RUN", "COPY", "ADD"} & set(names[names.index("USER") :])
    assert "HF_HUB_OFFLINE=1" in of("ENV")[-1]
    assert "/healthz" in of("HEALTHCHECK")[0]
    assert of("ENTRYPOINT") == ['["qualab"]']


def test_nothing_is_latest_has_a_registry_or_a_secret_in_it() -> None:
    for path in (path for path in DEPLOY.rglob("*") if path.is_file()):
        text = path.read_text()
        assert ":latest" not in text
        images = re.findall(r"(?:image:|FROM|_IMAGE:) *([\w./:-]+)", text)
        assert not [image for image in images if "." in image.partition("/")[0] and "/" in image], path
    assert not [text for text in of("ENV") + of("ARG") if SECRET.search(text)]


def test_compose_starts_things_in_order_with_secrets_in_files_and_the_root_read_only() -> None:
    assert schema_errors("compose-spec", compose()) == []
    services = compose()["services"]
    assert set(services) == {"db", "migrate", "api", "worker"}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert services["migrate"]["depends_on"] == {"db": {"condition": "service_healthy"}}
    assert services["migrate"]["command"] == ["db", "upgrade"]
    for name in ("api", "worker"):
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert "pg_isready" in services["db"]["healthcheck"]["test"]
    assert "healthcheck" not in services["api"]  # the image's
    assert compose()["secrets"] == {"db_password": {"file": "./secrets/db_password"}}
    for name in ("migrate", "api", "worker"):
        one = services[name]
        assert one["image"] == IMAGE
        assert (one["read_only"], one["cap_drop"], one["tmpfs"]) == (True, ["ALL"], ["/tmp"])
        assert "password" not in str(one["environment"]).lower()
    assert services["db"]["environment"]["POSTGRES_PASSWORD_FILE"] == "/run/secrets/db_password"
    assert services["api"]["ports"] == ["127.0.0.1:8080:8080"]


def test_the_manifests_are_valid_by_kubernetes_own_schema_and_one_of_each_is_there() -> None:
    expected = "ConfigMap/qualab Deployment/qualab-api Ingress/qualab Job/qualab-migrate NetworkPolicy/qualab "
    expected += "NetworkPolicy/qualab-worker Service/qualab Service/qualab-worker StatefulSet/qualab-worker"
    assert sorted(map("/".join, manifests())) == expected.split()
    validator = pytest.importorskip("kubernetes_validate", reason="needs the extra `manifests`")
    for manifest in manifests().values():
        validator.validate(manifest, validator.latest_version(), strict=True)
        with pytest.raises(validator.ValidationError):
            validator.validate({**manifest, "sepc": {}}, validator.latest_version(), strict=True)


RIGHTS = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize("name", ["qualab-api", "qualab-migrate", "qualab-worker"])
def test_a_pod_has_no_rights_that_it_does_not_need(name: str) -> None:
    own = pod(name)
    (container,) = own["containers"]
    assert {"runAsNonRoot": True, "runAsUser": 10001}.items() <= own["securityContext"].items()
    assert own["automountServiceAccountToken"] is False
    assert (container["securityContext"], container["image"]) == (RIGHTS, IMAGE)
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    assert {"name": "tmp", "emptyDir": {}} in own["volumes"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in own["volumes"]}
    assert container["resources"].keys() == {"requests", "limits"}
    assert all("value" not in one for one in container["env"])


def test_the_api_is_ready_by_readyz_alive_by_healthz_and_reached_at_its_port_alone() -> None:
    (container,) = pod("qualab-api")["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    deployment, service = manifests()["Deployment", "qualab-api"]["spec"], manifests()["Service", "qualab"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert service["selector"] == labels == deployment["selector"]["matchLabels"]
    assert service["ports"][0]["targetPort"] == container["ports"][0]["name"]
    api, worker = (manifests()["NetworkPolicy", name]["spec"] for name in ("qualab", "qualab-worker"))
    assert "ingress" not in worker
    assert api["ingress"] == [{"ports": [{"port": "http"}]}]
    assert api["policyTypes"] == worker["policyTypes"] == ["Ingress"]


def test_settings_are_known_and_name_the_folders_that_are_mounted() -> None:
    known = {f"QUALAB_{name.upper()}" for name in Settings.model_fields}
    known |= {f"QUALAB_SERVE_{name.upper()}" for name in ServiceSettings.model_fields}
    settings, environment = manifests()["ConfigMap", "qualab"]["data"], compose()["x-qualab"]["environment"]
    assert {*settings, *environment} <= known
    service = compose()["services"]["api"]
    targets = {volume["target"] for volume in service["volumes"]}
    assert targets == {service["environment"]["QUALAB_DATA_DIR"], service["environment"]["QUALAB_SERVE_SECRET_DIR"]}
    mounts = {mount["mountPath"] for mount in pod("qualab-worker")["containers"][0]["volumeMounts"]}
    assert Path(settings["QUALAB_SERVE_SECRET_DIR"]) in map(Path, mounts)


def test_the_proxies_let_through_what_the_service_takes() -> None:
    nginx, ingress = (DEPLOY / "nginx.conf").read_text(), manifests()["Ingress", "qualab"]
    assert ServiceSettings().max_body_bytes == 2 << 20
    assert "client_max_body_size 2m;" in nginx
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-body-size"] == "2m"
    for limit in ("client_header_timeout", "client_body_timeout", "large_client_header_buffers", "limit_conn "):
        assert limit in nginx


PASSWORD = "a password, 'quoted' $HOME"
SETTINGS = {name: value for name, value in compose()["x-qualab"]["environment"].items() if "SERVE" in name}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The folder of a server's socket. Its user has a password, and is asked for it."""
    if postgresql.binaries() is None:
        pytest.skip(f"needs PostgreSQL {postgresql.OLDEST} or newer")
    with postgresql.running() as folder:
        postgresql.execute(folder, "CREATE DATABASE qualab")
        quoted = PASSWORD.replace("'", "''")
        postgresql.execute(folder, f"ALTER USER qualab PASSWORD '{quoted}'")
        with postgresql.stopped(folder):
            (Path(folder) / "data" / "pg_hba.conf").write_text("local all all scram-sha-256\n")
        yield folder


class Container:
    """A service of the compose file as a process of this machine: its entrypoint, its command, its settings."""

    def __init__(self, database: str, folder: Path) -> None:
        self._folder = folder
        (folder / "db_password").write_text(PASSWORD)
        qualab_in(folder)
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("QUALAB_", "PG"))}
        here = {"PATH": f"{folder}:{os.environ['PATH']}", "QUALAB_SERVE_PORT": "0", "PYTHONPATH": str(ROOT)}
        self._environment = plain | SETTINGS | here | {"QUALAB_DB": f"postgresql://qualab@/qualab?host={database}"}

    def command(self, service: str, *instead: str) -> dict[str, Any]:
        one = compose()["services"][service]
        secret = str(self._folder / "db_password")
        entrypoint = [part.replace("$$", "$").replace("/run/secrets/db_password", secret) for part in one["entrypoint"]]
        return {"args": [*entrypoint, *(instead or one["command"])], "env": self._environment, "text": True}

    def run(self, service: str, *instead: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(**self.command(service, *instead), capture_output=True, timeout=60, check=False)

    def start(self, service: str, begins: str) -> tuple[subprocess.Popen[str], str]:
        """The process and its first line that begins so."""
        process = subprocess.Popen(**self.command(service), stderr=subprocess.PIPE)
        return process, next(line for line in process.stderr or () if line.startswith(begins))


@pytest.mark.slow
def test_the_services_start_as_compose_starts_them(database: str, tmp_path: Path) -> None:
    container = Container(database, tmp_path)
    migrated = container.run("migrate")
    assert migrated.returncode == 0, migrated.stderr
    refused = container.run("api")
    assert (refused.returncode, "without a token" in refused.stderr) == (2, True)
    token = container.run("api", "token", "create", "admin", "--scope", "admin").stdout.strip()
    processes = []
    try:
        for service, begins in (("worker", "qualab works as "), ("api", "qualab serves ")):
            process, line = container.start(service, begins)
            processes.append(process)
        url = line.split()[2].replace("0.0.0.0", "127.0.0.1")
        assert PASSWORD not in Path(f"/proc/{process.pid}/cmdline").read_text()
        ready = {"status": "ready", "database": "ok", "schema": "ok", "workers": 1, "reasons": []}
        assert httpx2.get(f"{url}/readyz").json() == ready
        assert httpx2.get(f"{url}/v1/comparisons").status_code == 401
        assert httpx2.get(f"{url}/v1/comparisons", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(40.0) for process in processes]
    assert codes == [0, 0]
