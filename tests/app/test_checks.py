"""What is found before a run: each fault of a pair on servers that speak as vLLM 0.32 and llama.cpp do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qualab.model.engine import Preflight
from qualab.model.names import ArmName
from tests.app.scripted_pair import pair, stops
from tests.said import english
from tests.scripted_engine import SPEC_DECODE_REFUSES, EngineScript

OPEN = EngineScript(has_server_info=True)
LLAMA = EngineScript(kind="llama")


def messages(found: Preflight) -> set[str]:
    return {english(finding.what) for finding in found.findings}


NO_DRAFTER = "the candidate's engine counts no drafts: it has no drafter"
NO_DRAFT = "the candidate drafted nothing for a probe"
CLOSED = EngineScript(has_server_info=True, has_metrics=False)


def told_level(level: str, **changes: Any) -> EngineScript:
    config = {"observability_config": {"per_request_spec_decode_metrics": level}}
    return EngineScript(has_server_info=True, config=config, **changes)


@pytest.mark.parametrize(
    ("off", "on"),
    [
        (EngineScript(), EngineScript()),
        (OPEN, EngineScript(has_server_info=True, tells=True, engines=3, model_name="another-name")),
        (LLAMA, LLAMA),
        (told_level("none"), told_level("summary", tells=True)),
        (EngineScript(), EngineScript(dead_for="Go on")),  # one probe that the drafter finds nothing for
        (EngineScript(kind="llama", has_metrics=False), EngineScript(kind="llama", has_metrics=False)),
        (CLOSED, replace(CLOSED, tells=True)),  # closed metrics, but an open configuration
    ],
)
def test_nothing_stops_a_healthy_pair(off: EngineScript, on: EngineScript) -> None:
    with pair(off=off, on=on) as both:
        assert stops(both.preflight()) == []


ONE_SERVER = EngineScript(has_server_info=True, instance_id="17")
HAS_DRAFTER = "the baseline is configured with a drafter"


@pytest.mark.parametrize(
    ("off", "on", "drafts", "expected"),
    [
        (EngineScript(), EngineScript(is_dead=True), (False, True), [NO_DRAFT]),
        (LLAMA, EngineScript(kind="llama", is_dead=True), (False, True), [NO_DRAFT]),
        (EngineScript(), EngineScript(), (False, False), [NO_DRAFTER]),
        *(
            (EngineScript(is_dead=is_dead), EngineScript(), (True, True), [f"{HAS_DRAFTER} (its engine counts", *more])
            for is_dead, more in ((False, ["the baseline drafted "]), (True, []))
        ),
        (OPEN, OPEN, (True, False), [f"{HAS_DRAFTER} (ngram, 4 tokens)", "the baseline drafted ", NO_DRAFTER]),
        (LLAMA, LLAMA, (True, True), ["the baseline drafted "]),
        (ONE_SERVER, ONE_SERVER, (False, True), ["both URLs lead to one server: its instance_id is the same"]),
        *(
            (OPEN, EngineScript(has_server_info=True, config={name: value}), (False, True), [f"{name} is {said}"])
            for name, value, said in (
                ("scheduler_config.max_num_seqs", 16, "8 in the baseline and 16 in the candidate"),
                ("model_config.dtype", "torch.bfloat16", "torch.float32 in the baseline and torch.bfloat16 in the"),
                ("cache_config.enable_prefix_caching", False, "true in the baseline and false in the candidate"),
            )
        ),
    ],
)
def test_a_fault_of_a_pair_stops_it(
    off: EngineScript, on: EngineScript, drafts: tuple[bool, bool], expected: list[str]
) -> None:
    with pair(off=off, on=on, off_drafts=drafts[0], on_drafts=drafts[1]) as both:
        found = stops(both.preflight())
    assert len(found) == len(expected)
    assert all(reason.startswith(beginning) for reason, beginning in zip(found, expected, strict=True))


def test_closed_configurations_are_said() -> None:
    with pair() as both:
        found = messages(both.preflight())
    assert "the engines' configuration is not open: only their names, versions and models were compared" in found


@pytest.mark.parametrize("setting", [{"min_p": 0.1}, {"logit_bias": {"5": 1.0}}])
def test_a_setting_that_one_arm_alone_rejects(setting: dict[str, Any]) -> None:
    rejected = f"the candidate alone rejects requests of sums: HTTP 400: {SPEC_DECODE_REFUSES}"
    with pair(on=EngineScript(rejects=tuple(setting)), settings=setting) as both:
        assert stops(both.preflight()) == [rejected]
        both.tasks.settings = {}
        assert stops(both.preflight()) == []


def test_a_setting_that_an_engine_ignores_stops_unless_the_plan_allows_it() -> None:
    given = {"repeat_penalty": 1.1, "top_k": 5, "max_gen_toks": 9, "do_sample": True, "temperature": 0.7}
    said = "engine does not take repeat_penalty of gen_kwargs"
    with pair() as both:
        found = both.preflight(gen_kwargs=given)
        assert stops(found) == [f"the baseline's {said}", f"the candidate's {said}"]
        allowed = both.preflight(gen_kwargs=given, allow_extra=True)
    assert stops(allowed) == []
    assert messages(allowed) >= set(stops(found))


def test_what_a_server_publishes_is_believed_before_what_is_known_of_its_kind() -> None:
    newer = EngineScript(settings=("temperature", "max_tokens", "stop", "top_p", "brand_new"))
    with pair(off=newer, on=newer) as both:
        assert stops(both.preflight(gen_kwargs={"brand_new": 1}, allow_extra=True)) == []
        found = both.preflight(gen_kwargs={"top_k": 1})
    assert stops(found) == [f"the {arm}'s engine does not take top_k of gen_kwargs" for arm in ArmName]


def test_a_setting_that_a_task_sets_and_an_engine_ignores_is_said() -> None:
    with pair(settings={"typical_p": 0.5}) as both:
        found = both.preflight()
    assert stops(found) == []
    assert "the baseline's engine does not take typical_p, which a task sets" in messages(found)


def test_closed_metrics_stop_unless_the_plan_allows_them() -> None:
    closed = EngineScript(has_metrics=False)
    with pair(off=closed, on=closed) as both:
        found = both.preflight()
        assert stops(found) == [
            "whether the baseline drafts is not observable: /metrics is closed, and answers do not tell",
            "whether the candidate drafts is not observable: /metrics is closed, and answers do not tell",
        ]
        allowed = both.preflight(rule=both.wanted().rule.__class__(allow_unobserved=True))
        assert stops(allowed) == []
        assert messages(allowed) >= set(stops(found))


def test_a_plan_of_log_likelihoods_alone_needs_no_drafter() -> None:
    with pair(on_drafts=False, sizes={"picks": 4}, scored=("picks",)) as both:
        found = both.preflight()
    assert stops(found) == []
    assert "no task of this plan generates: no drafter is exercised" in messages(found)
