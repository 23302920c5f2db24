"""Tasks of a user, found with --include_path; what the catalog and a task's metadata say; tables of JSON lines."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from qualab.errors import BadDataFile, BrokenTask, DatasetUnavailable, ScoringUnavailable
from qualab.harness.catalog import hints_from_metadata, read_catalog
from qualab.harness.sources import in_memory, read_table
from qualab.model.names import MetricKind, RequestKind
from qualab.model.ports import TaskOptions
from tests.harness.conftest import TASKS_DIR, Load, LoadedTasks, load_here, load_named, write_jsonl

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


def file_of(folder: Path, content: str | bytes, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def load_own(folder: Path, *names: str) -> LoadedTasks:
    return load_named(*(names or ("mine",)), include_paths=(folder,))


def test_a_task_of_ones_own_has_its_data_beside_its_yaml_or_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_own(own(tmp_path / "own", PLAIN))
    (task,), (metric,) = loaded.tasks, loaded.metrics
    assert (task.name, task.benchmark, task.revision, task.n_items) == ("mine", "mine", "local", 6)
    assert task.kind is RequestKind.GENERATION
    # lm-eval decides what exact_match can be
    assert (metric.kind, metric.is_primary, metric.exercises_drafter) == (MetricKind.BINARY_MEAN, True, True)
    write_jsonl(tmp_path / "cwd/items.jsonl", ROWS[:2])
    monkeypatch.chdir(tmp_path / "cwd")
    assert load_own(tmp_path / "own").tasks[0].n_items == 2


def test_a_data_file_that_is_missing_broken_or_empty_is_named(tmp_path: Path) -> None:
    folder = own(tmp_path, PLAIN)
    (folder / "another.yaml").write_text("task: [")  # nobody asked for this one
    (folder / "items.jsonl").write_text('{"q": "x", "a": "y", "passage": "p"}\n{oops\n')
    with pytest.raises(BadDataFile, match=r"items\.jsonl, line 2"):
        load_own(folder)
    (folder / "items.jsonl").write_text("")
    with pytest.raises(BadDataFile, match=r"items\.jsonl"):
        load_own(folder)
    (folder / "items.jsonl").unlink()
    with pytest.raises(DatasetUnavailable, match=rf"items\.jsonl.*{tmp_path}"):
        load_own(folder)
    code = "def none(docs):\n    return docs.filter(lambda doc: False)\n"
    filtered = own(tmp_path / "filtered", dedent(PLAIN) + "process_docs: !function helpers.none\n", code=code)
    with pytest.raises(BadDataFile, match="mine"):
        load_own(filtered)


CUSTOM = dedent(PLAIN).replace("metric: exact_match", "metric: points") + "process_results: !function helpers.points\n"

POINTS = 'def points(doc, results):\n    return {"points": 1.0 if results[0] == doc["a"] else 0.0}\n'


def test_a_task_s_metadata_says_kind_cluster_and_benchmark(tmp_path: Path) -> None:
    (metric,) = load_own(own(tmp_path, CUSTOM, code=POINTS)).metrics
    assert metric.kind is MetricKind.OTHER, "a mean of the task's own scores is not guessed to be binary"
    hints = "metadata: {qualab: {benchmark: sums, metrics: {points: binary_mean}, cluster: [passage]}}\n"
    loaded = load_own(own(tmp_path, CUSTOM + hints, code=POINTS))
    assert loaded.metrics[0].kind is MetricKind.BINARY_MEAN
    assert (loaded.tasks[0].benchmark, loaded.tasks[0].cluster_field) == ("sums", "passage")
    assert [item.cluster for item in loaded.render()] == ["p0", "p0", "p1", "p1", "p2", "p2"]


def test_a_group_of_ones_own(tmp_path: Path) -> None:
    folder = own(tmp_path, PLAIN)
    own(tmp_path, PLAIN.replace("task: mine", "task: other"), name="other.yaml")
    (folder / "both.yaml").write_text("group: both\ntask: [mine, other]\n")
    loaded = load_own(folder, "both")
    assert [metric.id for metric in loaded.metrics] == ["mine/exact_match,none", "other/exact_match,none"]
    assert all(metric.is_primary for metric in loaded.metrics)
    assert {task.benchmark for task in loaded.tasks} == {"both"}
    unweighted = "aggregate_metric_list: [{metric: exact_match, weight_by_size: false}]\n"
    (folder / "both.yaml").write_text("group: both\ntask: [mine]\n" + unweighted)
    kinds = {metric.id: metric.kind for metric in load_own(folder, "both").metrics}
    assert kinds["both/exact_match,none"] is MetricKind.OTHER


def test_a_tag_a_path_and_the_name_of_an_official_task_lead_to_ones_own(tmp_path: Path) -> None:
    folder = own(tmp_path, dedent(PLAIN) + "tag: [sums_of_mine]\n")
    for name in ("sums_of_mine", str(folder / "mine.yaml")):
        assert [task.name for task in load_own(folder, name).tasks] == ["mine"]
    official = own(tmp_path / "official", PLAIN.replace("task: mine", "task: gsm8k"))
    (task,) = load_own(official, "gsm8k").tasks
    assert (task.dataset, task.n_items) == ("json", 6)


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
def test_a_broken_task_has_a_reason(tmp_path: Path, change: str, reason: str) -> None:
    folder = own(tmp_path, dedent(PLAIN) + change + "\n", code="def here(): ...\n")
    with pytest.raises(BrokenTask, match=reason) as caught:
        load_own(folder)
    assert "mine" in caught.value.message


def test_a_missing_package_and_an_item_that_cannot_be_rendered_are_named(tmp_path: Path) -> None:
    with pytest.raises(ScoringUnavailable, match="no_such_package"):
        load_own(own(tmp_path / "a", CUSTOM, code="import no_such_package\n" + POINTS))
    yaml = PLAIN.replace('"{{q}}"', "\"{{q.split('?')[1][0] if passage == 'p2' else q}}\"")
    loaded = load_own(own(tmp_path / "b", yaml))
    with pytest.raises(BrokenTask, match="mine cannot render its item 4"):
        list(loaded.render())


def test_hashes_follow_the_source_of_functions_and_not_the_installation(
    load: Load, tmp_path: Path, tiny_data: Path
) -> None:
    folders = [own(tmp_path / name, CUSTOM, code=POINTS) for name in ("a", "b", "c")]
    (folders[2] / "helpers.py").write_text(POINTS.replace("0.0", "0.5"))
    first, moved, changed = (load_own(folder).tasks[0].config_hash for folder in folders)
    assert first == moved
    assert first != changed
    elsewhere = Path(shutil.copytree(TASKS_DIR, tmp_path / "tasks"))
    names = ("release", "published-34")
    assert load_here(TaskOptions(names=names, data_dir=tiny_data), elsewhere).tasks == load(*names).tasks


def test_bundled_items_lie_beside_the_catalog(tmp_path: Path) -> None:
    folder = own(tmp_path, PLAIN.replace("dataset_path: json", "dataset_path: me/items"))
    file_of(folder, "datasets: {me/items: {bundled: true, files: ['{config}/{split}.jsonl']}}", "catalog.yaml")
    write_jsonl(folder / "default/test.jsonl", ROWS[:3])
    loaded = load_here(TaskOptions(names=("mine",), data_dir=tmp_path), folder)
    assert (loaded.tasks[0].n_items, loaded.tasks[0].revision) == (3, "local")


def test_suites_expand_names_collapse_and_a_task_s_hints_are_its_own_over_its_benchmark_s(tmp_path: Path) -> None:
    names = read_catalog(TASKS_DIR).expand(["ifeval", "published-34", "gsm8k", "ifeval"])
    assert names == ("ifeval", "gsm8k", "haerae", "kobest", "belebele_kor_Hang")
    hints, unknown = map(read_catalog(TASKS_DIR).hints, ("kobest_wic", "hellaswag"))
    assert (hints.benchmark, hints.cluster, hints.kind("f1,none")) == ("kobest", ("word",), MetricKind.MACRO_F1)
    assert (unknown.benchmark, unknown.cluster, unknown.kind("acc,none")) == (None, None, None)
    tasks = ("haerae_history_gen", "kobest_hellaswag", "kobest_wic", "gsm8k")
    assert [read_catalog(TASKS_DIR).hints(task).choices for task in tasks] == [5, 4, 2, None]
    # a kind may be given for one filter alone
    text = 'benchmarks: {b: {metrics: {m: other, "m,strict": binary_mean}, tasks: {t: {}}}}'
    hints = read_catalog(file_of(tmp_path, text, "catalog.yaml").parent).hints("t")
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
            read_catalog(file_of(tmp_path, text, "catalog.yaml").parent)
    with pytest.raises(BrokenTask, match=r"mine.*qualab\.clusters"):
        hints_from_metadata("mine", {"version": 1, "qualab": {"clusters": ["x"]}})


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
        with pytest.raises(BadDataFile, match=r"data\.jsonl"):
            read_table(file_of(tmp_path, content))
    with pytest.raises(DatasetUnavailable, match=r"none\.jsonl"):
        read_table(tmp_path / "none.jsonl")
