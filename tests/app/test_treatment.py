"""Whether the drafter ran, and what it did: hand-made counts first, then each fault on scripted servers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from qualab.analysis import drafter as signs
from qualab.analysis.drafter import DraftedAnswers, treatment_of
from qualab.analysis.summaries import Summary
from qualab.errors import PairDiffers
from qualab.model.engine import Counters, Drafting, Engine, EngineKind, EngineSeen, Observation, Segment, Treatment
from qualab.model.items import Answer, Drafted
from qualab.model.names import ArmName, Verdict
from qualab.model.plan import DecisionRule, DrafterCosts, Plan
from qualab.run.prepare import make_plan
from tests.app.fakes import BASELINE, CANDIDATE, START, FakeTasks, experiment, reply
from tests.app.scripted_pair import ALLOWED, ROUNDS, drafting, messages, notes, pair, stops, treatment, troubles
from tests.said import CLOSED, UNTOLD, english
from tests.scripted_engine import LLAMA, OPEN, OTHERS, PROMETHEUS, SGLANG, SPEC_TOKENS, TENSORRT_LLM, TGI, EngineScript

NOTHING = Drafting()


def planned(**changes: Any) -> Plan:
    return make_plan(experiment(**changes), FakeTasks(n_items=40))


def answers(n: int = 40, *, into: DraftedAnswers | None = None, **said: Any) -> DraftedAnswers:
    """The candidate's of 100 prompt tokens and 50 more, unless said otherwise; of several `drafted` each in turn."""
    found, drafted, arm = into or DraftedAnswers(), said.pop("drafted", [None]), said.pop("arm", CANDIDATE)
    for position in range(n):
        given = {"prompt_tokens": 100, "completion_tokens": 50, "drafted": drafted[position % len(drafted)], **said}
        answer = Answer(arm=arm, position=position, choice=0, repeat=0, request_hash=b"", reply=reply(**given))
        found.add(answer, "sums")
    return found


def segment(after: Counters | None, before: Counters | None = None, **changes: Any) -> Segment:
    given = {"arm": CANDIDATE, "part": 0, "attempts": 40, "task": "sums", "prompt_tokens": 4_000}
    return Segment(before=before, after=after, **{**given, "began_at": START, "ended_at": START, **changes})


def stretch(after: Drafting, before: Drafting = NOTHING, **changes: Any) -> Segment:
    return segment(Counters(drafting=after), Counters(drafting=before), **changes)


def seen(arm: ArmName, counters: Counters | None) -> EngineSeen:
    return EngineSeen(arm=arm, seen_at=START, engine=Engine(kind=EngineKind.VLLM, counters=counters))


NO_DRAFTER = Counters(drafting=None)
OFF: list[Observation] = [seen(BASELINE, NO_DRAFTER), segment(NO_DRAFTER, NO_DRAFTER, arm=BASELINE)]
TENS = Drafting(drafts=10, draft_tokens=40, accepted_tokens=20, accepted_at=(8, 6, 4, 2))
HUNDREDS = Drafting(drafts=100, draft_tokens=400, accepted_tokens=200, accepted_at=(80, 60, 40, 20))


def treated(observations: Iterable[Observation], found: DraftedAnswers | None = None, **changes: Any) -> Treatment:
    return treatment_of(planned(**changes), [*OFF, *observations], found or answers(), arms=())


def test_counters_by_position_become_every_number() -> None:
    found = treated([stretch(TENS + HUNDREDS, HUNDREDS)])
    (task,) = found.tasks
    assert english(found.troubles) == ()
    assert (task.rounds, task.draft_tokens, task.accepted_tokens, task.histogram) == (10, 40, 20, (2,) * 5)
    assert (task.accepted_share, task.mean_length, task.zero_share) == (0.5, 3.0, 0.2)
    assert (task.median_length, task.p10_length) == (3.0, 1.0)
    assert (task.first_third, task.last_third, task.request_mean_length) == (None, None, None)


