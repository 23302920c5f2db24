"""A whole evaluation against a bare aiohttp client that sends the same bytes, in one run.

    QUALAB_SHARED=DIR python benchmarks/run.py [--quick]

Two mock servers (bench/mock.c in the directory that QUALAB_SHARED names; needs `cc`), two arms, 2,000 generations and
8,000 log-likelihoods an arm, concurrency 128. "Evaluation" is everything after the tasks are loaded: rendering, token
ids, bodies, storing the plan, asking, committing every answer, scoring, analysing. The floor is a bare client that
posts the same bodies to both servers at once, reads and parses, and keeps nothing, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import resource
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from benchmarks.client import bare_client, mock_server, reset
from qualab.bootstrap import run_async, services_of
from qualab.endpoints.client import HttpEndpoint
from qualab.model.canonical import encode_body
from qualab.model.comparison import Analysis, Comparison
from qualab.model.engine import Engine, EngineKind
from qualab.model.items import Item, Request
from qualab.model.names import ArmName
from qualab.model.ports import Progress
from qualab.run import run as use_case
from qualab.run.prepare import Services
from qualab.settings import load

CONCURRENCY = 128
LATENCY_S = 0.2


class Size(NamedTuple):
    """Items of the two tasks."""

    generations: int
    choices: int


class Cost(NamedTuple):
    wall_s: float
    cpu_s: float


def clock() -> Cost:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Cost(time.perf_counter(), used.ru_utime + used.ru_stime)


def since(start: Cost) -> Cost:
    now = clock()
    return Cost(now.wall_s - start.wall_s, now.cpu_s - start.cpu_s)


def write_tasks(folder: Path, size: Size) -> None:
    """A task in GSM8K's form and one with four choices, with made-up documents."""
    words = ["river", "stone", "lamp", "garden", "window", "paper", "silver", "morning", "bridge", "letter"]
    _write_docs(
        folder / "sums.jsonl",
        (
            {"question": f"{n} " + " ".join(words[(n + i) % 10] for i in range(60)), "answer": f"#### {n % 4}"}
            for n in range(size.generations)
        ),
    )
    _write_docs(
        folder / "picks.jsonl",
        (
            {"text": f"{n} " + " ".join(words[(n * 3 + i) % 10] for i in range(60)), "label": n % 4}
            for n in range(size.choices)
        ),
    )
    regex = {"function": "regex", "regex_pattern": r"#### (\-?[0-9\.\,]+)"}
    common = {"dataset_path": "json", "test_split": "test", "metadata": {"version": 1}}
    sums = common | {
        "task": "bench_sums",
        "dataset_kwargs": {"data_files": {"test": str(folder / "sums.jsonl")}},
        "output_type": "generate_until",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{answer.split('#### ')[-1]}}",
        "generation_kwargs": {"until": ["Question:"], "do_sample": False},
        "filter_list": [{"name": "strict", "filter": [regex, {"function": "take_first"}]}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    picks = common | {
        "task": "bench_picks",
        "dataset_kwargs": {"data_files": {"test": str(folder / "picks.jsonl")}},
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}\nAnswer:",
        "doc_to_target": "label",
        "doc_to_choice": ["river", "stone", "lamp", "garden"],
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")
        ],
    }
    sums["metadata"] = {"version": 1, "qualab": {"metrics": {"exact_match": "binary_mean"}}}
    picks["metadata"] = {"version": 1, "qualab": {"metrics": {"acc": "binary_mean", "acc_norm": "binary_mean"}}}
    for task in (sums, picks):
        (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")


def _write_docs(path: Path, docs: Iterable[Mapping[str, object]]) -> None:
    path.write_text("\n".join(json.dumps(doc) for doc in docs), encoding="utf-8")


def write_tokenizer(folder: Path) -> Path:
    """One id a word: the mock looks at the number of ids alone."""
    vocabulary = {"[UNK]": 0} | {f"{number}": number + 1 for number in range(20_000)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


class Told(HttpEndpoint):
    """An endpoint of a mock, which has no /v1/models to inspect."""

    async def engine(self, *, model: str) -> Engine:
        del model
        return Engine(kind=EngineKind.UNKNOWN)

    async def inspect(self, *, model: str) -> bool:
        del model
        return False


class Silent(Progress):
    """Progress that only notes when the tasks were loaded and when asking began and ended."""

    def __init__(self) -> None:
        self.marks: dict[str, Cost] = {}

    def phase(self, text: str) -> None:
        self.marks[text] = clock()

    def started(self, comparison: Comparison, *, totals: Mapping[ArmName, int], done: Mapping[ArmName, int]) -> None:
        del comparison, totals, done
        self.marks["asking"] = clock()

    def finished(self) -> None:
        self.marks["asked"] = clock()


def evaluate(ports: Sequence[int], folder: Path, tokenizer: Path) -> tuple[Services, Analysis, Silent, Cost]:
    settings = load(
        command_line={
            "db": str(folder / "bench.db"),
            "baseline": f"http://127.0.0.1:{ports[0]}/v1",
            "candidate": f"http://127.0.0.1:{ports[1]}/v1",
            "model": "m",
            "tasks": ("bench_sums", "bench_picks"),
            "include_path": (folder,),
            "tokenizer": str(tokenizer),
            "concurrency": CONCURRENCY,
            "allow_unobserved": True,  # the mock has no counters
        }
    )
    progress = Silent()
    services = replace(services_of(settings), open_endpoint=Told, progress=progress)
    analysis = run_async(use_case.start(services, settings))
    assert analysis is not None
    return services, analysis, progress, since(progress.marks["Checking both endpoints"])


def floor_of(ports: Sequence[int], items: Sequence[Item]) -> Cost:
    """A bare client in a fresh process, which has nothing else to do."""
    jobs = [(request, encode_body(request.payload, seed=1234)) for item in items for request in item.requests]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(bare_in_loop, ports, jobs).result()


def bare_in_loop(ports: Sequence[int], jobs: Sequence[tuple[Request, bytes]]) -> Cost:
    return asyncio.run(bare(ports, jobs))


async def bare(ports: Sequence[int], jobs: Sequence[tuple[Request, bytes]]) -> Cost:
    """Both arms at once, each body once an arm, through as many workers as an evaluation has."""
    start = clock()
    await asyncio.gather(*(_bare_arm(port, jobs) for port in ports))
    return since(start)


async def _bare_arm(port: int, jobs: Sequence[tuple[Request, bytes]]) -> None:
    left = iter(jobs)
    async with bare_client(port) as ask:

        async def work() -> None:
            for request, body in left:
                await ask(request, body)

        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))


