"""lm-eval's tasks loaded into the test's own process: quicker, and open to monkeypatching."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from qualab.harness.loading import load_tasks
from qualab.harness.tasks import LmEvalTasks as LoadedTasks
from qualab.model.items import Item
from qualab.model.ports import TaskOptions

TASKS_DIR = Path(__file__).parents[2] / "tasks"
Load = Callable[..., LoadedTasks]
Row = Mapping[str, Any]


def load_here(options: TaskOptions, tasks_dir: Path = TASKS_DIR) -> LoadedTasks:
    return load_tasks(options, tasks_dir=tasks_dir, note=lambda _item, _step: None)


def load_named(*names: str, **options: Any) -> LoadedTasks:
    return load_here(TaskOptions(names=names, **options))


def by_task(loaded: LoadedTasks) -> dict[str, list[Item]]:
    items: dict[str, list[Item]] = {}
    for item in loaded.render():
        items.setdefault(item.task, []).append(item)
    return items


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data sets. Skips where they are not there."""
    shared = os.environ.get("QUALAB_SHARED")
    if not shared:
        pytest.skip("QUALAB_SHARED names no directory with the real data sets")
    return Path(shared) / "data"


# small data sets in the hub's columns, where a data directory holds them


def write_jsonl(path: Path, rows: Iterable[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def gsm8k(n: int, *, start: int = 0) -> list[Row]:
    return [
        {"question": f"Tom has {i} pens and buys {i + 1} more. How many?", "answer": f"{i}+{i + 1}\n#### {2 * i + 1}"}
        for i in range(start, start + n)
    ]


def belebele(n: int) -> list[Row]:
    other = {"dialect": "kor_Hang", "ds": "2023-06-01", **{f"mc_answer{k}": f"답 {k}" for k in (1, 2, 3, 4)}}
    return [
        {
            "link": f"https://example.org/{i // 2}",
            "question_number": i,
            "flores_passage": f"지문 {i // 2}. 강은 산에서 바다로 흐른다.",
            "question": f"{i}번 질문은 무엇인가? ",
            "correct_answer_num": str(i % 4 + 1),
            **other,
        }
        for i in range(n)
    ]


def haerae(n: int) -> list[Row]:
    query, options = "### 질문: {}번?\n(A) 가\n(B) 나\n### 정답:", "['가','나']"
    return [{"query": query.format(i), "options": options, "answer": f"({'ABCDE'[i % 5]})"} for i in range(n)]


def _kobest(i: int) -> dict[str, Row]:
    alternatives = {"alternative_1": f"하나 {i}", "alternative_2": "둘"}
    endings = {f"ending_{k}": f"끝 {k} {i}" for k in (1, 2, 3, 4)}
    return {
        "boolq": {"paragraph": f"문단 {i // 2}.", "question": f"질문 {i}?", "label": i % 2},
        "copa": {"premise": f"전제 {i}.", "question": "결과", **alternatives, "label": i % 2},
        "hellaswag": {"context": f"문맥 {i}.", **endings, "label": i % 4},
        "sentineg": {"sentence": f"문장 {i}", "label": i % 2},
        "wic": {"word": f"낱말{i // 3}", "context_1": f"[낱말] {i}", "context_2": "다른 [낱말]", "label": i % 2},
    }


KOBEST: Mapping[str, list[Row]] = {name: [_kobest(i)[name] for i in range(6)] for name in _kobest(0)}


def instruction(key: int, prompt: str, *checks: tuple[str, Mapping[str, Any]]) -> Row:
    return {
        "key": key,
        "prompt": prompt,
        "instruction_id_list": [name for name, _ in checks],
        "kwargs": [dict(settings) for _, settings in checks],
    }


FREQUENCY = {"let_frequency": 4, "let_relation": "at least", "letter": "#"}
IFEVAL: list[Row] = [
    instruction(1, "Write without commas.", ("punctuation:no_comma", {})),
    instruction(2, "Use the word river.", ("keywords:existence", {"keywords": ["river"]}), ("startend:quotation", {})),
    instruction(1122, "Use 4 hashtags.", ("keywords:letter_frequency", FREQUENCY)),
    instruction(4, "Answer in English and small letters.", ("change_case:english_lowercase", {})),
]


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few items of every data set that the official tasks read, and those that few-shot examples come from."""
    folder = tmp_path_factory.mktemp("data")
    write_jsonl(folder / "gsm8k/test.jsonl", gsm8k(8))
    write_jsonl(folder / "gsm8k/train.jsonl", gsm8k(30, start=100))
    write_jsonl(folder / "belebele/kor_Hang_test.jsonl", belebele(6))
    write_jsonl(folder / "ifeval/train.jsonl", IFEVAL)
    for name in ("general_knowledge", "history", "loan_words", "rare_words", "standard_nomenclature"):
        write_jsonl(folder / f"haerae/{name}.jsonl", haerae(5))
    for name, rows in KOBEST.items():
        write_jsonl(folder / f"kobest/{name}/test.jsonl", rows)
        write_jsonl(folder / f"kobest/{name}/train.jsonl", reversed(rows))
    return folder


@pytest.fixture(scope="session")
def load(tiny_data: Path) -> Load:
    """Loads tasks by name, from the small data sets unless told otherwise."""
    return lambda *names, **options: load_named(*names, **{"data_dir": tiny_data, **options})
