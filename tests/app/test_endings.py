"""Odd endings, thoughts and leaks: counted by arm, compared, said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qualab.analysis.endings import LeakCount, LeakTrace, leak_reasons, leaks_in
from qualab.analysis.flips import text_pairs
from qualab.model.comparison import Analysis
from qualab.model.items import Request
from qualab.model.names import AnswerStatus, Api, LeakKind, Verdict
from qualab.model.plan import DecisionRule
from tests.app.fakes import Answerer, Bench, FakeTasks, echo_number, reply
from tests.said import english
from tests.store.samples import make_item


async def compared(on: Answerer, off: Answerer = echo_number, **rule: Any) -> Analysis:
    return await Bench.of(200, on=on, off=off).run(rule=DecisionRule(**rule))


def first(n: int, **changes: Any) -> Answerer:
    """The right answers, the first `n` of them changed."""
    return lambda p, s: reply(p[4:], **changes if int(p[4:]) < n else {})


def said(analysis: Analysis, part: str) -> list[str]:
    """Caveats and reasons that hold this."""
    return [one for one in (*english(analysis.caveats), *english(analysis.reasons)) if part in one]


@pytest.mark.parametrize("reason", ["content_filter", "tool_calls", "{'type': 'stop'}", "new\nline"])
async def test_an_odd_finish_reason_is_a_caveat_and_beyond_the_cap_of_missing_answers_invalid(reason: str) -> None:
    usual = first(200, finish_reason="eos_token")
    analysis = await compared(first(7, finish_reason=reason), usual, max_missing_share=0.05)
    assert analysis.verdict is Verdict.EQUIVALENT
    named = f"{reason.replace(chr(10), chr(92) + 'n')} (7)"
    told = f"7 answers of the candidate ended neither by themselves nor at the limit: {named}."
    assert said(analysis, "ended neither") == [f"{told} They are scored as they came."]
    strict = await compared(first(7, finish_reason=reason), usual)
    assert strict.verdict is Verdict.INVALID
    assert said(strict, named)[-1].endswith("more than the plan allows (0.5 %)")


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


async def test_thoughts_that_are_longer_or_cut_in_one_arm_are_counted_by_arm_and_compared() -> None:
    longer = await compared(lambda p, s: thinking(60 if int(p[4:]) < 30 else 40)(p, s), thinking(40))
    (caveat,) = said(longer, "think at different length")
    told = "The arms think at different length: 40 characters on average in the baseline, 43 in the candidate"
    assert caveat.startswith(told)
    assert longer.reasoning.pvalue_length < 1e-6
    for cut in (
        reply(status=AnswerStatus.NO_FINAL_ANSWER, finish_reason="length", text=None, reasoning_characters=40),
        reply("<think>and then", status=AnswerStatus.TRUNCATED, finish_reason="length"),
    ):
        answers = {f"say {n}": cut for n in range(9)}
        analysis = await compared(lambda p, s, own=answers: own.get(p) or thinking(40)(p, s), thinking(40))
        assert (analysis.reasoning.baseline.cut, analysis.reasoning.candidate.cut) == (0, 9)
        assert analysis.reasoning.pvalue_cut == pytest.approx(0.5**9)
        (caveat,) = said(analysis, "cut by the limit")
        told = "Thoughts were cut by the limit on tokens: 0 in the baseline, 9 in the candidate (p 0.002)"
        assert caveat.startswith(told)


IT_IS = wrapped("{} it is")
ITEM = make_item(0, requests=(Request(choice=0, api=Api.COMPLETIONS, payload={"stop": ["\n\n", "Q:"]}),))


class Lenient(FakeTasks):
    """Right is what begins with the number; item 1 is too hard."""

    def score(self, task: str, answered: Any) -> list[dict[str, float]]:
        return [
            {"exact_match,none": float((replies[0].text or "").split()[:1] == [item.target] and item.doc_id != 1)}
            for item, replies in answered
        ]


def every_eighth(answer: Answerer) -> Bench:
    """Both arms answer alike but for this, in the candidate."""
    return Bench.of(200, Lenient, off=IT_IS, on=lambda p, s: (IT_IS if int(p[4:]) % 8 else answer)(p, s))


@pytest.mark.parametrize(
    ("kind", "leaking", "said"),
    [
        (LeakKind.STOP_STRING, "{} it is END say 7", "answers past a stop string"),
        (LeakKind.SPECIAL_TOKEN, "{} it is<|im_end|>", "answers with special tokens"),
        (LeakKind.BROKEN_CHARACTER, "{} it �is", "answers with broken characters (U+FFFD)"),
        (LeakKind.CUT_SHORT, "{} it", "answers that end by themselves before the other arm's"),
        (LeakKind.LENGTH_LIMIT, "{} it", "answers cut at the length limit"),
    ],
)
async def test_a_leak_in_one_arm_is_said_beside_the_verdict_and_listed(kind: LeakKind, leaking: str, said: str) -> None:
    cut = {"status": AnswerStatus.TRUNCATED, "finish_reason": "length"} if kind is LeakKind.LENGTH_LIMIT else {}
    found = await (bench := every_eighth(wrapped(leaking, **cut))).run()
    assert found.verdict is Verdict.EQUIVALENT
    (leak,) = found.leaks
    assert (leak.kind, leak.n_pairs, leak.n_baseline, leak.n_candidate, leak.n_both) == (kind, 200, 0, 25, 0)
    assert leak.pvalue == pytest.approx(2.0**-25)
    assert english(found.reasons)[1].startswith(f"{said}: 25 of the candidate and 0 of the baseline (p 3e-08)")
    listed = text_pairs(bench.store, found.comparison_id, leaks=True, limit=3)
    assert (listed.n_pairs, [one.item for one in listed.shown]) == (25, ["sums/0", "sums/8", "sums/16"])
    assert [one.leaks for one in listed.shown] == [((), (kind,))] * 3


async def test_what_both_arms_do_alike_is_counted_and_no_reason() -> None:
    found = await Bench.of(200, Lenient, off=wrapped("{} it is </s>"), on=wrapped("{} it was </s>")).run()
    (leak,) = found.leaks
    assert (leak.n_baseline, leak.n_candidate, leak.n_both, leak.pvalue) == (200, 200, 200, 1.0)
    assert len(english(found.reasons)) == 1


async def test_other_texts_without_a_flip_are_listed_and_flips_are_not() -> None:
    bench = every_eighth(lambda p, s: reply("no") if p == "say 16" else wrapped("{} I think")(p, s))
    found = await bench.run()
    listed = text_pairs(bench.store, found.comparison_id, limit=2)
    assert (listed.n_pairs, [one.item for one in listed.shown]) == (24, ["sums/0", "sums/8"])
    assert (listed.shown[0].answers, listed.shown[0].first_difference) == (("0 it is", "0 I think"), 2)
    assert found.leaks == ()


def test_a_text_that_goes_on_with_a_leak_cuts_the_other_arm_nothing() -> None:
    whole, past, cut = (
        LeakTrace(text, leaks_in(reply(text), ITEM)) for text in ("It is 4.", "It is 4.\n\nQ: 5?", "It is")
    )
    assert (whole.beside(past), past.beside(whole)) == (frozenset(), {LeakKind.STOP_STRING})
    assert (cut.beside(whole), whole.beside(cut)) == ({LeakKind.CUT_SHORT}, frozenset())
    assert LeakTrace("It is 4.\n", frozenset()).beside(whole) == frozenset()


def test_control_tokens_of_common_tokenizers_are_known_and_ordinary_text_is_no_leak() -> None:
    tokens = ["<|im_end|>", "a<|eot_id|>", "<｜end▁of▁sentence｜>", "[|endofturn|]"]
    tokens += ["</s>", "<end_of_turn>", "[/INST]", "<0x0A>"]
    plain = ["a < b and b > c", "x[0] | y[1]", "<b>bold</b>", "|a|b|", "정답은 <보기>입니다", "<s1>"]
    assert [leaks_in(reply(text), ITEM) for text in tokens] == [{LeakKind.SPECIAL_TOKEN}] * 8
    assert [leaks_in(reply(text), ITEM) for text in plain] == [frozenset()] * 6


def test_repeats_of_an_item_count_once() -> None:
    plain, leaking = LeakTrace("a", frozenset()), LeakTrace("b", frozenset({LeakKind.SPECIAL_TOKEN}))
    count = LeakCount()
    for position in range(4):
        for _ in range(16):
            count.add(position, plain, leaking)
    (found,) = count.summaries(np.random.default_rng(1), repeats=16)
    assert (found.n_candidate, found.pvalue) == (64, pytest.approx(0.5**4))  # mid-p
    assert list(leak_reasons((found,), 0.05)) == []
