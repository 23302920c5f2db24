"""The outer join of two logs: what is no pair is counted, shown, and never silently left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from qualab.errors import BadLog, InvalidValue, PairDiffers
from qualab.model.names import MetricKind, Verdict
from qualab.model.plan import DecisionRule, FindingCode
from qualab.run.sign import signoff_obstacles
from tests.imports.conftest import Importer, evidence
from tests.imports.lm_eval_files import Row, Run, binary_rows, row
from tests.said import english

Rows = list[Row]


def asked_otherwise(rows: Rows) -> Rows:
    return [row(one["doc_id"], one["doc"], prompts=["another"], exact_match=1) for one in rows[:3]] + rows[3:]


JOINS: list[tuple[Callable[[Rows], Rows], Callable[[Rows], Rows], FindingCode, tuple[int, ...], str]] = [
    (
        *(lambda rows: rows[:98], lambda rows: rows[1:], FindingCode.ROWS, (97, 1, 2, 0, 0, 0)),
        "sums: 97 answers paired, 1 only in the baseline, 2 only in the candidate.",
    ),
    (
        *(list, asked_otherwise, FindingCode.PROMPTS, (97, 0, 0, 3, 0, 0)),
        "sums: 97 answers paired, 3 with other prompts (allowed: prompts).",
    ),
    (
        *(list, lambda rows: [{**one, "target": "2"} for one in rows[:2]] + rows[2:], FindingCode.TARGETS),
        *((98, 0, 0, 0, 2, 0), "sums: 98 answers paired, 2 with another right answer (allowed: targets)."),
    ),
    (
        *(list, lambda rows: [*rows, rows[7]], FindingCode.DUPLICATES, (99, 0, 0, 0, 0, 1)),
        "sums: 99 answers paired, 1 logged more than once (allowed: duplicates).",
    ),
]


@pytest.mark.parametrize(("off", "on", "code", "counts", "said"), JOINS)
def test_what_is_no_pair_is_missing_unless_it_is_allowed(  # noqa: PLR0917
    importer: Importer,
    off: Callable[[Rows], Rows],
    on: Callable[[Rows], Rows],
    code: FindingCode,
    counts: tuple[int, ...],
    said: str,
) -> None:
    rows = binary_rows([1] * 100)
    found = importer.rows(off(rows), on(rows))
    join = importer.join
    assert counts == (
        *(join.paired, join.only_baseline, join.only_candidate),
        *(join.prompt_differs, join.target_differs, join.duplicated),
    )
    assert (found.metrics[0].n_items, found.metrics[0].n_missing) == (100, 100 - join.paired)
    allowed = Importer(folder=importer.folder / "2").rows(off(rows), on(rows), allowed=(code,))
    assert said in english(allowed.caveats)
    assert allowed.metrics[0].n_missing == (3 if code is FindingCode.ROWS else 0)


def test_more_missing_pairs_than_the_plan_allows_make_it_invalid(importer: Importer) -> None:
    rows = binary_rows([1] * 100)
    found = importer.rows(rows[:98], rows[1:])
    assert found.verdict is Verdict.INVALID
    assert "3 of 100 pairs lack an answer, more than the plan allows (0.5 %)" in english(found.reasons)[0]
    assert "qualab resume" not in english(found.reasons)[0]
    assert (found.suite.missing.baseline_only, found.suite.missing.candidate_only) == (2, 1)


def test_clusters_come_from_the_documents_of_known_tasks(importer: Importer) -> None:
    rows = [row(n, {"link": f"passage {n // 5}", "question": n}, acc=float(n % 2)) for n in range(50)]
    tested = evidence(importer.rows(rows, rows, task="belebele_kor_Hang"))
    assert (tested.n_items, tested.n_clusters) == (50, 10)


STOPPING: list[tuple[FindingCode, Row, Row]] = [
    (FindingCode.TASK_VERSION, {"versions": {"sums": 1.0}}, {"versions": {"sums": 2.0}}),
    (FindingCode.TASK_VERSION, {"versions": {"sums": "3.1"}}, {"versions": {"sums": "3.10"}}),
    (FindingCode.FEWSHOT, {"n-shot": {"sums": 5}}, {"n-shot": {"sums": 0}}),
    (FindingCode.CHAT_TEMPLATE, {"chat_template_sha": "a"}, {"chat_template_sha": None}),
    (FindingCode.SYSTEM_INSTRUCTION, {"system_instruction": "Be brief."}, {}),
]


@pytest.mark.parametrize(("code", "off", "on"), STOPPING)
def test_settings_that_differ_stop_unless_allowed(importer: Importer, code: FindingCode, off: Row, on: Row) -> None:
    rows = {"sums": binary_rows([1, 0, 1])}
    runs = Run(samples=rows, more=off), Run(samples=rows, more=on)
    with pytest.raises(PairDiffers, match="do not ask the same") as caught:
        importer.runs(*runs)
    assert f"--allow {code}" in caught.value.hint
    assert not importer.comparisons
    found = importer.runs(*runs, allowed=(code,))
    assert any(caveat.startswith("Allowed: ") for caveat in english(found.caveats))


@pytest.mark.parametrize(("one", "other"), [(3.0, 3), ("2.0", 2), (3, "3.00")])
def test_a_version_is_the_same_however_its_number_is_written(importer: Importer, one: Any, other: Any) -> None:
    importer.runs(*(Run(samples={"sums": binary_rows([1])}, more={"versions": {"sums": one}}) for one in (one, other)))


def test_the_generation_settings_of_every_row_are_compared(importer: Importer) -> None:
    asked = {"until": ["\n"], "temperature": 0.0}
    off, same, other = (
        [row(n, {"q": n}, second=[asked if n == 0 else settings], acc=1.0) for n in range(50)]
        for settings in (asked, {"temperature": 0, "until": "\n"}, {**asked, "temperature": 0.7})
    )
    importer.rows(off, same)
    with pytest.raises(PairDiffers, match=r"sums: the generation settings differ in 49 of 50 answers: .*:0,.*0\.7"):
        importer.rows(off, other)
    importer.rows(off, other, allowed=(FindingCode.GENERATION,))


def test_other_filters_stop_under_one_version_and_are_named_under_two(importer: Importer) -> None:
    rows = {"sums": binary_rows([1, 0, 1])}
    configs = [{"sums": {"filter_list": [{"name": "none", "filter": [{"function": name}]}]}} for name in "ab"]
    off, on = (Run(samples=rows, configs=config) for config in configs)
    with pytest.raises(PairDiffers, match="filters or metrics"):
        importer.runs(off, on)
    found = importer.runs(off, replace(on, version="0.4.9"))
    assert any("sums: filters or metrics" in caveat for caveat in english(found.caveats))
    assert "lm-eval's version: 0.4.13 and 0.4.9." in english(found.caveats)
    functions = ({"sums": {"metric_list": [{"metric": f"<function f at 0x7f{digit}>"}]}} for digit in "ab")
    importer.runs(*(Run(samples=rows, configs=config) for config in functions))  # at other addresses the same


def test_an_imported_comparison_claims_no_more_than_logs_tell_and_is_never_signed_off(importer: Importer) -> None:
    rows = binary_rows([1] * 2_000)
    found = importer.rows(rows, rows)
    assert found.verdict is Verdict.EQUIVALENT
    obstacles = english(signoff_obstacles(found, importer.comparison))
    assert {
        "imported from logs: what was run cannot be checked",
        "the margin was chosen after the data",
        "nothing tells that the drafter ran",
    } <= set(obstacles)
    (unchecked,) = (caveat for caveat in english(found.caveats) if caveat.startswith("Imported from logs"))
    assert all(word in unchecked for word in ("drafter", "images", "order", "retries"))
    assert [arm.latency_p50_s for arm in found.arms] == [None, None]
    assert found.treatment is None


def test_an_unknown_metric_is_taken_as_its_scores_look_and_a_known_one_s_other_value_is_said(
    importer: Importer,
) -> None:
    rows = [row(n, {"q": n}, acc=1.0, share=n / 10, odd=n / 10) for n in range(10)]
    results = {"sums": {"acc,none": 1.0, "share,none": 0.45, "odd,none": 12.3}}
    run = Run(samples={"sums": rows}, more={"results": results})
    found = importer.runs(run, run)
    assert {one.metric: (one.kind, one.verdict is Verdict.NOT_TESTED) for one in found.metrics} == {
        "acc,none": (MetricKind.BINARY_MEAN, False),
        "share,none": (MetricKind.MEAN, False),
        "odd,none": (MetricKind.OTHER, True),
    }
    assert "sums/share,none: taken for a mean of scores, which gives the log's own values." in english(found.caveats)
    rows = [row(n, {"question": n}, ensemble="strict-match", exact_match=1.0) for n in range(10)]
    run = Run(samples={"gsm8k": rows}, more={"results": {"gsm8k": {"exact_match,strict-match": 0.5}}})
    found = importer.runs(run, run)
    assert "gsm8k/exact_match,strict-match: the baseline's results say 0.5, its rows give 1." in english(found.caveats)


def test_tasks_of_one_run_alone_are_named_and_runs_without_a_common_task_item_or_margin_refused(
    importer: Importer,
) -> None:
    rows, others = binary_rows([1, 0]), [row(n, {"other": n}, acc=1.0) for n in range(2)]
    second, third, fourth = (Importer(folder=importer.folder / name) for name in "234")
    found = importer.runs(Run(samples={"a": rows, "b": rows}), Run(samples={"a": rows, "c": rows}))
    assert {"only the baseline has b: left out.", "only the candidate has c: left out."} <= set(english(found.caveats))
    with pytest.raises(InvalidValue, match="no benchmark, task or metric named sum"):
        second.rows(rows, rows, rule=DecisionRule(margins={"sum": 0.1}))
    assert not second.comparisons
    with pytest.raises(BadLog, match="no task in common: a and b"):
        third.runs(Run(samples={"a": rows}), Run(samples={"b": rows}))
    with pytest.raises(BadLog, match="Not one item of"):
        fourth.rows(rows, others)
