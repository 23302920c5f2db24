"""Makes hashes, scores and the analysis again from what is stored, and says what is not as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
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
        comparison = check_free(services, comparison_id, runner="")
        comparison_id = comparison.id
        seal = newest_seal(services.store, comparison)
        checks = tuple(_Verifier(services, comparison, local).checks())
    except StoreDamaged as error:
        checks = (Check(name="rows", is_ok=False, detail=error.message),)
    is_altered = any(check.is_ok is False for check in checks)
    return Verification(comparison_id=comparison_id, checks=checks, seal=seal, is_altered=is_altered)


Result = tuple[bool | None, str]


class _Verifier:
    def __init__(self, services: Services, comparison: Comparison, local: Mapping[str, str] | None) -> None:
        self.services, self.store, self.local = services, services.store, local
        self.comparison, self.id, self.plan = comparison, comparison.id, comparison.plan
        self.seals = self.store.seals(self.id)
        self.items = list(self.store.items(self.id))
        self.analysis = self.store.analysis(self.id)

    def checks(self) -> Iterator[Check]:
        looks = {"plan": self._plan, "seals": self._chain, "requests": self._requests, "row": self._row}
        if self.analysis is not None:
            looks |= {"answers": partial(self._answers, self.analysis), **self._again(self.analysis)}
            looks["outcomes"] = self._outcomes
        for name, look in (looks | {"sign-off": self._signoffs}).items():
            try:
                is_ok, detail = look()
            except ScoringTimedOut as error:
                is_ok, detail = None, f"cannot be made again: {error.message}"
            except UNREADABLE as error:
                is_ok, detail = False, f"what is stored cannot be read: {error or type(error).__name__}"
            yield Check(name=name, is_ok=is_ok, detail=detail)

    def _plan(self) -> Result:
        # as it is stored, not as it is read
        named = self.comparison.plan_hash
        is_ok = sha256(self.store.plan_text(self.id)) == named
        return is_ok, f"its hash is {named[:12]}" if is_ok else "its hash does not match the recorded plan hash"

    def _chain(self) -> Result:
        if not self.seals:
            return None, "nothing is analysed yet"
        previous, n_broken = self.comparison.plan_hash, 0
        for entry in self.seals:
            n_broken += entry.previous != previous or entry.seal != seal_of(entry.body, previous=previous)
            previous = entry.seal
        n = len(self.seals)
        if n_broken:
            return False, f"the seals of {n_broken} of {n} analyses do not match"
        return True, "1 analysis, sealed" if n == 1 else f"{n} analyses, each sealed with the one before it"

    def _requests(self) -> Result:
        if self.plan.imported:
            return None, "logs do not tell what was sent"
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
        return not wrong, f"{wrong:,} of {n:,} differ" if wrong else f"{n:,} answers to the requests of their items"

    def _row(self) -> Result:
        shown, plan, analysis = self.store.summary(self.id), self.plan, self.analysis
        meant = {
            "verdict": (shown.verdict, analysis.verdict if analysis else None),
            "model": (shown.model, storable_text(plan.sampling.model)),
            "suite": (shown.suite, storable_text(plan.suite)),
            "number of items": (shown.n_items, sum(task.n_items for task in plan.tasks)),
        }
        if shown.status is ComparisonStatus.FINISHED:  # else the analysis may stand meanwhile
            meant["analysis"] = (True, analysis is not None)
        wrong = [name for name, (is_shown, is_meant) in meant.items() if is_shown != is_meant]
        verdict = shown.verdict.value if shown.verdict else "no verdict yet"
        return not wrong, f"its {', '.join(wrong)} is not what was analysed" if wrong else f"{verdict}, as analysed"

    def _answers(self, analysis: Analysis) -> Result:
        data_hash = summary_of(self.store, self.id, self.items).data_hash
        if data_hash != analysis.data_hash:
            return False, "items or answers are not those that were analysed"
        return True, f"their hash is {data_hash[:12]}"

    def _again(self, analysis: Analysis) -> dict[str, Callable[[], Result]]:
        try:
            tasks = tasks_of(self.services, self.comparison, self.local)
        except QualabError as error:
            why = f"the tasks cannot be loaded as they were: {error.message}"
            return {"scores": lambda: (None, why)}
        return {"scores": partial(self._scores, tasks), "analysis": partial(self._analysis, analysis, tasks)}

    def _scores(self, tasks: ScoredTasks) -> Result:
        if self.plan.imported:
            return None, "they came with logs; qualab rescore scores the answers"
        stored = {key_of(score): score for score in self.store.scores(self.id)}
        n, wrong = len(stored), 0
        for arm in ArmName:
            for score in scores_of(self.store.answers(self.id, arm=arm), tasks, self.items):
                wrong += stored.pop(key_of(score), None) != score
        wrong += len(stored)
        return not wrong, f"{wrong:,} of {n:,} are not what the answers score" if wrong else f"{n:,}, scored again"

    def _analysis(self, analysis: Analysis, tasks: ScoredTasks) -> Result:
        summary = summary_of(self.store, self.id, self.items)
        again = analyse(self.store, self.comparison, tasks, self.items, summary)
        others = {name: text for name, text in analysis.versions.items() if again.versions.get(name) != text}
        if others:
            made = ", ".join(f"{name} {text}" for name, text in others.items())
            return None, f"made with {made}, which is not what is installed"
        is_ok = canonical_json(again) == canonical_json(analysis)
        return is_ok, "made again, byte for byte" if is_ok else "another one comes of what is stored"

    def _outcomes(self) -> Result:
        if not self.store.has_outcomes(self.id):
            return None, "made when they are first asked for"
        pairs = list(zip_longest(self._stored_outcomes(), outcomes_of(self.store, self.comparison, self.items)))
        wrong = sum(stored != again for stored, again in pairs)
        return not wrong, f"{wrong:,} of {len(pairs):,} differ" if wrong else f"{len(pairs):,}, as scored"

    def _stored_outcomes(self) -> Iterator[Outcome]:
        page = self.store.outcomes(self.id, OutcomeFilter(), limit=PAGE)
        yield from page.entries
        while page.next_cursor is not None:
            page = self.store.outcomes(self.id, OutcomeFilter(), cursor=page.next_cursor, limit=PAGE)
            yield from page.entries

    def _signoffs(self) -> Result:
        signed = self.store.signoffs(self.id)
        recorded = self.store.recorded(self.id, ACTION)
        if not signed and not recorded:
            return None, "none"
        sealed = {own.seal: own for own in self.seals if own.plan_hash == self.comparison.plan_hash}
        wrong = [
            signoff.signed_by if signoff else entry.details.get("as", "") if entry else ""
            for signoff, entry in zip_longest(signed, recorded)
            if not _is_as_made(signoff, entry, sealed)
        ]
        if wrong:
            named = ", ".join(wrong[:MOST_SHOWN])
            return False, f"that of {named} does not match the record of changes, or belongs to another analysis"
        return True, f"by {signed[-1].signed_by}, of seal {signed[-1].analysis_hash[:12]}"


def _is_as_made(signoff: SignOff | None, entry: AuditEntry | None, sealed: Mapping[str, SealedAnalysis]) -> bool:
    if signoff is None or entry is None or signoff.analysis_hash not in sealed:
        return False
    analysis = sealed[signoff.analysis_hash]
    is_of_analysis = (signoff.plan_hash, signoff.verdict) == (analysis.plan_hash, json.loads(analysis.body)["verdict"])
    expected = {name: storable_text(text) for name, text in details_of(signoff).items()}
    recorded = {name: storable_text(entry.details.get(name, "")) for name in expected}
    return is_of_analysis and expected == recorded and signoff.signed_at == entry.at
