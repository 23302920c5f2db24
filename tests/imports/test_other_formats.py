"""Logs of Inspect 0.3.285, lighteval 0.13 and NeMo Evaluator 0.3.0, made by their own writers; and plain tables."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from qualab.errors import BadLog, InvalidValue
from qualab.model.names import MetricKind, RequestKind
from qualab.model.plan import DecisionRule
from tests.imports.conftest import BASELINE, CANDIDATE, Importer, evidence
from tests.said import english

FIXTURES = Path(__file__).parent / "fixtures"


def arms(name: str) -> tuple[Path, Path]:
    return FIXTURES / name / "baseline", FIXTURES / name / "candidate"


def table(importer: Importer, text: str, name: str = "scores.csv", **wanted: Any) -> Any:
    path = importer.folder / name
    path.write_text(text, encoding="utf-8")
    return importer.table(path, **wanted)


def test_inspect_s_logs_are_read_with_their_epochs_as_repeats(importer: Importer) -> None:
    found = importer(*arms("inspect"))
    assert {one.id: (one.n_items, one.baseline, one.candidate) for one in found.metrics} == {
        "sums/includes,none": (8, 1.0, 15 / 16),
        "sums/match,none": (8, 1.0, 15 / 16),
    }
    plan = importer.comparison.plan
    assert plan.sampling.repeats == 2
    assert (plan.tasks[0].version, plan.sampling.model) == ("2", "mockllm/model")
    tested = evidence(found)
    assert (tested.n_items, tested.n_clusters, tested.losses) == (16, 8, 1)
    assert importer.imported.baseline.startswith("Inspect 0.3.285, 20")
    (answer, *_) = importer.store.answers(found.comparison_id, arm=BASELINE)
    assert (answer.reply.text, answer.reply.finish_reason) == ("The answer is 0", "stop")
    assert answer.reply.completion_tokens
    (item, *_) = importer.store.items(found.comparison_id)
    assert item.prompts[0].text == "What is 0 + 0?"


def test_the_newest_inspect_log_of_each_task_is_taken(importer: Importer) -> None:
    folder = importer.folder / "logs"
    shutil.copytree(arms("inspect")[1], folder)
    (newer,) = arms("inspect")[0].glob("*.eval")
    shutil.copy(newer, folder / newer.name.replace("2026-", "2027-"))
    found = importer(folder, arms("inspect")[1])
    assert found.metrics[0].baseline == 1.0
    assert any("the baseline's folder has 1 other run" in caveat for caveat in english(found.caveats))


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x05\x06" + bytes(18), None])
def test_what_is_no_inspect_log_or_a_damaged_one_is_said(importer: Importer, content: bytes | None) -> None:
    (whole,) = arms("inspect")[0].glob("*.eval")
    path = importer.folder / "x.eval"
    damaged = bytearray(whole.read_bytes())
    with zipfile.ZipFile(whole) as archive:
        start = archive.getinfo("samples/3_epoch_1.json").header_offset
    damaged[start + 100 : start + 150] = bytes(50)
    path.write_bytes(damaged if content is None else content)
    with pytest.raises(BadLog, match=r"x\.eval") as caught:
        importer(path, whole)
    assert "Inspect" in caught.value.hint


def test_lighteval_s_details_are_read_with_and_without_results(importer: Importer) -> None:
    lighteval = importer.folder / "lighteval"
    with zipfile.ZipFile(FIXTURES / "lighteval.zip") as packed:
        packed.extractall(lighteval)
    found = importer(lighteval / "baseline", lighteval / "candidate")
    assert {one.id: (one.n_items, one.baseline, one.candidate) for one in found.metrics} == {
        "capitals|5/acc,none": (4, 1.0, 0.75),
        "sums|0/em,none": (6, 1.0, 5 / 6),
    }
    assert [english(finding.what) for finding in importer.imported.findings] == [
        "not compared, since the log of the baseline and the candidate does not tell: filters and metrics, "
        "the chat template",
        "capitals|5/acc,none: taken for a mean of 0/1 scores, which gives the log's own values",
        "sums|0/em,none: taken for a mean of 0/1 scores, which gives the log's own values",
    ]
    plan = importer.comparison.plan
    assert {task.name: (task.version, task.num_fewshot, task.kind) for task in plan.tasks} == {
        "capitals|5": ("0", 5, RequestKind.LOGLIKELIHOOD),
        "sums|0": ("1", 0, RequestKind.GENERATION),
    }
    assert plan.sampling.model == "made/up"
    answers = list(importer.store.answers(found.comparison_id, arm=CANDIDATE))
    assert "It is 99." in [answer.reply.text for answer in answers]
    assert (answers[0].reply.loglikelihood, answers[1].reply.loglikelihood) == (-2.0, -1.0)
    # without results, and named otherwise
    off, on = (next((lighteval / arm).rglob("details_sums*.parquet")) for arm in ("baseline", "candidate"))
    bare = Importer(folder=importer.folder)
    bare(off, shutil.copy(on, importer.folder / on.name.replace("|", "__")))
    assert (bare.join.task, bare.join.paired) == ("sums|0", 6)
    assert bare.comparison.plan.tasks[0].version == "1"


def test_nemo_s_bundles_are_read(importer: Importer) -> None:
    found = importer(*arms("nemo"))
    assert {one.id: (one.n_items, one.baseline, one.candidate) for one in found.metrics} == {
        "sums/reward,none": (6, 1.0, 5 / 6),
        "words/reward,none": (6, 1.0, 11 / 12),
    }
    assert importer.imported.baseline.startswith("NeMo Evaluator 0.3.0, eval-")
    (answer, *_) = importer.store.answers(found.comparison_id, arm=CANDIDATE)
    assert answer.reply.text == "It is 99."


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scores.csv", "item,baseline,candidate\na,1,1\nb,0,1\nc,1,0\nd,1,0\n"),
        ("scores.csv", "\ufeffitem;candidate;baseline\r\na;1;1\r\nb;1;0\r\nc;0;1\r\nd;false;true\r\n"),
        ("scores.tsv", "Item\tBaseline\tCandidate\na\t1\t1\nb\t0\t1\nc\t1\t0\nd\t1\t0\n"),
        (
            "scores.jsonl",
            '{"item": "a", "baseline": 1, "candidate": 1}\n{"item": "b", "baseline": 0, "candidate": 1.0}\n'
            '{"item": "c", "baseline": true, "candidate": false}\n{"item": "d", "baseline": 1, "candidate": 0}',
        ),
    ],
)
def test_a_table_is_a_comparison(importer: Importer, name: str, text: str) -> None:
    analysis = table(importer, text, name)
    (metric,) = analysis.metrics
    assert (metric.id, metric.kind, metric.n_items) == ("scores/score,none", MetricKind.BINARY_MEAN, 4)
    assert (evidence(analysis).gains, evidence(analysis).losses, metric.is_primary) == (1, 2, True)


def test_a_parquet_table_is_a_comparison(importer: Importer) -> None:
    path = importer.folder / "scores.parquet"
    columns = {"item": [1, 2, 3], "baseline": [0.5, 0.25, None], "candidate": [0.5, 0.75, 1.0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    (found,) = importer.table(path).metrics
    assert (found.kind, found.n_items, found.n_missing_baseline) == (MetricKind.MEAN, 3, 1)
    assert found.baseline == 0.375


def test_a_table_s_clusters_and_tasks_count_and_an_item_that_comes_twice_is_no_pair(importer: Importer) -> None:
    lines = [f"{n},{n % 2},1,p{n // 5},{'easy' if n < 50 else 'hard'}" for n in range(100)]
    found = table(importer, "item,baseline,candidate,cluster,task\n" + "\n".join(lines))
    assert [(one.task, one.n_items) for one in found.metrics] == [("easy", 50), ("hard", 50)]
    assert [one.evidence and one.evidence.n_clusters for one in found.metrics] == [10, 10]
    twice = Importer(folder=importer.folder)
    table(twice, "item,baseline,candidate\na,1,1\na,0,1\nb,1,1\n")
    assert (twice.join.paired, twice.join.duplicated) == (1, 1)


INFINITE = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "name,baseline,candidate\na,1,1\n", r"x\.csv, line 1: has no item"),
        ("x.csv", "item,baseline,candidate\na,1,1\nb,1\n", r"x\.csv, line 3: does not have 3 values"),
        ("x.csv", "item,baseline,candidate\na,1,1\nb,good,1\n", r"x\.csv, line 3: the baseline is 'good'"),
        ("x.csv", "item,baseline,candidate\na,1,1\n,0,1\n", r"x\.csv, line 3: the item has no name"),
        ("x.csv", "", r"x\.csv, line 1: has no item"),
        *(("x.csv", f"item,baseline,candidate\n1,1,{n}\n", f"line 2: .* '{n}', not a finite") for n in INFINITE),
        *(("x.jsonl", f'{{"item": 1, "baseline": {n}, "candidate": 1}}', "not a finite") for n in INFINITE.values()),
        ("x.jsonl", '{"item": 1, "baseline": 1, "candidate": 1}\n{"item": 2}\n', r"x\.jsonl, line 2: has no baseline"),
        ("x.jsonl", "[1]\n{}\n", r"x\.jsonl, line 1: is not a JSON object"),
        ("x.parquet", "PAR1 not really", r"x\.parquet cannot be read as Parquet"),
        ("x.xlsx", "", r"x\.xlsx is not a known kind of table"),
    ],
)
def test_what_is_no_table_is_said_with_its_line(importer: Importer, name: str, text: str, message: str) -> None:
    with pytest.raises(BadLog, match=message) as caught:
        table(importer, text, name)
    assert "Expected" in caught.value.hint
    assert not importer.comparisons


PERCENT = "item,baseline,candidate,task\na,80,80,sums\nb,0,100,sums\nc,55,55,sums\n"


def test_scores_outside_their_bounds_stop_an_import(importer: Importer) -> None:
    outside = r"sums/score,none: item 0 has the score 80 in the baseline, outside 0 to 1"
    with pytest.raises(InvalidValue, match=outside) as caught:
        table(importer, PERCENT)
    assert "--score-bounds sums=0:100" in caught.value.hint
    assert not importer.comparisons
    with pytest.raises(InvalidValue, match="outside 0 to 99"):
        table(importer, PERCENT, rule=DecisionRule(score_bounds={"sums": (0.0, 99.0)}))
    analysis = table(importer, PERCENT, rule=DecisionRule(score_bounds={"sums/score,none": (0.0, 100.0)}))
    (metric,) = analysis.metrics
    assert (metric.baseline, metric.candidate) == (45.0, pytest.approx(235 / 3))
    assert evidence(analysis).difference == pytest.approx(1 / 3)
