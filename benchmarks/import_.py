"""What `qualab import` takes: 11,000 items in two logs (the target is 5 s), and the memory of a large log.

    python benchmarks/import_.py            11,000 items, then 60 MB and 240 MB of samples
    python benchmarks/import_.py 1000       the same, and 1,000 MB

The logs are made up in lm-eval's format: arithmetic with examples and two filters, instructions with lists,
choices with macro-F1. The slope between the two large logs tells what a larger one takes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATE = "2026-01-02T03-04-05.678901"
SHOTS = (
    "Question: how many pens are in the boxes on the table?\nAnswer: there are many of them, and they are blue.\n\n"
    * 30
)
MB = 1_000_000


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_pair(folder / "many", {"gsm8k": 1_319, "ifeval": 541, "kobest_boolq": 5_140, "belebele_kor_Hang": 4_000})
        seconds, peak = imported(folder / "many")
        print(f"11,000 items in each log  {seconds:5.1f} s  peak {peak:5.0f} MB")
        sizes = [60, 240, *map(int, sys.argv[1:])]
        found = [large(folder / str(size), size) for size in sizes]
        slope = (found[1][1] - found[0][1]) / (found[1][0] - found[0][0])
        print(f"a further GB of samples takes {1_000 * slope:.0f} MB more")


def large(folder: Path, size_mb: int) -> tuple[float, float]:
    """Imports two logs of together that size; returns the size and the peak, in MB."""
    write_pair(folder, {"gsm8k": max(100, size_mb * MB // 4 // 4_400)})
    size = sum(file.stat().st_size for file in folder.rglob("*.jsonl")) / MB
    seconds, peak = imported(folder)
    print(f"{size:,.0f} MB of samples  {seconds:5.1f} s  peak {peak:5.0f} MB")
    return size, peak


def imported(folder: Path) -> tuple[float, float]:
    """Seconds and peak memory (MB) of the command in a process of its own; what it computed meanwhile is printed."""
    arms = ["--baseline", str(folder / "baseline"), "--candidate", str(folder / "candidate")]
    command = [sys.executable, "-m", "qualab", "import", *arms, "--db", str(folder / "bench.db")]
    before = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1, 3), process.returncode
    seconds = time.perf_counter() - before
    print(f"({usage.ru_utime + usage.ru_stime:.1f} s of a processor)", end=" ")
    return seconds, usage.ru_maxrss / 1_000


def write_pair(folder: Path, tasks: dict[str, int]) -> None:
    for seed, arm in enumerate(("baseline", "candidate")):
        write_run(folder / arm, tasks, random.Random(seed))


def write_run(folder: Path, tasks: dict[str, int], rng: random.Random) -> None:
    folder.mkdir(parents=True)
    results = {
        "results": {name: {} for name in tasks},
        "configs": {name: {"task": name} for name in tasks},
        "versions": dict.fromkeys(tasks, 1.0),
        "config": {"model": "local-completions", "model_args": "model=made-up"},
        "lm_eval_version": "0.4.13",
    }
    (folder / f"results_{DATE}.json").write_text(json.dumps(results))
    for name, n_items in tasks.items():
        with (folder / f"samples_{name}_{DATE}.jsonl").open("w") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS[name](n_items, rng))


def arithmetic(n_items: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    right = [rng.random() < 0.76 for _ in range(n_items)]
    for ensemble in ("strict-match", "flexible-extract"):
        for number in range(n_items):
            doc = {"question": f"How many pens are in {number} boxes?", "answer": f"#### {number}"}
            answer = f"There are {number} of them. #### {number if right[number] else 0}"
            yield row(number, doc, [SHOTS + doc["question"]], [answer], ensemble, exact_match=float(right[number]))


def instructions(n_items: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(n_items):
        followed = [rng.random() < 0.8, rng.random() < 0.8]
        doc: dict[str, Any] = {"key": number, "prompt": f"Write {number} words.", "kwargs": [{"num_words": number}, {}]}
        scores = {"prompt_level_strict_acc": all(followed), "inst_level_strict_acc": followed}
        yield row(number, doc, [doc["prompt"]], ["word " * 200], "none", **scores)


def choices(n_items: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(n_items):
        label, answer = number % 2, number % 2 if rng.random() < 0.8 else rng.randrange(2)
        doc: dict[str, Any] = {
            "paragraph": f"Paragraph {number // 3}: " + "text " * 60,
            "question": f"Is it {number}?",
            "label": label,
        }
        doc["link"] = f"passage {number // 2}"
        replies = [(-float(choice != answer), choice == answer) for choice in range(2)]
        scores = {"acc": float(label == answer), "f1": [label, answer]}
        yield row(number, doc, [doc["paragraph"]] * 2, replies, "none", **scores)


def row(number: int, doc: dict[str, Any], prompts: list[str], replies: list[Any], ensemble: str, **scores: Any) -> Any:
    second: list[Any] = [{"until": ["\n\n"]}] if isinstance(replies[0], str) else [" yes", " no"]
    arguments = {f"gen_args_{i}": {"arg_0": text, "arg_1": second[i]} for i, text in enumerate(prompts)}
    texts = [[one if isinstance(one, str) else [str(part) for part in one]] for one in replies]
    return {
        **{"doc_id": number, "doc": doc, "target": str(number), "arguments": arguments, "resps": texts},
        **{"filtered_resps": [one[0] for one in texts], "filter": ensemble, "metrics": list(scores)},
        **{"doc_hash": "d" * 64, "prompt_hash": "p" * 64, "target_hash": "t" * 64, **scores},
    }


ROWS = {"gsm8k": arithmetic, "ifeval": instructions, "kobest_boolq": choices, "belebele_kor_Hang": choices}

if __name__ == "__main__":
    main()
