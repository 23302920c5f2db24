"""Verification of what is shown beside answers and analyses: the row of the comparison, items' outcomes, sign-offs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest

from qualab.app.outcomes import outcomes_of
from qualab.app.signing import ACTION, HASH, details_of
from qualab.app.verified import Check, Stored, checked
from qualab.domain.access import AuditEntry
from qualab.domain.comparison import Analysis
from qualab.domain.names import ComparisonStatus
from qualab.domain.outcomes import Outcome, OutcomeFilter
from qualab.domain.seals import SealedAnalysis
from qualab.domain.signoffs import SignOff
from qualab.domain.text import storable_text

MOST_SHOWN = 3
A_PAGE = 5_000


def row_check(stored: Stored, analysis: Analysis | None) -> Check:
    """What lists and polls show of a comparison is what its plan and its newest analysis say."""
    shown, plan = stored.registry.summary(stored.comparison.id), stored.comparison.plan
    meant = {
        "verdict": (shown.verdict, analysis.verdict if analysis else None),
        "model": (shown.model, storable_text(plan.sampling.model)),
        "suite": (shown.suite, storable_text(plan.suite)),
        "number of items": (shown.n_items, sum(task.n_items for task in plan.tasks)),
        "analysis": (shown.status is ComparisonStatus.FINISHED, analysis is not None),
    }
    if shown.status is not ComparisonStatus.FINISHED:  # taken up again: the former analysis stands until the end
        del meant["analysis"]
    wrong = [name for name, (is_shown, is_meant) in meant.items() if is_shown != is_meant]
    verdict = shown.verdict.value if shown.verdict else "no verdict yet"
    return checked("row", not wrong, f"{verdict}, as analysed", f"its {', '.join(wrong)} is not what was analysed")


def outcomes_check(stored: Stored) -> Check:
    """What became of each item is what its answers and scores say."""
    comparison = stored.comparison
    if not stored.registry.has_outcomes(comparison.id):
        return Check(name="outcomes", is_ok=None, detail="made when they are first asked for")
    meant = outcomes_of(stored.store, comparison, stored.items)
    pairs = list(zip_longest(_outcomes(stored), meant))
    wrong = sum(kept != one for kept, one in pairs)
    return checked("outcomes", not wrong, f"{len(pairs):,}, as scored", f"{wrong:,} of {len(pairs):,} differ")


def _outcomes(stored: Stored) -> Iterator[Outcome]:
    cursor, comparison_id = None, stored.comparison.id
    while True:
        page = stored.registry.outcomes(comparison_id, OutcomeFilter(), cursor=cursor, limit=A_PAGE)
        yield from page.entries
        cursor = page.next_cursor
        if cursor is None:
            return


def signoffs_check(stored: Stored) -> Check:
    """Each stands as it does in the record of changes, of a verdict that is sealed here."""
    comparison_id = stored.comparison.id
    signed = stored.registry.signoffs(comparison_id)
    recorded = stored.registry.recorded(comparison_id, ACTION)
    if not signed and not recorded:
        return Check(name="sign-off", is_ok=None, detail="none")
    sealed = {one.seal: one for one in stored.own_seals}
    pairs = zip_longest(signed, recorded)
    wrong = [_name(one, entry) for one, entry in pairs if not _is_as_made(one, entry, sealed)]
    newest = f"by {signed[-1].signed_by}, of seal {signed[-1].analysis_hash[:12]}" if signed else ""
    named = ", ".join(wrong[:MOST_SHOWN])
    return checked("sign-off", not wrong, newest, f"that of {named} is not what was recorded, or not of what is here")


def _is_as_made(one: SignOff | None, entry: AuditEntry | None, sealed: Mapping[str, SealedAnalysis]) -> bool:
    """Versions before wrote less down."""
    if one is None or entry is None or one.analysis_hash not in sealed:
        return False
    of = sealed[one.analysis_hash]
    meant = {name: storable_text(text) for name, text in details_of(one).items()}
    said = {name: storable_text(entry.details.get(name, "")) for name in meant}
    if HASH not in entry.details:
        del meant[HASH], said[HASH]
    is_of_analysis = one.plan_hash == of.plan_hash and one.verdict == json.loads(of.body)["verdict"]
    return is_of_analysis and meant == said and one.signed_at == entry.at


def _name(one: SignOff | None, entry: AuditEntry | None) -> str:
    if one is not None:
        return one.signed_by
    return entry.details.get("as", "") if entry else ""
