"""Tasks of a user, found with --include_path."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from qualab.errors import BadDataFile, BrokenTask, DatasetUnavailable, ScoringUnavailable
from qualab.model.names import MetricKind, RequestKind
from qualab.model.ports import TaskOptions
from tests.harness.conftest import TASKS_DIR
from tests.harness.in_process import LmEvalHarness, LoadedTasks
from tests.harness.tiny_data import write_jsonl

ROWS = [{"q": f"What is {i} + 1?", "a": str(i + 1), "passage": f"p{i // 2}"} for i in range(6)]

PLAIN = """
    task: mine
    dataset_path: json
    dataset_kwargs: {data_files: {test: items.jsonl}}
    output_type: generate_until
    test_split: test
    doc_to_text: "{{q}}"
    doc_to_target: "{{a}}"
    generation_kwargs: {until: ["\\n"]}
    metric_list:
      - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


def own(folder: Path, yaml: str, rows: list[dict[str, Any]] = ROWS, *, name: str = "mine.yaml", code: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(dedent(yaml))
    write_jsonl(folder / "items.jsonl", rows)
    if code:
        (folder / "helpers.py").write_text(dedent(code))
    return folder


def load(harness: LmEvalHarness, folder: Path, *names: str, **options: Any) -> LoadedTasks:
    return harness.load(TaskOptions(names=names or ("mine",), include_paths=(folder,), **options))


def test_a_task_of_ones_own_has_its_data_beside_its_yaml_or_in_the_working_directory(
    harness: LmEvalHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(harness, own(tmp_path / "own", PLAIN))
    (task,), (metric,) = loaded.tasks, loaded.metrics
    assert (task.name, task.benchmark, task.revision, task.n_items) == ("mine", "mine", "local", 6)
    assert task.kind is RequestKind.GENERATION
    # lm-eval decides what exact_match can be
    assert (metric.kind, metric.is_primary, metric.exercises_drafter) == (MetricKind.BINARY_MEAN, True, True)
    write_jsonl(tmp_path / "cwd/items.jsonl", ROWS[:2])
    monkeypatch.chdir(tmp_path / "cwd")
    assert load(harness, tmp_path / "own").tasks[0].n_items == 2


def test_a_data_file_that_is_missing_broken_or_empty_is_named(harness: LmEvalHarness, tmp_path: Path) -> None:
    folder = own(tmp_path, PLAIN)
    (folder / "another.yaml").write_text("task: [")  # nobody asked for this one
    (folder / "items.jsonl").write_text('{"q": "x", "a": "y", "passage": "p"}\n{oops\n')
    with pytest.raises(BadDataFile, match=r"items\.jsonl, line 2"):
        load(harness, folder)
    (folder / "items.jsonl").write_text("")
    with pytest.raises(BadDataFile, match=r"items\.jsonl"):
        load(harness, folder)
    (folder / "items.jsonl").unlink()
    with pytest.raises(DatasetUnavailable, match=rf"items\.jsonl.*{tmp_path}"):
        load(harness, folder)


def test_a_task_whose_filter_leaves_no_item_is_an_empty_data_set(harness: LmEvalHarness, tmp_path: Path) -> None:
    code = "def none(docs):\n    return docs.filter(lambda doc: False)\n"
    yaml = dedent(PLAIN) + "process_docs: !function helpers.none\n"
    with pytest.raises(BadDataFile, match="mine"):
        load(harness, own(tmp_path, yaml, code=code))


CUSTOM = dedent(PLAIN).replace("metric: exact_match", "metric: points") + "process_results: !function helpers.points\n"

POINTS = 'def points(doc, results):\n    return {"points": 1.0 if results[0] == doc["a"] else 0.0}\n'


def test_a_task_s_metadata_says_kind_cluster_and_benchmark(harness: LmEvalHarness, tmp_path: Path) -> None:
    (metric,) = load(harness, own(tmp_path, CUSTOM, code=POINTS)).metrics
    assert metric.kind is MetricKind.OTHER, "a mean of the task's own scores is not guessed to be binary"
    hints = "metadata: {qualab: {benchmark: sums, metrics: {points: binary_mean}, cluster: [passage]}}\n"
    loaded = load(harness, own(tmp_path, CUSTOM + hints, code=POINTS))
    assert loaded.metrics[0].kind is MetricKind.BINARY_MEAN
    assert (loaded.tasks[0].benchmark, loaded.tasks[0].cluster_field) == ("sums", "passage")
    assert [item.cluster for item in loaded.render()] == ["p0", "p0", "p1", "p1", "p2", "p2"]


def test_an_own_task_takes_the_place_of_an_official_one(harness: LmEvalHarness, tmp_path: Path) -> None:
    folder = own(tmp_path, PLAIN.replace("task: mine", "task: gsm8k"))
    (task,) = load(harness, folder, "gsm8k").tasks
    assert (task.dataset, task.n_items) == ("json", 6)


def test_a_group_of_ones_own(harness: LmEvalHarness, tmp_path: Path) -> None:
    folder = own(tmp_path, PLAIN)
    own(tmp_path, PLAIN.replace("task: mine", "task: other"), name="other.yaml")
    (folder / "both.yaml").write_text("group: both\ntask: [mine, other]\n")
    loaded = load(harness, folder, "both")
    assert [metric.id for metric in loaded.metrics] == ["mine/exact_match,none", "other/exact_match,none"]
    assert all(metric.is_primary for metric in loaded.metrics)
    assert {task.benchmark for task in loaded.tasks} == {"both"}
    unweighted = "aggregate_metric_list: [{metric: exact_match, weight_by_size: false}]\n"
    (folder / "both.yaml").write_text("group: both\ntask: [mine]\n" + unweighted)
    kinds = {metric.id: metric.kind for metric in load(harness, folder, "both").metrics}
    assert kinds["both/exact_match,none"] is MetricKind.OTHER


def test_a_tag_stands_for_its_tasks_and_a_yaml_may_be_named_by_its_path(harness: LmEvalHarness, tmp_path: Path) -> None:
    folder = own(tmp_path, dedent(PLAIN) + "tag: [sums_of_mine]\n")
    for name in ("sums_of_mine", str(folder / "mine.yaml")):
        assert [task.name for task in load(harness, folder, name).tasks] == ["mine"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("  broken: [", "not a valid task YAML"),
        ("doc_to_text: '{{nothing}}'", "cannot be built.*nothing"),
        ("doc_to_text: '{{q'", "cannot be built.*TemplateSyntaxError"),
        ("doc_to_text: !function helpers.nowhere", "nowhere"),
        ("dataset_path: null", "names no data set"),
        ("output_type: loglikelihood_rolling", "loglikelihood_rolling"),
        ("repeats: 8", "8 times"),
        ("unsafe_code: true", "code that a model wrote"),
        ("filter_list: [{name: f, filter: [{function: regexx}]}]", "regexx"),
        ("metadata: {qualab: {cluster: [chapter]}}", "chapter"),
    ],
)
def test_a_broken_task_has_a_reason(harness: LmEvalHarness, tmp_path: Path, change: str, reason: str) -> None:
    folder = own(tmp_path, dedent(PLAIN) + change + "\n", code="def here(): ...\n")
    with pytest.raises(BrokenTask, match=reason) as caught:
        load(harness, folder)
    assert "mine" in caught.value.message


def test_a_missing_package_is_named(harness: LmEvalHarness, tmp_path: Path) -> None:
    with pytest.raises(ScoringUnavailable, match="no_such_package"):
        load(harness, own(tmp_path, CUSTOM, code="import no_such_package\n" + POINTS))


def test_an_item_that_cannot_be_rendered_is_named(harness: LmEvalHarness, tmp_path: Path) -> None:
    yaml = PLAIN.replace('"{{q}}"', "\"{{q.split('?')[1][0] if passage == 'p2' else q}}\"")
    loaded = load(harness, own(tmp_path, yaml))
    with pytest.raises(BrokenTask, match="mine cannot render its item 4"):
        list(loaded.render())


def test_the_configuration_s_hash_follows_the_source_of_functions(harness: LmEvalHarness, tmp_path: Path) -> None:
    folders = [own(tmp_path / name, CUSTOM, code=POINTS) for name in ("a", "b", "c")]
    (folders[2] / "helpers.py").write_text(POINTS.replace("0.0", "0.5"))
    first, moved, changed = (load(harness, folder).tasks[0].config_hash for folder in folders)
    assert first == moved
    assert first != changed


def test_hashes_do_not_depend_on_the_installation(harness: LmEvalHarness, tmp_path: Path, tiny_data: Path) -> None:
    elsewhere = LmEvalHarness(tasks_dir=Path(shutil.copytree(TASKS_DIR, tmp_path / "tasks")))
    options = TaskOptions(names=("release", "published-34"), data_dir=tiny_data)
    assert elsewhere.load(options).tasks == harness.load(options).tasks


def test_bundled_items_lie_beside_the_catalog(tmp_path: Path) -> None:
    folder = own(tmp_path, PLAIN.replace("dataset_path: json", "dataset_path: me/items"))
    (folder / "catalog.yaml").write_text("datasets: {me/items: {bundled: true, files: ['{config}/{split}.jsonl']}}")
    write_jsonl(folder / "default/test.jsonl", ROWS[:3])
    loaded = LmEvalHarness(tasks_dir=folder).load(TaskOptions(names=("mine",), data_dir=tmp_path))
    assert (loaded.tasks[0].n_items, loaded.tasks[0].revision) == (3, "local")