def thirds(*drafts: int, accepted: Sequence[int] = ()) -> list[Segment]:
    """Three parts of 13 answers each, from so many drafts to so many, in turn."""
    both = zip(drafts, accepted or drafts, strict=True)
    marks = [Drafting(drafts=n, draft_tokens=4 * n, accepted_tokens=m) for n, m in both]
    began = [START, START, START + timedelta(minutes=5)]
    return [stretch(marks[n + 1], marks[n], part=n, attempts=13, began_at=began[n]) for n in range(3)]


def test_thirds_are_told_apart_and_added_up() -> None:
    (task,) = treated(thirds(0, 10, 20, 30, accepted=(0, 20, 30, 35))).tasks
    assert (task.first_third, task.last_third) == (3.0, 1.5)
    assert task.mean_length == pytest.approx(1 + 35 / 30)
    assert (task.histogram, task.median_length) == ((), None)


def test_answers_give_rounds_weighted_by_tokens_and_by_requests_or_a_share_alone() -> None:
    told = [
        Drafted(draft_tokens=4, accepted_tokens=2, rounds=(0, 0, 1)),
        Drafted(draft_tokens=16, accepted_tokens=1, rounds=(3, 1, 0)),
    ]
    (task,) = treated([], answers(2, drafted=told)).tasks
    assert (task.rounds, task.draft_tokens, task.accepted_tokens) == (5, 20, 3)
    assert task.histogram == (3, 1, 1)
    assert (task.mean_length, task.zero_share) == pytest.approx((1.6, 0.6))
    assert task.request_mean_length == pytest.approx((3.0 + 1.25) / 2)
    # llama.cpp's answers, and counters of tokens, tell no rounds
    (task,) = treated([], answers(2, drafted=[Drafted(draft_tokens=15, accepted_tokens=2, rounds=())])).tasks
    assert (task.draft_tokens, task.accepted_tokens) == (30, 4)
    assert (task.accepted_share, task.rounds, task.mean_length) == (pytest.approx(2 / 15), None, None)
    (task,) = treated([stretch(Drafting(draft_tokens=400, accepted_tokens=100))]).tasks
    assert (task.accepted_share, task.rounds, task.mean_length) == (0.25, None, None)


def decoded(drafting: Drafting | None, **changes: Any) -> tuple[Counters, Counters]:
    before = {name: 7 * value for name, value in changes.items()}
    after = {name: value + before[name] for name, value in changes.items()}
    return Counters(drafting=drafting, **after), Counters(drafting=NOTHING if drafting else None, **before)


FULL = {"decode_s": 4.0, "decode_steps": 400}
DRAFTED = {"decode_s": 2.4, "decode_steps": 150}
STEPS = segment(*decoded(None, **FULL), arm=BASELINE)
"""400 steps of 10 ms without a drafter."""


@pytest.mark.parametrize(
    ("baseline", "candidate", "drafting", "expected"),
    [
        # 150 steps in 2.4 s would be 1.5 s without a drafter: the 0.9 s more are 90 steps, for 100 rounds
        (FULL, DRAFTED, HUNDREDS, 0.9),
        # 390 tokens of 40 answers, 200 of them by draft: 150 steps, as above; in the baseline 440 - 40
        ({"decode_s": 4.0, "generated_tokens": 440}, {"decode_s": 2.4, "generated_tokens": 390}, HUNDREDS, 0.9),
        ({"decode_s": 0.3, "decode_steps": 29}, DRAFTED, HUNDREDS, None),
        ({"decode_s": 0.0, "decode_steps": 400}, DRAFTED, HUNDREDS, None),
        ({}, DRAFTED, HUNDREDS, None),
        (FULL, {}, HUNDREDS, None),
        ({"decode_s": 4.0}, {"decode_s": 2.4}, HUNDREDS, None),
        (FULL, DRAFTED, TENS, None),
        (FULL, DRAFTED | {"started_at_s": 1.0}, HUNDREDS, None),
    ],
)
def test_the_cost_of_a_round_is_estimated_from_enough_steps_of_both_engines(
    baseline: dict[str, Any], candidate: dict[str, Any], drafting: Drafting, expected: float | None
) -> None:
    found = treated([segment(*decoded(None, **baseline), arm=BASELINE), segment(*decoded(drafting, **candidate))])
    assert found.break_even_length is None
    assert found.tasks[0].round_cost == (expected and pytest.approx(expected))
    assert found.tasks[0].break_even_margin == (expected and pytest.approx(3.0 - 1 - expected))


