"""The `lm_eval` command and qualab, both over HTTP, on real items and the same answers: the same numbers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qualab.model.items import Item, Reply, generation_request, loglikelihood_parts, loglikelihood_request
from qualab.model.names import Api, MetricKind, RequestKind
from qualab.model.plan import FindingCode, SamplingPlan
from qualab.model.ports import TaskOptions
from tests.harness.in_process import LmEvalHarness, LoadedTasks, by_task, reply
from tests.imports.conftest import Importer
from tests.scripted_server import MODEL, Script, ScriptedServer

LIMIT = 30

TASKS = ("gsm8k", "haerae", "kobest", "belebele_kor_Hang", "ifeval")

UNSEEDED = {1122, 1129}
"""IFEval items whose check wants a letter and is given "#" or "!": it draws a random letter instead. No letter at all
fails the check whatever is drawn, so these two get an answer without any: the `lm_eval` command is not seeded there."""

NO_LETTERS = "12345 67890\n" * 20

SHIM = '''
"""Gives lm_eval's own data loading the documents of a directory: the hub is out of reach here."""
import json, os, pathlib
import datasets

ROOT = pathlib.Path(os.environ["PARITY_DATA"])
FILES = {
    "openai/gsm8k": "gsm8k/{split}.jsonl",
    "google/IFEval": "ifeval/{split}.jsonl",
    "HAERAE-HUB/HAE_RAE_BENCH": "haerae_sample/{name}.jsonl",
    "skt/kobest_v1": "kobest/{name}/{split}.jsonl",
    "facebook/belebele": "belebele/{name}_{split}.jsonl",
}

def load_dataset(path, name=None, **_):
    splits = {}
    for split in ("train", "validation", "test"):
        file = ROOT / FILES[path].format(name=name, split=split)
        if file.exists():
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\\n") if line]
            splits[split] = datasets.Dataset.from_list(rows)
    return datasets.DatasetDict(splits)