def report(name: str, floor: Cost, whole: Cost, asking: Cost, n_requests: int) -> None:
    print(f"{name:<28} bare client {floor.wall_s:.2f} s")
    for part, cost in (("asking", asking), ("evaluation", whole)):
        print(f"{'':<28} {part} {cost.wall_s:.2f} s = {cost.wall_s / floor.wall_s:.2f} x")
    print(
        f"{'':<28} CPU a request: bare {1e6 * floor.cpu_s / n_requests:.0f} us, "
        f"asking {1e6 * asking.cpu_s / n_requests:.0f} us, evaluation {1e6 * whole.cpu_s / n_requests:.0f} us"
    )


def measure(name: str, size: Size, *, latency_ms: int) -> None:
    with tempfile.TemporaryDirectory() as directory, mock_server() as off, mock_server() as on:
        folder, ports = Path(directory), (off, on)
        write_tasks(folder, size)
        for port in ports:
            reset(port, fixed=latency_ms)
        services, analysis, progress, whole = evaluate(ports, folder, write_tokenizer(folder))
        items = list(services.store.items(analysis.comparison_id))
        floor = floor_of(ports, items)
    marks = progress.marks
    asking = Cost(*(b - a for a, b in zip(marks["asking"], marks["asked"], strict=True)))
    n_requests = sum(arm.n_requests for arm in analysis.arms)
    assert n_requests == 2 * (size.generations + 4 * size.choices)
    report(name, floor, whole, asking, n_requests)
    if latency_ms:
        waves = -(-size.generations // CONCURRENCY) * latency_ms / 1000
        print(f"{'':<28} ceil(n/c) x latency {waves:.2f} s, asking = {asking.wall_s / waves:.3f} x")


def memory(n_items: int) -> None:
    """Peak memory of a run over this many generations."""
    with tempfile.TemporaryDirectory() as directory, mock_server() as off, mock_server() as on:
        folder = Path(directory)
        write_tasks(folder, Size(n_items, 4))
        evaluate((off, on), folder, write_tokenizer(folder))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'memory':<28} {n_items} items an arm: peak {peak_mb:.0f} MB of the whole process")


def main() -> None:
    importlib.import_module("qualab.cli.main")  # sets up the garbage collector as the command does
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests")
    parser.add_argument("--only-memory", action="store_true", help="only the peak memory of 20,000 items")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    if options.only_memory:
        memory(20_000 // scale)
        return
    measure("zero latency", Size(2_000 // scale, 2_000 // scale), latency_ms=0)
    measure("200 ms, generations", Size(2_000 // scale, 4), latency_ms=int(LATENCY_S * 1000))


if __name__ == "__main__":
    main()
