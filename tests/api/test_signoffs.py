"""Sign-off and verification over REST."""

from __future__ import annotations

from qualab.model.registry import Scope
from tests.api.conftest import Service


def test_a_sign_off_needs_an_admin_and_says_what_stands_in_the_way_and_can_be_verified(working: Service) -> None:
    done = working.finished()
    url = f"/v1/comparisons/{done}/signoffs"
    admin, runner = working.token(Scope.ADMIN, name="lead"), working.token(Scope.RUN)
    assert working.client.post(url, json={"signed_by": "Kim"}, headers=runner).status_code == 403
    for body, field in (({}, "signed_by"), ({"signed_by": 1}, "signed_by"), ({"signed_by": "x", "by": "y"}, "by")):
        wrong = working.client.post(url, json=body, headers=admin)
        assert (wrong.status_code, [error["field"] for error in wrong.json()["errors"]]) == (422, [field])
    refused = working.client.post(url, json={"signed_by": "Kim"}, headers=admin)
    assert (refused.status_code, refused.json()["code"]) == (409, "sign-off-refused")
    assert "unpinned" in refused.json()["detail"]
    signed = working.client.post(url, json={"signed_by": "Kim", "override": "a trial"}, headers=admin)
    assert signed.status_code == 201, signed.text
    assert working.client.get(url, headers=admin).json()["entries"] == [signed.json()]
    entry = working.client.get("/v1/audit", headers=admin).json()["entries"][0]
    assert (entry["who"], entry["action"], entry["details"]["as"]) == ("lead", "comparison.sign-off", "Kim")
    assert {"token", "request_id", "sha256"} <= entry["details"].keys()
    verification = working.client.post(f"/v1/comparisons/{done}/verification", headers=admin).json()
    assert verification["is_altered"] is False
    assert {check["name"] for check in verification["checks"]} >= {"plan", "seals", "answers", "scores", "analysis"}


def test_what_is_signed_off_is_not_deleted(working: Service) -> None:
    done = working.finished()
    working.client.post(f"/v1/comparisons/{done}/signoffs", json={"signed_by": "Kim", "override": "a trial"})
    refused = working.client.delete(f"/v1/comparisons/{done}")
    assert (refused.status_code, refused.json()["code"]) == (409, "comparison-signed-off")
    assert working.client.get(f"/v1/comparisons/{done}").json()["is_signed_off"] is True
    resumed = working.client.post(f"/v1/comparisons/{done}/resume", json={"retry_failed": True})
    assert (resumed.status_code, resumed.json()["code"]) == (409, "comparison-signed-off")


def test_what_is_not_there_is_404_and_what_has_no_verdict_409(idle: Service) -> None:
    assert idle.client.post("/v1/comparisons/none/signoffs", json={"signed_by": "x"}).status_code == 404
    assert idle.client.post("/v1/comparisons/none/verification").status_code == 404
    waits = idle.client.post(f"/v1/comparisons/{idle.create()}/signoffs", json={"signed_by": "x"})
    assert (waits.status_code, waits.json()["code"]) == (409, "not-yet")
