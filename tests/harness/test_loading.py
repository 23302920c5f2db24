"""Loading official tasks from small local data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qualab.errors import BadDataFile, DatasetUnavailable, InvalidValue, UnknownTask
from qualab.model.names import MetricKind, RequestKind
from tests.harness.conftest import KOBEST, Load, LoadedTasks, belebele, gsm8k, haerae, write_jsonl


def names_of(loaded: LoadedTasks) -> list[str]:
    return [task.name for task in loaded.tasks]


def test_published_34_is_described_by_its_tasks_and_metrics(load: Load) -> None:
    published = load("published-34")
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


def test_which_metrics_decide_and_names_that_overlap_collapse(load: Load) -> None:
    for names, primaries in (
        (("haerae", "haerae_gen"), ["haerae_gen/exact_match,answer"]),  # the form that drafts
        (("kobest_wic", "kobest_copa"), ["kobest_copa/acc,none", "kobest_wic/acc,none"]),
    ):
        assert [one.id for one in load(*names).metrics if one.is_primary] == primaries
    loaded = load("kobest_wic", "kobest", "kobest", "kobest_boolq")
    assert (sorted(names_of(loaded)), loaded.suite) == (sorted(f"kobest_{name}" for name in KOBEST), "custom")


def test_unknown_names_need_no_index_and_name_the_nearest(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    import lm_eval.tasks

    real = lm_eval.tasks.TaskManager

    def without_defaults(*args: Any, include_defaults: bool = True, **kwargs: Any) -> Any:
        assert not include_defaults, "the full index takes about 6 s"
        return real(*args, include_defaults=include_defaults, **kwargs)

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", without_defaults)
    for names, nearest in ((("gsm8k", "gsm9k"), "gsm8k"), (("relaese",), "release")):
        with pytest.raises(UnknownTask, match=names[-1]) as caught:
            load(*names)
        assert nearest in caught.value.hint
    assert names_of(load("release"))


def test_a_task_outside_the_catalog_is_found_in_the_full_index(load: Load, tmp_path: Path) -> None:
    rows = [
        {"id": str(i), "question": f"Q{i}?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "A"}
        for i in range(3)
    ]
    write_jsonl(tmp_path / "ai2_arc/ARC-Easy/test.jsonl", rows)
    loaded = load("arc_easy", "arc_eas*", data_dir=tmp_path)
    assert names_of(loaded) == ["arc_easy"]
    # acc of lm-eval's own multiple-choice scoring can be nothing but 0 or 1
    assert {metric.kind for metric in loaded.metrics} == {MetricKind.BINARY_MEAN}
    assert [metric.id for metric in loaded.metrics if metric.is_primary] == ["arc_easy/acc,none"]


def test_limit_and_num_fewshot_are_lm_eval_s_but_a_yaml_s_zero_stays(load: Load) -> None:
    for limit, n_items in ((3, 3), (3.9, 3), (0.5, 4), (0.51, 5), (1, 1), (100, 8), (None, 8)):
        (task,) = load("gsm8k", limit=limit).tasks
        assert (task.n_items, task.n_available) == (n_items, 8), limit
    loaded = load("gsm8k", "ifeval", "belebele_kor_Hang", num_fewshot=2)
    assert {task.name: task.num_fewshot for task in loaded.tasks} == {"gsm8k": 2, "ifeval": 0, "belebele_kor_Hang": 2}


INVALID: list[tuple[str, Any]] = [
    ("data_dir", Path("none")),
    ("include_paths", (Path("none"),)),
    ("num_fewshot", -1),
    *(("limit", limit) for limit in (0, -1, -0.5, float("nan"), float("inf"))),
]


def test_invalid_options(load: Load) -> None:
    for name, value in INVALID:
        with pytest.raises(InvalidValue, match=name.removesuffix("s")):
            load("gsm8k", **{name: value})
    with pytest.raises(InvalidValue, match="No task is named") as caught:
        load()
    assert caught.value.details["fields"] == {"tasks": "must name tasks or a suite"}


def test_splits_that_are_not_needed_may_be_missing_and_others_are_named(load: Load, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "gsm8k/test.jsonl", gsm8k(3))
    assert load("gsm8k", data_dir=tmp_path, num_fewshot=0).tasks[0].num_fewshot == 0
    with pytest.raises(DatasetUnavailable, match=r"split train.*gsm8k/train\.jsonl"):
        load("gsm8k", data_dir=tmp_path)
    # the sample of HAE-RAE serves where the whole is missing
    write_jsonl(tmp_path / "haerae_sample/history.jsonl", haerae(2))
    assert load("haerae_history", data_dir=tmp_path).tasks[0].n_items == 2
    write_jsonl(tmp_path / "haerae/history.jsonl", haerae(4))
    assert load("haerae_history", data_dir=tmp_path).tasks[0].n_items == 4
    with pytest.raises(DatasetUnavailable) as caught:
        load("belebele_kor_Hang", data_dir=tmp_path)
    named = ("facebook/belebele:kor_Hang", "belebele/kor_Hang_test.jsonl", str(tmp_path), "--data-dir")
    assert all(part in str(caught.value) for part in (*named, "QUALAB_DATA_DIR"))
    rows = [*KOBEST["boolq"], {"paragraph": "p", "question": "q", "label": "yes"}]
    write_jsonl(tmp_path / "kobest/boolq/test.jsonl", rows)
    with pytest.raises(BadDataFile, match="line 7: label is str and int before"):
        load("kobest_boolq", data_dir=tmp_path)


def test_hashes_change_with_what_they_cover_and_with_nothing_else(load: Load, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a/belebele/kor_Hang_test.jsonl", belebele(4))
    write_jsonl(tmp_path / "b/belebele/kor_Hang_test.jsonl", belebele(4))
    write_jsonl(tmp_path / "c/belebele/kor_Hang_test.jsonl", [*belebele(3), {**belebele(4)[3], "question": "다른"}])
    folders = [tmp_path / name for name in "abc"]
    first, second, third = (load("belebele_kor_Hang", data_dir=folder).tasks[0] for folder in folders)
    assert first == second
    assert third.config_hash == first.config_hash
    assert third.data_hash != first.data_hash
    (shorter,) = load("belebele_kor_Hang", data_dir=tmp_path / "a", limit=3).tasks
    assert shorter.data_hash != first.data_hash
    (shots,) = load("belebele_kor_Hang", data_dir=tmp_path / "a", num_fewshot=1).tasks
    assert shots.config_hash != first.config_hash
