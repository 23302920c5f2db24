"""The Korean forms over the real data sets, of which the demo's items are no near-copies. Needs QUALAB_SHARED."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.harness.conftest import LoadedTasks, by_task
from tests.tasks.conftest import Load, demo, read_jsonl

FIXED = re.compile(r"my answer is (yes|no|maybe)\W")
"""Sentences that one of IFEval's checks looks for to the letter."""


@pytest.fixture(scope="module")
def loaded(load: Load, shared_data: Path) -> LoadedTasks:
    return load("haerae_gen", "kobest_gen", "belebele_kor_Hang_gen", data_dir=shared_data)


@pytest.fixture(scope="module")
def items(loaded: LoadedTasks) -> Any:
    return by_task(loaded)


def test_targets_are_the_labels_and_clusters_as_many_as_passages_words_and_premises(items: Any) -> None:
    targets = {
        "kobest_boolq_gen": {"예": 705, "아니오": 699},
        "kobest_copa_gen": {"A": 517, "B": 483},
        "kobest_hellaswag_gen": {"A": 124, "B": 137, "C": 121, "D": 118},
        "kobest_sentineg_gen": {"긍정": 200, "부정": 197},
        "kobest_wic_gen": {"예": 615, "아니오": 645},
        "belebele_kor_Hang_gen": {"A": 206, "B": 251, "C": 246, "D": 197},
    }
    assert {task: Counter(item.target for item in items[task]) for task in targets} == targets
    clusters = {"belebele_kor_Hang_gen": 488, "kobest_wic_gen": 778, "kobest_copa_gen": 994, "kobest_boolq_gen": 1403}
    assert {task: len({item.cluster for item in items[task]}) for task in clusters} == clusters


def test_prompts_hold_every_field_of_their_item(items: Any) -> None:
    unasked = {"label", "answer", "options", "query", "link", "question_number", "correct_answer_num", "dialect", "ds"}
    for task, own in items.items():
        for item in own:
            fields = {key: value for key, value in item.doc.items() if key not in unasked}
            if task == "kobest_copa_gen":
                fields["question"] += "로" if fields["question"] == "결과" else "으로"
            assert all(str(value).strip() in item.prompts[0].text for value in fields.values()), item


def test_haerae_keeps_the_question_and_its_options_and_drops_the_data_set_s_own_frame(items: Any) -> None:
    for task, own in items.items():
        for item in own if "haerae" in task else ():
            text = item.prompts[0].text
            assert "###" not in text
            assert "nan" not in text
            assert text.count("질문: ") == 1
            assert [line[1] for line in text.split("\n") if line.startswith("(")] == list("ABCDE")
            assert item.target in "ABCDE"


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", FIXED.sub("", text.lower()))


def syllables(text: str) -> list[str]:
    return list(re.sub(r"\W+", "", text))


def runs(units: list[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(units[i : i + n]) for i in range(len(units) - n + 1)}


def test_no_eight_words_or_eleven_korean_syllables_in_a_row_are_those_of_a_benchmark(
    load: Load, shared_data: Path
) -> None:
    own = [row["question"] for row in demo("arithmetic")] + [row["prompt"] for row in demo("instructions")]
    own += [item.doc["question"] for item in load("demo_short").render()]
    files = ("gsm8k/train", "gsm8k/test", "ifeval/train")
    rows = (row for file in files for row in read_jsonl(shared_data / f"{file}.jsonl"))
    theirs = set().union(*(runs(words(row.get("question") or row["prompt"]), 8) for row in rows))
    assert not any(runs(words(text), 8) & theirs for text in own)
    korean = set().union(*(runs(syllables(row["question"]), 11) for row in demo("korean_choice")))
    for folder in ("kobest", "belebele", "haerae_sample"):
        for row in (row for file in (shared_data / folder).rglob("*.jsonl") for row in read_jsonl(file)):
            texts = [value for value in row.values() if isinstance(value, str)]
            assert not any(runs(syllables(text), 11) & korean for text in texts), row
