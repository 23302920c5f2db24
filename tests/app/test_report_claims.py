"""A report claims what its data show and no more, says what is not known, and what an analysis after the data is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from qualab.model.comparison import PolicyResult
from qualab.model.engine import EngineKind, TaskDrafting, TokensLack
from qualab.model.names import Language, MissingPolicy, Objective, RequestKind, Verdict
from qualab.model.plan import Imported
from qualab.model.reason import Reason, of
from qualab.model.report import Bullets, Excerpt, Forest, Histogram, Table, Tone
from qualab.model.wording import signed
from qualab.report.flips import extracted
from qualab.report.model import report_model
from qualab.report.source import Source
from qualab.report.verdict import MOST_REASONS
from tests.app.fakes import START
from tests.app.test_report_model import DRAFTING, PRIMARY, analysed, bare, blocks, full, model, said, sign
from tests.fresh_store import copy_of
from tests.render.samples import report, sample
from tests.said import english


def planned(source: Source, **changes: Any) -> Source:
    return replace(source, comparison=replace(source.comparison, plan=replace(source.plan, **changes)))


def ruled(source: Source, **changes: Any) -> Source:
    return planned(source, rule=replace(source.plan.rule, **changes))


def without_tokens(**changes: Any) -> Source:
    """Full, but that no text's tokens are known."""
    tokens = full().analysis.tokens
    unknown = replace(tokens.candidate, n_tokenized=0, n_same_tokens=0, first_difference=None)
    failed = replace(tokens, lack=TokensLack.FAILED, baseline=unknown, candidate=unknown, tasks=())
    return analysed(full(), **{"tokens": failed, **changes})


LOGLIKELIHOODS = tuple(replace(task, kind=RequestKind.LOGLIKELIHOOD) for task in bare().plan.tasks)
IMPORTED = Imported(baseline="a", candidate="b", joins=(), findings=())


def drafting(*tasks: TaskDrafting) -> Source:
    return analysed(full(), treatment=replace(full().analysis.treatment, tasks=tasks))


@pytest.mark.parametrize(
    ("make", "section", "text", "is_said"),
    [
        (lambda: analysed(bare(), verdict=Verdict.EQUIVALENT), "verdict", "with a chance of about 5 % at most", True),
        (lambda: analysed(bare(), verdict=Verdict.NON_INFERIOR), "verdict", "with a chance of about 5 % at most", True),
        (full, "metrics", "a large p is no evidence of equality", True),
        (full, "methods", "A large p does not show that the drafter adds nothing", True),
        (bare, "methods", "an interval leaves 0 out only where this test does", True),
        (lambda: ruled(bare(), strict=True), "running", "strict: a loss inside the margin is a regression too", True),
        (bare, "running", "strict", False),
        (full, "acceptance", "thirds:", True),
        (bare, "noise", "No noise floor was measured", True),
        (bare, "arms", "The engines were not recorded", True),
        (bare, "flips", "No scores are stored", True),
        (
            lambda: analysed(bare(), verdict=Verdict.INVALID, treatment=None),
            "acceptance",
            "did not look at the drafter",
            True,
        ),
        (without_tokens, "noise", "the tokenizer of the baseline's engine could not be used", True),
        (without_tokens, "noise", "tokenized again", False),
        (lambda: without_tokens(tokens=None), "noise", "this run did not tokenize its answers", True),
        (lambda: without_tokens(tokens=None), "noise", "tokenized again", False),
        (lambda: planned(bare(), imported=IMPORTED), "noise", "imported answers are not tokenized", True),
        (lambda: planned(bare(), tasks=LOGLIKELIHOODS), "noise", "is not known: ", False),
        (lambda: drafting(replace(DRAFTING, first_third=None, last_third=None)), "acceptance", "thirds", False),
    ],
)
def test_a_section_claims_what_holds_and_no_more(
    make: Callable[[], Source], section: str, text: str, is_said: bool
) -> None:
    assert (text in said(model(make()), section)) == is_said


def test_histograms_side_by_side_have_one_scale() -> None:
    found = model(drafting(DRAFTING, replace(DRAFTING, task="ifeval", histogram=(100, 800, 50, 50))))
    assert [chart.highest for chart in blocks(found, "acceptance", Histogram)] == [0.8, 0.8]


