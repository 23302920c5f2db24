"""What verification looks at, and what it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

from qualab.analysis.analyse import analyse
from qualab.analysis.flips import outcomes_of
from qualab.analysis.scoring import scores_of, summary_of
from qualab.errors import HarnessError, QualabError, ScoringTimedOut, StoreDamaged
from qualab.model.canonical import body_hash, canonical_json, encode_body, sha256
from qualab.model.comparison import Analysis, Comparison, SealedAnalysis, SignOff, seal_of
from qualab.model.items import Item, Outcome, OutcomeFilter, Score
from qualab.model.names import ArmName, ComparisonStatus
from qualab.model.ports import ScoredTasks
from qualab.model.registry import AuditEntry
from qualab.model.wording import storable_text
from qualab.run.compare import tasks_of
from qualab.run.prune import check_free
from qualab.run.services import Services
from qualab.run.sign import ACTION, HASH, details_of

if TYPE_CHECKING:
    from qualab.store import Store
    from qualab.store.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    is_ok: bool | None
    """None where it could not be looked at."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All that was looked at."""

    comparison_id: str
    checks: tuple[Check, ...]
    seal: str
    """Of the newest analysis under the comparison's own plan: compare it with one that was written down elsewhere."""
    is_altered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What is looked at."""

    services: Services
    registry: Registry
    comparison: Comparison
    items: Sequence[Item]
    seals: Sequence[SealedAnalysis]
    local: Mapping[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.services.store

    @property
    def own_seals(self) -> list[SealedAnalysis]:
        return [one for one in self.seals if one.plan_hash == self.comparison.plan_hash]


def checked(name: str, is_ok: bool, right: str, wrong: str) -> Check:
    """A thing that could be looked at."""
    return Check(name=name, is_ok=is_ok, detail=right if is_ok else wrong)


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


UNREADABLE = (StoreDamaged, HarnessError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What comes of rows that qualab did not write so."""


def verify(
    services: Services, registry: Registry, comparison_id: str, *, local: Mapping[str, str] | None = None
) -> Verification:
    """Makes hashes, scores and the analysis again from what is stored. Nothing is asked, nothing stored.

    Raises ComparisonNotFound; ComparisonBusy while it is being run: what it was analysed from changes.
    """
    stored = None
    try:
        stored = _read(services, registry, comparison_id, local or {})
        checks = tuple(_checks(stored))
    except StoreDamaged as error:
        checks = (Check(name="rows", is_ok=False, detail=error.message),)
    own = stored.own_seals if stored else ()
    return Verification(
        comparison_id=stored.comparison.id if stored else comparison_id,
        checks=checks,
        seal=own[-1].seal if own else "",
        is_altered=any(check.is_ok is False for check in checks),
    )


def _read(services: Services, registry: Registry, comparison_id: str, local: Mapping[str, str]) -> Stored:
    store = services.store
    comparison = check_free(store, comparison_id, runner="", now=services.clock.now())
    return Stored(
        services=services,
        registry=registry,
        comparison=comparison,
        items=list(store.items(comparison.id)),
        seals=store.seals(comparison.id),
        local=local,
    )


def _checks(stored: Stored) -> Iterator[Check]:
    yield _plan(stored)
    yield _looked("seals", lambda: _chain(stored))
    yield _looked("requests", lambda: _requests(stored))
    analysis = stored.store.analysis(stored.comparison.id)
    yield row_check(stored, analysis)
    if analysis is not None:
        yield _looked("answers", lambda: _data(stored, analysis))
        yield from _again(stored, analysis)
        yield _looked("outcomes", lambda: outcomes_check(stored))
    yield _looked("sign-off", lambda: signoffs_check(stored))


def _looked(name: str, look: Callable[[], Check]) -> Check:
    """What cannot even be read was not stored so; what cannot be scored again in time is no alteration."""
    try:
        return look()
    except ScoringTimedOut as error:
        return Check(name=name, is_ok=None, detail=f"cannot be made again: {error.message}")
    except UNREADABLE as error:
        return Check(name=name, is_ok=False, detail=f"what is stored cannot be read: {error or type(error).__name__}")


def _plan(stored: Stored) -> Check:
    """Of what is stored, not of what is read from it: later versions know more fields."""
    named = stored.comparison.plan_hash
    is_ok = sha256(stored.store.plan_text(stored.comparison.id)) == named
    return checked("plan", is_ok, f"its hash is {named[:12]}", "it has not the hash that it is named by")


