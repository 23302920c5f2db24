"""Loading official tasks from small local data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qualab.errors import BadDataFile, DatasetUnavailable, InvalidValue, UnknownTask
from qualab.model.names import MetricKind, RequestKind
from qualab.model.ports import TaskOptions
from tests.harness.in_process import LmEvalHarness, LoadedTasks
from tests.harness.tiny_data import KOBEST, belebele, gsm8k, haerae, write_jsonl


def load(harness: LmEvalHarness, data: Path | None, *names: str, **options: Any) -> LoadedTasks:
    return harness.load(TaskOptions(names=names, data_dir=data, **options))


def names_of(loaded: LoadedTasks) -> list[str]:
    return [task.name for task in loaded.tasks]


@pytest.fixture(scope="module")
def published(harness: LmEvalHarness, tiny_data: Path) -> LoadedTasks:
    return load(harness, tiny_data, "published-34")


def test_published_34_is_described_by_its_tasks_and_metrics(published: LoadedTasks) -> None:
    kinds = {metric.id: metric.kind for metric in published.metrics}
    assert len(kinds) == len(published.metrics) == 34
    assert published.suite == "published-34"
    assert sum(metric.is_primary for metric in published.metrics) == 5
    # the official Korean forms draft no token
    assert {metric.task for metric in published.metrics if metric.exercises_drafter} == {"gsm8k", "ifeval"}
    expected = {
        "gsm8k/exact_match,strict-match": MetricKind.BINARY_MEAN,
        "kobest_boolq/f1,none": MetricKind.MACRO_F1,
        "ifeval/inst_level_loose_acc,none": MetricKind.LIST_MEAN,
        "ifeval/prompt_level_loose_acc,none": MetricKind.BINARY_MEAN,
        "haerae/acc,none": MetricKind.GROUP_MEAN,
    }
    assert {name: kinds[name] for name in expected} == expected
    members = {metric.id: metric.members for metric in published.metrics}
    assert members["kobest/acc_norm,none"] == ("kobest_hellaswag",)
    assert (len(members["kobest/f1,none"]), members["kobest_wic/acc,none"]) == (5, ())
    specs = {task.name: task for task in published.tasks}
    boolq, grade_school = specs["kobest_boolq"], specs["gsm8k"]
    assert (boolq.dataset, boolq.revision, boolq.cluster_field) == ("skt/kobest_v1:boolq", "local", "paragraph")
    assert (boolq.kind, boolq.benchmark, boolq.version) == (RequestKind.LOGLIKELIHOOD, "kobest", "1.0")
    assert (grade_school.num_fewshot, grade_school.n_items, grade_school.n_available) == (5, 8, 8)
    assert specs["ifeval"].num_fewshot == 0


@pytest.mark.parametrize(
    ("names", "primaries"),
    [
        (("haerae", "haerae_gen"), ["haerae_gen/exact_match,answer"]),  # the form that drafts
        (("kobest_wic", "kobest_copa"), ["kobest_copa/acc,none", "kobest_wic/acc,none"]),
    ],
)
def test_which_metrics_decide(
    harness: LmEvalHarness, tiny_data: Path, names: tuple[str, ...], primaries: list[str]
) -> None:
    assert [one.id for one in load(harness, tiny_data, *names).metrics if one.is_primary] == primaries


def test_names_that_overlap_collapse(harness: LmEvalHarness, tiny_data: Path) -> None:
    loaded = load(harness, tiny_data, "kobest_wic", "kobest", "kobest", "kobest_boolq")
    assert (sorted(names_of(loaded)), loaded.suite) == (sorted(f"kobest_{name}" for name in KOBEST), "custom")


def test_unknown_names_need_no_index_and_name_the_nearest(
    harness: LmEvalHarness, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lm_eval.tasks

    real = lm_eval.tasks.TaskManager

    def without_defaults(*args: Any, include_defaults: bool = True, **kwargs: Any) -> Any:
        assert not include_defaults, "the full index takes about 6 s"
        return real(*args, include_defaults=include_defaults, **kwargs)

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", without_defaults)
    for names, nearest in ((("gsm8k", "gsm9k"), "gsm8k"), (("relaese",), "release")):
        with pytest.raises(UnknownTask, match=names[-1]) as caught:
            load(harness, tiny_data, *names)
        assert nearest in caught.value.hint
    assert names_of(load(harness, tiny_data, "release"))


def test_a_task_outside_the_catalog_is_found_in_the_full_index(harness: LmEvalHarness, tmp_path: Path) -> None:
    rows = [
        {"id": str(i), "question": f"Q{i}?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "A"}
        for i in range(3)
    ]
    write_jsonl(tmp_path / "ai2_arc/ARC-Easy/test.jsonl", rows)
    loaded = load(harness, tmp_path, "arc_easy", "arc_eas*")
    assert names_of(loaded) == ["arc_easy"]
    # acc of lm-eval's own multiple-choice scoring can be nothing but 0 or 1
    assert {metric.kind for metric in loaded.metrics} == {MetricKind.BINARY_MEAN}
    assert [metric.id for metric in loaded.metrics if metric.is_primary] == ["arc_easy/acc,none"]


@pytest.mark.parametrize(("limit", "n_items"), [(3, 3), (3.9, 3), (0.5, 4), (0.51, 5), (1, 1), (100, 8), (None, 8)])
def test_limit_is_lm_eval_s(harness: LmEvalHarness, tiny_data: Path, limit: float | None, n_items: int) -> None:
    (task,) = load(harness, tiny_data, "gsm8k", limit=limit).tasks
    assert (task.n_items, task.n_available) == (n_items, 8)


@pytest.mark.parametrize(
    ("names", "options", "named"),
    [
        (("gsm8k",), {"data_dir": Path("none")}, "data_dir"),
        (("gsm8k",), {"include_paths": (Path("none"),)}, "include_path"),
        (("gsm8k",), {"num_fewshot": -1}, "num_fewshot"),
        ((), {}, "No task is named"),
        *((("gsm8k",), {"limit": limit}, "limit") for limit in (0, -1, -0.5, float("nan"), float("inf"))),
    ],
)
def test_invalid_options(harness: LmEvalHarness, names: tuple[str, ...], options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValue, match=named) as caught:
        harness.load(TaskOptions(names=names, **options))
    assert names or caught.value.details["fields"] == {"tasks": "must name tasks or a suite"}


def test_num_fewshot_is_overridden_but_never_a_yaml_s_zero(harness: LmEvalHarness, tiny_data: Path) -> None:
    loaded = load(harness, tiny_data, "gsm8k", "ifeval", "belebele_kor_Hang", num_fewshot=2)
    assert {task.name: task.num_fewshot for task in loaded.tasks} == {"gsm8k": 2, "ifeval": 0, "belebele_kor_Hang": 2}


def test_splits_that_are_not_needed_may_be_missing(harness: LmEvalHarness, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "gsm8k/test.jsonl", gsm8k(3))
    assert load(harness, tmp_path, "gsm8k", num_fewshot=0).tasks[0].num_fewshot == 0
    with pytest.raises(DatasetUnavailable, match=r"split train.*gsm8k/train\.jsonl"):
        load(harness, tmp_path, "gsm8k")
    # the sample of HAE-RAE serves where the whole is missing
    write_jsonl(tmp_path / "haerae_sample/history.jsonl", haerae(2))
    assert load(harness, tmp_path, "haerae_history").tasks[0].n_items == 2
    write_jsonl(tmp_path / "haerae/history.jsonl", haerae(4))
    assert load(harness, tmp_path, "haerae_history").tasks[0].n_items == 4


def test_a_missing_data_set_names_data_set_paths_and_what_to_do(harness: LmEvalHarness, tmp_path: Path) -> None:
    with pytest.raises(DatasetUnavailable) as caught:
        load(harness, tmp_path, "belebele_kor_Hang")
    message = str(caught.value)
    for part in ("facebook/belebele:kor_Hang", "belebele/kor_Hang_test.jsonl", str(tmp_path), "--data-dir"):
        assert part in message
    assert "QUALAB_DATA_DIR" in message
    rows = [*KOBEST["boolq"], {"paragraph": "p", "question": "q", "label": "yes"}]
    write_jsonl(tmp_path / "kobest/boolq/test.jsonl", rows)
    with pytest.raises(BadDataFile, match="line 7: label is str and int before"):
        load(harness, tmp_path, "kobest_boolq")


def test_hashes_change_with_what_they_cover_and_with_nothing_else(harness: LmEvalHarness, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a/belebele/kor_Hang_test.jsonl", belebele(4))
    write_jsonl(tmp_path / "b/belebele/kor_Hang_test.jsonl", belebele(4))
    write_jsonl(tmp_path / "c/belebele/kor_Hang_test.jsonl", [*belebele(3), {**belebele(4)[3], "question": "다른"}])
    (first,), (second,), (third,) = (
        load(harness, tmp_path / name, "belebele_kor_Hang").tasks for name in ("a", "b", "c")
    )
    assert first == second
    assert third.config_hash == first.config_hash
    assert third.data_hash != first.data_hash
    (shorter,) = load(harness, tmp_path / "a", "belebele_kor_Hang", limit=3).tasks
    assert shorter.data_hash != first.data_hash
    (shots,) = load(harness, tmp_path / "a", "belebele_kor_Hang", num_fewshot=1).tasks
    assert shots.config_hash != first.config_hash


def test_importing_the_package_imports_neither_lm_eval_nor_datasets() -> None:
    program = (
        "import sys, qualab.harness.process\nprint(sorted({'lm_eval', 'datasets', 'numpy', 'nltk'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
