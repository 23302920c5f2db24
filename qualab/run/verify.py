"""Makes hashes, scores and the analysis again from what is stored, and says what is not as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from qualab.analysis.analyse import analyse
from qualab.analysis.flips import outcomes_of
from qualab.analysis.scoring import scores_of, summary_of
from qualab.errors import HarnessError, QualabError, ScoringTimedOut, StoreDamaged
from qualab.model.canonical import body_hash, canonical_json, encode_body, sha256
from qualab.model.comparison import Analysis, Comparison, SealedAnalysis, SignOff, seal_of
from qualab.model.items import Outcome, OutcomeFilter
from qualab.model.names import ArmName, ComparisonStatus
from qualab.model.ports import ScoredTasks
from qualab.model.registry import AuditEntry
from qualab.model.wording import storable_text
from qualab.run.prepare import Services
from qualab.run.prune import check_free
from qualab.run.sign import ACTION, details_of, newest_seal
from qualab.run.stored import key_of, tasks_of

MOST_SHOWN = 3
PAGE = 5_000
UNREADABLE = (StoreDamaged, HarnessError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    is_ok: bool | None
    """None where it could not be checked."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    comparison_id: str
    checks: tuple[Check, ...]
    seal: str
    """The newest analysis's, under the comparison's own plan: compare it with one written down elsewhere."""
    is_altered: bool


def verify(services: Services, comparison_id: str, *, local: Mapping[str, str] | None = None) -> Verification:
    """Check everything that is stored of a comparison. Nothing is asked, nothing stored.

    Raises ComparisonNotFound; ComparisonBusy while it is being run: what it was analysed from changes.
    """
    seal = ""
    try:
        comparison = check_free(services.store, comparison_id, runner="", now=services.clock.now())
        comparison_id = comparison.id
        seal = newest_seal(services.store, comparison)
        checks = tuple(_Verifier(services, comparison, local).checks())
    except StoreDamaged as error:
        checks = (Check(name="rows", is_ok=False, detail=error.message),)
    is_altered = any(check.is_ok is False for check in checks)
    return Verification(comparison_id=comparison_id, checks=checks, seal=seal, is_altered=is_altered)


def _check(name: str, is_ok: bool, right: str, wrong: str) -> Check:
    return Check(name=name, is_ok=is_ok, detail=right if is_ok else wrong)


def _unseen(name: str, why: str) -> Check:
    return Check(name=name, is_ok=None, detail=why)


