"""What a request for a comparison may say, and what of this machine it may not."""

from __future__ import annotations

import threading
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from qualab.errors import InfrastructureError, TooManyRequests, UnknownTask
from qualab.model.ports import TaskOptions
from qualab.planning.suite import Given
from qualab.service.planner import Planner
from tests.api.conftest import EXPERIMENT, OFF, ON, Make, Service, check_problem, make_bench
from tests.app.fakes import FakeHarness, FakeTasks, experiment
from tests.waiting import wait_for


def refused(service: Service, path: str = "/v1/comparisons", **changes: Any) -> dict[str, str]:
    answer = service.client.post(path, json=EXPERIMENT | changes)
    assert answer.status_code == 422, answer.text
    errors = {one["field"]: one["allowed"] for one in answer.json()["errors"]}
    assert errors
    assert all(errors.values()), answer.text
    return errors


AROUND = {"baseline": OFF, "candidate": ON, "accept_underpowered": True}
"""What a plan file lacks to be run."""


def plan_of(service: Service) -> Any:
    return service.client.post("/v1/plans", json={"model": "m", "tasks": "sums"}).json()["document"]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"margn": 0.1}, "margn", "Did you mean margin?"),
    ({"accept_underpower": True}, "accept_underpower", "Did you mean accept_underpowered?"),
    ({"margin": 2}, "margin", "must be below 1"),
    ({"margin": "wide"}, "margin", "number"),
    ({"margins": {"nothing": 0.1}}, "margins", "no benchmark, task or metric named nothing"),
    ({"baseline": "http://[127.0.0.1]/v1"}, "baseline", "is not a URL"),
    ({"candidate": "http://[::1"}, "candidate", "is not a URL"),
    ({"label": "a\nb"}, "label", "on one line"),
    ({"model": "\u202e"}, "model", "without control characters"),
    ({"repeats": 3}, "repeats", "temperature 0"),
    ({"gen_kwargs": {"temperature": "x"}}, "gen_kwargs", "number"),
    ({"gen_kwargs": {"temprature": 0.7}}, "gen_kwargs.temprature", "Did you mean temperature?"),
    ({"audit": "perhaps"}, "audit", "boolean"),
    ({"audit": {"taw": 1}}, "audit.taw", "one of tau"),
    ({"audit": {"tau": 0}}, "audit_tau", "above 0"),
    ({"audit": True, "audit_tokens": 0}, "audit_tokens", "at least 1"),
    ({"audit_max_foreign_share": 1}, "audit_max_foreign_share", "below 1"),
    ({"objective": "win"}, "objective", "equivalence"),
    ({"drafter_costs": {"overhead": 1}}, "drafter_costs.draft", "required"),
    ({"label": "x" * 201}, "label", "at most 200 characters"),
    ({"label": "a\x00b"}, "label", "control characters"),
    ({"model": ""}, "model", "is needed"),
    ({"baseline": "", "candidate": None}, "baseline", "is needed"),
    ({"baseline": "ftp://127.0.0.1/x"}, "baseline", "neither http nor https"),
    ({"baseline": "127.0.0.1"}, "baseline", "no scheme"),
    ({"baseline": "http://10.0.0.1/v1"}, "baseline", "private address"),
    ({"candidate": "http://169.254.169.254/v1"}, "candidate", "metadata"),
    ({"candidate": OFF}, "candidate", "another server"),
    ({"candidate": [ON, OFF]}, "candidate", "another server"),
    ({"baseline": f"{OFF},{OFF}"}, "baseline", "another server"),
    ({"baseline": [OFF, "http://10.0.0.1/v1"]}, "baseline", "private address"),
    ({"baseline": " , "}, "baseline", "no scheme"),
    ({"candidate": [ON, 5]}, "candidate", "string"),
    ({"accept_underpowered": "yes"}, "accept_underpowered", "true or false"),
    ({"exclusive": "yes"}, "exclusive", "true or false"),
    ({"concurrency": 33}, "concurrency", "a host gets at most 64 requests at once"),
    ({"data_dir": "/etc"}, "data_dir", "may not name"),
    ({"include_path": ["/etc", "/tmp"]}, "include_path", "may not name"),
    ({"tokenizer": "/etc/passwd"}, "tokenizer", "may not name"),
    ({"checkpoint": "/etc"}, "checkpoint", "may not name"),
    ({"data_dir": "\x00"}, "data_dir", "may not name"),
    ({"data_dir": {"a": 1}}, "data_dir", "may not name"),
    ({"output_path": "/tmp/out"}, "output_path", "the service's own"),
    ({"db": "postgresql://x"}, "db", "the service's own"),
    ({"api_key_file": "/etc/passwd"}, "api_key_file", 'send api_key: "file:/path"'),
    ({"pods": "baseline=a/b,candidate=a/c"}, "pods", "does not look at pods"),
    ({"containers": {"baseline": "a"}}, "containers", "does not look at pods"),
    ({"tasks": "/etc/passwd.yaml"}, "tasks", "names of tasks"),
    ({"tasks": ["sums", "../x"]}, "tasks", "names of tasks"),
]


