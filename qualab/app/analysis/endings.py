"""How answers end, and what is thought before them: compared between the arms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from qualab.domain.comparison import ArmSummary, ReasoningSummary, Thoughts
from qualab.domain.items import Answer, Reply
from qualab.domain.names import AnswerStatus, ArmName
from qualab.domain.numbers import count, percent
from qualab.domain.plan import OTHERS_CAP, Plan
from qualab.domain.text import line_text
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar

KNOWN_ENDINGS = frozenset(
    {"stop", "length", "eos", "eos_token", "stop_sequence", "stop_token", "end_turn", "max_tokens", "model_length"}
)
"""Finish reasons of an answer that ended by itself or at a limit; any other one cut it, or is not known."""
MOST_ENDINGS = 3
MOST_CHARACTERS = 40
OPENS = re.compile(r"<think(?:ing)?>|<reasoning>|<thought>|\[THINK\]|◁think▷|<\|channel\|>analysis", re.IGNORECASE)
CLOSES = re.compile(r"</think(?:ing)?>|</reasoning>|</thought>|\[/THINK\]|◁/think▷|<\|channel\|>final", re.IGNORECASE)
"""The marks of models around what they think, where no reasoning parser takes it out of the text."""

Place = tuple[int, int]
"""Position and repeat."""


@dataclass(slots=True)
class _ArmThoughts:
    n_tagged: int = 0
    n_apart: int = 0
    characters: dict[Place, int] = field(default_factory=dict)
    """Of every generation that came back, with thoughts or without."""
    cut: set[Place] = field(default_factory=set)

    def add(self, reply: Reply, place: Place) -> None:
        if not reply.status.is_answer and reply.status is not AnswerStatus.NO_FINAL_ANSWER:
            return
        text = reply.text or ""
        closes, opens = CLOSES.search(text), OPENS.search(text)
        self.n_tagged += bool(closes or opens)
        self.n_apart += reply.reasoning_characters > 0
        in_text = closes.end() if closes else len(text) if opens else 0
        self.characters[place] = reply.reasoning_characters + in_text
        has_begun = reply.status.is_answer and (closes is not None or opens is None)
        if not has_begun and reply.finish_reason == "length":
            self.cut.add(place)

    @property
    def told(self) -> Thoughts:
        lengths = [length for length in self.characters.values() if length]
        return Thoughts(
            n_answers=len(self.characters),
            in_text=self.n_tagged,
            apart=self.n_apart,
            mean_characters=sum(lengths) / len(lengths) if lengths else None,
            cut=len(self.cut),
        )


class ThoughtCount:
    """Counts what generations hold of reasoning, as answers go by, in any order."""

    def __init__(self) -> None:
        self._arms = {arm: _ArmThoughts() for arm in ArmName}

    def add(self, answer: Answer) -> None:
        self._arms[answer.arm].add(answer.reply, (answer.position, answer.repeat))

    @property
    def summary(self) -> ReasoningSummary | None:
        """None where no answer of either arm holds any."""
        baseline, candidate = (self._arms[arm] for arm in ArmName)
        if not any(one.n_tagged or one.n_apart or one.cut for one in (baseline, candidate)):
            return None
        places = baseline.characters.keys() & candidate.characters.keys()
        lengths = [(place[0], candidate.characters[place] - baseline.characters[place]) for place in places]
        cuts = [(place[0], (place in candidate.cut) - (place in baseline.cut)) for place in places]
        return ReasoningSummary(
            baseline=baseline.told,
            candidate=candidate.told,
            n_pairs=len(places),
            pvalue_length=_sign_test(lengths),
            pvalue_cut=_sign_test(cuts),
        )


def _sign_test(changes: Sequence[tuple[int, int]]) -> float:
    """Two-sided mid-p of as many items with more as with less; repeats of an item are summed. 1 without any."""
    of_items: dict[int, int] = {}
    for position, change in changes:
        of_items[position] = of_items.get(position, 0) + change
    more, less = (sum(sign * change > 0 for change in of_items.values()) for sign in (1, -1))
    return mcnemar(PairedCounts(n_items=len(of_items), gains=more, losses=less)).pvalue if more + less else 1.0


def thought_caveats(found: ReasoningSummary | None, plan: Plan) -> Iterator[str]:
    """What a reader of accuracies should know of the thinking before them."""
    if found is None:
        return
    for arm, own, other in (
        (ArmName.BASELINE, found.baseline, found.candidate),
        (ArmName.CANDIDATE, found.candidate, found.baseline),
    ):
        if own.in_text and not other.in_text:
            yield (
                f"Reasoning stands in the text of {count(own.in_text)} answers of the {arm} alone, where it is scored "
                "too: start both arms with the same reasoning parser (vLLM, SGLang: --reasoning-parser; llama.cpp: "
                "--reasoning-format)."
            )
        if own.apart and not other.apart:
            yield (
                f"Reasoning came beside {count(own.apart)} answers of the {arm} alone: thinking, or the reasoning "
                "parser, is on in one arm alone."
            )
    if found.baseline.cut or found.candidate.cut:
        yield (
            f"Thoughts were cut by the limit on tokens: {count(found.baseline.cut)} in the baseline, "
            f"{count(found.candidate.cut)} in the candidate (p {found.pvalue_cut:.2g}); give more room (max_gen_toks), "
            "or thinking a budget."
        )
    means = (found.baseline.mean_characters, found.candidate.mean_characters)
    if found.pvalue_length <= plan.rule.alpha and None not in means:
        yield (
            f"The arms think at different length: {means[0]:.0f} characters on average in the baseline, "
            f"{means[1]:.0f} in the candidate (p {found.pvalue_length:.2g})."
        )


def _odd(arm: ArmSummary) -> dict[str, int]:
    return {reason: n for reason, n in arm.finish_reasons.items() if reason not in KNOWN_ENDINGS}


def _odd_sentence(arm: ArmSummary) -> str:
    found = sorted(_odd(arm).items(), key=lambda entry: (-entry[1], entry[0]))[:MOST_ENDINGS]
    said = ", ".join(f"{line_text(reason)[:MOST_CHARACTERS]} ({count(n)})" for reason, n in found)
    n_odd = count(sum(_odd(arm).values()))
    return f"{n_odd} answers of the {arm.arm} ended neither by themselves nor at the limit: {said}"


def _cap(plan: Plan) -> float:
    return min((plan.rule_for(metric).missing_cap(is_primary=True) for metric in plan.primaries), default=OTHERS_CAP)


def _is_beyond(arm: ArmSummary, plan: Plan) -> bool:
    """What ended so is no less in doubt than what is missing: the same cap."""
    return sum(_odd(arm).values()) > _cap(plan) * arm.n_requests


def ending_caveats(arms: Sequence[ArmSummary], plan: Plan) -> Iterator[str]:
    """Answers that a filter, or something unknown, ended: fewer than the plan's cap of missing ones."""
    for arm in arms:
        if _odd(arm) and not _is_beyond(arm, plan):
            yield f"{_odd_sentence(arm)}. They are scored as they came."


def ending_troubles(arms: Sequence[ArmSummary], plan: Plan) -> Iterator[str]:
    """The same where they are more than the cap, which makes a comparison INVALID."""
    for arm in arms:
        if _odd(arm) and _is_beyond(arm, plan):
            yield f"{_odd_sentence(arm)}; more than the plan allows ({percent(_cap(plan))})"