datasets.load_dataset = load_dataset
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The `lm_eval` command, running."""

    process: subprocess.Popen[str]
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What the `lm_eval` command wrote."""

    results: dict[str, dict[str, Any]]
    samples: dict[str, list[dict[str, Any]]]
    table: list[tuple[str, str, str]]
    """Task, metric and filter of the rows that it prints."""

    @property
    def aggregates(self) -> dict[str, Any]:
        rows = ((task, key, value) for task, row in self.results.items() for key, value in row.items())
        return {f"{task}/{key}": value for task, key, value in rows if "," in key and "_stderr," not in key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    loaded: LoadedTasks
    items: dict[str, list[Item]]
    answered: dict[str, list[tuple[Item, list[Reply]]]]
    values: dict[str, list[dict[str, Any]]]
    results: dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def loaded(harness: LmEvalHarness, shared_data: Path) -> LoadedTasks:
    options = TaskOptions(names=("published-34",), data_dir=shared_data, limit=LIMIT)
    return harness.load(options)


@pytest.fixture(scope="module")
def server(loaded: LoadedTasks) -> Iterator[ScriptedServer]:
    answers, fixed = {}, {}
    for item in loaded.render():
        prompt = item.prompts[0].text
        if item.task == "gsm8k":
            answers[prompt] = item.target
        if item.doc.get("key") in UNSEEDED:
            fixed[prompt] = NO_LETTERS
    with ScriptedServer(Script(answers=answers, fixed=fixed)) as running:
        yield running


@pytest.fixture(scope="module")
def command(server: ScriptedServer, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    folder = tmp_path_factory.mktemp("lm_eval")
    (folder / "sitecustomize.py").write_text(SHIM)
    model = f"base_url={server.url}/completions,model={MODEL},tokenizer_backend=remote,max_length=1000000"
    arguments = [
        *(str(Path(sys.executable).with_name("lm_eval")), "run", "--model", "local-completions", "--model_args", model),
        *("--tasks", *TASKS, "--limit", str(LIMIT), "--batch_size", "1"),
        *("--output_path", str(folder / "out"), "--log_samples"),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PARITY_DATA": str(shared_data),
        "NLTK_DATA": str(shared_data / "nltk_data"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
    }
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            arguments, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            yield Command(process=process, folder=folder)
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def reference(command: Command, ours: Ours) -> Reference:
    """Waits for the command; `ours` is asked for first, so that both run at the same time."""
    printed, _ = command.process.communicate(timeout=600)
    assert command.process.returncode == 0, (command.folder / "stderr").read_text()[-3000:]
    (results,) = (command.folder / "out").rglob("results_*.json")
    samples = defaultdict(list)
    for file in (command.folder / "out").rglob("samples_*.jsonl"):
        task = file.name.removeprefix("samples_").rpartition("_")[0]
        samples[task] += [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return Reference(
        results=json.loads(results.read_text(encoding="utf-8"))["results"],
        samples=dict(samples),
        table=rows_of(printed),
    )


def rows_of(printed: str) -> list[tuple[str, str, str]]:
    """Task, metric and filter of every row of the first table; a row without a task's name is of the task above."""
    table = printed[printed.index("|-") :].partition("\n\n")[0].splitlines()[1:]
    rows, task = [], ""
    for line in table:
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        task = cells[0].removeprefix("- ") or task
        rows.append((task, cells[4], cells[2]))
    return rows


@pytest.fixture(scope="module")
def ours(loaded: LoadedTasks, server: ScriptedServer, command: Command) -> Ours:
    items = by_task(loaded)
    answered = {task: [(item, ask(server, item)) for item in own] for task, own in items.items()}
    values = {task: loaded.score(task, entries) for task, entries in answered.items()}
    columns = {task: {key: [row[key] for row in rows] for key in rows[0]} for task, rows in values.items()}
    return Ours(loaded=loaded, items=items, answered=answered, values=values, results=loaded.aggregate(columns))


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def ask(server: ScriptedServer, item: Item) -> list[Reply]:
    sampling = SamplingPlan(model=MODEL, api=Api.COMPLETIONS)
    if item.kind is RequestKind.GENERATION:
        payload = generation_request(item.prompts[0], sampling=sampling).payload
        choice = post(f"{server.url}/completions", payload)["choices"][0]
        return [reply(text=choice["text"])]
    return [loglikelihood(server, choice, prompt) for choice, prompt in enumerate(item.prompts)]


def loglikelihood(server: ScriptedServer, index: int, prompt: Any) -> Reply:
    context, whole = (
        post(f"{server.root}/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        for text in loglikelihood_parts(prompt)
    )
    request = loglikelihood_request(choice=index, context_ids=context, whole_ids=whole, model=MODEL)
    found = post(f"{server.url}/completions", request.payload)["choices"][0]["logprobs"]
    # the context's tokens are cut, and the one that was generated
    own = found["token_logprobs"][request.context_tokens : -1]
    top = found["top_logprobs"][request.context_tokens : -1]
    is_greedy = all(one == max(others.values()) for one, others in zip(own, top, strict=True))
    return reply(loglikelihood=sum(own), is_greedy=is_greedy)


def test_the_command_asked_the_same_items_with_the_same_prompts(reference: Reference, ours: Ours) -> None:
    for task, items in ours.items.items():
        asked = {row["doc_id"]: row["doc"] for row in reference.samples[task]}
        assert asked == {item.doc_id: item.doc for item in items}
        for row in reference.samples[task]:
            prompts = items[row["doc_id"]].prompts
            sent = list(row["arguments"].values())
            assert [arguments["arg_0"] for arguments in sent] == [prompt.text for prompt in prompts]
            if items[0].kind is RequestKind.LOGLIKELIHOOD:
                assert [arguments["arg_1"] for arguments in sent] == [prompt.continuation for prompt in prompts]


def test_every_score_of_every_item_equals_the_command_s(reference: Reference, ours: Ours) -> None:
    n_compared = 0
    for task, rows in ours.values.items():
        expected = {(row["doc_id"], row["filter"]): row for row in reference.samples[task]}
        assert len(expected) == len(rows) * len({key.partition(",")[2] for key in rows[0]})
        for doc_id, row in enumerate(rows):
            for key, value in row.items():
                metric, _, ensemble = key.partition(",")
                sample = expected[doc_id, ensemble]
                assert json.loads(json.dumps(value)) == sample[metric], (task, doc_id, key)
                n_compared += 1
    assert n_compared > 700


def test_all_34_aggregates_equal_the_command_s_to_the_last_digit(reference: Reference, ours: Ours) -> None:
    found = {f"{task}/{key}": value for task, row in ours.results.items() for key, value in row.items()}
    assert found == reference.aggregates
    assert len(found) == 34
    assert set(found) == {metric.id for metric in ours.loaded.metrics}
    assert all(0 < value < 1 for value in found.values()), "answers are neither all right nor all wrong"
    assert [(metric.task, metric.name, metric.filter) for metric in ours.loaded.metrics] == reference.table


def test_exported_samples_equal_the_command_s(reference: Reference, ours: Ours) -> None:
    for task, answered in ours.answered.items():
        by_item = {(row["doc_id"], row["filter"]): row for row in reference.samples[task]}
        for row in ours.loaded.samples(task, answered):
            expected = by_item.pop((row["doc_id"], row["filter"]))
            found = json.loads(json.dumps(row))
            # the settings are spelled out in ours: lm-eval fills defaults in when it sends
            assert {**found, "arguments": None} == {**expected, "arguments": None}
        assert not by_item


def test_the_command_s_own_logs_are_imported_to_its_own_numbers(reference: Reference, command: Command) -> None:
    out = command.folder / "out"
    importer = Importer(folder=command.folder)
    found = importer(out, shutil.copytree(out, command.folder / "copy"))
    assert {one.id: one.baseline for one in found.metrics} == reference.aggregates
    assert [(one.task, *one.metric.split(",")) for one in found.metrics] == reference.table
    assert {one.code for one in importer.imported.findings} == {FindingCode.SAME_RUN}
    assert {one.metric for one in found.metrics if one.kind is MetricKind.OTHER} == set()
    n_clusters = {one.id: one.evidence.n_clusters for one in found.metrics if one.evidence}
    assert n_clusters["belebele_kor_Hang/acc,none"] < LIMIT
    primary = [one.id for one in found.metrics if one.is_primary]
    assert "kobest/acc,none" in primary
    assert len(primary) == len(TASKS)
