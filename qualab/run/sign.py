"""Signs a result off, or says what keeps it from that: one list of conditions for everybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from qualab.analysis.ruling import PASSING, suspicions
from qualab.errors import InvalidValue, WrongState
from qualab.model.canonical import canonical_json, sha256
from qualab.model.comparison import Analysis, Comparison, SignOff
from qualab.model.names import RequestKind
from qualab.model.plan import FindingCode
from qualab.model.reason import Reason
from qualab.model.registry import AuditEntry
from qualab.model.wording import storable_text
from qualab.report.words import ENGLISH

if TYPE_CHECKING:
    from qualab.store import Store


def signoff_obstacles(analysis: Analysis, comparison: Comparison) -> Iterator[Reason]:
    """Find why this analysis may not stand for a release."""
    plan = comparison.plan
    if analysis.verdict not in PASSING[plan.rule.objective]:
        yield Reason("verdict-is", {"verdict": analysis.verdict})
    yield from suspicions(analysis.metrics)
    if analysis.plan_hash != comparison.plan_hash:
        yield Reason("plan-after-data")
    if plan.imported:
        yield Reason("of-two-runs" if plan.imported.is_of_store else "of-logs")
        if any(finding.code is FindingCode.SAME_RUN for finding in plan.imported.findings):
            yield Reason("may-be-one-run")
        if not plan.imported.plan_hash or plan.imported.is_rule_changed:
            yield Reason("margin-after-data")
    if plan.limit is not None:
        yield Reason("limited-items", {"limit": plan.limit})
    if plan.pins.unpinned:
        yield Reason("unpinned-parts", {"parts": plan.pins.unpinned})
    if plan.bank and not plan.bank.signoff:
        yield Reason("bank-unsigned", {"name": plan.bank.name})
    if plan.sequential:
        yield Reason("one-after-the-other")
    if not any(task.kind is RequestKind.GENERATION for task in plan.tasks):
        yield Reason("no-drafter-task")
    elif analysis.treatment is None or not analysis.treatment.is_observed:
        yield Reason("drafter-untold")


ACTION = "comparison.sign-off"
MOST_CHARACTERS = {"signed_by": 200, "note": 2_000, "override": 2_000}


def analysed(store: Store, comparison_id: str, *, plan_hash: str | None = None) -> tuple[Comparison, Analysis]:
    """Read a comparison with its newest analysis, under its own plan unless another is named.

    Raises ComparisonNotFound, WrongState where it has none.
    """
    comparison = store.get(comparison_id)
    analysis = store.analysis(comparison.id, plan_hash=plan_hash)
    if analysis is None:
        raise WrongState(
            f"Comparison {comparison.id} is {comparison.status.value}: it has no analysis yet",
            hint=f"Finish it first: qualab resume {comparison.id}",
            code="not-yet",
        )
    return comparison, analysis


def sign_off(
    store: Store,
    comparison_id: str,
    *,
    signed_by: str,
    note: str = "",
    override: str = "",
    who: str,
    at: datetime,
    details: Mapping[str, str] | None = None,
) -> SignOff:
    """Accept the newest analysis under the comparison's own plan. `who` and `details` stand in the record of changes.

    Raises ComparisonNotFound; WrongState where there is no verdict, or where something is in the way (it names
    everything) and `override` gives no reason; InvalidValue for a name, text or reason that cannot be.
    """
    if not signed_by.strip():
        raise InvalidValue(
            "Nobody is named who signs off", hint="Give a name", fields={"signed_by": "must not be empty"}
        )
    if not signed_by.strip().isprintable():
        raise InvalidValue.must_be("signed_by", "a name on one line, without control characters")
    for name, text in {"signed_by": signed_by, "note": note, "override": override}.items():
        if len(text) > MOST_CHARACTERS[name] or storable_text(text) != text:
            raise InvalidValue.must_be(name, f"at most {MOST_CHARACTERS[name]:,} characters, without NUL")
    comparison, analysis = analysed(store, comparison_id)
    obstacles = tuple(signoff_obstacles(analysis, comparison))
    if obstacles and not override.strip():
        hint = "To accept it all the same, give the reason (`override`; in a terminal --override): the report shows it"
        raise WrongState(
            f"Comparison {comparison.id} may not be signed off: {'; '.join(ENGLISH.reasons(obstacles))}",
            hint=hint,
            code="sign-off-refused",
            fields={"override": hint},
        )
    if override.strip() and not obstacles:
        raise InvalidValue(
            f"Nothing stands in the way of signing off {comparison.id}: there is nothing to override",
            hint="Leave the override out",
            fields={"override": "must be empty here"},
        )
    signed = SignOff(
        comparison_id=comparison.id,
        plan_hash=comparison.plan_hash,
        analysis_hash=newest_seal(store, comparison),
        verdict=analysis.verdict,
        signed_by=signed_by.strip(),
        note=note.strip(),
        override=override.strip(),
        obstacles=obstacles,
        signed_at=at,
    )
    details = {**(details or {}), **details_of(signed)}
    store.sign_off(signed, entry=AuditEntry(at=at, who=who, action=ACTION, subject=comparison.id, details=details))
    return signed


def details_of(signed: SignOff) -> dict[str, str]:
    """Return what the record of changes holds, so that an altered or removed sign-off is found."""
    names = {"as": signed.signed_by, "verdict": signed.verdict.value, "override": signed.override}
    return names | {"sha256": sha256(canonical_json(signed))}


def newest_seal(store: Store, comparison: Comparison, *, plan_hash: str | None = None) -> str:
    """Return the seal of the newest analysis under the comparison's own plan, or another; empty without one."""
    plan_hash = plan_hash or comparison.plan_hash
    return next((entry.seal for entry in reversed(store.seals(comparison.id)) if entry.plan_hash == plan_hash), "")
