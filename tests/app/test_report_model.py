"""What a report says: every section, what was measured, what is not known, and no more than the data show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from qualab.errors import WrongState
from qualab.model import comparison as results
from qualab.model import engine as engines
from qualab.model.names import ArmName, Language, LookDecision, MissingPolicy, Objective, RequestKind, Verdict
from qualab.model.plan import Assumptions, Imported, LookPlan, PinFound, Pinning, PinPart
from qualab.model.ports import ComparisonFilter
from qualab.model.reason import Reason, of
from qualab.model.report import (
    Bullets,
    Curve,
    Excerpt,
    Flow,
    Forest,
    Histogram,
    PairHistogram,
    Report,
    Splits,
    Table,
    Tone,
)
from qualab.model.wording import signed
from qualab.report.flips import AFTER, BEFORE, categories_of, extracted
from qualab.report.model import model_of, report_model
from qualab.report.source import Source
from qualab.report.verdict import MOST_REASONS
from qualab.report.words import Words
from qualab.store import Store
from tests.app.fakes import START
from tests.app.report_texts import english_in, texts
from tests.fresh_store import copy_of, fresh_store
from tests.render.audits import RARE
from tests.render.samples import DRAFTING, TEXTS, report, sample
from tests.said import english
from tests.store.samples import filled, make_entry, make_signoff

ORDER = ["forest", "verdict", "arms", "metrics", "power", "noise", "acceptance", "missing", "flips", "signoff"]
ORDER += ["configuration", "running", "methods"]
PRIMARY = "gsm8k/exact_match,flexible-extract"


def engine(drafter: str) -> engines.Engine:
    config = {"dtype": "half", "speculative_config": drafter or "null", "speculative_config.n": drafter and "4"}
    sizes = {"max_model_len": 2_048, "kv_cache_tokens": 23_296}
    return engines.Engine(kind=engines.EngineKind.VLLM, version="0.32.0", drafter=drafter, config=config, **sizes)


ENGINES = {ArmName.BASELINE: engine(""), ArmName.CANDIDATE: engine("ngram, 4 tokens")}


@cache
def bare() -> Source:
    made, analysis = sample()
    return Source(comparison=made.store.get(made.comparison.id), analysis=analysis, observations=())


def noise_and_repeats() -> dict[str, Any]:
    texts_compared = results.TextsCompared(n_pairs=79, same_text=61, changed=17, first_difference=42.0)
    odd = results.OddOneOut(n_items=79, n_odd=20, n_candidate_odd=9, pvalue=0.1897)
    flips = {"flip_rate_baseline": 0.0127, "flip_rate_candidate": 0.038, "odd": odd}
    counts = {"n_runs": 1, "concurrency": 16, "n_asked": 111, "n_answered": 110}
    candidate = replace(texts_compared, same_text=50, first_difference=37.0)
    metrics = (filled(results.MetricNoise, metric=PRIMARY, n_answers=79, **flips),)
    compared = {"baseline": texts_compared, "candidate": candidate, "odd_texts": odd, "metrics": metrics}
    noise = filled(results.NoiseFloor, **counts, **compared)
    repeats = {"metric": PRIMARY, "n_items": 79, "n_repeats": 4, "flip_rate": 0.11, "icc": 0.8, "icc_mean": 0.94}
    of_arms = tuple(filled(results.RepeatNoise, arm=arm, **repeats) for arm in ArmName)
    return {"noise": noise, "repeats": results.RepeatSummary(metrics=of_arms)}


def first_tokens() -> engines.FirstTokenSummary:
    nothing = filled(engines.TokensCompared)
    both = engines.TokensCompared(n_differ=29, n_tokenized=25, n_same_tokens=1, first_difference=9.5)
    none_known = replace(both, n_same_tokens=25, first_difference=None)
    tasks = (
        engines.TaskTokens(task="gsm8k", baseline=nothing, candidate=replace(both, first_difference=77.0)),
        engines.TaskTokens(task="ifeval", baseline=replace(nothing, n_differ=6), candidate=none_known),
        engines.TaskTokens(task="copa", baseline=nothing, candidate=nothing),
    )
    between = replace(both, n_differ=18, n_tokenized=18, first_difference=1234.0)
    how = {"by": engines.TokenizedBy.BASELINE, "lack": engines.TokensLack.TIME}
    return engines.FirstTokenSummary(**how, baseline=between, candidate=both, tasks=tasks)


@cache
def full() -> Source:
    """Everything that a comparison can have."""
    source = bare()
    treatment = filled(
        engines.Treatment,
        is_observed=True,
        engines=tuple(engines.EngineSummary.of(arm, engine) for arm, engine in ENGINES.items()),
        tasks=(DRAFTING,),
        bins=(engines.LengthBin(from_tokens=16, to_tokens=31, n_answers=8, draft_tokens=2_023, accepted_tokens=1_875),),
        notes=(of("gsm8k", Reason("below-break-even.plan", {"length": 2.23, "break_even": 2.43})),),
        break_even_length=2.43,
    )
    image = {"part": PinPart.IMAGE, "values": (f"sha256:{'a' * 64}",), "source": "kubectl, pod a/b"}
    pinning = Pinning(is_pinned=True, unpinned=(), found=tuple(PinFound(arm=arm, **image) for arm in ArmName))
    policy = results.PolicyResult(policy=MissingPolicy.WRONG, difference=0.01, interval=None, is_equivalent=False)
    rows = tuple(replace(row, policies=(policy,)) if row.id == PRIMARY else row for row in source.analysis.metrics)
    missing = results.MissingSummary(n_asked=420, baseline_only=1, candidate_only=3, both=0, pvalue=0.3125)
    decided = {"decision": LookDecision.PROVEN, "decided_at": 2}
    metric = filled(results.MetricLook, metric=PRIMARY, n_pairs=60, statistic=2.312, boundary=2.041, **decided)
    look = results.Look(number=2, n_items=200, input_hash="h", metrics=(metric,), decision=LookDecision.PROVEN)
    looks = results.LooksTaken(n_planned=5, looks=(look,), n_items=200, n_items_planned=420, n_requests_saved=440)
    assumed = Assumptions(discordance={PRIMARY: 0.05}, design_effect={PRIMARY: 1.0}, noise={}, joint_power=0.4321)
    plan = replace(source.plan, assumptions=assumed, looks=LookPlan(n_looks=5))
    analysis = replace(
        source.analysis,
        audit=RARE,
        tokens=first_tokens(),
        treatment=treatment,
        pinning=pinning,
        metrics=rows,
        looks=looks,
        caveats=treatment.notes,
        suite=replace(source.analysis.suite, missing=missing, joint_power=0.4321, joint_power_reason=None),
        **noise_and_repeats(),
    )
    seen = tuple(engines.EngineSeen(arm=arm, seen_at=START, engine=engine) for arm, engine in ENGINES.items())
    return replace(source, comparison=replace(source.comparison, plan=plan), analysis=analysis, observations=seen)


def model(source: Source, language: Language = Language.ENGLISH) -> Report:
    return model_of(source, Words(language=language))


def analysed(source: Source, **changes: Any) -> Source:
    return replace(source, analysis=replace(source.analysis, **changes))


def said(found: Report, section: str) -> str:
    return "\n".join(texts(found.section(section)))


def blocks(found: Report, section: str, kind: type) -> Iterator[Any]:
    return (block for block in found.section(section).blocks if isinstance(block, kind))


EVERYTHING = {
    "arms": ("ngram, 4 tokens", "23,296", "2,048", "vLLM 0.32.0"),
    "configuration": (f"sha256:{'a' * 64}", "speculative_config"),
    "power": ("2.00", "5 %"),
    "audit": ("96,204", "534.56", "35 of 60", "+7.20 to +8.40", "τ = 1", "[[<|im_end|>]]", "44.13", "3 of 1,083"),
    "metrics": ("43.2",),
    "looks": ("420", "440", PRIMARY, "2.31", "2.04"),
    "noise": (
        *("61 of 79", "77.2", "42", "37", "0.190", "1.3", "3.8", "0.80", "0.94"),
        *("10 (25 of 29 pairs)", "1,234 (18", "77 ("),
    ),
    "acceptance": ("1,000", "4,000", "30.9", "2.23", "41.0", "2.30 → 2.10", "−0.20", "2.43", "92.7"),
    "missing": ("0.312", "+1.00", "90 % interval"),
}
IN_KOREAN = {
    "35 of 60": "35 / 60",
    "+7.20 to +8.40": "+7.20 ~ +8.40",
    "3 of 1,083": "3 / 1,083",
    "5 %": "5%",
    "61 of 79": "61 / 79",
    "10 (25 of 29 pairs)": "10 (29쌍 중 25쌍)",
    "90 % interval": "90%",
}


@pytest.mark.parametrize("language", Language)
def test_everything_that_was_measured_is_shown(language: Language) -> None:
    found = model(full(), language)
    for section, wanted in EVERYTHING.items():
        shown = said(found, section)
        texts = [IN_KOREAN.get(text, text) if language is Language.KOREAN else text for text in wanted]
        assert [text for text in texts if text not in shown] == [], section
    assert language is not Language.KOREAN or english_in(found) == []


def test_a_histogram_has_every_number_of_accepted_tokens_and_others_beside_it_have_its_scale() -> None:
    (chart,) = blocks(model(full()), "acceptance", Histogram)
    shares = ("41.0 %", "30.0 %", "20.0 %", "9.0 %")
    bars = [(str(n), count, text) for n, (count, text) in enumerate(zip(DRAFTING.histogram, shares, strict=True))]
    assert [(bar.label, bar.count, bar.text) for bar in chart.bars] == bars
    found = model(drafting(DRAFTING, replace(DRAFTING, task="ifeval", histogram=(100, 800, 50, 50))))
    assert [chart.highest for chart in blocks(found, "acceptance", Histogram)] == [0.8, 0.8]


def test_the_forest_plot_has_every_primary_metric_and_its_band_says_the_margin() -> None:
    (chart,) = blocks(report(), "forest", Forest)
    _, analysis = sample()
    assert [(row.label, row.difference, row.low) for row in chart.rows] == [
        (row.id, row.evidence.difference, row.evidence.equivalence_interval.low)
        for row in analysis.metrics
        if row.is_primary
    ]
    assert chart.band == "margin ±2.00 pp"
    several = ruled(bare(), margins={PRIMARY: 0.03})
    (chart,) = blocks(model(several), "forest", Forest)
    assert chart.band == "margin"
    assert "±3.00 pp, ±2.00 pp" in said(model(several), "forest")


def test_settings_of_the_drafter_are_one_row_and_others_have_their_own() -> None:
    seen = full().observations[-1]
    other = replace(seen, engine=replace(seen.engine, config={**seen.engine.config, "dtype": "float"}))
    *_, table = blocks(model(replace(full(), observations=(*full().observations, other))), "configuration", Table)
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["dtype", "half", "float", "unexpected: breaks the comparison"],
        ["speculative_config (2 settings)", "none", "ngram, 4 tokens", "the drafter itself"],
    ]


@pytest.mark.parametrize("verdict", [one for one in Verdict if one not in (Verdict.IMPROVEMENT, Verdict.NOT_TESTED)])
@pytest.mark.parametrize("language", Language)
def test_every_verdict_has_its_sentence_above_the_sections_in_their_order(language: Language, verdict: Verdict) -> None:
    found = model(analysed(bare(), verdict=verdict), language)
    assert [section.id for section in found.sections] == ORDER
    assert found.headline
    assert "{" not in found.headline
    assert found.verdict.text == Words(language=language).name(verdict)


@pytest.mark.parametrize(
    ("answers", "shared", "sides"),
    [
        (TEXTS, "So the answer is 1", ("2.\nFinal answer: 12", "3.\nFinal answer: 13")),
        (("yes\nno", "yes no"), "yes", ("⏎\nno", "␣no")),
        (
            ("a" * 5_000 + " one" + "b" * 5_000, "a" * 5_000 + " two" + "c" * 5_000),
            "a" * (BEFORE - 1) + " ",
            (f"one{'b' * (AFTER - 3)}", f"two{'c' * (AFTER - 3)}"),
        ),
    ],
)
def test_excerpts_stand_around_the_first_difference_which_shows_its_white_space(
    answers: tuple[str, str], shared: str, sides: tuple[str, str]
) -> None:
    made, _ = sample(texts=answers)
    found = report_model(made.store, made.comparison.id, Language.ENGLISH)
    excerpts = list(blocks(found, "flips", Excerpt))
    assert excerpts
    for one in excerpts:
        assert (one.shared, tuple(side.text for side in one.sides)) == (shared, sides)
        assert {one.is_cut, *(side.is_cut for side in one.sides)} == {len(answers[0]) > BEFORE + AFTER}


def test_without_an_analysis_there_is_no_report() -> None:
    made, store = sample()[0], fresh_store()
    store.create(made.comparison, made.items)
    with pytest.raises(WrongState, match="no analysis yet"):
        report_model(store, made.comparison.id, Language.ENGLISH)


def sign(store: Store, **changes: Any) -> None:
    (comparison,) = store.list(ComparisonFilter())
    signoff = make_signoff(comparison_id=comparison.id, plan_hash=comparison.plan_hash, **changes)
    store.sign_off(signoff, entry=make_entry("comparison.sign-off", subject=comparison.id))


def test_who_signed_off_is_on_record_with_the_reason_of_an_override() -> None:
    store = copy_of(sample()[0].store)
    (comparison,) = store.list(ComparisonFilter())
    assert not list(blocks(report_model(store, comparison.id, Language.ENGLISH), "signoff", Bullets))
    said = {"analysis_hash": "5ea1" * 16, "note": "release 12", "override": "the customer waits"}
    sign(store, **said, obstacles=(Reason("verdict-is", {"verdict": Verdict.INCONCLUSIVE}),))
    for language, words in (
        (Language.ENGLISH, ("EQUIVALENT", "the verdict is INCONCLUSIVE")),
        (Language.KOREAN, ("동등", "판단 보류", "승인")),
    ):
        (record,) = next(blocks(report_model(store, comparison.id, language), "signoff", Bullets)).items
        assert [part for part in ("김하나", *said.values(), *words) if part not in record] == []


def test_models_that_answered_are_shown_where_they_are_not_the_one_that_was_asked() -> None:
    source = full()
    assert "answered by" not in said(model(source), "arms")
    asked = source.plan.sampling.model
    baseline, candidate = source.analysis.arms
    arms = (replace(baseline, models={asked: 40}), replace(candidate, models={"MODEL-B": 17, asked: 23}))
    found = said(model(analysed(source, arms=arms)), "arms")
    assert "answered by" in found
    assert f"MODEL-B (17), {asked} (23)" in found


@pytest.mark.parametrize("language", Language)
def test_tokens_stand_beside_characters_and_alone_without_a_noise_floor(language: Language) -> None:
    words, found = Words(language=language), model(full(), language)
    table = next(blocks(found, "noise", Table))
    labels = [row.cells[0].text for row in table.rows]
    at = labels.index(words("first token"))
    assert labels[at - 1] == words("first difference")
    assert labels[at + 1 : at + 3] == [words("first token in", task=task) for task in ("gsm8k", "ifeval")]
    assert not any("copa" in label for label in labels), "no text differs there"
    rows = table.rows[at : at + 3]
    values = [[1234.0, 9.5], [None, 77.0], [None, None]]
    assert [[cell.value for cell in row.cells[1:3]] for row in rows] == values
    ifeval = full().analysis.tokens.tasks[1]
    unknown, same = words("tokens unknown", texts=ifeval.baseline), words("tokens the same", texts=ifeval.candidate)
    assert [cell.text for cell in rows[2].cells[1:3]] == [unknown, same]
    for key in ("tokens how", "tokens lack time"):
        assert words(key, who=words("tokens baseline")) in said(found, "noise")
    tokens = full().analysis.tokens
    alone = analysed(full(), noise=None, tokens=replace(tokens, baseline=None, lack=None, tasks=tokens.tasks[:1]))
    (table, *_) = blocks(model(alone), "noise", Table)
    texts = [[cell.text for cell in row.cells] for row in table.rows]
    assert texts == [["first differing token (median)", "10 (25 of 29 pairs)"]]


def planned(source: Source, **changes: Any) -> Source:
    return replace(source, comparison=replace(source.comparison, plan=replace(source.plan, **changes)))


def ruled(source: Source, **changes: Any) -> Source:
    return planned(source, rule=replace(source.plan.rule, **changes))


def without_tokens(**changes: Any) -> Source:
    """Full, but that no text's tokens are known."""
    tokens = full().analysis.tokens
    unknown = replace(tokens.candidate, n_tokenized=0, n_same_tokens=0, first_difference=None)
    failed = replace(tokens, lack=engines.TokensLack.FAILED, baseline=unknown, candidate=unknown, tasks=())
    return analysed(full(), **{"tokens": failed, **changes})