def test_non_inferior_rules_out_a_loss_and_claims_no_more() -> None:
    source = analysed(ruled(bare(), objective=Objective.NON_INFERIORITY), verdict=Verdict.NON_INFERIOR)
    english, korean = (model(source, language) for language in (Language.ENGLISH, Language.KOREAN))
    assert "a loss of 2.00 pp or more is ruled out in all 5 primary metrics" in english.headline
    assert "2.00%p 이상의 저하가 없음이 입증" in korean.headline
    assert "−" not in english.headline + korean.headline
    assert "losses smaller than the margin are not ruled out" in said(english, "verdict")
    assert "a one-sided score test at −margin" in said(english, "methods")
    assert "two one-sided" not in said(english, "methods")


def test_the_interval_that_is_shown_is_the_one_that_decides() -> None:
    source = full()
    (table,) = blocks(model(source), "metrics", Table)
    titles = [column.title for column in table.columns]
    assert "90 % interval" in titles
    assert "95 % interval" not in titles
    evidence = source.analysis.metrics[0].evidence
    low, high = (signed(limit) for limit in (evidence.equivalence_interval.low, evidence.equivalence_interval.high))
    assert table.rows[0].cells[titles.index("90 % interval")].text == f"{low} to {high}"
    assert any("proves the objective where it lies inside the margin" in text for text in table.legend)
    assert any("over all looks" in text for text in table.legend)
    assert "90 % confidence interval over all looks together" in said(model(full()), "forest")
    assert "over all looks" not in said(model(bare()), "forest") + said(model(bare()), "metrics")


@pytest.mark.parametrize("language", Language)
def test_no_cell_of_any_table_is_blank(language: Language) -> None:
    for source in (bare(), full()):
        for section in model(source, language).sections:
            for table in (block for block in section.blocks if isinstance(block, Table) and not block.is_form):
                assert all(cell.text for row in table.rows for cell in row.cells), section.id


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize(("n_changed", "n_named"), [(1, 1), (2, 2), (4, 2)])
def test_a_real_loss_inside_the_margin_is_in_the_first_sentence(
    language: Language, n_changed: int, n_named: int
) -> None:
    source = analysed(bare(), verdict=Verdict.EQUIVALENT)
    evidence = replace(source.analysis.metrics[0].evidence, difference=-0.003)
    reason = Reason("loss.inside", {"difference": 0.003, "low": 0.0015, "high": 0.0046})
    told = {"verdict": Verdict.EQUIVALENT, "reason": reason, "equals": ""}
    pvalues = [0.002] * n_changed + [0.2] * len(source.analysis.metrics)
    rows = tuple(
        replace(row, evidence=replace(evidence, pvalue_adjusted=pvalue), **told)
        for row, pvalue in zip(source.analysis.metrics, pvalues, strict=False)
    )
    found = model(analysed(source, metrics=rows), language)
    assert found.headline.count("0.15") == n_named
    more = f"{n_changed - n_named} more metrics" if language is Language.ENGLISH else f"지표 {n_changed - n_named}개"
    assert (more in found.headline) == (n_changed > n_named)


def test_the_band_says_its_margin() -> None:
    (chart,) = blocks(model(bare()), "forest", Forest)
    assert chart.band == "margin ±2.00 pp"
    several = ruled(bare(), margins={PRIMARY: 0.03})
    (chart,) = blocks(model(several), "forest", Forest)
    assert chart.band == "margin"
    assert "±3.00 pp, ±2.00 pp" in said(model(several), "forest")


def test_of_many_reasons_the_weightiest_are_said_and_the_others_counted() -> None:
    margin = Reason("margin.loss", {"margin": 0.02})
    losses = (of(row.id, Reason("proven.above", {"bounds": margin})) for row in bare().analysis.metrics)
    reasons = (*losses, Reason("no-primary"))
    shown = next(blocks(model(analysed(bare(), verdict=Verdict.REGRESSION, reasons=reasons)), "verdict", Bullets)).items
    assert shown[:MOST_REASONS] == english(reasons[:MOST_REASONS])
    assert shown[MOST_REASONS:] == ("and 26 more metrics: see the table of all metrics", "no primary metric")


