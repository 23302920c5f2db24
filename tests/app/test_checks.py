"""What is found before a run: each fault of a pair on servers that speak as vLLM 0.32 and llama.cpp do."""

from __future__ import annotations

import pytest

from qualab.errors import InvalidValue, PairDiffers
from qualab.model.names import ArmName
from qualab.run import preflight as trials
from tests.app.scripted_pair import pair, stops
from tests.said import english
from tests.scripted_engine import SPEC_DECODE_REFUSES, EngineScript

OPEN = EngineScript(has_server_info=True)
LLAMA = EngineScript(kind="llama")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "COUNTER_PAUSES_S", (0.0,))


@pytest.mark.parametrize(
    ("off", "on"),
    [
        (EngineScript(), EngineScript()),
        (OPEN, OPEN),
        (OPEN, EngineScript(has_server_info=True, tells=True, engines=3, model_name="another-name")),
        (LLAMA, LLAMA),
    ],
)
def test_nothing_stops_a_healthy_pair(off: EngineScript, on: EngineScript) -> None:
    with pair(off=off, on=on) as both:
        assert stops(both.preflight()) == []


def test_closed_configurations_are_said() -> None:
    with pair() as both:
        found = [english(one.what) for one in both.preflight().findings]
    assert "the engines' configuration is not open: only their names, versions and models were compared" in found


def test_metrics_of_each_answer_are_no_difference_between_the_arms() -> None:
    level = {"observability_config": {"per_request_spec_decode_metrics": "none"}}
    told = {"observability_config": {"per_request_spec_decode_metrics": "summary"}}
    on = EngineScript(has_server_info=True, tells=True, config=told)
    with pair(off=EngineScript(has_server_info=True, config=level), on=on) as both:
        assert stops(both.preflight()) == []


def test_a_drafter_that_never_drafts() -> None:
    with pair(on=EngineScript(is_dead=True)) as both:
        assert stops(both.preflight()) == ["the candidate drafted nothing for a probe"]


def test_a_dead_drafter_of_llama_cpp_whose_answers_leave_the_count_out() -> None:
    with pair(off=LLAMA, on=EngineScript(kind="llama", is_dead=True)) as both:
        assert stops(both.preflight()) == ["the candidate drafted nothing for a probe"]


def test_one_probe_that_a_drafter_finds_nothing_for_is_not_the_last() -> None:
    with pair(on=EngineScript(dead_for="Go on")) as both:
        assert stops(both.preflight()) == []


def test_off_against_off() -> None:
    with pair(on_drafts=False) as both:
        assert stops(both.preflight()) == ["the candidate's engine counts no drafts: it has no drafter"]


def test_on_against_on() -> None:
    with pair(off_drafts=True) as both:
        configured, drafted = stops(both.preflight())
    assert configured == "the baseline is configured with a drafter (its engine counts drafts)"
    assert drafted.startswith("the baseline drafted ")


def test_arms_the_wrong_way_round() -> None:
    with pair(off=OPEN, on=OPEN, off_drafts=True, on_drafts=False) as both:
        found = stops(both.preflight())
    assert "the baseline is configured with a drafter (ngram, 4 tokens)" in found
    assert "the candidate's engine counts no drafts: it has no drafter" in found


def test_a_drafter_of_the_baseline_is_found_though_it_never_drafts() -> None:
    with pair(off=EngineScript(is_dead=True), off_drafts=True) as both:
        assert stops(both.preflight()) == ["the baseline is configured with a drafter (its engine counts drafts)"]


def test_a_drafter_in_the_baseline_of_llama_cpp() -> None:
    with pair(off=LLAMA, on=LLAMA, off_drafts=True) as both:
        (found,) = stops(both.preflight())
    assert found.startswith("the baseline drafted ")


def test_the_same_server_twice() -> None:
    with pair() as both, pytest.raises(InvalidValue, match="are the same server"):
        both.preflight(baseline=both.on.url)


def test_one_server_behind_two_urls() -> None:
    one = EngineScript(has_server_info=True, instance_id="17")
    with pair(off=one, on=one) as both:
        assert stops(both.preflight()) == ["both URLs lead to one server: its instance_id is the same"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("scheduler_config.max_num_seqs", 16, "8 in the baseline and 16 in the candidate"),
        ("model_config.dtype", "torch.bfloat16", "torch.float32 in the baseline and torch.bfloat16 in the candidate"),
        ("cache_config.enable_prefix_caching", False, "true in the baseline and false in the candidate"),
    ],
)
def test_one_flag_different(name: str, value: object, said: str) -> None:
    with pair(off=OPEN, on=EngineScript(has_server_info=True, config={name: value})) as both:
        assert stops(both.preflight()) == [f"{name} is {said}"]


@pytest.mark.parametrize("setting", ["min_p", "logit_bias"])
def test_a_setting_that_one_arm_alone_rejects(setting: str) -> None:
    value = {"min_p": 0.1, "logit_bias": {"5": 1.0}}[setting]
    with pair(on=EngineScript(rejects=("min_p", "logit_bias")), settings={setting: value}) as both:
        assert stops(both.preflight()) == [
            f"the candidate alone rejects requests of sums: HTTP 400: {SPEC_DECODE_REFUSES}"
        ]
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
    assert {english(one.what) for one in allowed.findings} >= set(stops(found))


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
    assert "the baseline's engine does not take typical_p, which a task sets" in {
        english(one.what) for one in found.findings
    }


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
        assert {english(one.what) for one in allowed.findings} >= set(stops(found))


def test_answers_that_tell_stand_in_for_closed_metrics() -> None:
    closed = EngineScript(kind="llama", has_metrics=False)
    with pair(off=closed, on=closed) as both:
        assert stops(both.preflight()) == []


def test_a_configuration_that_is_open_stands_in_for_the_baselines_metrics() -> None:
    on = EngineScript(has_server_info=True, tells=True, has_metrics=False)
    with pair(off=EngineScript(has_server_info=True, has_metrics=False), on=on) as both:
        assert stops(both.preflight()) == []


def test_a_plan_of_log_likelihoods_alone_needs_no_drafter() -> None:
    with pair(on_drafts=False, sizes={"picks": 4}, scored=("picks",)) as both:
        found = both.preflight()
    assert stops(found) == []
    assert "no task of this plan generates: no drafter is exercised" in [english(one.what) for one in found.findings]


def test_a_run_stops_before_its_first_item() -> None:
    with pair(on_drafts=False) as both:
        with pytest.raises(PairDiffers, match="it has no drafter"):
            both.compared()
        assert both.comparisons == []
