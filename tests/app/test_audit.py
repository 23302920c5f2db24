"""The token audit's ruling on stored scores: two real pairs, each kind of fault, and what is not a fault."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qualab.analysis.audit import audit_of, with_audit
from qualab.analysis.samples import Streams
from qualab.model.audit import Audit, ScoredAnswer, TokenPieces, pack_ids
from qualab.model.engine import AuditSeen
from qualab.model.names import AnswerStatus, ArmName, AuditPart, AuditRuling, ScoringForm, Verdict
from qualab.model.plan import AuditPlan
from qualab.model.reason import Reason
from tests.fresh_store import fresh_store
from tests.store import samples as make

BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE
GREEDY, SAMPLED = AuditPart.GREEDY, AuditPart.SAMPLED
TOKEN = np.dtype([("own", "<f4"), ("top", "<f4"), ("rank", "<u4")])
PLAN = AuditPlan(sampled_items=0)
SAMPLING = AuditPlan()
Tokens = Sequence[tuple[float, float, int]]
"""Gap, probability of the top token, and rank."""


def scored(
    tokens: Tokens, position: int = 0, *, arm: ArmName = BASELINE, part: AuditPart = GREEDY, **changes: Any
) -> ScoredAnswer:
    gaps, likely, ranks = np.array(tokens, dtype=float).reshape(-1, 3).T
    table = np.zeros(len(gaps), dtype=TOKEN)
    table["top"], table["rank"] = np.log(likely), ranks
    table["own"] = table["top"] - gaps
    values: dict[str, Any] = {
        "status": AnswerStatus.OK,
        "finish_reason": "stop",
        "text": None,
        "token_ids": pack_ids(range(len(gaps))),
        "scores": table.tobytes(),
        "pieces": TokenPieces(texts=tuple(f" t{index}" for index in range(len(gaps))), choices={}),
    }
    values |= {"part": part, "arm": arm, "position": position}
    return ScoredAnswer(**values | changes)


def ruled(answers: Sequence[ScoredAnswer], plan: AuditPlan | None = PLAN, **seen: Any) -> Audit:
    """What the analysis says of these answers, stored."""
    store, items = fresh_store(), make.items(1 + max((answer.position for answer in answers), default=0))
    comparison = make.comparison(plan=replace(make.plan(), audit=plan))
    store.create(comparison, items)
    store.put_scored(comparison.id, answers)
    values: dict[str, Any] = {"plan": plan or SAMPLING, "scoring": ScoringForm.PROMPT_LOGPROBS, "vocabulary": 49_152}
    store.add_observation(comparison.id, AuditSeen(seen_at=make.NOW, **values | seen))
    audit = audit_of(store, comparison, items, Streams.of("x"))
    assert audit is not None
    return audit


def reference(name: str, temperature: float, arm: ArmName) -> dict[str, Any]:
    if "QUALAB_SHARED" not in os.environ:
        pytest.skip("QUALAB_SHARED names no folder")
    path = Path(os.environ["QUALAB_SHARED"], "reference", f"token_audit_{name}.json")
    runs = json.loads(path.read_text())["runs"]
    found = [run["arms"][arm.value] for run in runs if run["temperature"] == temperature]
    return found[0] if found else {"data": [[SURE]] * 60}


@pytest.mark.parametrize(("name", "n_rare"), [("vllm_ngram", 140), ("vllm_draft_model", 35)])
def test_what_is_broken_in_a_real_engine_is_found_in_its_sampled_answers_alone(name: str, n_rare: int) -> None:
    answers = [
        scored(tokens, position, arm=arm, part=part, token_ids=pack_ids([number, *range(1, len(tokens))]))
        for part, temperature in ((GREEDY, 0.0), (SAMPLED, 1.0))
        for number, arm in enumerate(ArmName)
        for position, tokens in enumerate(reference(name, temperature, arm)["data"])
    ]
    audit = ruled(answers, SAMPLING)
    before, after = (reference(name, 1.0, arm) for arm in ArmName)
    assert (audit.ruling, audit.reason.code) == (AuditRuling.FOREIGN, "audit.rare")
    assert [count.n_rare for count in audit.sampled] == [0, n_rare]
    assert [count.n_tokens for count in audit.sampled] == [before["tokens"], after["tokens"]]
    assert [count.pvalue_rare for count in audit.sampled] == pytest.approx(
        [before["p_value_of_that_count"], after["p_value_of_that_count"]], rel=1e-12
    )
    assert [count.excess for count in audit.sampled] == pytest.approx([before["top1_excess"], after["top1_excess"]])
    assert [count.statistic for count in audit.sampled] == pytest.approx([before["top1_z"], after["top1_z"]], rel=1e-6)
    assert [count.n_foreign for count in audit.foreign] == [0, 0]
    assert [sum(count.histogram) for count in audit.foreign] == [count.n_tokens for count in audit.foreign]
    gaps = [token.gap for token in audit.worst]
    assert gaps == sorted(gaps, reverse=True)
    assert {token.arm for token in audit.worst} == {CANDIDATE}
    greedy_alone = [answer for answer in answers if answer.part is GREEDY]
    assert ruled(greedy_alone).reason.code == "audit.few-tokens"


SURE, NEAR, FOREIGN, JUNK = (0.0, 0.9, 1), (0.25, 0.4, 2), (6.0, 0.9, 40), (30.0, 0.9, 900)


def arm_of(arm: ArmName, n_answers: int, changed: dict[int, Tokens], part: AuditPart = GREEDY) -> list[ScoredAnswer]:
    usual: Tokens = [SURE] * 25
    return [scored(changed.get(position, usual), position, arm=arm, part=part) for position in range(n_answers)]


def both(n_answers: int, changed: dict[int, Tokens], control: dict[int, Tokens] | None = None) -> list[ScoredAnswer]:
    return arm_of(BASELINE, n_answers, control or {}) + arm_of(CANDIDATE, n_answers, changed)


def sampled(
    excess: Sequence[float], *, n_answers: int = 200, length: int = 50, likely: float = 0.6
) -> list[ScoredAnswer]:
    """Both arms' sampled answers, in which the top choice is taken more often by `excess` of the arm."""
    rng = np.random.default_rng(5)
    answers = []
    for arm, more in zip(ArmName, excess, strict=True):
        is_top = rng.random((n_answers, length)) < likely + more
        rows = [[(0.0, likely, 1) if top else (1.5, likely, 3) for top in row] for row in is_top]
        answers += [scored(row, position, arm=arm, part=SAMPLED) for position, row in enumerate(rows)]
    return answers


