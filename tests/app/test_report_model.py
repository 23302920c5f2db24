"""What a report says: every section, what was measured, and what was not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from qualab.errors import WrongState
from qualab.model import comparison as results
from qualab.model import engine as engines
from qualab.model.names import ArmName, Language, LookDecision, MissingPolicy, Verdict
from qualab.model.plan import Assumptions, LookPlan, PinFound, Pinning, PinPart
from qualab.model.ports import ComparisonFilter
from qualab.model.reason import Reason, of
from qualab.model.report import Bullets, Excerpt, Forest, Histogram, Report, Table
from qualab.report.flips import AFTER, BEFORE
from qualab.report.model import model_of, report_model
from qualab.report.source import Source
from qualab.report.words import Words
from qualab.store import Store
from tests.app.fakes import START
from tests.app.report_texts import english_in, texts
from tests.fresh_store import copy_of, fresh_store
from tests.render.samples import TEXTS, report, sample
from tests.store.samples import filled, make_entry, make_signoff

ORDER = ["verdict", "arms", "forest", "metrics", "power", "noise", "acceptance", "missing", "running", "flips"]
ORDER += ["signoff", "methods"]
PRIMARY = "gsm8k/exact_match,flexible-extract"
DRAFTING = filled(
    engines.TaskDrafting, task="gsm8k", n_answers=79, rounds=1_000, draft_tokens=4_000, accepted_tokens=1_234,
    accepted_share=0.3086, mean_length=2.234, median_length=2.0, p10_length=1.0, zero_share=0.41,
    histogram=(410, 300, 200, 90), request_mean_length=2.5, first_third=2.3, last_third=2.1, break_even_margin=-0.2,
)  # fmt: skip


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
    noise = filled(
        results.NoiseFloor,
        **counts,
        baseline=texts_compared,
        candidate=replace(texts_compared, same_text=50, first_difference=37.0),
        odd_texts=odd,
        metrics=(filled(results.MetricNoise, metric=PRIMARY, n_answers=79, **flips),),
    )
    of_arm = filled(
        results.RepeatNoise, metric=PRIMARY, n_items=79, n_repeats=4, flip_rate=0.11, icc=0.8, icc_mean=0.94
    )
    return {
        "noise": noise,
        "repeats": results.RepeatSummary(metrics=tuple(replace(of_arm, arm=arm) for arm in ArmName)),
    }


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
    policies = {PRIMARY: (policy,)}
    rows = tuple(replace(row, policies=policies.get(row.id, row.policies)) for row in source.analysis.metrics)
    missing = results.MissingSummary(n_asked=420, baseline_only=1, candidate_only=3, both=0, pvalue=0.3125)
    decided = {"decision": LookDecision.PROVEN, "decided_at": 2}
    metric = filled(results.MetricLook, metric=PRIMARY, n_pairs=60, statistic=2.312, boundary=2.041, **decided)
    look = results.Look(number=2, n_items=200, input_hash="h", metrics=(metric,), decision=LookDecision.PROVEN)
    looks = results.LooksTaken(n_planned=5, looks=(look,), n_items=200, n_items_planned=420, n_requests_saved=440)
    assumed = Assumptions(discordance={PRIMARY: 0.05}, design_effect={PRIMARY: 1.0}, noise={}, joint_power=0.4321)
    plan = replace(source.plan, assumptions=assumed, looks=LookPlan(n_looks=5))
    analysis = replace(
        source.analysis,
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


@pytest.mark.parametrize("language", Language)
def test_sections_come_in_the_order_in_which_they_are_read(language: Language) -> None:
    assert [section.id for section in report(language).sections] == ORDER


EVERYTHING = {
    "arms": ("ngram, 4 tokens", "23,296", "2,048", "vLLM 0.32.0", f"sha256:{'a' * 64}", "speculative_config"),
    "power": ("2.00", "5 %"),
    "metrics": ("43.2",),
    "looks": ("420", "440", PRIMARY, "2.31", "2.04"),
    "noise": (
        *("61 of 79", "77.2", "42", "37", "0.190", "1.3", "3.8", "0.80", "0.94"),
        *("10 (25 of 29 pairs)", "1,234 (18", "77 ("),
    ),
    "acceptance": ("1,000", "4,000", "30.9", "2.23", "41.0", "2.30 → 2.10", "−0.20", "2.43", "92.7"),
    "missing": ("0.312", "+1.00", "90 % interval"),
}
IN_KOREAN = {"5 %": "5%", "61 of 79": "61 / 79", "10 (25 of 29 pairs)": "10 (29쌍 중 25쌍)", "90 % interval": "90%"}


@pytest.mark.parametrize("language", Language)
def test_everything_that_was_measured_is_shown(language: Language) -> None:
    found = model(full(), language)
    for section, wanted in EVERYTHING.items():
        shown = said(found, section)
        texts = [IN_KOREAN.get(text, text) if language is Language.KOREAN else text for text in wanted]
        assert [text for text in texts if text not in shown] == [], section
    assert language is not Language.KOREAN or english_in(found) == []


def test_a_histogram_has_every_number_of_accepted_tokens() -> None:
    (chart,) = blocks(model(full()), "acceptance", Histogram)
    shares = ("41.0 %", "30.0 %", "20.0 %", "9.0 %")
    bars = [(str(n), count, text) for n, (count, text) in enumerate(zip(DRAFTING.histogram, shares, strict=True))]
    assert [(bar.label, bar.count, bar.text) for bar in chart.bars] == bars


def test_the_forest_plot_has_every_primary_metric() -> None:
    (chart,) = blocks(report(), "forest", Forest)
    _, analysis = sample()
    primaries = [row for row in analysis.metrics if row.is_primary]
    assert [row.label for row in chart.rows] == [row.id for row in primaries]
    assert [(row.difference, row.low) for row in chart.rows] == [
        (row.evidence.difference, row.evidence.equivalence_interval.low) for row in primaries
    ]


def test_settings_of_the_drafter_are_one_row_and_others_have_their_own() -> None:
    seen = full().observations[-1]
    other = replace(seen, engine=replace(seen.engine, config={**seen.engine.config, "dtype": "float"}))
    *_, table = blocks(model(replace(full(), observations=(*full().observations, other))), "arms", Table)
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["dtype", "half", "float", "unexpected: breaks the comparison"],
        ["speculative_config (2 settings)", "none", "ngram, 4 tokens", "the drafter itself"],
    ]


@pytest.mark.parametrize("verdict", [one for one in Verdict if one not in (Verdict.IMPROVEMENT, Verdict.NOT_TESTED)])
@pytest.mark.parametrize("language", Language)
def test_every_verdict_has_its_sentence(language: Language, verdict: Verdict) -> None:
    found = model(analysed(bare(), verdict=verdict), language)
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
    made, _ = sample()
    store = fresh_store()
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
def test_tokens_stand_beside_characters_and_say_whose_they_are(language: Language) -> None:
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


def test_tokens_of_the_arms_are_shown_without_a_noise_floor() -> None:
    tokens = full().analysis.tokens
    alone = replace(tokens, baseline=None, lack=None, tasks=tokens.tasks[:1])
    found = model(analysed(full(), noise=None, tokens=alone))
    (table, *_) = blocks(found, "noise", Table)
    texts = [[cell.text for cell in row.cells] for row in table.rows]
    assert texts == [["first differing token (median)", "10 (25 of 29 pairs)"]]
