"""Verification: whether anything of a comparison was altered after it was stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from qualab.app.analyse import analyse
from qualab.app.compare import tasks_of
from qualab.app.scoring import scores_of, summary_of
from qualab.app.services import Services
from qualab.app.standing import check_free
from qualab.app.verified import Check, Stored, Verification, checked
from qualab.app.verifying_shown import outcomes_check, row_check, signoffs_check
from qualab.domain.canonical import body_hash, canonical_json, encode_body, sha256
from qualab.domain.comparison import Analysis
from qualab.domain.items import Score
from qualab.domain.names import ArmName
from qualab.domain.seals import SealedAnalysis, seal_of
from qualab.errors import HarnessError, QualabError, ScoringTimedOut, StoreDamaged
from qualab.ports import Registry, ScoredTasks

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