LOST_END: Tokens = [SURE] * 24
RULINGS = {
    "clean": (both(130, {}), PLAN, AuditRuling.CLEAN, "audit.clean"),
    "near-ties are no faults": (both(130, {n: [NEAR] * 25 for n in range(60)}), PLAN, AuditRuling.CLEAN, "audit.clean"),
    "one token of each answer": (
        [scored([SURE], n, arm=arm) for arm in ArmName for n in range(3_100)],
        PLAN,
        AuditRuling.CLEAN,
        "audit.clean",
    ),
    "one foreign token in 500": (
        both(200, {n: [*[SURE] * 20, FOREIGN] for n in range(0, 200, 20)}),
        PLAN,
        AuditRuling.FOREIGN,
        "audit.foreign",
    ),
    "a last token lost": (both(130, dict.fromkeys(range(12), LOST_END)), PLAN, AuditRuling.FOREIGN, "audit.foreign"),
    "too few tokens": (both(60, {}), PLAN, AuditRuling.INCONCLUSIVE, "audit.few-tokens"),
    "a foreign token that may be chance": (
        both(130, {3: [FOREIGN]}),
        PLAN,
        AuditRuling.INCONCLUSIVE,
        "audit.few-tokens",
    ),
    "the baseline's own are foreign": (
        both(130, {}, control={n: [FOREIGN] for n in range(8)}),
        PLAN,
        AuditRuling.INVALID,
        "audit.control-greedy",
    ),
    "sampled as the model says": (
        both(130, {}) + sampled((0.0, 0.0), n_answers=900, likely=0.9),
        SAMPLING,
        AuditRuling.CLEAN,
        "audit.clean",
    ),
    "sharpened": (both(130, {}) + sampled((0.0, 0.08)), SAMPLING, AuditRuling.FOREIGN, "audit.calibration"),
    "flattened": (both(130, {}) + sampled((0.0, -0.08)), SAMPLING, AuditRuling.FOREIGN, "audit.calibration"),
    "sharpened in both arms": (
        both(130, {}) + sampled((0.1, 0.1)),
        SAMPLING,
        AuditRuling.INVALID,
        "audit.control-calibration",
    ),
    "few sampled tokens": (
        both(130, {}) + sampled((0.0, 0.0), n_answers=24),
        SAMPLING,
        AuditRuling.INCONCLUSIVE,
        "audit.calibration-open",
    ),
    "few sampled answers": (
        both(130, {}) + sampled((0.0, 0.0), n_answers=5),
        SAMPLING,
        AuditRuling.INCONCLUSIVE,
        "audit.few-answers",
    ),
    "nothing sampled": (both(130, {}), SAMPLING, AuditRuling.INCONCLUSIVE, "audit.no-samples"),
    "no answer at temperature 0": (
        sampled((0.0, 0.0), n_answers=900, likely=0.9),
        SAMPLING,
        AuditRuling.INCONCLUSIVE,
        "audit.no-greedy",
    ),
    "one arm alone": (arm_of(BASELINE, 130, {}), PLAN, AuditRuling.INCONCLUSIVE, "audit.nothing-scored"),
    "nothing": ([], PLAN, AuditRuling.INCONCLUSIVE, "audit.nothing-scored"),
}