def _chain(stored: Stored) -> Check:
    if not stored.seals:
        return Check(name="seals", is_ok=None, detail="nothing is analysed yet")
    unsealed = [one for one in stored.seals if not one.is_sealed]
    previous, broken = stored.comparison.plan_hash, sum(map(_had_seal, unsealed))
    for one in (one for one in stored.seals if one.is_sealed):
        broken += one.previous != previous or one.seal != seal_of(one.body, previous=one.previous)
        previous = one.seal
    if len(unsealed) == len(stored.seals) and not broken:
        return Check(name="seals", is_ok=None, detail="stored by a version that sealed nothing")
    n_sealed = len(stored.seals) - len(unsealed)
    text = "1 analysis, sealed" if n_sealed == 1 else f"{n_sealed} analyses, each sealed with the one before it"
    return checked("seals", not broken, text, f"{broken} of {len(stored.seals)} analyses have not the seal they need")


def _had_seal(one: SealedAnalysis) -> bool:
    """The versions that sealed nothing hashed no answers either."""
    return bool(json.loads(one.body).get("data_hash"))


def _requests(stored: Stored) -> Check:
    """Every answer belongs to the request that its item says was sent."""
    if stored.comparison.plan.imported:
        return Check(name="requests", is_ok=None, detail="logs do not tell what was sent")
    seed, hashes, wrong, n = stored.comparison.plan.sampling.seed, dict[tuple[int, int, int], bytes](), 0, 0
    for arm in ArmName:
        for answer in stored.store.answers(stored.comparison.id, arm=arm):
            place, n = (answer.position, answer.choice, answer.repeat), n + 1
            if place not in hashes:
                request = next(one for one in stored.items[answer.position].requests if one.choice == answer.choice)
                hashes[place] = body_hash(encode_body(request.payload, seed=seed + answer.repeat))
            wrong += hashes[place] != answer.request_hash
    return checked("requests", not wrong, f"{n:,} answers to the requests of their items", f"{wrong:,} of {n:,} differ")


def _data(stored: Stored, analysis: Analysis) -> Check:
    if not analysis.data_hash:
        return Check(name="answers", is_ok=None, detail="analysed by a version that hashed none")
    found = summary_of(stored.store, stored.comparison.id, stored.items).data_hash
    altered = "items or answers are not those that were analysed"
    return checked("answers", found == analysis.data_hash, f"their hash is {found[:12]}", altered)


def _again(stored: Stored, analysis: Analysis) -> Iterator[Check]:
    """Scores and analysis, made again with the installed harness."""
    try:
        tasks = tasks_of(stored.services, stored.comparison, stored.local)
    except QualabError as error:
        yield Check(name="scores", is_ok=None, detail=f"the tasks cannot be loaded as they were: {error.message}")
        return
    if stored.comparison.plan.imported:
        yield Check(name="scores", is_ok=None, detail="they came with logs; qualab rescore scores the answers")
    else:
        yield _looked("scores", lambda: _scores(stored, tasks))
    yield _looked("analysis", lambda: _analysis(stored, analysis, tasks))


def _scores(stored: Stored, tasks: ScoredTasks) -> Check:
    store, comparison_id = stored.store, stored.comparison.id
    kept = {_place(one): one for one in store.scores(comparison_id)}
    n, wrong = len(kept), 0
    for arm in ArmName:
        for one in scores_of(store.answers(comparison_id, arm=arm), tasks, stored.items):
            wrong += kept.pop(_place(one), None) != one
    wrong += len(kept)
    return checked("scores", not wrong, f"{n:,}, scored again", f"{wrong:,} of {n:,} are not what the answers score")


def _place(score: Score) -> tuple[str, int, int, str]:
    return score.arm, score.position, score.repeat, score.metric


def _analysis(stored: Stored, analysis: Analysis, tasks: ScoredTasks) -> Check:
    if not analysis.data_hash:
        return Check(name="analysis", is_ok=None, detail="made by a version that wrote down less")
    summary = summary_of(stored.store, stored.comparison.id, stored.items)
    found = analyse(stored.store, stored.comparison, tasks, stored.items, summary)
    others = {name: text for name, text in analysis.versions.items() if found.versions.get(name) != text}
    if others:
        made = ", ".join(f"{name} {text}" for name, text in others.items())
        return Check(name="analysis", is_ok=None, detail=f"made with {made}, which is not what is installed")
    is_ok = canonical_json(found) == canonical_json(analysis)
    return checked("analysis", is_ok, "made again, byte for byte", "another one comes of what is stored")