def test_ways_of_treating_missing_answers_stand_side_by_side() -> None:
    ways = tuple(
        PolicyResult(policy=policy, difference=0.01, interval=None, is_equivalent=policy is not MissingPolicy.WRONG)
        for policy in MissingPolicy
    )
    rows = tuple(replace(row, policies=ways if row.id == PRIMARY else ()) for row in full().analysis.metrics)
    *_, table = blocks(model(analysed(full(), metrics=rows)), "missing", Table)
    (row,) = table.rows
    assert [cell.tone for cell in row.cells[1:5]] == [Tone.GOOD, Tone.OPEN, Tone.GOOD, Tone.GOOD]
    assert (row.cells[0].text, row.cells[-1].text) == (PRIMARY, "no")
    rows = tuple(replace(row, tipping_point=7, n_missing=13) for row in rows)
    *_, table = blocks(model(analysed(full(), metrics=rows)), "missing", Table)
    assert table.rows[0].cells[-1].text == "7 of 13 lost"


def test_what_logs_and_unknown_engines_do_not_tell_is_not_made_up() -> None:
    source = planned(bare(), imported=IMPORTED)
    assert "tokens generated" not in said(model(source), "arms")
    titles = [column.id for column in next(blocks(model(source), "missing", Table)).columns]
    assert titles == ["arm", "requests", "answered", "unanswered", "empty"]
    treatment = full().analysis.treatment
    engines = tuple(replace(one, kind=EngineKind.UNKNOWN, drafter="") for one in treatment.engines)
    table = next(blocks(model(analysed(full(), treatment=replace(treatment, engines=engines))), "arms", Table))
    rows = {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in table.rows}
    assert (rows["engine"], rows["drafter"]) == (["not known"] * 2, ["not said"] * 2)


def test_what_was_extracted_is_read_off_a_score() -> None:
    shown = {("12", "13"): "13", (True, False): "✓ ✗", (1, 2, 3): "[1, 2, 3]", ("a", "x\u200b"): "x‹U+200B›"}
    assert {detail: extracted(detail) for detail in shown} == shown
    assert extracted(None) == ""


def test_extracted_answers_are_shown_where_scores_hold_them_and_else_that_they_do_not() -> None:
    made, _ = sample()
    assert "not stored" in said(report(), "flips")
    store = copy_of(made.store)
    key = PRIMARY.partition("/")[2]
    found = [
        replace(one, detail=("12", "12" if one.value else "13")) if one.metric == key else one
        for one in store.scores(made.comparison.id)
    ]
    store.put_scores(made.comparison.id, found)
    shown = report_model(store, made.comparison.id, Language.ENGLISH)
    assert "not stored" not in said(shown, "flips")
    facts = [fact.text for one in blocks(shown, "flips", Excerpt) for fact in one.facts if fact.label == "extracted"]
    assert facts
    assert set(facts) == {"12 → 13"}


def test_a_report_under_another_plan_says_so_goes_by_it_and_is_not_signed() -> None:
    made, analysis = sample()
    store, other = copy_of(made.store), "f" * 64
    changes = (("margin", 0.02, 0.05), ("alpha", 0.05, 0.1), ("objective", "equivalence", "non_inferiority"))
    parts = (Reason("changed", {"part": part, "before": old, "after": new}) for part, old, new in changes)
    reasons = (Reason("after-data", {"changes": tuple(parts)}), *analysis.reasons)
    rows = tuple(replace(row, margin=0.05) for row in analysis.metrics)
    after = replace(analysis, plan_hash=other, verdict=Verdict.INVALID, reasons=reasons, metrics=rows)
    store.put_analysis(after, now=START)
    sign(store)
    found = report_model(store, made.comparison.id, Language.ENGLISH, plan_hash=other)
    assert (found.plan_hash, found.headline) == (other, "No verdict on quality: this plan was made after the data.")
    assert "made after the data: it shows what would have been found, and decides nothing" in said(found, "verdict")
    assert made.comparison.plan_hash[:12] in said(found, "verdict")
    assert "non-inferiority, above −5.00 pp, α = 0.1" in said(found, "running")
    (chart,) = blocks(found, "forest", Forest)
    assert {(row.margin_low, row.margin_high) for row in chart.rows} == {(-0.05, None)}
    assert "the plan was made after the data" in said(found, "signoff")
    assert (list(blocks(found, "signoff", Table)), "김하나" in said(found, "signoff")) == ([], False)
    assert list(blocks(report(), "signoff", Table)), "under its own plan"
    assert "after the data" not in said(report(), "verdict")
