"""Text that an engine should not have given, and text that it left out: by arm, compared over pairs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from qualab.domain.comparison import LeakSummary
from qualab.domain.items import Item, Reply
from qualab.domain.names import AnswerStatus, ArmName, LeakKind
from qualab.domain.numbers import count
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar
from qualab.stats.resampling import sign_flip

Leaks = frozenset[LeakKind]
NO_LEAK: Leaks = frozenset()
SPECIAL_TOKEN = re.compile(
    r"<[|｜][^\s<>]{1,40}[|｜]>|\[\|[a-z]{2,20}\|\]|\[/?INST\]|</?s>"
    r"|<(?:pad|unk|bos|eos|(?:start|end)_of_turn|unused\d+|extra_id_\d+|0x[0-9A-F]{2})>"
)
"""Control tokens of chat templates and tokenizers, as they look where an engine writes them out."""
BROKEN = "\N{REPLACEMENT CHARACTER}"
SAYS = {
    LeakKind.STOP_STRING: "go on past a stop string",
    LeakKind.SPECIAL_TOKEN: "hold special tokens",
    LeakKind.BROKEN_CHARACTER: "hold broken characters (U+FFFD)",
    LeakKind.CUT_SHORT: "end by themselves before the other arm's text does",
    LeakKind.LENGTH_LIMIT: "were cut at the length limit",
}


def stop_strings(item: Item) -> tuple[str, ...]:
    """The stop strings of a generation's request; empty where there is no request, as in imported comparisons."""
    return tuple(item.requests[0].payload.get("stop") or ()) if item.requests else ()


def leaks_in(reply: Reply, item: Item) -> Leaks:
    """What one answer shows by itself."""
    text = reply.text or ""
    found = {
        LeakKind.STOP_STRING: any(stop in text for stop in stop_strings(item)),
        LeakKind.SPECIAL_TOKEN: SPECIAL_TOKEN.search(text) is not None,
        LeakKind.BROKEN_CHARACTER: BROKEN in text,
        LeakKind.LENGTH_LIMIT: reply.status is AnswerStatus.TRUNCATED,
    }
    return frozenset(kind for kind, holds in found.items() if holds) if any(found.values()) else NO_LEAK


@dataclass(frozen=True, slots=True)
class LeakTrace:
    """One answer's text with what it shows by itself."""

    text: str
    leaks: Leaks

    def beside(self, other: LeakTrace) -> Leaks:
        """The same, and whether it stops where the other arm's text goes on, neither at a limit nor by a leak."""
        if self.text == other.text or other.leaks or LeakKind.LENGTH_LIMIT in self.leaks:
            return self.leaks
        own, whole = self.text.rstrip(), other.text.rstrip()
        return self.leaks | {LeakKind.CUT_SHORT} if own != whole and whole.startswith(own) else self.leaks


@dataclass(slots=True)
class LeakCount:
    """Counts kinds of leaks over pairs as they go by."""

    n_pairs: int = 0
    n: dict[tuple[ArmName, LeakKind], int] = field(default_factory=dict)
    in_one_arm: dict[LeakKind, list[tuple[int, int]]] = field(default_factory=dict)
    """Position, and +1 where the candidate alone leaks, -1 where the baseline alone does."""

    def add(self, position: int, baseline: LeakTrace, candidate: LeakTrace) -> None:
        self.n_pairs += 1
        off, on = baseline.beside(candidate), candidate.beside(baseline)
        for arm, leaks in zip(ArmName, (off, on), strict=True):
            for kind in leaks:
                self.n[arm, kind] = self.n.get((arm, kind), 0) + 1
        for kind in off ^ on:
            self.in_one_arm.setdefault(kind, []).append((position, 1 if kind in on else -1))

    def summaries(self, rng: np.random.Generator, *, repeats: int) -> tuple[LeakSummary, ...]:
        """Of each kind that there is: its numbers, and a paired test of the arms' rates."""
        return tuple(self._summary(kind, rng, repeats) for kind in LeakKind if any(kind is one for _, one in self.n))

    def _summary(self, kind: LeakKind, rng: np.random.Generator, repeats: int) -> LeakSummary:
        signs = sorted(self.in_one_arm.get(kind, ()))
        candidate_only = sum(sign > 0 for _, sign in signs)
        if not signs:
            pvalue = 1.0
        elif repeats == 1:
            losses = len(signs) - candidate_only
            pvalue = mcnemar(PairedCounts(n_items=self.n_pairs, gains=candidate_only, losses=losses)).pvalue
        else:  # repeats of an item are no items of their own
            positions, values = np.array(signs).T
            pvalue = sign_flip(values, cluster=positions, rng=rng).pvalue
        off, on = (self.n.get((arm, kind), 0) for arm in ArmName)
        return LeakSummary(
            kind=kind, n_pairs=self.n_pairs, n_baseline=off, n_candidate=on, n_both=on - candidate_only, pvalue=pvalue
        )


def leak_reasons(found: tuple[LeakSummary, ...], alpha: float) -> Iterator[str]:
    """A sentence for each kind in which the arms differ, at alpha over all kinds together (Bonferroni)."""
    for one in found:
        if one.pvalue <= alpha / len(LeakKind):
            yield (
                f"{count(one.n_candidate)} answers of the candidate and {count(one.n_baseline)} of the baseline "
                f"{SAYS[one.kind]} (p {one.pvalue:.2g}): `qualab show --leaks` lists them"
            )