@pytest.mark.parametrize("case", RULINGS)
def test_each_fault_has_its_ruling_and_no_fault_is_clean(case: str) -> None:
    answers, plan, ruling, code = RULINGS[case]
    audit = ruled(answers, plan)
    assert (audit.ruling, audit.reason.code) == (ruling, code)
    assert (audit.tokens_needed is not None) <= (ruling is AuditRuling.INCONCLUSIVE)


def test_the_tokens_still_needed_are_those_that_two_thousand_nine_hundred_and_ninety_five_lack() -> None:
    audit = ruled(both(60, {}))
    assert (audit.tokens_needed, audit.reason.values["needed"]) == (2_995 - 60 * 25, 2_995 - 60 * 25)
    assert ruled(both(60, {3: [FOREIGN]})).tokens_needed is None  # with a foreign one among them no number is known


def test_an_engine_that_cannot_score_leaves_tokens_unobserved() -> None:
    assert ruled([], scoring=None).ruling is AuditRuling.UNOBSERVED


def test_an_audit_that_ended_early_is_not_clean() -> None:
    audit = ruled(both(130, {}), lack=Reason("no-pairs"))
    assert (audit.ruling, audit.reason.code) == (AuditRuling.INCONCLUSIVE, "audit.early")


def test_answers_without_token_ids_are_counted_and_not_ruled_on() -> None:
    unknown = [scored([SURE], n, arm=arm, token_ids=b"", scores=b"") for arm in ArmName for n in range(130, 140)]
    audit = ruled([*both(130, {}), *unknown], None)
    assert (audit.n_not_audited, audit.is_planned, audit.foreign[0].n_answers) == (20, False, 130)


def test_answers_tokenized_again_lack_their_ends_and_say_nothing_of_calibration() -> None:
    again = [replace(answer, is_tokenized_again=True) for answer in sampled((-0.2, -0.2)) if answer.part is SAMPLED]
    audit = ruled([*both(130, {}), *again], SAMPLING)
    assert (audit.ruling, audit.reason.code, audit.n_tokenized_again) == (AuditRuling.INCONCLUSIVE, "audit.no-ids", 400)
    assert [count.excess for count in audit.sampled] == [None, None]
    broken = [own for own in again if own.arm is BASELINE or own.position >= 20]
    junk = [scored([JUNK] * 50, n, arm=CANDIDATE, part=SAMPLED, is_tokenized_again=True) for n in range(20)]
    assert ruled([*both(130, {}), *broken, *junk], SAMPLING).reason.code == "audit.rare"


def test_texts_part_at_near_ties_or_at_foreign_tokens() -> None:
    ids = pack_ids([0, 1, 2])
    pairs = {
        "same": ([SURE] * 3, [SURE] * 3, ids),
        "near": ([SURE, (0.0, 0.5, 1), SURE], [SURE, (0.1, 0.5, 2), SURE], pack_ids([0, 9, 2])),
        "foreign": ([SURE] * 3, [SURE, FOREIGN, SURE], pack_ids([0, 9, 2])),
    }
    answers = []
    for position, (before, after, own) in enumerate(pairs.values()):
        answers += [scored(before, position), scored(after, position, arm=CANDIDATE, token_ids=own)]
    (parting,) = ruled(answers).partings
    assert (parting.n_pairs, parting.n_same, parting.n_near_ties, parting.n_foreign) == (3, 1, 1, 1)


def test_the_worst_token_is_shown_in_its_context_with_the_choice() -> None:
    pieces = TokenPieces(texts=("Half", " of", " 48", " is", " 24"), choices={2: " 84"})
    row = [SURE, SURE, FOREIGN, SURE, SURE]
    audit = ruled([*both(12, {}), scored(row, 12), scored(row, 12, arm=CANDIDATE, pieces=pieces)])
    worst = next(token for token in audit.worst if token.arm is CANDIDATE)
    assert (worst.before, worst.token, worst.after, worst.choice) == ("Half of", " 48", " is 24", " 84")
    assert (worst.index, worst.rank, round(worst.gap, 4)) == (2, 40, 6.0)


def test_a_foreign_audit_is_a_regression_whatever_the_accuracy_says() -> None:
    answers, plan, _, _ = RULINGS["one foreign token in 500"]
    audit, items = ruled(answers, plan), make.items(200)
    worse, proven = Reason("worse", {"p": 0.01}), Reason("all-equivalent")
    verdict, reasons = with_audit(Verdict.EQUIVALENT, (proven,), audit, items)
    assert verdict is Verdict.REGRESSION
    assert [reason.code for reason in reasons] == ["audit", "audit.worst", "audit.worst", "audit.worst"]
    assert with_audit(Verdict.REGRESSION, (worse,), audit, items)[1][-1] == worse
    assert with_audit(Verdict.INVALID, (worse,), audit, items) == (Verdict.INVALID, (worse,))
    clean = replace(audit, ruling=AuditRuling.CLEAN)
    assert with_audit(Verdict.EQUIVALENT, (proven,), clean, items) == (Verdict.EQUIVALENT, (proven,))