def test_costs_that_are_given_go_before_those_that_are_estimated() -> None:
    observations = [STEPS, segment(*decoded(HUNDREDS, **DRAFTED))]
    found = treated(observations, drafter_costs=DrafterCosts(draft=0.2, overhead=0.05))
    assert (found.break_even_length, found.tasks[0].break_even_margin) == pytest.approx((1.25, 3.0 - 1.25))
    assert found.tasks[0].round_cost == pytest.approx(0.9), "beside them"


def with_long(n_long: int) -> DraftedAnswers:
    """40 short answers that tell of drafts, and some to long prompts that tell of none."""
    told = Drafted(draft_tokens=4, accepted_tokens=2, rounds=(0, 0, 1))
    return answers(n_long, prompt_tokens=300, into=answers(40, drafted=[told]))


POOR, FEW = (Drafting(drafts=n // 4, draft_tokens=n, accepted_at=(0, 0, 0, 0)) for n in (100, 99))
NO_DRAFTER_SAID = "the candidate's engine counts no drafts in sums: it has no drafter"
DEAD = "the candidate drafted nothing in 40 answers: its drafter is dead, or off"
OLD_ANSWERS = answers(drafted=[Drafted(draft_tokens=15, accepted_tokens=2, rounds=())])
ALLOWS = "(a plan may allow that with allow_unobserved)"
TOO_SHORT = "sums: nothing was drafted; its answers are too short for a drafter to be exercised."
BELOW = "sums: 3.00 tokens per round, below the"
BEGUN, WHOLE = (Counters(drafting=drafting, started_at_s=1.0) for drafting in (NOTHING, HUNDREDS))
BETWEEN = [segment(WHOLE, BEGUN), segment(None, WHOLE), segment(Counters(drafting=TENS, started_at_s=2.0), None)]
"""A restart between two readings that failed."""
ANEW = "engine restarted while it was asked"
COSTS = "the drafter costs time here."


@pytest.mark.parametrize(
    ("observations", "told", "changes", "trouble", "note"),
    [
        ([stretch(POOR)], None, {}, "sums: none of 100 draft tokens was accepted: the drafter does not fit", ""),
        ([stretch(FEW)], None, {}, "", "sums: 99 draft tokens are too few to judge how many are accepted."),
        ([stretch(HUNDREDS)], None, {"rule": DecisionRule(min_accepted_share=0.51)}, "sums: ", ""),
        ([stretch(HUNDREDS)], None, {"rule": DecisionRule(min_accepted_share=0.5)}, "", ""),
        ([stretch(TENS, TENS)], None, {}, DEAD, ""),
        (BETWEEN, None, {}, f"sums: the candidate's {ANEW}", ""),
        ([segment(NO_DRAFTER, NO_DRAFTER)], None, {}, NO_DRAFTER_SAID, ""),
        ([segment(NO_DRAFTER, NO_DRAFTER)], None, {"rule": ALLOWED}, NO_DRAFTER_SAID, ""),
        ([segment(NO_DRAFTER, NO_DRAFTER)], OLD_ANSWERS, {}, "", ""),
        ([stretch(TENS, TENS)], answers(completion_tokens=2), {}, "", TOO_SHORT),
        ([stretch(TENS, TENS)], answers(completion_tokens=None), {}, DEAD, ""),
        (thirds(0, 60, 120, 120), None, {}, "sums: the candidate drafted nothing in 13 answers from 03:09:05 on", ""),
        (thirds(0, 10, 20, 20), None, {}, "", ""),
        ([], with_long(signs.SMALLEST_BIN), {}, "the candidate drafted nothing for prompts of 256 tokens or more", ""),
        ([], with_long(signs.SMALLEST_BIN - 1), {}, "", ""),
        ([segment(None)], None, {}, f"whether the drafter ran is not observable: {CLOSED} {ALLOWS}", ""),
        ([segment(None)], None, {"rule": ALLOWED}, "", "sums: what was drafted is not observable."),
        (
            [seen(CANDIDATE, Counters(drafting=NOTHING)), seen(CANDIDATE, Counters(drafting=HUNDREDS))],
            *(None, {}, ""),
            "sums: what was drafted is not observable any more: the run was interrupted.",
        ),
        (
            [stretch(TENS)],
            *(None, {"drafter_costs": DrafterCosts(draft=2.5)}, ""),
            f"{BELOW} plan's break-even of 3.50: {COSTS}",
        ),
        (
            [STEPS, segment(*decoded(HUNDREDS, decode_s=4.5, decode_steps=150))],
            *(None, {}, ""),
            f"{BELOW} break-even of 4.00 by this run's step times: {COSTS}",
        ),
    ],
)
def test_what_is_a_trouble_and_what_is_only_said(
    observations: list[Observation], told: DraftedAnswers | None, changes: dict[str, Any], trouble: str, note: str
) -> None:
    found = treated(observations, told, **changes)
    assert len(found.troubles) == bool(trouble)
    assert "".join(english(found.troubles)).startswith(trouble)
    assert not note or note in english(found.notes)


def test_rounds_that_mostly_accept_nothing_are_said() -> None:
    for n, is_said in ((40, True), (50, False)):
        found = treated([stretch(replace(HUNDREDS, accepted_tokens=n, accepted_at=(n, 0, 0, 0)))])
        assert any("accepted no draft token" in note for note in english(found.notes)) is is_said
        assert english(found.troubles) == ()


def test_a_baseline_has_to_show_that_it_does_not_draft() -> None:
    for observed, rule, expected in (
        (seen(BASELINE, None), {}, (f"whether the baseline drafts is not observable: {CLOSED} {ALLOWS}",)),
        (seen(BASELINE, None), {"rule": ALLOWED}, ()),
        (stretch(TENS, arm=BASELINE), {}, ("sums: the baseline drafted 40 tokens: a drafter is on there",)),
    ):
        both = answers(arm=BASELINE, into=answers())
        found = treatment_of(planned(**rule), [observed, stretch(TENS)], both, arms=())
        assert english(found.troubles) == expected


@pytest.mark.parametrize(
    ("finished", "starts", "is_said"), [(41, 1, True), (40, 1, False), (44, 2, False), (45, 2, True)]
)
def test_requests_beyond_ours_and_beyond_what_a_kill_left_behind(finished: int, starts: int, is_said: bool) -> None:
    before = Counters(drafting=NOTHING, finished_requests=0)
    after = Counters(drafting=TENS, finished_requests=finished)
    ours = [one for one in Summary([]).arms if one.arm is CANDIDATE]
    observations = [*OFF, *[seen(CANDIDATE, before)] * starts, segment(after, before)]
    found = treatment_of(planned(), observations, answers(), arms=ours)
    assert any("not from this run" in note for note in english(found.notes)) is is_said
    assert english(found.troubles) == ()


def told_level(level: str, **changes: Any) -> EngineScript:
    """A server whose configuration says how much its answers tell of drafting."""
    return replace(OPEN, config={"observability_config": {"per_request_spec_decode_metrics": level}}, **changes)


ALL = 40 * ROUNDS
SHUT = replace(OPEN, has_metrics=False)
"""Closed metrics, but an open configuration."""
TWO = (EngineScript(fingerprints=(f"vllm-0.32.0-{name}",)) for name in "ab")
NO_LENGTHS = (
    "Whether the drafter stops beyond a length of prompt is not observable: answers do not tell "
    "(vLLM: --per-request-spec-decode-metrics summary)."
)
HALF_OPEN = (
    "The engine's configuration is not open in the baseline (vLLM: VLLM_SERVER_DEV_MODE=1): names, versions "
    "and models alone were compared."
)
PARTLY = "publishes only part of its configuration: "


@pytest.mark.parametrize(
    ("off", "on", "rounds", "draft_tokens", "said"),
    [
        *((one, one, ALL, ALL * SPEC_TOKENS, ()) for one in (EngineScript(), LLAMA, SGLANG)),
        (
            *(TENSORRT_LLM, TENSORRT_LLM, ALL, ALL * SPEC_TOKENS),
            ("The candidate's engine tells its iterations once: ", f"TensorRT-LLM {PARTLY}"),
        ),
        (*[replace(LLAMA, has_metrics=False)] * 2, None, ALL * SPEC_TOKENS, ()),
        (PROMETHEUS, PROMETHEUS, None, ALL * SPEC_TOKENS, ()),
        (TGI, TGI, ALL, None, (f"TGI {PARTLY}",)),
        (OPEN, OPEN, ALL, ALL * SPEC_TOKENS, (NO_LENGTHS,)),
        (EngineScript(), OPEN, ALL, ALL * SPEC_TOKENS, (HALF_OPEN,)),
        (OPEN, replace(OPEN, tells=True, engines=3, model_name="another-name"), ALL, ALL * SPEC_TOKENS, ()),
        (told_level("none"), told_level("summary", tells=True), ALL, ALL * SPEC_TOKENS, ()),
        (SHUT, replace(SHUT, tells=True), ALL, ALL * SPEC_TOKENS, ()),
        (EngineScript(), EngineScript(dead_for="Go on"), ALL, ALL * SPEC_TOKENS, ()),  # one probe finds nothing
        (*TWO, ALL, ALL * SPEC_TOKENS, ()),
    ],
)
def test_a_healthy_pair_is_never_stopped_or_invalid_and_its_drafter_is_told_as_far_as_engines_count(
    off: EngineScript, on: EngineScript, rounds: int | None, draft_tokens: int | None, said: tuple[str, ...]
) -> None:
    with pair(off=off, on=on) as both:
        assert stops(both.preflight()) == []
        found = both.compared()
    assert troubles(found) == ()
    assert found.verdict is not Verdict.INVALID
    assert treatment(found).is_observed
    assert [arm.models for arm in found.arms] == [{"scripted": 40}] * 2
    task = drafting(found)
    assert (task.draft_tokens, task.accepted_tokens, task.rounds) == (draft_tokens, 2 * ALL, rounds)
    assert task.mean_length == (rounds and 3.0)
    assert task.accepted_share == (draft_tokens and pytest.approx(2 / 3))
    if on.kind in ("vllm", "llama") and on.has_metrics:
        assert (task.histogram, task.first_third, task.last_third) == ((0, 0, ALL, 0), 3.0, 3.0)
    assert (task.request_mean_length == 3.0) is on.tells
    for start in said:
        assert any(note.startswith(start) for note in notes(found)), start


@pytest.mark.parametrize("kind", ["vllm", "llama"])
def test_step_times_of_both_engines_give_the_cost_of_a_round(kind: str) -> None:
    with pair(off=EngineScript(kind=kind, step_s=0.01), on=EngineScript(kind=kind, step_s=0.013)) as both:
        assert drafting(both.compared()).round_cost == pytest.approx(0.3, abs=0.05)


PICKS: dict[str, Any] = {"sizes": {"sums": 40, "picks": 30}, "scored": ("picks",)}


@pytest.mark.parametrize(
    ("given", "looks", "said"),
    [
        (
            {"on": EngineScript(dead_for="letters"), "sizes": {"sums": 6, "letters": 6}},
            None,
            "letters: the candidate drafted nothing in 6 answers, while it did in other tasks: every task that "
            "generates has to show the drafter at work (one that looks up its tokens in the prompt may find "
            "nothing here: leave such a task out)",
        ),
        ({"on": EngineScript(restart_at=20)}, None, f"sums: the candidate's {ANEW}"),
        (PICKS | {"on": EngineScript(restart_at_finished=83)}, None, f"picks: the candidate's {ANEW}"),
        (PICKS | {"off": EngineScript(restart_at_finished=43)}, 2, f"picks: the baseline's {ANEW}"),
        (
            {"on": EngineScript(fingerprints=("vllm-0.32.0-8b55f0a5", "vllm-0.31.0-17aa02c1"))},
            None,
            "the candidate's answers come from 2 different engines (vllm-0.31.0-17aa02c1, vllm-0.32.0-8b55f0a5)",
        ),
        (
            {"off": LLAMA, "on": EngineScript(kind="llama", dead_beyond=200), "long_from": 25},
            None,
            "the candidate drafted nothing for prompts of 256 tokens or more (15 answers)",
        ),
    ],
)
def test_a_fault_in_a_run_makes_it_invalid(given: dict[str, Any], looks: int | None, said: str) -> None:
    with pair(**given) as both:
        found = both.compared(looks=looks)
    assert found.verdict is Verdict.INVALID
    (trouble,) = troubles(found)
    assert trouble.startswith(said)


@pytest.mark.parametrize("shown_from", [12, 1_000])
def test_a_configured_drafter_that_metrics_do_not_show_yet_is_left_to_the_run(shown_from: int) -> None:
    with pair(off=SGLANG, on=replace(SGLANG, counts_from=shown_from)) as both:
        before, found = both.preflight(), both.compared()
    said = "the candidate is configured with a drafter (EAGLE3 /models/qwen3-8b-eagle3, 4 tokens), which its metrics do"
    assert (stops(before), f"{said} not show yet" in messages(before)) == ([], True)
    if shown_from == 12:
        assert (troubles(found), drafting(found).mean_length) == ((), 3.0)
    else:
        assert found.verdict is Verdict.INVALID
        assert troubles(found)[0].startswith(f"whether the drafter ran is not observable: {UNTOLD}")


@pytest.mark.parametrize("script", OTHERS)
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
    assert any("the baseline drafted" in one for one in troubles(found))


def test_a_routers_fallback_in_the_middle_of_a_run_is_counted_by_arm() -> None:
    with pair(on=EngineScript(fallback="MODEL-B", fallback_from=25)) as both:
        found = both.compared()
    off, on = (arm.models for arm in found.arms)
    n = on["MODEL-B"]
    assert 0 < n < 40
    assert (off, on) == ({"scripted": 40}, {"MODEL-B": n, "scripted": 40 - n})
    assert found.verdict is Verdict.INVALID
    said = f"{n} of 40 answers of the candidate come from MODEL-B, and scripted was asked: another model answers"
    assert troubles(found) == (said,)
    assert said in english(found.reasons)


def test_one_other_name_in_both_arms_is_a_name_of_the_model() -> None:
    named = EngineScript(fallback="scripted-2026-01-02")
    with pair(off=named, on=named) as both:
        before = both.preflight()
        both.compared(killed_after=10)
        found = both.resumed()  # which sends no trials: what the start saw is known
    said = "the candidate answers as scripted-2026-01-02, and scripted was asked"
    assert (said in messages(before), said in stops(before)) == (True, False)
    assert found.verdict is not Verdict.INVALID
    assert found.arms[1].models == {"scripted-2026-01-02": 40}


@pytest.mark.parametrize(("kind", "said"), [("vllm", "finished 10 requests"), ("llama", "read 170 prompt tokens")])
def test_requests_of_others_are_said(kind: str, said: str) -> None:
    with pair(off=EngineScript(kind=kind, foreign_every=4), on=EngineScript(kind=kind)) as both:
        found = both.compared()
    (note,) = [note for note in notes(found) if "not from this run" in note]
    assert note.startswith(f"The baseline's engine {said} that were not from this run")
    assert found.verdict is not Verdict.INVALID


def test_log_likelihoods_exercise_no_drafter_and_are_nobody_elses_requests() -> None:
    with pair(on_drafts=False, sizes={"picks": 6}, scored=("picks",)) as both:
        before, alone = both.preflight(), both.compared()
    assert (stops(before), troubles(alone), treatment(alone).tasks) == ([], (), ())
    assert "no task of this plan generates: no drafter is exercised" in messages(before)
    assert "No task of this comparison generates: no drafter was exercised." in notes(alone)
    with pair(**PICKS) as both:
        beside = both.compared(looks=2)
    assert troubles(beside) == ()
    assert not any("not from this run" in note for note in notes(beside))


@pytest.mark.parametrize(
    ("script", "after"), [*((EngineScript(), n) for n in (1, 17, 40)), *((one, 20) for one in OTHERS)]
)
def test_a_killed_run_goes_on_without_a_false_alarm(script: EngineScript, after: int) -> None:
    with pair(off=script, on=script) as both:
        both.compared(killed_after=after)
        found = both.resumed()
        asked = [sum(path.endswith("completions") for path, _ in server.requests) for server in (both.off, both.on)]
    assert troubles(found) == ()
    assert not any("not from this run" in note or "restarted" in note for note in notes(found))
    assert all(40 + 3 <= n <= 40 + 3 + 4 for n in asked), "what was in flight is asked again, and nothing else"
    assert found.arms[1].n_answers == 40


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (OPEN, replace(OPEN, started_at_s=1_795_980_000.5)),
        (OPEN, replace(OPEN, config={"cache_config.num_gpu_blocks": 180})),
        (EngineScript(fingerprints=("a", "b")), EngineScript(fingerprints=("b",))),
    ],
)
def test_a_run_goes_on_with_the_same_engine_started_anew(before: EngineScript, now: EngineScript) -> None:
    with pair(off=replace(before, fingerprints=()), on=before) as both:
        both.compared(killed_after=17)
        both.replace_candidate(now)
        found = both.resumed()
    assert before.fingerprints or troubles(found) == ()
    assert any("restarted before the run resumed" in note for note in notes(found))


