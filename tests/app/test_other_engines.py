"""Pairs of SGLang, TensorRT-LLM and TGI servers, whole: what is found before a run, and the verdict after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from qualab.model.comparison import Analysis
from qualab.model.engine import EngineKind
from qualab.model.names import ArmName, Verdict
from qualab.model.plan import DecisionRule
from qualab.run.preflight import TELLING
from tests.app.scripted_pair import ROUNDS, drafting, pair, stops, treatment
from tests.said import CLOSED, UNTOLD, english
from tests.scripted_engine import SPEC_TOKENS, EngineScript

SGLANG = EngineScript(kind="sglang")
CLOSED_SGLANG = EngineScript(kind="sglang", has_metrics=False)
TENSORRT_LLM = EngineScript(kind="tensorrt_llm")
PROMETHEUS = EngineScript(kind="tensorrt_llm", has_prometheus=True)
SILENT = EngineScript(kind="tensorrt_llm", has_iterations=False)
TGI = EngineScript(kind="tgi")
PAIRS = (SGLANG, TENSORRT_LLM, PROMETHEUS, TGI)
each_engine = pytest.mark.parametrize("script", PAIRS)
DRAFTER = "EAGLE3 /models/qwen3-8b-eagle3, 4 tokens"
REVISION = "b968826d9c46dd6066d109eabc6255188de91218"
ALLOWED = DecisionRule(allow_unobserved=True)


@pytest.mark.parametrize(
    ("script", "draft_tokens", "rounds"),
    [
        (SGLANG, 40 * ROUNDS * 3, 40 * ROUNDS),
        (TENSORRT_LLM, 40 * ROUNDS * SPEC_TOKENS, 40 * ROUNDS),
        (PROMETHEUS, 40 * ROUNDS * SPEC_TOKENS, None),
        (TGI, None, 40 * ROUNDS),
    ],
)
def test_a_pair_gets_a_verdict_and_its_drafter_is_told_as_far_as_the_engine_counts(
    script: EngineScript, draft_tokens: int | None, rounds: int | None
) -> None:
    with pair(off=script, on=script) as both:
        assert stops(both.preflight()) == []
        found = both.compared()
    assert english(treatment(found).troubles) == ()
    assert found.verdict is not Verdict.INVALID
    assert treatment(found).is_observed
    assert models(found, ArmName.BASELINE) == {"scripted": 40}
    task = drafting(found)
    assert (task.draft_tokens, task.accepted_tokens, task.rounds) == (draft_tokens, 40 * 2 * ROUNDS, rounds)
    assert task.mean_length == (None if rounds is None else 3.0)
    assert task.accepted_share == (None if draft_tokens is None else pytest.approx(2 / 3))


@pytest.mark.parametrize("shown_from", [12, 1_000])
def test_a_configured_drafter_that_metrics_do_not_show_yet_is_left_to_the_run(shown_from: int) -> None:
    with pair(off=SGLANG, on=replace(SGLANG, counts_from=shown_from)) as both:
        before, found = both.preflight(), both.compared()
    note = f"the candidate is configured with a drafter ({DRAFTER}), which its metrics do not show yet"
    assert (stops(before), note in [english(one.what) for one in before.findings]) == ([], True)
    troubles = english(treatment(found).troubles)
    if shown_from == 12:
        assert (troubles, drafting(found).mean_length) == ((), 3.0)
    else:
        assert found.verdict is Verdict.INVALID
        assert troubles[0].startswith(f"whether the drafter ran is not observable: {UNTOLD}")


@each_engine
def test_a_drafter_in_the_baseline_stops(script: EngineScript) -> None:
    with pair(off=script, on=script, off_drafts=True) as both:
        assert any("the baseline" in one and "draft" in one for one in stops(both.preflight(rule=ALLOWED)))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        *((one, ["the candidate's engine counts no drafts: it has no drafter"]) for one in (SGLANG, PROMETHEUS)),
        (TGI, ["the candidate drafted nothing for a probe"]),
        # whose iterations may say nothing for another reason
        (TENSORRT_LLM, [f"whether the {arm} drafts is not observable: {UNTOLD}" for arm in ArmName]),
    ],
)
def test_a_drafter_in_neither_arm_stops(script: EngineScript, said: list[str]) -> None:
    with pair(off=script, on=script, on_drafts=False) as both:
        assert stops(both.preflight()) == said


@each_engine
def test_a_baseline_that_drafts_in_the_middle_makes_it_invalid(script: EngineScript) -> None:
    with pair(off=script, on=script) as both:
        engine = both.off.engine
        generated = engine.generated

        def drafting_for_some(prompt: str, **counts: Any) -> Any:
            engine.drafts = "sums 3" in prompt
            return generated(prompt, **counts)

        engine.generated = drafting_for_some  # type: ignore[method-assign]
        found = both.compared(rule=ALLOWED)
    assert found.verdict is Verdict.INVALID
    assert any("the baseline drafted" in one for one in english(treatment(found).troubles))


def test_sglang_tells_what_it_is() -> None:
    with pair(off=SGLANG, on=SGLANG) as both:
        found = both.preflight()
    off, on = found.engines[ArmName.BASELINE], found.engines[ArmName.CANDIDATE]
    assert (off.kind, off.version, off.model_root, off.drafter) == ("SGLang", "0.5.9", "/models/qwen3-8b", "")
    assert (on.drafter, on.kv_cache_tokens, off.kv_cache_tokens) == (DRAFTER, 389120, 431202)
    assert not any("secret" in value for one in (off, on) for value in one.config.values())
    assert {(one.arm, one.values) for one in found.pins if one.is_verified} == {(arm, (REVISION,)) for arm in ArmName}


@pytest.mark.parametrize(
    ("script", "name", "value", "said"),
    [
        (SGLANG, "dtype", "float16", "dtype is bfloat16 in the baseline and float16 in the candidate"),
        (SGLANG, "attention_backend", "triton", "attention_backend is fa3 in the baseline and triton in the candidate"),
        (SGLANG, "version", "0.5.8", "version is 0.5.9 in the baseline and 0.5.8 in the candidate"),
        (SGLANG, "model_path", "/m", "model_root is /models/qwen3-8b in the baseline and /m in the candidate"),
        (PROMETHEUS, "dtype", "float16", "model_config.dtype is bfloat16 in the baseline and float16 in the candidate"),
    ],
)
def test_one_setting_different(script: EngineScript, name: str, value: str, said: str) -> None:
    with pair(off=script, on=replace(script, config={name: value})) as both:
        assert said in stops(both.preflight())


def test_sglang_without_metrics_tells_of_the_baseline_alone() -> None:
    with pair(off=CLOSED_SGLANG, on=CLOSED_SGLANG) as both:
        (found,) = both.preflight().stopping
    assert english(found.what) == f"whether the candidate drafts is not observable: {CLOSED}"
    assert "--enable-metrics" in found.hint


def test_open_metrics_that_tell_nothing_of_drafting_are_called_so() -> None:
    with pair(off=SILENT, on=SILENT) as both:
        found = both.preflight().stopping
        assert [english(one.what) for one in found] == [
            f"whether the {arm} drafts is not observable: {UNTOLD}" for arm in ArmName
        ]
        way = TELLING[EngineKind.TENSORRT_LLM]
        assert {one.hint for one in found} == {f"{way}, or let a verdict stand without it: --allow-unobserved"}
        assert both.compared(rule=ALLOWED).verdict is not Verdict.INVALID


@pytest.mark.parametrize(
    ("script", "note"),
    [
        (TENSORRT_LLM, "The candidate's engine tells its iterations once: "),
        (TENSORRT_LLM, "TensorRT-LLM publishes only part of its configuration: "),
        (TGI, "TGI publishes only part of its configuration: "),
    ],
)
def test_what_is_not_read_is_said(script: EngineScript, note: str) -> None:
    with pair(off=script, on=script) as both:
        assert any(one.startswith(note) for one in english(treatment(both.compared()).notes))


@each_engine
def test_a_run_goes_on_with_engines_that_count_from_the_first_look(script: EngineScript) -> None:
    with pair(off=script, on=script) as both:
        both.killed(after=20)
        found = both.resumed()
    assert english(treatment(found).troubles) == ()
    assert not any("restarted" in one for one in english(treatment(found).notes))


# another model answers


def models(found: Analysis, arm: ArmName) -> Mapping[str, int]:
    return next(one.models for one in found.arms if one.arm is arm)


def test_a_routers_fallback_in_the_middle_of_a_run_is_counted_by_arm() -> None:
    with pair(on=EngineScript(fallback="MODEL-B", fallback_from=25)) as both:
        found = both.compared()
    n = models(found, ArmName.CANDIDATE)["MODEL-B"]
    assert 0 < n < 40
    assert models(found, ArmName.CANDIDATE) == {"MODEL-B": n, "scripted": 40 - n}
    assert models(found, ArmName.BASELINE) == {"scripted": 40}
    assert found.verdict is Verdict.INVALID
    said = f"{n} of 40 answers of the candidate come from MODEL-B, and scripted was asked: another model answers"
    assert english(treatment(found).troubles) == (said,)
    assert said in english(found.reasons)


@pytest.mark.parametrize(("arm", "name"), [("off", "baseline"), ("on", "candidate")])
def test_another_model_from_the_start_stops(arm: str, name: str) -> None:
    scripts: dict[str, Any] = {arm: EngineScript(fallback="MODEL-B")}
    with pair(**scripts) as both:
        assert stops(both.preflight()) == [f"the {name} answers as MODEL-B, and scripted was asked"]


def test_one_other_name_in_both_arms_is_a_name_of_the_model() -> None:
    named = EngineScript(fallback="scripted-2026-01-02")
    with pair(off=named, on=named) as both:
        said = [english(one.what) for one in both.preflight().findings if not one.stops]
        both.killed(after=10)
        found = both.resumed()  # which sends no trials: what the start saw is known
    assert "the candidate answers as scripted-2026-01-02, and scripted was asked" in said
    assert found.verdict is not Verdict.INVALID
    assert models(found, ArmName.CANDIDATE) == {"scripted-2026-01-02": 40}
