"""Verification: whether anything of a comparison was altered after it was stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from qualab.app.analyse import analyse
from qualab.app.compare import tasks_of
from qualab.app.scoring import scores_of, summary_of
from qualab.app.services import Services
from qualab.domain.canonical import body_hash, canonical_json, encode_body, sha256
from qualab.domain.comparison import Analysis, Comparison
from qualab.domain.items import Item, Score
from qualab.domain.names import ArmName
from qualab.domain.seals import SealedAnalysis, seal_of
from qualab.errors import QualabError
from qualab.ports import Registry, ScoredTasks, Store

MOST_SHOWN = 3


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
class _Stored:
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


def verify(
    services: Services, registry: Registry, comparison_id: str, *, local: Mapping[str, str] | None = None
) -> Verification:
    """Makes hashes, scores and the analysis again from what is stored. Nothing is asked, nothing stored.

    Raises ComparisonNotFound.
    """
    store = services.store
    comparison = store.get(comparison_id)
    stored = _Stored(
        services=services,
        registry=registry,
        comparison=comparison,
        items=list(store.items(comparison.id)),
        seals=store.seals(comparison.id),
        local=local or {},
    )
    checks, own = tuple(_checks(stored)), stored.own_seals
    return Verification(
        comparison_id=comparison.id,
        checks=checks,
        seal=own[-1].seal if own else "",
        is_altered=any(check.is_ok is False for check in checks),
    )


def _checks(stored: _Stored) -> Iterator[Check]:
    yield _plan(stored)
    yield _chain(stored)
    yield _requests(stored)
    analysis = stored.store.analysis(stored.comparison.id)
    if analysis is not None:
        yield _data(stored, analysis)
        yield from _again(stored, analysis)
    yield _signoffs(stored)


def _plan(stored: _Stored) -> Check:
    """Of what is stored, not of what is read from it: later versions know more fields."""
    named = stored.comparison.plan_hash
    is_ok = sha256(stored.store.plan_text(stored.comparison.id)) == named
    return _check("plan", is_ok, f"its hash is {named[:12]}", "it has not the hash that it is named by")


def _chain(stored: _Stored) -> Check:
    if not stored.seals:
        return Check(name="seals", is_ok=None, detail="nothing is analysed yet")
    unsealed = [one for one in stored.seals if not one.is_sealed]
    previous, broken = stored.comparison.plan_hash, 0
    for one in (one for one in stored.seals if one.is_sealed):
        broken += one.previous != previous or one.seal != seal_of(one.body, previous=one.previous)
        previous = one.seal
    if len(unsealed) == len(stored.seals):
        return Check(name="seals", is_ok=None, detail="stored by a version that sealed nothing")
    text = f"{len(stored.seals) - len(unsealed)} analyses, each sealed with the one before it"
    return _check("seals", not broken, text, f"{broken} of {len(stored.seals)} analyses have not the seal they need")


def _requests(stored: _Stored) -> Check:
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
    return _check("requests", not wrong, f"{n:,} answers to the requests of their items", f"{wrong:,} of {n:,} differ")


def _data(stored: _Stored, analysis: Analysis) -> Check:
    if not analysis.data_hash:
        return Check(name="answers", is_ok=None, detail="analysed by a version that hashed none")
    found = summary_of(stored.store, stored.comparison.id, stored.items).data_hash
    altered = "items or answers are not those that were analysed"
    return _check("answers", found == analysis.data_hash, f"their hash is {found[:12]}", altered)


def _again(stored: _Stored, analysis: Analysis) -> Iterator[Check]:
    """Scores and analysis, made again with the installed harness."""
    try:
        tasks = tasks_of(stored.services, stored.comparison, stored.local)
    except QualabError as error:
        yield Check(name="scores", is_ok=None, detail=f"the tasks cannot be loaded as they were: {error.message}")
        return
    if stored.comparison.plan.imported:
        yield Check(name="scores", is_ok=None, detail="they came with logs; qualab rescore scores the answers")
    else:
        yield _scores(stored, tasks)
    yield _analysis(stored, analysis, tasks)


def _scores(stored: _Stored, tasks: ScoredTasks) -> Check:
    store, comparison_id = stored.store, stored.comparison.id
    kept = {_place(one): one for one in store.scores(comparison_id)}
    n, wrong = len(kept), 0
    for arm in ArmName:
        for one in scores_of(store.answers(comparison_id, arm=arm), tasks, stored.items):
            wrong += kept.pop(_place(one), None) != one
    wrong += len(kept)
    return _check("scores", not wrong, f"{n:,}, scored again", f"{wrong:,} of {n:,} are not what the answers score")


def _place(score: Score) -> tuple[str, int, int, str]:
    return score.arm, score.position, score.repeat, score.metric


def _analysis(stored: _Stored, analysis: Analysis, tasks: ScoredTasks) -> Check:
    if not analysis.data_hash:
        return Check(name="analysis", is_ok=None, detail="made by a version that wrote down less")
    summary = summary_of(stored.store, stored.comparison.id, stored.items)
    found = analyse(stored.store, stored.comparison, tasks, stored.items, summary)
    others = {name: text for name, text in analysis.versions.items() if found.versions.get(name) != text}
    if others:
        made = ", ".join(f"{name} {text}" for name, text in others.items())
        return Check(name="analysis", is_ok=None, detail=f"made with {made}, which is not what is installed")
    is_ok = canonical_json(found) == canonical_json(analysis)
    return _check("analysis", is_ok, "made again, byte for byte", "another one comes of what is stored")


def _signoffs(stored: _Stored) -> Check:
    signed = stored.registry.signoffs(stored.comparison.id)
    if not signed:
        return Check(name="sign-off", is_ok=None, detail="none")
    seals = {one.seal for one in stored.own_seals}
    wrong = [one.signed_by for one in signed if one.analysis_hash not in seals]
    newest = f"by {signed[-1].signed_by}, of seal {signed[-1].analysis_hash[:12]}"
    return _check("sign-off", not wrong, newest, f"{', '.join(wrong[:MOST_SHOWN])} signed what is not here any more")


def _check(name: str, is_ok: bool, right: str, wrong: str) -> Check:
    return Check(name=name, is_ok=is_ok, detail=right if is_ok else wrong)
