"""What the catalog and a task's metadata say, and tables that are read from JSON lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from qualab.errors import BadDataFile, BrokenTask, DatasetUnavailable, EmptyDataset
from qualab.harness.catalog import hints_from_metadata, read_catalog
from qualab.harness.sources import in_memory, read_table
from qualab.model.names import MetricKind
from tests.harness.conftest import TASKS_DIR


def catalog_of(folder: Path, text: str) -> Path:
    (folder / "catalog.yaml").write_text(text)
    return folder


def test_suites_expand_names_collapse_and_a_task_s_hints_are_its_own_over_its_benchmark_s(tmp_path: Path) -> None:
    names = read_catalog(TASKS_DIR).expand(["ifeval", "published-34", "gsm8k", "ifeval"])
    assert names == ("ifeval", "gsm8k", "haerae", "kobest", "belebele_kor_Hang")
    hints, unknown = map(read_catalog(TASKS_DIR).hints, ("kobest_wic", "hellaswag"))
    assert (hints.benchmark, hints.cluster, hints.kind("f1,none")) == ("kobest", ("word",), MetricKind.MACRO_F1)
    assert (unknown.benchmark, unknown.cluster, unknown.kind("acc,none")) == (None, None, None)
    # a kind may be given for one filter alone
    text = 'benchmarks: {b: {metrics: {m: other, "m,strict": binary_mean}, tasks: {t: {}}}}'
    hints = read_catalog(catalog_of(tmp_path, text)).hints("t")
    assert (hints.kind("m,strict"), hints.kind("m,loose")) == (MetricKind.BINARY_MEAN, MetricKind.OTHER)


WRONG = {
    "suites: {s: {tasks: [a], colour: red}}": "suites.s.colour",
    "datasets: {d: {revision: main}}": "datasets.d.revision",
    "benchmarks: {b: {metrics: {acc: percentage}}}": "benchmarks.b.metrics.acc",
    "suites: {s: {}}": "suites.s.tasks",
    "suites: [": r"catalog\.yaml",
}


def test_a_wrong_or_missing_catalog_is_a_broken_task_that_names_the_place(tmp_path: Path) -> None:
    with pytest.raises(BrokenTask, match=r"catalog\.yaml"):
        read_catalog(tmp_path)
    for text, place in WRONG.items():
        with pytest.raises(BrokenTask, match=place):
            read_catalog(catalog_of(tmp_path, text))
    with pytest.raises(BrokenTask, match=r"mine.*qualab\.clusters"):
        hints_from_metadata("mine", {"version": 1, "qualab": {"clusters": ["x"]}})


def file_of(folder: Path, content: str | bytes) -> Path:
    path = folder / "data.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_rows_have_line_numbers_and_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    text = '\ufeff{"b": "one\u2028two\u0085three"}\r\n\n  \n{"b": "x", "a": 3}'
    rows = read_table(file_of(tmp_path, text), required=["b"])
    assert rows == {1: {"b": "one\u2028two\u0085three"}, 4: {"b": "x", "a": 3}}
    columns = in_memory(tmp_path, rows).to_dict()
    assert columns == {"b": ["one\u2028two\u0085three", "x"], "a": [None, 3]}


BAD_LINES: dict[str | bytes, str] = {
    '{"question": "q", "answer": "a"}\n{"question": "q", "answer": \n': "line 2: not JSON",
    '{"question": "q", "answer": "a"}\n["q", "a"]\n': "line 2: not a JSON object",
    '{"question": "q", "answer": "a"}\n\n{"question": "q"}\n': "line 3: no column answer",
    b'{"question": "\xff", "answer": "a"}\n': "line 1: not JSON",
}


def test_a_bad_line_and_a_file_without_rows_or_rights_are_named(tmp_path: Path) -> None:
    for content, says in BAD_LINES.items():
        with pytest.raises(BadDataFile, match=rf"data\.jsonl, {says}") as caught:
            read_table(file_of(tmp_path, content), required=["question", "answer"])
        assert "question, answer" in caught.value.hint
    with pytest.raises(BadDataFile, match="line 2: no column b"):  # the first line says the columns
        read_table(file_of(tmp_path, '{"a": 1, "b": 2}\n{"a": 1, "c": 3}\n'))
    for content in ("", "\n\n"):
        with pytest.raises(EmptyDataset, match=r"data\.jsonl"):
            read_table(file_of(tmp_path, content))
    with pytest.raises(DatasetUnavailable, match=r"none\.jsonl"):
        read_table(tmp_path / "none.jsonl")