def test_what_is_wrong_is_named_with_what_is_allowed(idle: Service) -> None:
    for changes, field, allowed in WRONG:
        assert allowed in refused(idle, **changes)[field], changes
    assert idle.client.get("/v1/comparisons").json()["entries"] == []


def test_an_audit_is_asked_for_as_a_setting_or_a_group_and_planned(idle: Service) -> None:
    plans = []
    for sent in ({"audit": True, "audit_tokens": 40, "audit_tau": 0.5}, {"audit": {"tokens": 40, "tau": 0.5}}, {}):
        plans.append(idle.client.post("/v1/plans", json={"model": "m", "tasks": "sums", **sent}).json())
    assert plans[0]["plan_hash"] == plans[1]["plan_hash"] != plans[2]["plan_hash"]
    assert (plans[0]["document"]["plan"]["audit"]["tau"], plans[2]["document"]["plan"]["audit"]) == (0.5, None)
    outlook = plans[0]["planning"]["audit"]
    assert (outlook["n_tokens"], outlook["n_answers"], outlook["n_asked_again"]) == (40, 8, 20)  # of 100, 20
    assert outlook["provable_share"] == pytest.approx(1 - 0.05 ** (1 / 20))
    assert (outlook["n_tokens_needed"], plans[2]["planning"]["audit"]) == (2 * 2_995, None)
    assert "audit-falls-short" in [reason["code"] for reason in plans[0]["planning"]["caveats"]]
    created = idle.create(audit={"tau": 0.5})
    assert idle.client.get(f"/v1/comparisons/{created}").json()["experiment"]["audit_tau"] == 0.5


def test_everything_that_is_wrong_is_named_at_once(idle: Service) -> None:
    wrong = {"margn modle": 1, "margin alpha timeout": "x", "baseline candidate model": ""}
    for names, value in (wrong | {"data_dir output_path": "/etc"}).items():
        assert refused(idle, **dict.fromkeys(names.split(), value)).keys() == set(names.split())
    assert len(str(refused(idle, **{"k" * 100_000: 1}))) < 5_000


def test_the_services_own_folders_may_be_named(make: Make, tmp_path: Path) -> None:
    data, more = tmp_path / "data", tmp_path / "more"
    for folder in (data / "inner", more):
        folder.mkdir(parents=True)
    (data / "link").symlink_to("/etc")
    service = make(data_dir=data, allowed_paths=(more,))
    inner = {"data_dir": str(data / "inner")}
    for changes in ({"data_dir": str(data)}, inner, {"include_path": [str(more), str(data)]}):
        assert service.client.post("/v1/comparisons", json=EXPERIMENT | changes).status_code == 202, changes
    service.create()
    assert service.bench.harness.seen[-1].data_dir == data  # unless another is named
    for outside in (tmp_path, data / "..", data / "link", "data", "~"):
        assert "data_dir" in refused(service, data_dir=str(outside))