@pytest.mark.parametrize(
    ("before", "now", "drafts", "said"),
    [
        (OPEN, OPEN, False, "another speculative_config"),
        (EngineScript(), EngineScript(), False, "the candidate's engine has no drafter any more"),
        (EngineScript(), EngineScript(is_dead=True), True, "the candidate drafted nothing for a probe"),
        (
            *(OPEN, replace(OPEN, config={"scheduler_config.max_num_seqs": 16}), True),
            "another scheduler_config.max_num_seqs than when the comparison started: 8, now 16",
        ),
        (OPEN, EngineScript(), True, "the candidate's engine told its configuration when the comparison started"),
        (
            *(EngineScript(fingerprints=("a", "b")), EngineScript(fingerprints=("c",)), True),
            "the candidate's answers come from another engine than those stored: a, b, now c",
        ),
    ],
)
def test_a_run_does_not_go_on_with_another_engine(
    before: EngineScript, now: EngineScript, drafts: bool, said: str
) -> None:
    with pair(off=EngineScript(has_server_info=before.has_server_info), on=before) as both:
        both.compared(killed_after=17)
        n_stored = len(both.store.answered(both.comparison.id))
        both.replace_candidate(now, drafts=drafts)
        for retry_failed in (False, True):
            with pytest.raises(PairDiffers, match=re.escape(said)):
                both.resumed(retry_failed=retry_failed)
        assert len(both.store.answered(both.comparison.id)) == n_stored