def _readable(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except ScoringTimedOut as error:
        return _unseen(name, f"cannot be made again: {error.message}")
    except UNREADABLE as error:
        return Check(name=name, is_ok=False, detail=f"what is stored cannot be read: {error or type(error).__name__}")


class _Verifier:
    def __init__(self, services: Services, comparison: Comparison, local: Mapping[str, str] | None) -> None:
        self.services, self.store, self.local = services, services.store, local
        self.comparison, self.id, self.plan = comparison, comparison.id, comparison.plan
        self.seals = self.store.seals(self.id)
        self.items = list(self.store.items(self.id))

    def checks(self) -> Iterator[Check]:
        # the plan as it is stored, not as it is read
        named = self.comparison.plan_hash
        is_plan = sha256(self.store.plan_text(self.id)) == named
        yield _check("plan", is_plan, f"its hash is {named[:12]}", "its hash does not match the recorded plan hash")
        yield _readable("seals", self._chain)
        yield _readable("requests", self._requests)
        analysis = self.store.analysis(self.id)
        yield self._row(analysis)
        if analysis is not None:
            yield _readable("answers", lambda: self._answers(analysis))
            yield from self._again(analysis)
            yield _readable("outcomes", self._outcomes)
        yield _readable("sign-off", self._signoffs)

    def _chain(self) -> Check:
        if not self.seals:
            return _unseen("seals", "nothing is analysed yet")
        previous, n_broken = self.comparison.plan_hash, 0
        for entry in self.seals:
            n_broken += entry.previous != previous or entry.seal != seal_of(entry.body, previous=previous)
            previous = entry.seal
        n = len(self.seals)
        right = "1 analysis, sealed" if n == 1 else f"{n} analyses, each sealed with the one before it"
        return _check("seals", not n_broken, right, f"the seals of {n_broken} of {n} analyses do not match")

    def _requests(self) -> Check:
        if self.plan.imported:
            return _unseen("requests", "logs do not tell what was sent")
        hashes: dict[tuple[int, int, int], bytes] = {}
        n, wrong = 0, 0
        for arm in ArmName:
            for answer in self.store.answers(self.id, arm=arm):
                key, n = (answer.position, answer.choice, answer.repeat), n + 1
                if key not in hashes:
                    requests = self.items[answer.position].requests
                    request = next(body for body in requests if body.choice == answer.choice)
                    seed = self.plan.sampling.seed + answer.repeat
                    hashes[key] = body_hash(encode_body(request.payload, seed=seed))
                wrong += hashes[key] != answer.request_hash
        right = f"{n:,} answers to the requests of their items"
        return _check("requests", not wrong, right, f"{wrong:,} of {n:,} differ")

    def _row(self, analysis: Analysis | None) -> Check:
        shown, plan = self.store.summary(self.id), self.plan
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
        return _check("row", not wrong, f"{verdict}, as analysed", f"its {', '.join(wrong)} is not what was analysed")

    def _answers(self, analysis: Analysis) -> Check:
        data_hash = summary_of(self.store, self.id, self.items).data_hash
        altered = "items or answers are not those that were analysed"
        return _check("answers", data_hash == analysis.data_hash, f"their hash is {data_hash[:12]}", altered)

    def _again(self, analysis: Analysis) -> Iterator[Check]:
        try:
            tasks = tasks_of(self.services, self.comparison, self.local)
        except QualabError as error:
            yield _unseen("scores", f"the tasks cannot be loaded as they were: {error.message}")
            return
        if self.plan.imported:
            yield _unseen("scores", "they came with logs; qualab rescore scores the answers")
        else:
            yield _readable("scores", lambda: self._scores(tasks))
        yield _readable("analysis", lambda: self._analysis(analysis, tasks))

    def _scores(self, tasks: ScoredTasks) -> Check:
        stored = {key_of(score): score for score in self.store.scores(self.id)}
        n, wrong = len(stored), 0
        for arm in ArmName:
            for score in scores_of(self.store.answers(self.id, arm=arm), tasks, self.items):
                wrong += stored.pop(key_of(score), None) != score
        wrong += len(stored)
        return _check("scores", not wrong, f"{n:,}, scored again", f"{wrong:,} of {n:,} are not what the answers score")

    def _analysis(self, analysis: Analysis, tasks: ScoredTasks) -> Check:
        summary = summary_of(self.store, self.id, self.items)
        again = analyse(self.store, self.comparison, tasks, self.items, summary)
        others = {name: text for name, text in analysis.versions.items() if again.versions.get(name) != text}
        if others:
            made = ", ".join(f"{name} {text}" for name, text in others.items())
            return _unseen("analysis", f"made with {made}, which is not what is installed")
        is_ok = canonical_json(again) == canonical_json(analysis)
        return _check("analysis", is_ok, "made again, byte for byte", "another one comes of what is stored")

    def _outcomes(self) -> Check:
        if not self.store.has_outcomes(self.id):
            return _unseen("outcomes", "made when they are first asked for")
        pairs = list(zip_longest(self._stored_outcomes(), outcomes_of(self.store, self.comparison, self.items)))
        wrong = sum(stored != again for stored, again in pairs)
        return _check("outcomes", not wrong, f"{len(pairs):,}, as scored", f"{wrong:,} of {len(pairs):,} differ")

    def _stored_outcomes(self) -> Iterator[Outcome]:
        page = self.store.outcomes(self.id, OutcomeFilter(), limit=PAGE)
        yield from page.entries
        while page.next_cursor is not None:
            page = self.store.outcomes(self.id, OutcomeFilter(), cursor=page.next_cursor, limit=PAGE)
            yield from page.entries

    def _signoffs(self) -> Check:
        signed = self.store.signoffs(self.id)
        recorded = self.store.recorded(self.id, ACTION)
        if not signed and not recorded:
            return _unseen("sign-off", "none")
        sealed = {own.seal: own for own in self.seals if own.plan_hash == self.comparison.plan_hash}
        wrong = [
            signoff.signed_by if signoff else entry.details.get("as", "") if entry else ""
            for signoff, entry in zip_longest(signed, recorded)
            if not _is_as_made(signoff, entry, sealed)
        ]
        newest = f"by {signed[-1].signed_by}, of seal {signed[-1].analysis_hash[:12]}" if signed else ""
        named = ", ".join(wrong[:MOST_SHOWN])
        altered = f"that of {named} does not match the record of changes, or belongs to another analysis"
        return _check("sign-off", not wrong, newest, altered)


def _is_as_made(signoff: SignOff | None, entry: AuditEntry | None, sealed: Mapping[str, SealedAnalysis]) -> bool:
    if signoff is None or entry is None or signoff.analysis_hash not in sealed:
        return False
    analysis = sealed[signoff.analysis_hash]
    is_of_analysis = (signoff.plan_hash, signoff.verdict) == (analysis.plan_hash, json.loads(analysis.body)["verdict"])
    expected = {name: storable_text(text) for name, text in details_of(signoff).items()}
    recorded = {name: storable_text(entry.details.get(name, "")) for name in expected}
    return is_of_analysis and expected == recorded and signoff.signed_at == entry.at