def test_the_operators_environment_says_nothing_of_a_request(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MARGIN": "0.9", "API_KEY": "operators", "MODEL": "operators"}.items():
        monkeypatch.setenv(f"QUALAB_{name}", value)
    service = make()
    read = service.context.read_document(EXPERIMENT)
    assert (read.experiment.rule.margin, read.keys) == (0.02, {})
    assert "model" in refused(service, model=None)


def test_what_is_kept_is_read_as_it_was_sent(make: Make) -> None:
    service = make()
    keys = {"api_key": "env:QUALAB_KEY_A", "candidate_api_key": "env:QUALAB_KEY_B"}
    for sent in (EXPERIMENT | {"margins": "sums=0.1", **keys}, plan_of(service) | AROUND | {"label": "x", **keys}):
        once = service.context.read_document(sent)
        assert service.context.read_document(once.document) == once
        assert once.keys == {"baseline": "env:QUALAB_KEY_A", "candidate": "env:QUALAB_KEY_B"}


def test_paths_of_the_machine_that_made_a_plan_are_left_out(make: Make, tmp_path: Path) -> None:
    service = make(data_dir=tmp_path)
    plan = plan_of(service)
    plan["experiment"] |= {"data_dir": "/somewhere/else", "output_path": "/elsewhere", "api_key_file": "/home/k"}
    sent = service.client.post("/v1/comparisons", json=plan | AROUND)
    assert sent.status_code == 202, sent.text
    assert "/elsewhere" not in sent.text
    assert service.context.read_document(sent.json()["experiment"]).experiment.data_dir == tmp_path


def test_what_is_no_whole_plan_is_refused(idle: Service) -> None:
    plan = plan_of(idle)
    values = {"plan": (None, {}, []), "hash": (5, "0" * 64), "frozen_at": ("yesterday",)}
    values["experiment"] = (None, 7, {"tasks": "other"}, {"margn": 1})
    broken = [{name: value} for name, each in values.items() for value in each]
    for part in (*broken, {"qualab_plan": None, "plan": None}):
        sent = idle.client.post("/v1/comparisons", json=plan | AROUND | part)
        assert sent.status_code == 422, (part, sent.text)


def test_plans_say_what_items_can_prove(idle: Service) -> None:
    def planned(**changes: Any) -> Any:
        answer = idle.client.post("/v1/plans", json={"model": "m", "tasks": "sums", **changes})
        assert answer.status_code == 200, answer.text
        return answer.json()["planning"]

    planning = planned(assume={"discordance": {"sums": 0.01}, "rate": 5})
    (figures,) = planning["metrics"]
    assert (planning["expected_missing"], figures["power_missing"]) == (0.0, None)
    assert figures["belief"]["discordance"] == 0.01
    assert figures["power"] < 0.8
    assert figures["items_needed"] > 10
    assert planning["duration_s"] == planning["n_requests"] / 5
    assert all({"code", "values", "text"} == one.keys() for one in (*planning["unproven"], *planning["caveats"]))
    assert planning["unproven"][0]["code"] == "unproven"
    assert idle.client.post("/v1/plans", json={"tasks": "sums"}).json()["document"] is None
    planning = planned(margin=0.5, expected_missing=0.05, missing_lost=0.5)
    assert planning["expected_missing"] == planning["plan"]["assumptions"]["missing"] == 0.05
    assert planning["plan"]["rule"]["missing_lost"] == 0.5
    assert planning["metrics"][0]["power_missing"] <= planning["metrics"][0]["power"]
    assert "expected_missing" in refused(idle, "/v1/plans", expected_missing=1)


def test_a_plan_is_made_from_a_pilot(working: Service) -> None:
    pilot = working.finished()
    body = {"model": "m", "tasks": "sums", "pilot": pilot}
    (figures,) = working.client.post("/v1/plans", json=body).json()["planning"]["metrics"]
    assert figures["belief"]["discordance_source"].startswith(f"pilot {pilot}")
    assert working.client.post("/v1/plans", json=body | {"pilot": "nothing"}).status_code == 404


def test_an_assumption_that_is_wrong_is_named(idle: Service) -> None:
    for assumed, field in (
        (5, "assume"),
        ({"luck": 1}, "assume.luck"),
        ({"discordance": "x"}, "assume.discordance"),
        ({"discordance": True}, "assume.discordance"),
        ({"noise": {"sums": "x"}}, "assume.noise.sums"),
        ({"rate": "fast"}, "assume.rate"),
        ({"rate": 0}, "rate"),
        ({"discordance": 7}, "discordance"),
        ({"discordance": {"nothing": 0.1}}, "discordance"),
    ):
        assert field in refused(idle, "/v1/plans", assume=assumed), assumed
    assert "pilot" in refused(idle, "/v1/plans", pilot=5)


class SlowHarness(FakeHarness):
    """Loads only once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def load(self, options: TaskOptions) -> FakeTasks:
        if options.limit is None:
            self.may_end.wait(20.0)
        if "unknown" in options.names:
            raise UnknownTask("There is no task named unknown")
        return super().load(options)


def test_tasks_that_load_slowly_are_waited_for_by_asking_again(make: Make) -> None:
    bench = make_bench()
    bench.harness = SlowHarness()
    service = make(bench=bench, planning_timeout_s=0.05)
    answer = service.client.post("/v1/comparisons", json=EXPERIMENT)
    check_problem(answer, 503, "still-loading")
    assert int(answer.headers["retry-after"]) > 0
    bench.harness.may_end.set()
    wait_for(lambda: service.client.post("/v1/comparisons", json=EXPERIMENT).status_code == 202, within_s=10.0)
    assert len(bench.harness.seen) == 1


def test_tasks_are_loaded_once_and_errors_are_not_kept() -> None:
    harness, seconds = SlowHarness(), [0.0]
    harness.may_end.set()
    planner = Planner(harness, monotonic_s=lambda: seconds[0])
    one = planner.planned(experiment(), Given())
    assert planner.planned(experiment(label="other"), Given()) is one
    assert planner.planned(experiment(), Given(rate=5.0)).rate == 5.0
    assert len(harness.seen) == 1
    for _ in range(2):
        with pytest.raises(UnknownTask):
            planner.planned(experiment(tasks=("unknown",)), Given())
    seconds[0] = 1_000.0
    planner.planned(experiment(), Given())
    assert len(harness.seen) == 2


def test_plans_of_one_caller_wait_up_to_a_limit_and_keep_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qualab.service.planner.MOST_WAITING", 2)
    harness = SlowHarness()
    planner = Planner(harness, timeout_s=0.3)
    for model in ("runs", "waits", "waits too"):
        with pytest.raises(InfrastructureError):
            planner.planned(experiment(model=model), Given(), caller="greedy")
    with pytest.raises(TooManyRequests) as refused:
        planner.planned(experiment(model="one more"), Given(), caller="greedy")
    assert refused.value.details["retry_after_s"] > 0
    assert len(planner._plans) == 3
    assert planner.planned(experiment(model="quick", limit=5), Given(), caller="other").n_items == 10
    harness.may_end.set()


TWICE = {
    "margin": '{"margin": 0.01, "tasks": "sums", "m\\u0061rgin": 0.5}',
    "temperature": '{"gen_kwargs": {"temperature": 0, "temperature": 1}}',
    "rate": '{"tasks": "sums", "assume": [{"rate": 1, "rate": 2}]}',
}
PATHS = ("/v1/comparisons", "/v1/plans", *(f"/v1/comparisons/x/{name}" for name in ("resume", "analyses", "signoffs")))


def test_a_key_that_is_given_twice_is_refused(idle: Service) -> None:
    for path, (key, body) in product(PATHS, TWICE.items()):
        sent = idle.client.post(path, content=body, headers={"Content-Type": "application/json"})
        check_problem(sent, 422, "invalid-value")
        assert sent.json()["errors"] == [{"field": key, "allowed": "must be given once"}]
