"""How answers end, and what is thought before them: compared between the arms."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qualab.model.comparison import ArmSummary, LeakSummary, ReasoningSummary, Thoughts
from qualab.model.items import Answer, Item, Place, Reply
from qualab.model.names import AnswerStatus, ArmName, LeakKind
from qualab.model.plan import OTHERS_CAP, Plan
from qualab.model.reason import Reason
from qualab.model.wording import line_text
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar
from qualab.stats.resampling import sign_flip

KNOWN_ENDINGS = frozenset(
    {"stop", "length", "eos", "eos_token", "stop_sequence", "stop_token", "end_turn", "max_tokens", "model_length"}
)
"""Finish reasons of an answer that ended by itself or at a limit; any other one cut it, or is not known."""
MOST_ENDINGS = 3
MOST_CHARACTERS = 40
OPENS = re.compile(r"<think(?:ing)?>|<reasoning>|<thought>|\[THINK\]|◁think▷|<\|channel\|>analysis", re.IGNORECASE)
CLOSES = re.compile(r"</think(?:ing)?>|</reasoning>|</thought>|\[/THINK\]|◁/think▷|<\|channel\|>final", re.IGNORECASE)
"""The marks of models around what they think, where no reasoning parser takes it out of the text."""


@dataclass(slots=True)
class _ArmThoughts:
    n_tagged: int = 0
    n_apart: int = 0
    characters: dict[Place, int] = field(default_factory=dict)
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
    def summary(self) -> Thoughts:
        lengths = [length for length in self.characters.values() if length]
        return Thoughts(
            n_answers=len(self.characters),
            in_text=self.n_tagged,
            apart=self.n_apart,
            mean_characters=sum(lengths) / len(lengths) if lengths else None,
            cut=len(self.cut),
        )


class ThoughtCount:
    """Counts reasoning in generations as they go by, in any order."""

    def __init__(self) -> None:
        self._arms = {arm: _ArmThoughts() for arm in ArmName}

    def add(self, answer: Answer) -> None:
        self._arms[answer.arm].add(answer.reply, (answer.position, answer.repeat))

    @property
    def summary(self) -> ReasoningSummary | None:
        """None where no answer of either arm holds any."""
        baseline, candidate = (self._arms[arm] for arm in ArmName)
        if not any(arm.n_tagged or arm.n_apart or arm.cut for arm in (baseline, candidate)):
            return None
        places = baseline.characters.keys() & candidate.characters.keys()

        def sign_test(changes: Iterable[tuple[int, int]]) -> float:
            of_items = Counter[int]()  # repeats of an item are summed
            for position, change in changes:
                of_items[position] += change
            return paired_pvalue(*(sum(sign * change > 0 for change in of_items.values()) for sign in (1, -1)))

        return ReasoningSummary(
            baseline=baseline.summary,
            candidate=candidate.summary,
            n_pairs=len(places),
            pvalue_length=sign_test((key[0], candidate.characters[key] - baseline.characters[key]) for key in places),
            pvalue_cut=sign_test((key[0], (key in candidate.cut) - (key in baseline.cut)) for key in places),
        )


def paired_pvalue(gains: int, losses: int) -> float:
    """Test gains against losses: two-sided mid-p McNemar; 1 where nothing changed."""
    return mcnemar(PairedCounts(n_items=max(1, gains + losses), gains=gains, losses=losses)).pvalue


def rate_pvalue(changes: npt.ArrayLike, items: npt.ArrayLike, *, repeats: int, rng: np.random.Generator) -> float:
    """Compare both arms' rates of a property of answers, two-sided.

    Args:
        changes: 1 where the candidate's answer alone has it, -1 where the baseline's alone does.
        items: the item of each answer, whose repeats flip together.
    """
    signs = np.asarray(changes, dtype=np.float64)
    if repeats == 1 or not signs.any():
        return paired_pvalue(int(np.sum(signs > 0.0)), int(np.sum(signs < 0.0)))
    return sign_flip(signs, cluster=np.asarray(items), rng=rng).pvalue


def thought_caveats(found: ReasoningSummary | None, plan: Plan) -> Iterator[Reason]:
    """Say how the arms think otherwise."""
    if found is None:
        return
    arms = found.baseline, found.candidate
    for arm, own, other in zip(ArmName, arms, reversed(arms), strict=True):
        if own.in_text and not other.in_text:
            yield Reason("reasoning-in-text", {"arm": arm, "n": own.in_text})
        if own.apart and not other.apart:
            yield Reason("reasoning-beside", {"arm": arm, "n": own.apart})
    if found.baseline.cut or found.candidate.cut:
        numbers = {"n_baseline": found.baseline.cut, "n_candidate": found.candidate.cut, "p": found.pvalue_cut}
        yield Reason("thoughts-cut", numbers)
    means = {"baseline": found.baseline.mean_characters, "candidate": found.candidate.mean_characters}
    if found.pvalue_length <= plan.rule.alpha and None not in means.values():
        yield Reason("thoughts-length", {**means, "p": found.pvalue_length})


def odd_endings(arms: Sequence[ArmSummary], plan: Plan, *, beyond: bool) -> Iterator[Reason]:
    """Name each arm with answers that a filter, or something unknown, ended.

    `beyond` the plan's cap for missing answers, a comparison is INVALID.
    """
    caps = (plan.rule_for(metric).missing_cap(is_primary=True) for metric in plan.primaries)
    cap = min(caps, default=OTHERS_CAP)
    for arm in arms:
        odd = {reason: n for reason, n in arm.finish_reasons.items() if reason not in KNOWN_ENDINGS}
        n_odd = sum(odd.values())
        if not odd or (n_odd > cap * arm.n_requests) is not beyond:
            continue
        commonest = sorted((-n, text) for text, n in odd.items())[:MOST_ENDINGS]
        endings = (Reason("ending", {"reason": line_text(text)[:MOST_CHARACTERS], "n": -n}) for n, text in commonest)
        values = {"arm": arm.arm, "n": n_odd, "endings": tuple(endings)}
        yield Reason("odd-endings.beyond", {**values, "share": cap}) if beyond else Reason("odd-endings", values)


Leaks = frozenset[LeakKind]
SPECIAL_TOKEN = re.compile(
    r"<[|｜][^\s<>]{1,40}[|｜]>|\[\|[a-z]{2,20}\|\]|\[/?INST\]|</?s>"
    r"|<(?:pad|unk|bos|eos|(?:start|end)_of_turn|unused\d+|extra_id_\d+|0x[0-9A-F]{2})>"
)
"""Control tokens of chat templates and tokenizers, as they look where an engine writes them out."""


def leaks_in(reply: Reply, item: Item) -> Leaks:
    """Return the leaks that one answer shows by itself."""
    text = reply.text or ""
    stops = item.requests[0].payload.get("stop") or () if item.requests else ()  # imported items have no request
    shown = {
        LeakKind.STOP_STRING: any(stop in text for stop in stops),
        LeakKind.SPECIAL_TOKEN: SPECIAL_TOKEN.search(text) is not None,
        LeakKind.BROKEN_CHARACTER: "\N{REPLACEMENT CHARACTER}" in text,
        LeakKind.LENGTH_LIMIT: reply.status is AnswerStatus.TRUNCATED,
    }
    return frozenset(kind for kind, holds in shown.items() if holds)


@dataclass(frozen=True, slots=True)
class LeakTrace:
    """One answer's text with its own leaks."""

    text: str
    leaks: Leaks

    def beside(self, other: LeakTrace) -> Leaks:
        """Add CUT_SHORT where the other arm's text goes on, neither at a limit nor by a leak."""
        if self.text == other.text or other.leaks or LeakKind.LENGTH_LIMIT in self.leaks:
            return self.leaks
        own, whole = self.text.rstrip(), other.text.rstrip()
        return self.leaks | {LeakKind.CUT_SHORT} if own != whole and whole.startswith(own) else self.leaks


