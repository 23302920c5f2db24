"""Where texts that differ begin to, in tokens: the same rows on a terminal and in a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qualab.model.comparison import Analysis
from qualab.model.engine import FirstTokenSummary, TokensCompared
from qualab.model.names import RequestKind
from qualab.model.plan import Plan
from qualab.model.report import Cell
from qualab.model.wording import count
from qualab.report.words import Words


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """All tasks, or one of several."""

    label: str
    baseline: Cell | None
    """The baseline against itself; None without a noise floor."""
    candidate: Cell


def token_rows(found: FirstTokenSummary | None, words: Words) -> Iterator[TokenRow]:
    """All tasks, then each in which texts differ where there are several."""
    if found is None or not _differ(found.baseline, found.candidate):
        return
    yield _row(words("first token"), found.baseline, found.candidate, words)
    if len(found.tasks) > 1:
        for one in found.tasks:
            if _differ(one.baseline, one.candidate):
                yield _row(words("first token in", task=one.task), one.baseline, one.candidate, words)


def token_notes(plan: Plan, analysis: Analysis, words: Words) -> Iterator[str]:
    """Whose tokens they are, or why there are none; nothing where nothing generates, or no text differs."""
    found = analysis.tokens
    if found is None:
        if plan.imported:
            yield words("tokens imported")
        elif any(task.kind is RequestKind.GENERATION for task in plan.tasks):
            yield words("tokens unseen")
        return
    both = [one for one in (found.baseline, found.candidate) if one]
    who = words(f"tokens {found.by}")
    if any(one.n_tokenized for one in both):
        yield words("tokens how", who=who)
    if found.lack:
        yield words(f"tokens lack {found.lack}", who=who)


def _differ(*compared: TokensCompared | None) -> bool:
    return any(one.n_differ for one in compared if one)


def _row(label: str, baseline: TokensCompared | None, candidate: TokensCompared, words: Words) -> TokenRow:
    return TokenRow(
        label=label,
        baseline=_place(baseline, words) if baseline else None,
        candidate=_place(candidate, words),
    )


def _place(one: TokensCompared, words: Words) -> Cell:
    pairs = {"known": count(one.n_tokenized), "total": count(one.n_differ)}
    if not one.n_differ:
        return Cell(text=words("no text differs"))
    if not one.n_tokenized:
        return Cell(text=words("tokens unknown", **pairs))
    if one.first_difference is None:
        return Cell(text=words("tokens the same", **pairs))
    place = one.first_difference
    return Cell(text=words("token at", n=f"{place:,.0f}", **pairs), value=place)