LOGLIKELIHOODS = tuple(replace(task, kind=RequestKind.LOGLIKELIHOOD) for task in bare().plan.tasks)
IMPORTED = Imported(baseline="a", candidate="b", joins=(), findings=())


def drafting(*tasks: engines.TaskDrafting) -> Source:
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
        (bare, "configuration", "The engines were not recorded", True),
        (bare, "flips", "No scores are stored", True),
        (lambda: analysed(bare(), treatment=None), "acceptance", "did not look at the drafter", True),
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


def test_of_many_reasons_the_weightiest_are_said_and_the_others_counted() -> None:
    margin = Reason("margin.loss", {"margin": 0.02})
    losses = (of(row.id, Reason("proven.above", {"bounds": margin})) for row in bare().analysis.metrics)
    reasons = (*losses, Reason("no-primary"))
    shown = next(blocks(model(analysed(bare(), verdict=Verdict.REGRESSION, reasons=reasons)), "verdict", Bullets)).items
    assert shown[:MOST_REASONS] == english(reasons[:MOST_REASONS])
    assert shown[MOST_REASONS:] == ("and 26 more metrics: see the table of all metrics", "no primary metric")


def test_ways_of_treating_missing_answers_stand_side_by_side() -> None:
    ways = tuple(
        results.PolicyResult(
            policy=policy, difference=0.01, interval=None, is_equivalent=policy is not MissingPolicy.WRONG
        )
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
    unknown = tuple(replace(one, kind=engines.EngineKind.UNKNOWN, drafter="") for one in treatment.engines)
    table = next(blocks(model(analysed(full(), treatment=replace(treatment, engines=unknown))), "arms", Table))
    rows = {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in table.rows}
    assert (rows["engine"], rows["drafter"]) == (["not known"] * 2, ["not said"] * 2)


def test_what_was_extracted_is_read_off_a_score_and_shown_where_scores_hold_it() -> None:
    shown = {("12", "13"): "13", (True, False): "✓ ✗", (1, 2, 3): "[1, 2, 3]", ("a", "x\u200b"): "x‹U+200B›"}
    assert {detail: extracted(detail) for detail in shown} == shown
    assert extracted(None) == ""
    made, _ = sample()
    assert "not stored" in said(report(), "flips")
    store = copy_of(made.store)
    key = PRIMARY.partition("/")[2]
    found = [
        replace(one, detail=("12", "12" if one.value else "13")) if one.metric == key else one
        for one in store.scores(made.comparison.id)
    ]
    store.put_scores(made.comparison.id, found)
    stored = report_model(store, made.comparison.id, Language.ENGLISH)
    assert "not stored" not in said(stored, "flips")
    facts = [fact.text for one in blocks(stored, "flips", Excerpt) for fact in one.facts if fact.label == "extracted"]
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


@pytest.mark.parametrize("language", Language)
def test_pictures_show_the_way_of_the_items_what_changed_the_power_and_how_long_answers_took(
    language: Language,
) -> None:
    seconds = {ArmName.BASELINE: (0.1, 0.15, 3.0), ArmName.CANDIDATE: (0.1, 0.3, 600.0)}
    source = replace(full(), latencies=seconds)
    found, missing = model(source, language), source.analysis.suite.missing
    (flow,) = blocks(found, "missing", Flow)
    _, asked, answered, paired, _ = (step.text for step in flow.steps)
    baseline, candidate = answered.split(" · ")
    assert asked == f"{missing.n_asked:,}"
    assert baseline == f"{missing.n_asked - missing.baseline_only - missing.both - missing.left_out:,}"
    assert candidate == f"{missing.n_asked - missing.candidate_only - missing.both - missing.left_out:,}"
    lost = missing.baseline_only + missing.candidate_only + missing.both
    assert paired == f"{missing.n_asked - lost - missing.left_out:,}"
    (splits,) = blocks(found, "metrics", Splits)
    rows = {row.task: row.evidence for row in source.analysis.metrics if row.id == PRIMARY}
    (gsm8k,) = (row for row in splits.rows if row.label == "gsm8k")
    assert (gsm8k.loss, gsm8k.gain) == (rows["gsm8k"].losses / 79, rows["gsm8k"].gains / 79)
    (curve,) = blocks(found, "power", Curve)
    assert (curve.here[0], curve.target) == (32.0, 0.8)
    assert curve.points[-1][1] > curve.here[1]
    (latency,) = blocks(found, "arms", PairHistogram)
    edges = dict(zip(latency.edges, zip(*latency.counts, strict=True), strict=True))
    assert (edges["0.1"], edges["2"], edges["500"], edges["0.2"]) == ((2, 1), (1, 0), (0, 1), (0, 1))
    assert not list(blocks(model(full(), language), "arms", PairHistogram)), "latencies were not read"


def test_flips_are_counted_by_the_categories_that_documents_name_each_item_once() -> None:
    kinds = ('{"category":"copy"}', '{"category":"copy"}', '{"category":["a:b","a:c","d"]}', '{"q":1}')
    documents = [(position, "stress", doc) for position, doc in enumerate(kinds)]
    flips = [(-1.0, 0), (1.0, 0), (1.0, 1), (-1.0, 2), (-1.0, 3)]
    found = [(own.category, own.n_items, own.losses, own.gains) for own in categories_of(documents, flips)]
    assert found == [("copy", 2, 1, 1), ("a", 1, 1, 0), ("d", 1, 1, 0)]
