"""Finish reasons that are odd, and what is thought before an answer: counted by arm, compared, said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qualab.model.comparison import Analysis
from qualab.model.items import Reply
from qualab.model.names import AnswerStatus, Verdict
from qualab.model.plan import DecisionRule
from tests.app.fakes import Answerer, Bench, FakeHarness, FakeTasks, echo_number, reply
from tests.said import english


async def compared(
    candidate: Answerer, baseline: Answerer = echo_number, n_items: int = 200, max_missing_share: float | None = None
) -> Analysis:
    bench = Bench(harness=FakeHarness(FakeTasks(n_items=n_items)))
    bench.baseline.answer, bench.candidate.answer = baseline, candidate
    return await bench.run(rule=DecisionRule(max_missing_share=max_missing_share))


def first(n: int, **changes: Any) -> Answerer:
    """The right answers, the first `n` of them changed."""

    def answer(prompt: str, seed: int) -> Reply:
        number = prompt.removeprefix("say ")
        return reply(number, **changes) if int(number) < n else reply(number)

    return answer


def said(analysis: Analysis, part: str) -> str:
    """The one caveat or reason that holds this."""
    (found,) = (str(one) for one in (*english(analysis.caveats), *english(analysis.reasons)) if part in one)
    return found


@pytest.mark.parametrize("reason", ["content_filter", "tool_calls", "{'type': 'stop'}", "new\nline"])
async def test_an_odd_finish_reason_is_a_caveat(reason: str) -> None:
    analysis = await compared(first(7, finish_reason=reason), max_missing_share=0.05)
    assert analysis.verdict is Verdict.EQUIVALENT
    shown = reason.replace("\n", "\\n")
    assert said(analysis, "7 answers of the candidate ended neither") == (
        f"7 answers of the candidate ended neither by themselves nor at the limit: {shown} (7). "
        "They are scored as they came."
    )


@pytest.mark.parametrize("reason", ["stop", "length", "eos_token", ""])
async def test_a_usual_finish_reason_is_not_said(reason: str) -> None:
    analysis = await compared(first(200, finish_reason=reason))
    assert not [one for one in english(analysis.caveats) if "ended neither" in one]


async def test_odd_finish_reasons_beyond_the_cap_of_missing_answers_are_invalid() -> None:
    analysis = await compared(first(2, finish_reason="content_filter"))
    assert analysis.verdict is Verdict.INVALID
    assert said(analysis, "content_filter (2)").endswith("more than the plan allows (0.5 %)")


def thinking(characters: int, **changes: Any) -> Callable[[str, int], Reply]:
    def answer(prompt: str, seed: int) -> Reply:
        thought = "hm" * (characters // 2)
        return reply(prompt.removeprefix("say "), reasoning=thought, reasoning_characters=len(thought), **changes)

    return answer


async def test_without_reasoning_nothing_is_summed_up() -> None:
    assert (await compared(echo_number)).reasoning is None


@pytest.mark.parametrize("mark", ["<think>hm</think>", "hm</think>", "<think>hm", "[THINK]hm[/THINK]"])
async def test_reasoning_in_the_text_of_one_arm_alone_names_the_parser(mark: str) -> None:
    analysis = await compared(lambda p, s: reply(f"{mark}{p.removeprefix('say ')}"))
    assert "--reasoning-parser" in said(analysis, "Reasoning stands in the text of 200 answers of the candidate alone")
    assert (analysis.reasoning.baseline.in_text, analysis.reasoning.candidate.in_text) == (0, 200)


async def test_reasoning_in_the_text_of_both_arms_is_not_the_drafters() -> None:
    both = lambda p, s: reply(f"<think>hm</think>{p.removeprefix('say ')}")  # noqa: E731
    analysis = await compared(both, both)
    assert not [one for one in english(analysis.caveats) if "Reasoning stands" in one]
    assert analysis.reasoning.candidate.in_text == 200


async def test_reasoning_beside_the_answers_of_one_arm_alone_is_said() -> None:
    analysis = await compared(thinking(40))
    said(analysis, "Reasoning came beside 200 answers of the candidate alone")


async def test_arms_that_think_alike_are_not_told_apart() -> None:
    analysis = await compared(thinking(40), thinking(40))
    assert analysis.reasoning.pvalue_length == analysis.reasoning.pvalue_cut == 1.0
    assert analysis.reasoning.candidate.mean_characters == 40
    assert not [one for one in english(analysis.caveats) if "hink" in one or "easoning" in one]


async def test_an_arm_that_thinks_longer_is_told() -> None:
    longer = lambda p, s: (thinking(60) if int(p[4:]) < 30 else thinking(40))(p, s)  # noqa: E731
    analysis = await compared(longer, thinking(40))
    assert said(analysis, "think at different length").startswith(
        "The arms think at different length: 40 characters on average in the baseline, 43 in the candidate"
    )
    assert analysis.reasoning.pvalue_length < 1e-6


async def test_thoughts_that_the_limit_cuts_are_counted_by_arm_and_compared() -> None:
    cut = reply(status=AnswerStatus.NO_FINAL_ANSWER, finish_reason="length", text=None, reasoning_characters=40)

    def candidate(prompt: str, seed: int) -> Reply:
        return cut if int(prompt[4:]) < 9 else thinking(40)(prompt, seed)

    analysis = await compared(candidate, thinking(40))
    assert (analysis.reasoning.baseline.cut, analysis.reasoning.candidate.cut) == (0, 9)
    assert analysis.reasoning.pvalue_cut == pytest.approx(2 * 0.5**9 - 0.5**9)
    assert said(analysis, "cut by the limit").startswith(
        "Thoughts were cut by the limit on tokens: 0 in the baseline, 9 in the candidate (p 0.002)"
    )


async def test_thoughts_in_the_text_that_never_end_are_cut_too() -> None:
    analysis = await compared(
        lambda p, s: reply("<think>and then", status=AnswerStatus.TRUNCATED, finish_reason="length"), n_items=40
    )
    assert analysis.reasoning.candidate.cut == 40
