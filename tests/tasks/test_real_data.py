"""The Korean forms over the real data sets. Needs QUALAB_SHARED."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.harness.conftest import LoadedTasks, by_task
from tests.tasks.conftest import Load


@pytest.fixture(scope="module")
def loaded(load: Load, shared_data: Path) -> LoadedTasks:
    return load("haerae_gen", "kobest_gen", "belebele_kor_Hang_gen", data_dir=shared_data)


@pytest.fixture(scope="module")
def items(loaded: LoadedTasks) -> Any:
    return by_task(loaded)


def test_targets_are_the_labels(items: Any) -> None:
    def targets(task: str) -> Counter[str]:
        return Counter(item.target for item in items[task])

    assert targets("kobest_boolq_gen") == {"예": 705, "아니오": 699}
    assert targets("kobest_copa_gen") == {"A": 517, "B": 483}
    assert targets("kobest_hellaswag_gen") == {"A": 124, "B": 137, "C": 121, "D": 118}
    assert targets("kobest_sentineg_gen") == {"긍정": 200, "부정": 197}
    assert targets("kobest_wic_gen") == {"예": 615, "아니오": 645}
    assert targets("belebele_kor_Hang_gen") == {"A": 206, "B": 251, "C": 246, "D": 197}


def test_clusters_are_as_many_as_passages_words_and_premises(items: Any) -> None:
    def clusters(task: str) -> int:
        return len({item.cluster for item in items[task]})

    assert clusters("belebele_kor_Hang_gen") == 488
    assert clusters("kobest_wic_gen") == 778
    assert clusters("kobest_copa_gen") == 994
    assert clusters("kobest_boolq_gen") == 1403


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
