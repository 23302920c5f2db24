"""Finish reasons that are odd, and what is thought before an answer: counted by arm, compared, said."""

from __future__ import annotations

from typing import Any

import pytest

from qualab.model.comparison import Analysis
from qualab.model.items import Reply
from qualab.model.names import AnswerStatus, Verdict
from qualab.model.plan import DecisionRule
from tests.app.fakes import Answerer, Bench, echo_number, reply
from tests.said import english


async def compared(on: Answerer, off: Answerer = echo_number, **rule: Any) -> Analysis:
    return await Bench.of(200, on=on, off=off).run(rule=DecisionRule(**rule))


def first(n: int, **changes: Any) -> Answerer:
    """The right answers, the first `n` of them changed."""
    return lambda p, s: reply(p[4:], **changes if int(p[4:]) < n else {})


def said(analysis: Analysis, part: str) -> list[str]:
    """Caveats and reasons that hold this."""
    return [one for one in (*english(analysis.caveats), *english(analysis.reasons)) if part in one]


@pytest.mark.parametrize("reason", ["content_filter", "tool_calls", "{'type': 'stop'}", "new\nline"])
async def test_an_odd_finish_reason_is_a_caveat(reason: str) -> None:
    usual = first(200, finish_reason="eos_token")
    analysis = await compared(first(7, finish_reason=reason), usual, max_missing_share=0.05)
    assert analysis.verdict is Verdict.EQUIVALENT
    assert said(analysis, "ended neither") == [
        "7 answers of the candidate ended neither by themselves nor at the limit: "
        f"{reason.replace(chr(10), chr(92) + 'n')} (7). They are scored as they came."
    ]


async def test_odd_finish_reasons_beyond_the_cap_of_missing_answers_are_invalid() -> None:
    analysis = await compared(first(2, finish_reason="content_filter"))
    assert analysis.verdict is Verdict.INVALID
    assert said(analysis, "content_filter (2)")[-1].endswith("more than the plan allows (0.5 %)")


def thinking(characters: int, **changes: Any) -> Answerer:
    thought = "hm" * (characters // 2)
    return first(200, reasoning=thought, reasoning_characters=len(thought), **changes)


def wrapped(text: str, **changes: Any) -> Answerer:
    return lambda p, s: reply(text.format(p[4:]), **changes)


@pytest.mark.parametrize("text", ["<think>hm</think>{}", "hm</think>{}", "<think>hm{}", "[THINK]hm[/THINK]{}"])
async def test_reasoning_in_the_text_of_one_arm_alone_names_the_parser(text: str) -> None:
    analysis = await compared(wrapped(text))
    (caveat,) = said(analysis, "Reasoning stands in the text of 200 answers of the candidate alone")
    assert "--reasoning-parser" in caveat
    assert (analysis.reasoning.baseline.in_text, analysis.reasoning.candidate.in_text) == (0, 200)


async def test_reasoning_is_summed_up_where_there_is_some_and_said_where_one_arm_alone_has_it() -> None:
    assert (await compared(echo_number)).reasoning is None
    assert len(said(await compared(thinking(40)), "Reasoning came beside 200 answers of the candidate alone")) == 1
    for alike, in_text in ((wrapped("<think>hm</think>{}"), 200), (thinking(40), 0)):
        analysis = await compared(alike, alike)
        assert (said(analysis, "Reasoning "), said(analysis, "hink")) == ([], [])
        assert analysis.reasoning.pvalue_length == analysis.reasoning.pvalue_cut == 1.0
        assert analysis.reasoning.candidate.in_text == in_text


async def test_an_arm_that_thinks_longer_is_told() -> None:
    analysis = await compared(lambda p, s: thinking(60 if int(p[4:]) < 30 else 40)(p, s), thinking(40))
    (caveat,) = said(analysis, "think at different length")
    told = "The arms think at different length: 40 characters on average in the baseline, 43 in the candidate"
    assert caveat.startswith(told)
    assert analysis.reasoning.pvalue_length < 1e-6


@pytest.mark.parametrize(
    "cut",
    [
        reply(status=AnswerStatus.NO_FINAL_ANSWER, finish_reason="length", text=None, reasoning_characters=40),
        reply("<think>and then", status=AnswerStatus.TRUNCATED, finish_reason="length"),
    ],
)
async def test_thoughts_that_the_limit_cuts_are_counted_by_arm_and_compared(cut: Reply) -> None:
    analysis = await compared(lambda p, s: cut if int(p[4:]) < 9 else thinking(40)(p, s), thinking(40))
    assert (analysis.reasoning.baseline.cut, analysis.reasoning.candidate.cut) == (0, 9)
    assert analysis.reasoning.pvalue_cut == pytest.approx(0.5**9)
    (caveat,) = said(analysis, "cut by the limit")
    told = "Thoughts were cut by the limit on tokens: 0 in the baseline, 9 in the candidate (p 0.002)"
    assert caveat.startswith(told)
