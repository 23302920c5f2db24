"""What is found before a run: each fault of a pair on servers that speak as the five engines do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from qualab.model.engine import EngineKind, Segment
from qualab.model.names import ArmName, Verdict
from qualab.run.preflight import TELLING
from tests.app.scripted_pair import ALLOWED, messages, pair, stops, treatment
from tests.said import CLOSED, UNTOLD
from tests.scripted_engine import LLAMA, OPEN, OTHERS, PROMETHEUS, SGLANG, SPEC_DECODE_REFUSES, TENSORRT_LLM, TGI
from tests.scripted_engine import EngineScript as Engine

NO_DRAFTER = "the candidate's engine counts no drafts: it has no drafter"
NO_DRAFT = "the candidate drafted nothing for a probe"
NOT_OBSERVABLE = "whether the {} drafts is not observable: {}"
HAS_DRAFTER = "the baseline is configured with a drafter"
ONE_SERVER = replace(OPEN, instance_id="17")
OTHER_SETTINGS = [
    (OPEN, "scheduler_config.max_num_seqs", 16, "8 in the baseline and 16 in the candidate"),
    (OPEN, "model_config.dtype", "torch.bfloat16", "torch.float32 in the baseline and torch.bfloat16 in the"),
    (OPEN, "cache_config.enable_prefix_caching", False, "true in the baseline and false in the candidate"),
    (SGLANG, "dtype", "float16", "bfloat16 in the baseline and float16 in the candidate"),
    (SGLANG, "attention_backend", "triton", "fa3 in the baseline and triton in the candidate"),
    (SGLANG, "version", "0.5.8", "0.5.9 in the baseline and 0.5.8 in the candidate"),
]


@pytest.mark.parametrize(
    ("off", "on", "drafts", "expected"),
    [
        (Engine(), Engine(is_dead=True), (False, True), [NO_DRAFT]),
        (LLAMA, replace(LLAMA, is_dead=True), (False, True), [NO_DRAFT]),
        *((one, one, (False, False), [NO_DRAFTER]) for one in (Engine(), SGLANG, PROMETHEUS)),
        (TGI, TGI, (False, False), [NO_DRAFT]),
        # whose iterations may say nothing for another reason
        (TENSORRT_LLM, TENSORRT_LLM, (False, False), [NOT_OBSERVABLE.format(arm, UNTOLD) for arm in ArmName]),
        *(
            (Engine(is_dead=is_dead), Engine(), (True, True), [f"{HAS_DRAFTER} (its engine counts", *more])
            for is_dead, more in ((False, ["the baseline drafted "]), (True, []))
        ),
        (OPEN, OPEN, (True, False), [f"{HAS_DRAFTER} (ngram, 4 tokens)", "the baseline drafted ", NO_DRAFTER]),
        (LLAMA, LLAMA, (True, True), ["the baseline drafted "]),
        (ONE_SERVER, ONE_SERVER, (False, True), ["both URLs lead to one server: its instance_id is the same"]),
        *(
            (one, replace(one, config={name: value}), (False, True), [f"{name} is {said}"])
            for one, name, value, said in OTHER_SETTINGS
        ),
        (
            *(SGLANG, replace(SGLANG, config={"model_path": "/m"}), (False, True)),
            [f"{name} is /models/qwen3-8b in the baseline and /m in" for name in ("model_root", "model_path")],
        ),
        (PROMETHEUS, replace(PROMETHEUS, config={"dtype": "float16"}), (False, True), ["model_config.dtype is bfl"]),
        *(
            (*engines, (False, True), [f"the {arm} answers as MODEL-B, and scripted was asked"])
            for arm, *engines in (
                ("baseline", Engine(fallback="MODEL-B"), Engine()),
                ("candidate", Engine(), Engine(fallback="MODEL-B")),
            )
        ),
    ],
)
def test_a_fault_of_a_pair_stops_it(off: Engine, on: Engine, drafts: tuple[bool, bool], expected: list[str]) -> None:
    with pair(off=off, on=on, off_drafts=drafts[0], on_drafts=drafts[1]) as both:
        found = stops(both.preflight())
    assert len(found) == len(expected)
    assert all(reason.startswith(beginning) for reason, beginning in zip(found, expected, strict=True))


@pytest.mark.parametrize("script", OTHERS)
def test_a_drafter_in_the_baseline_stops(script: Engine) -> None:
    with pair(off=script, on=script, off_drafts=True) as both:
        assert any("the baseline" in one and "draft" in one for one in stops(both.preflight(rule=ALLOWED)))


@pytest.mark.parametrize(
    ("script", "arms", "why", "hint"),
    [
        (Engine(has_metrics=False), ArmName, CLOSED, "--allow-unobserved"),
        (replace(SGLANG, has_metrics=False), [ArmName.CANDIDATE], CLOSED, "--enable-metrics"),
        (replace(TENSORRT_LLM, has_iterations=False), ArmName, UNTOLD, TELLING[EngineKind.TENSORRT_LLM]),
    ],
)
def test_metrics_that_do_not_tell_stop_unless_the_plan_allows_them(
    script: Engine, arms: Sequence[ArmName], why: str, hint: str
) -> None:
    with pair(off=script, on=script) as both:
        found, allowed = both.preflight(), both.preflight(rule=ALLOWED)
        done = both.compared(rule=ALLOWED)
        seen = both.store.observations(done.comparison_id)
    assert stops(found) == [NOT_OBSERVABLE.format(arm, why) for arm in arms]
    assert all(hint in one.hint for one in found.stopping)
    assert (stops(allowed), messages(allowed) >= set(stops(found))) == ([], True)
    assert (done.verdict is Verdict.INVALID, treatment(done).is_observed) == (False, False)
    assert any(isinstance(one, Segment) for one in seen) == (why == UNTOLD), "no pause for what nobody can read"


def test_sglang_tells_what_it_is() -> None:
    with pair(off=SGLANG, on=SGLANG) as both:
        found = both.preflight()
    off, on = found.engines[ArmName.BASELINE], found.engines[ArmName.CANDIDATE]
    assert (off.kind, off.version, off.model_root, off.drafter) == ("SGLang", "0.5.9", "/models/qwen3-8b", "")
    assert on.drafter == "EAGLE3 /models/qwen3-8b-eagle3, 4 tokens"
    assert (on.kv_cache_tokens, off.kv_cache_tokens) == (389120, 431202)
    assert not any("secret" in value for one in (off, on) for value in one.config.values())
    revision = ("b968826d9c46dd6066d109eabc6255188de91218",)
    assert {(one.arm, one.values) for one in found.pins if one.is_verified} == {(arm, revision) for arm in ArmName}


@pytest.mark.parametrize("setting", [{"min_p": 0.1}, {"logit_bias": {"5": 1.0}}])
def test_a_setting_that_one_arm_alone_rejects(setting: dict[str, Any]) -> None:
    rejected = f"the candidate alone rejects requests of sums: HTTP 400: {SPEC_DECODE_REFUSES}"
    with pair(on=Engine(rejects=tuple(setting)), settings=setting) as both:
        assert stops(both.preflight()) == [rejected]
        both.tasks.settings = {}
        assert stops(both.preflight()) == []


def test_a_setting_that_an_engine_ignores_stops_unless_the_plan_allows_it_or_a_task_sets_it() -> None:
    given = {"repeat_penalty": 1.1, "top_k": 5, "max_gen_toks": 9, "do_sample": True, "temperature": 0.7}
    with pair() as both:
        found, allowed = both.preflight(gen_kwargs=given), both.preflight(gen_kwargs=given, allow_extra=True)
    assert stops(found) == [f"the {arm}'s engine does not take repeat_penalty of gen_kwargs" for arm in ArmName]
    assert (stops(allowed), messages(allowed) >= set(stops(found))) == ([], True)
    with pair(settings={"typical_p": 0.5}) as both:
        found = both.preflight()
    assert stops(found) == []
    assert messages(found) >= {
        "the baseline's engine does not take typical_p, which a task sets",
        "the engines' configuration is not open: only their names, versions and models were compared",
    }


def test_what_a_server_publishes_is_believed_before_what_is_known_of_its_kind() -> None:
    newer = Engine(settings=("temperature", "max_tokens", "stop", "top_p", "brand_new"))
    with pair(off=newer, on=newer) as both:
        assert stops(both.preflight(gen_kwargs={"brand_new": 1}, allow_extra=True)) == []
        found = both.preflight(gen_kwargs={"top_k": 1})
    assert stops(found) == [f"the {arm}'s engine does not take top_k of gen_kwargs" for arm in ArmName]
