from __future__ import annotations

from pathlib import Path

import pytest

from qualab.errors import BrokenTask
from qualab.harness.catalog import hints_from_metadata, read_catalog
from qualab.model.names import MetricKind
from tests.harness.conftest import TASKS_DIR


def catalog_of(folder: Path, text: str) -> Path:
    (folder / "catalog.yaml").write_text(text)
    return folder


def test_suites_expand_and_names_collapse() -> None:
    names = read_catalog(TASKS_DIR).expand(["ifeval", "published-34", "gsm8k", "ifeval"])
    assert names == ("ifeval", "gsm8k", "haerae", "kobest", "belebele_kor_Hang")


def test_a_task_s_hints_are_its_own_over_its_benchmark_s() -> None:
    hints, unknown = map(read_catalog(TASKS_DIR).hints, ("kobest_wic", "hellaswag"))
    assert (hints.benchmark, hints.cluster, hints.kind("f1,none")) == ("kobest", ("word",), MetricKind.MACRO_F1)
    assert (unknown.benchmark, unknown.cluster, unknown.kind("acc,none")) == (None, None, None)
    tasks = ("haerae_history_gen", "kobest_hellaswag", "kobest_wic", "gsm8k")
    assert [read_catalog(TASKS_DIR).hints(task).choices for task in tasks] == [5, 4, 2, None]


def test_a_kind_may_be_given_for_one_filter_alone(tmp_path: Path) -> None:
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


def test_wrong_metadata_of_a_task_names_task_and_key() -> None:
    with pytest.raises(BrokenTask, match=r"mine.*qualab\.clusters"):
        hints_from_metadata("mine", {"version": 1, "qualab": {"clusters": ["x"]}})
