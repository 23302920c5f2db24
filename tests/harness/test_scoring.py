"""Scores and aggregates: lm-eval's own, and the same whenever the same text is scored."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qualab.errors import HarnessError
from qualab.harness.tasks import plain_value
from qualab.model.items import Item, Reply
from qualab.model.ports import TaskOptions
from tests.harness.in_process import LmEvalHarness, LoadedTasks, by_task, reply
from tests.harness.test_own_tasks import CUSTOM, own


def choices(*loglikelihoods: float) -> list[Reply]:
    return [reply(loglikelihood=one, is_greedy=False) for one in loglikelihoods]


@pytest.fixture(scope="module")
def loaded(harness: LmEvalHarness, tiny_data: Path) -> LoadedTasks:
    return harness.load(TaskOptions(names=("published-34",), data_dir=tiny_data))


@pytest.fixture(scope="module")
def items(loaded: LoadedTasks) -> dict[str, list[Item]]:
    return by_task(loaded)


def score(loaded: LoadedTasks, item: Item, text: str) -> dict[str, Any]:
    return loaded.score(item.task, [(item, [reply(text)])])[0]


def test_both_filters_of_gsm8k_score(loaded: LoadedTasks, items: dict[str, list[Item]]) -> None:
    second = items["gsm8k"][1]
    strict, flexible = "exact_match,strict-match", "exact_match,flexible-extract"
    assert score(loaded, second, "So it is 1+2.\n#### 3") == {strict: 1.0, flexible: 1.0}
    assert score(loaded, second, "So it is 3") == {strict: 0.0, flexible: 1.0}
    assert score(loaded, second, "") == {strict: 0.0, flexible: 0.0}


def test_what_each_filter_takes_out_is_told_without_scoring(loaded: LoadedTasks, items: dict[str, list[Item]]) -> None:
    first, second = items["gsm8k"][:2]
    answered = [(first, [reply("So it is 7")]), (second, [reply("So it is 1+2.\n#### 3")])]
    assert [(name, [own[0] for own in found]) for name, found in loaded.extracted("gsm8k", answered)] == [
        ("strict-match", ["[invalid]", "3"]),
        ("flexible-extract", ["7", "3"]),
    ]
    assert list(loaded.extracted("ifeval", [(items["ifeval"][0], [reply("Yes.")])])) == [("none", [["Yes."]])]


def test_multiple_choice_and_instructions_have_lm_eval_s_forms(
    loaded: LoadedTasks, items: dict[str, list[Item]]
) -> None:
    item = items["kobest_hellaswag"][1]
    (found,) = loaded.score(item.task, [(item, choices(-5.0, -1.0, -9.0, -7.0))])
    assert found == {"acc,none": 1.0, "acc_norm,none": 1.0, "f1,none": (1, 1)}
    assert [type(part) for part in found["f1,none"]] == [int, int]
    found = score(loaded, items["ifeval"][1], "The river is wide.")
    assert found["inst_level_strict_acc,none"] == [True, False]
    assert found["prompt_level_strict_acc,none"] is False


def test_scores_come_in_the_order_of_the_answers(loaded: LoadedTasks, items: dict[str, list[Item]]) -> None:
    answered = [(item, [reply(f"#### {2 * item.doc_id + 1}" if item.doc_id % 2 else "no")]) for item in items["gsm8k"]]
    backwards = loaded.score("gsm8k", list(reversed(answered)))
    assert [row["exact_match,strict-match"] for row in backwards] == [1.0, 0.0] * 4


def test_random_letters_score_the_same(harness: LmEvalHarness, tiny_data: Path, items: dict[str, list[Item]]) -> None:
    item = items["ifeval"][2]
    assert item.doc["key"] == 1122
    texts = [letter * 4 for letter in "abcdefghijklmnopqrstuvwxyz"]

    def scores(order: Sequence[str]) -> dict[str, bool]:
        fresh = harness.load(TaskOptions(names=("ifeval",), data_dir=tiny_data))
        random.seed()
        return {text: score(fresh, item, text)["prompt_level_strict_acc,none"] for text in order}

    first = scores(texts)
    assert sum(first.values()) == 1
    assert scores(list(reversed(texts))) == first
    assert scores(texts[13:] + texts[:13]) == first


def test_language_detection_is_seeded(harness: LmEvalHarness, tiny_data: Path, items: dict[str, list[Item]]) -> None:
    text = "an mir is das in on no"  # short, and of several languages: unseeded, it comes out this way and that
    fresh = [harness.load(TaskOptions(names=("ifeval",), data_dir=tiny_data)) for _ in range(2)]
    scores = [score(loaded, items["ifeval"][3], text) for loaded in fresh for _ in range(10)]
    assert len({one["prompt_level_strict_acc,none"] for one in scores}) == 1


def test_what_cannot_be_scored_is_named(
    harness: LmEvalHarness, loaded: LoadedTasks, items: dict[str, list[Item]], tmp_path: Path
) -> None:
    code = 'def points(doc, results):\n    return {"points": 1 / len(results[0])}\n'
    own_tasks = harness.load(TaskOptions(names=("mine",), include_paths=(own(tmp_path, CUSTOM, code=code),)))
    item = next(own_tasks.render())
    for task, text, reason in (
        ("mine", "", r"mine/0.*ZeroDivisionError"),
        ("mine", None, "mine/0 has no text"),
        ("theirs", "", "theirs is not loaded"),
    ):
        with pytest.raises(HarnessError, match=reason):
            own_tasks.score(task, [(item, [reply(text)])])
    assert own_tasks.score("mine", []) == []
    with pytest.raises(HarnessError, match="kobest_boolq/0 has no log-likelihood"):
        loaded.score("kobest_boolq", [(items["kobest_boolq"][0], [reply("a"), reply("b")])])


def test_a_group_is_the_size_weighted_mean_of_its_members(loaded: LoadedTasks) -> None:
    found = loaded.aggregate(
        {
            "kobest_boolq": {"acc,none": [1.0, 0.0, 0.0, 0.0], "f1,none": [(0, 0), (1, 0), (1, 0), (0, 1)]},
            "kobest_wic": {"acc,none": [1.0, 1.0]},
        }
    )
    assert found["kobest_boolq"]["acc,none"] == 0.25
    assert found["kobest"]["acc,none"] == (0.25 * 4 + 1.0 * 2) / 6
    assert found["kobest_boolq"]["f1,none"] == pytest.approx((2 / 5 + 0.0) / 2)
    assert list(found) == ["kobest", "kobest_boolq", "kobest_wic"]


def test_instruction_level_means_and_metrics_without_items(loaded: LoadedTasks) -> None:
    instructions = {"ifeval": {"inst_level_strict_acc,none": [[True], [False, False, True]]}}
    assert loaded.aggregate(instructions) == {"ifeval": {"inst_level_strict_acc,none": 0.5}}
    columns = {"exact_match,strict-match": [], "exact_match,flexible-extract": [1.0]}
    assert loaded.aggregate({"gsm8k": columns}) == {"gsm8k": {"exact_match,flexible-extract": 1.0}}
    assert loaded.aggregate({"kobest_boolq": {"acc,none": []}}) == loaded.aggregate({}) == {}
    with pytest.raises(HarnessError, match="theirs"):
        loaded.aggregate({"theirs": {"acc,none": [1.0]}})


def test_values_lose_numpy_s_types_and_keep_their_shape() -> None:
    pair = plain_value((np.int64(1), np.int64(2)))
    assert pair == (1, 2)
    assert type(pair[0]) is int
    assert plain_value([np.bool_(True)]) == [True]
    assert plain_value((1, np.array([0.25, 0.75]))) == (1, [0.25, 0.75])
    assert type(plain_value(np.float64(0.5))) is float
