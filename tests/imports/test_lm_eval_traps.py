"""What makes lm-eval's samples hard to pair, each in the real format."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from qualab.errors import BadLog
from qualab.model.names import ArmName, EvidenceKind, MetricKind, RequestKind, Verdict
from tests.imports.conftest import BASELINE, CANDIDATE, Importer, evidence
from tests.imports.lm_eval_files import DATE, Row, Run, binary_rows, row, sha
from tests.said import english


def samples(folder: Path) -> Path:
    (found,) = folder.glob("*.jsonl*")
    return found


def two_filters(number: int, strict: float, flexible: float) -> list[Row]:
    doc, resps = {"question": f"q{number}"}, [f"an answer, {strict:g} and {flexible:g}"]
    return [
        row(number, doc, resps=resps, ensemble="strict-match", exact_match=strict),
        row(number, doc, resps=resps, ensemble="flexible-extract", exact_match=flexible),
    ]


def test_a_row_for_each_filter_is_one_item(importer: Importer) -> None:
    off = [two_filters(n, 1.0, 1.0) for n in range(10)]
    on = [two_filters(n, float(n > 0), 1.0) for n in range(10)]
    by_filter = [[rows[place] for rows in arm for place in (0, 1)] for arm in (off, on)]
    found = importer.rows(*by_filter, task="gsm8k")
    assert {one.id: (one.n_items, one.baseline, one.candidate) for one in found.metrics} == {
        "gsm8k/exact_match,flexible-extract": (10, 1.0, 1.0),
        "gsm8k/exact_match,strict-match": (10, 1.0, 0.9),
    }
    assert importer.join.paired == 10
    (stored, *others) = importer.store.items(found.comparison_id)
    assert (stored.doc, len(others)) == ({"question": "q0"}, 9)
    assert stored.prompts[0].gen_kwargs == {"until": ["\n"], "temperature": 0.0}
    (answer, *_) = importer.store.answers(found.comparison_id, arm=CANDIDATE)
    assert answer.reply.text == "an answer, 0 and 1"


def test_log_likelihoods_written_as_texts_are_numbers(importer: Importer) -> None:
    choices = [(-1.25, True), (float("-inf"), False)]
    rows = [row(n, {"q": n}, resps=choices, second=[" yes", " no"], acc=1.0) for n in range(3)]
    run = Run(samples={"boolq": rows}, configs={"boolq": {"output_type": "multiple_choice"}})
    found = importer.runs(run, run)
    (first, second, *_) = importer.store.answers(found.comparison_id, arm=BASELINE)
    assert (first.reply.loglikelihood, first.reply.is_greedy, first.reply.text) == (-1.25, True, None)
    assert (second.reply.loglikelihood, second.reply.is_greedy) == (float("-inf"), False)
    assert importer.comparison.plan.tasks[0].kind is RequestKind.LOGLIKELIHOOD
    assert not found.metrics[0].exercises_drafter


def test_f1_is_stored_as_pairs_and_added_up_over_labels_and_nan_is_no_score(importer: Importer) -> None:
    labels, answers = [0, 1, 0, 1, 1, 0], [0, 1, 1, 1, 0, 0]
    off, on = (
        [row(n, {"q": n, "paragraph": f"p{n}"}, f1=pair) for n, pair in enumerate(zip(labels, given, strict=True))]
        for given in (labels, answers)
    )
    analysis = importer.rows(off, on, task="kobest_boolq")
    (metric,) = analysis.metrics
    assert (metric.kind, metric.baseline, metric.candidate) == (MetricKind.MACRO_F1, 1.0, pytest.approx(2 / 3))
    assert (evidence(analysis).kind, evidence(analysis).n_changed) == (EvidenceKind.LABELS, 2)
    rows = binary_rows([1, 0, 1])
    rows[1]["exact_match"] = float("nan")
    found = Importer(folder=importer.folder / "2").rows(rows, binary_rows([1, 0, 1])).metrics[0]
    assert (found.n_items, found.n_missing_baseline) == (3, 1)


def test_ifeval_s_lists_are_averaged_over_all_entries(importer: Importer) -> None:
    lists = [[True, False, True], [True], [False, False]]
    rows = [
        row(n, {"key": n, "kwargs": []}, prompt_level_strict_acc=all(one), inst_level_strict_acc=one)
        for n, one in enumerate(lists)
    ]
    analysis = importer.rows(rows, rows, task="ifeval")
    baselines = [(metric.metric, metric.baseline) for metric in analysis.metrics]
    assert baselines == [("inst_level_strict_acc,none", 0.5), ("prompt_level_strict_acc,none", 1 / 3)]
    assert (evidence(analysis).n_items, evidence(analysis).n_clusters) == (6, 3)


def copa(number: int, choices: list[str], acc: float) -> Row:
    """KoBEST copa asks "... 왜냐하면" of two documents that differ in their choices alone."""
    doc = {"premise": "비가 왔다.", "question": "원인", "alternative_1": choices[0], "alternative_2": choices[1]}
    prompts, resps = ["비가 왔다. 왜냐하면"] * 2, [(-1.0, True), (-2.0, False)]
    return row(number, doc, resps=resps, prompts=prompts, second=choices, target=choices[0], acc=acc)


SUMS = binary_rows([1, 0, 1, 1, 0, 1])
BARE = {"key": 1, "prompt": "p", "kwargs": [{"num_words": 3, "relation": "at least"}]}
FULL = {"prompt": "p", "kwargs": [{"relation": "at least", "num_words": 3, "letter": None}], "key": 1}
TWICE = [row(n, {"question": "the same"}, acc=float(n)) for n in range(2)]
PAIRS: dict[str, tuple[list[Row], list[Row]]] = {
    "rows in another order": (SUMS, SUMS[::-1]),
    "other numbers of documents, as under --samples": (SUMS, [{**one, "doc_id": 5 - one["doc_id"]} for one in SUMS]),
    "a field of another version": (SUMS, [{**one, "doc": {**one["doc"], "added": "x"}} for one in SUMS]),
    "keys in another order, and empty ones, as in the hub's IFEval": (
        [row(0, BARE, prompts=["p"], acc=1.0)],
        [row(0, FULL, prompts=["p"], acc=1.0)],
    ),
    "a document that the data set has twice": (TWICE, TWICE[::-1]),
    "the same prompts of other documents": (
        [copa(0, ["구름", "해"], 1.0), copa(1, ["바람", "눈"], 0.0)],
        [copa(0, ["바람", "눈"], 0.0), copa(1, ["구름", "해"], 1.0)],
    ),
}


@pytest.mark.parametrize("case", PAIRS)
def test_an_item_is_found_again(importer: Importer, case: str) -> None:
    off, on = PAIRS[case]
    tested = evidence(importer.rows(off, on))
    assert (importer.join.paired, tested.n_items, tested.n_changed) == (len(off), len(off), 0)


def test_gzip_and_byte_order_marks_are_read_and_a_gzip_file_that_was_cut_is_damaged(importer: Importer) -> None:
    run = Run(samples={"sums": [row(n, {"q": n, "noise": sha(str(n))}, acc=1.0) for n in range(300)]})
    off, on = run.write(importer.folder / "off"), run.write(importer.folder / "on")
    plain = samples(off)
    whole = gzip.compress(plain.read_bytes())
    packed = plain.with_name(f"{plain.name}.gz")
    packed.write_bytes(whole)
    plain.unlink()
    for path in on.iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    importer(off, on)
    assert importer.join.paired == 300
    packed.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(BadLog, match=r"\.gz is damaged"):
        importer(off, on)


def test_chat_prompts_are_told_apart(importer: Importer) -> None:
    messages = json.dumps([{"role": "user", "content": "hi"}])
    rows = [row(0, {"q": 0}, prompts=["x"], acc=1.0)]
    rows[0]["arguments"] = [([messages], {"until": []})]
    found = importer.rows(rows, rows)
    (item,) = importer.store.items(found.comparison_id)
    assert (item.prompts[0].is_chat, item.prompts[0].text) == (True, messages)


def test_the_newest_of_several_runs_is_taken_or_the_one_that_is_named(importer: Importer) -> None:
    folder = importer.folder / "off" / "model"
    Run(samples={"sums": binary_rows([0] * 4)}, date="2026-01-01T00-00-00.1").write(folder)
    Run(samples={"sums": binary_rows([1] * 4)}, date="2026-02-01T00-00-00.1").write(folder)
    on = Run(samples={"sums": binary_rows([1] * 4)}).write(importer.folder / "on")
    found = importer(importer.folder / "off", on)
    assert found.metrics[0].baseline == 1.0
    assert any("the baseline's folder has 1 other run" in caveat for caveat in english(found.caveats))
    older = importer(importer.folder / "off", on, runs={ArmName.BASELINE: "2026-01-01"})
    assert older.metrics[0].baseline == 0.0
    with pytest.raises(BadLog, match="no run named 2027"):
        importer(importer.folder / "off", on, runs={ArmName.BASELINE: "2027"})
    named = importer(*(folder / f"results_2026-0{month}-01T00-00-00.1.json" for month in (2, 1))).metrics[0]
    assert (named.baseline, named.candidate) == (1.0, 0.0)
    # `--output_path mine.json`: the results are named after it, the samples are not
    (on / f"results_{DATE}.json").rename(on / f"mine_{DATE}.json")
    mine = Importer(folder=importer.folder)
    mine(on, folder)
    assert mine.imported.baseline == f"lm-eval 0.4.13, mine_{DATE}.json"


def test_group_values_are_weighted_as_the_log_s_own(importer: Importer) -> None:
    rows = {"a": binary_rows([1, 0], key="acc"), "b": binary_rows([1, 1, 1, 1], key="acc")}
    results = {"a": {"acc,none": 0.5}, "b": {"acc,none": 1.0}, "both": {"acc,none": 5 / 6}}
    run = Run(samples=rows, more={"results": results, "groups": {"both": results["both"]}})
    run.more["group_subtasks"] = {"both": ["a", "b"]}
    found = importer.runs(run, run)
    assert [one.id for one in found.metrics] == ["both/acc,none", "a/acc,none", "b/acc,none"]
    group = found.metrics[0]
    assert (group.kind, group.baseline, group.n_items) == (MetricKind.GROUP_MEAN, 5 / 6, 6)
    assert [one.is_primary for one in found.metrics] == [True, False, False]
    assert importer.comparison.plan.requested == ("both",)
    unweighted = replace(run, more={**run.more, "results": {**results, "both": {"acc,none": 0.75}}, "groups": {}})
    again = importer.runs(unweighted, unweighted)
    assert again.metrics[0].verdict is Verdict.NOT_TESTED