@dataclass(slots=True)
class LeakCount:
    """Counts leaks over pairs as they go by."""

    n_pairs: int = 0
    n: Counter[tuple[ArmName, LeakKind]] = field(default_factory=Counter)
    in_one_arm: defaultdict[LeakKind, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Position, and +1 where the candidate alone leaks, -1 where the baseline alone does."""

    def add(self, position: int, baseline: LeakTrace, candidate: LeakTrace) -> None:
        """Count one pair."""
        self.n_pairs += 1
        off, on = baseline.beside(candidate), candidate.beside(baseline)
        for arm, leaks in zip(ArmName, (off, on), strict=True):
            self.n.update((arm, kind) for kind in leaks)
        for kind in off ^ on:
            self.in_one_arm[kind].append((position, 1 if kind in on else -1))

    def summaries(self, rng: np.random.Generator, *, repeats: int) -> tuple[LeakSummary, ...]:
        summaries = []
        for kind in LeakKind:
            off, on = (self.n[arm, kind] for arm in ArmName)
            if off or on:
                positions, signs = np.array(sorted(self.in_one_arm[kind]), dtype=np.int64).reshape(-1, 2).T
                summaries.append(
                    LeakSummary(
                        kind=kind,
                        n_pairs=self.n_pairs,
                        n_baseline=off,
                        n_candidate=on,
                        n_both=on - int(np.sum(signs > 0)),
                        pvalue=rate_pvalue(signs, positions, repeats=repeats, rng=rng),
                    )
                )
        return tuple(summaries)


def leak_reasons(leaks: tuple[LeakSummary, ...], alpha: float) -> Iterator[Reason]:
    """Name each leak in which the arms differ, at alpha over all kinds (Bonferroni)."""
    for leak in leaks:
        if leak.pvalue <= alpha / len(LeakKind):
            numbers = {"n_baseline": leak.n_baseline, "n_candidate": leak.n_candidate, "p": leak.pvalue}
            yield Reason("leak", {"kind": leak.kind.value, **numbers})
