"""Keys are references. A canary that is planted everywhere must not come out anywhere."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from qualab.errors import SecretForbidden
from qualab.model.names import ArmName
from qualab.service.access import ReferencedSecrets
from tests.api.conftest import EXPERIMENT, Service, at_work, check_problem, make_bench, make_service
from tests.api.test_documents import AROUND, plan_of

CANARY = "sk-canary-9c4e1f"


NAMES = ("api_key", "baseline_api_key", "apikey", "token", "drafter_costs", "timeout", "accept_underpowered")
PLANTED: list[dict[str, Any]] = [
    *({name: CANARY} for name in NAMES),
    {"candidate_api_key": f"Bearer {CANARY}"},
    {"margins": {"sums": CANARY}},
    *({"api_key": value} for value in ({"value": CANARY}, [CANARY], f"env:{CANARY}", f"file:/tmp/{CANARY}")),
    {"api_key_file": f"/tmp/{CANARY}"},
    {"baseline": f"http://user:{CANARY}@127.0.0.1:8001/v1"},
    *({"candidate": f"http://127.0.0.1:8002/v1{end}{CANARY}"} for end in ("?key=", "#")),
]


def test_a_key_in_a_wrong_place_is_refused_and_not_repeated(idle: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    urls = {"baseline", "candidate"}  # which a plan does not need
    requests = [("/v1/comparisons", planted) for planted in PLANTED]
    for path, planted in [*requests, *(("/v1/plans", planted) for planted in PLANTED if not planted.keys() & urls)]:
        answer = idle.client.post(path, json=EXPERIMENT | planted)
        assert answer.status_code == 422, (path, planted)
        assert answer.json()["errors"], answer.text
        assert CANARY not in answer.text
        assert CANARY not in str(answer.headers)
    assert CANARY not in caplog.text
    assert CANARY not in repr(idle.store.audit())
    assert idle.client.get("/v1/comparisons").json()["entries"] == []


def test_a_key_in_a_plan_file_is_refused_and_its_figures_are_not_kept(idle: Service) -> None:
    document = plan_of(idle) | AROUND | {"figures": {"note": CANARY}}
    answer = idle.client.post("/v1/comparisons", json=document)
    assert answer.status_code == 202
    assert CANARY not in answer.text
    document["experiment"]["api_key"] = CANARY
    answer = idle.client.post("/v1/comparisons", json=document)
    check_problem(answer, 422, "secret-forbidden")
    assert CANARY not in answer.text


def test_a_referenced_key_reaches_the_endpoint_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("QUALAB_KEY_OFF", f"{CANARY}-off")
    (tmp_path / "on").write_text(f"{CANARY}-on\n")
    bench = make_bench()
    service = make_service(bench=bench, secret_dir=tmp_path)
    references = {"baseline_api_key": "env:QUALAB_KEY_OFF", "candidate_api_key": f"file:{tmp_path}/on"}
    with at_work(service.context), service.client:
        comparison_id = service.finished(**references)
        paths = ["", "/verdict", "/metrics", "/plan", "/preflight", "/analyses", "/items/0"]
        seen = [service.client.get(f"/v1/comparisons/{comparison_id}{path}").text for path in paths]
        wanted = service.context.read_document(EXPERIMENT | references)
    keys = {arm: service.context.secrets.read(reference) for arm, reference in wanted.keys.items()}
    assert keys == {ArmName.BASELINE: f"{CANARY}-off", ArmName.CANDIDATE: f"{CANARY}-on"}
    assert "env:QUALAB_KEY_OFF" in seen[0]
    assert CANARY not in "".join(seen)
    assert CANARY not in caplog.text
    assert CANARY not in repr(vars(bench.store)) + repr(vars(service.store))


def test_a_reference_that_leads_to_nothing_fails_the_comparison(working: Service) -> None:
    verdict = working.done(working.create(api_key="env:QUALAB_KEY_NOT_SET"))
    assert (verdict["status"], verdict["error"]["code"]) == ("failed", "secret-forbidden")


def test_only_named_variables_and_files_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside, outside = tmp_path / "keys", tmp_path / "other"
    inside.mkdir()
    outside.write_text("x")
    (inside / "link").symlink_to(outside)
    (inside / "key").write_text(" abc\n")
    monkeypatch.setenv("DATABASE_PASSWORD", "x")
    secrets = ReferencedSecrets(env=("QUALAB_KEY_*",), folder=inside)
    assert secrets.read(f"file:{inside}/key") == "abc"
    paths = (outside, inside / ".." / "other", inside / "link", inside / "missing", "/proc/self/environ", "\x00", "")
    others = ("env:DATABASE_PASSWORD", "env:", "http://x", "", "abc", "env:\x00")
    for reference in (*(f"file:{path}" for path in paths), *others):
        with pytest.raises(SecretForbidden) as caught:
            secrets.read(reference)
        name = reference.partition(":")[2]
        assert not name or name not in str(caught.value)
    with pytest.raises(SecretForbidden):
        ReferencedSecrets().check(f"file:{inside}/key")
