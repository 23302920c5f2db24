"""The items of the demo: their form, their reference answers, their balance."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks import TaskManager

from qualab.harness.loading import NEEDS_SENTENCES
from qualab.model.items import Item
from tests.harness.conftest import LoadedTasks, by_task
from tests.tasks.conftest import TASKS_DIR, Load, demo, read_jsonl, scores

FLEXIBLE, STRICT = "exact_match,flexible-extract", "exact_match,strict-match"
STEP = re.compile(r"(\S+ [-+*/] \S+) = <<(.+?)=(\d+)>>(\d+)")

LANGUAGES = {"change_case:english_capital", "change_case:english_lowercase", "language:response_language"}
"""Checks that guess a language."""


@pytest.fixture(scope="module")
def loaded(load: Load) -> LoadedTasks:
    return load("demo")


@pytest.fixture(scope="module")
def items(loaded: LoadedTasks) -> Any:
    return by_task(loaded)


def calculated(expression: str) -> float:
    """Value of "a + b" and the like, of this project's own items."""
    return float(eval(expression, {"__builtins__": {}}))


def test_the_suite_has_three_generative_tasks_of_80_items(loaded: LoadedTasks) -> None:
    assert [(task.name, task.n_items, task.n_available) for task in loaded.tasks] == [
        ("demo_arithmetic", 80, 80),
        ("demo_korean_choice", 80, 80),
        ("demo_instructions", 80, 80),
    ]
    assert loaded.applies_chat_template
    assert [metric.id for metric in loaded.metrics if metric.is_primary] == [
        "demo_arithmetic/exact_match,flexible-extract",
        "demo_instructions/prompt_level_strict_acc,none",
        "demo_korean_choice/exact_match,answer",
    ]
    assert all(metric.exercises_drafter for metric in loaded.metrics)
    for item in loaded.render():
        kwargs = item.prompts[0].gen_kwargs or {}
        assert kwargs["max_gen_toks"] <= 96
        assert kwargs["temperature"] == 0.0


def test_every_worked_step_is_right_uses_numbers_that_are_there_and_leads_to_the_answer() -> None:
    words = {"Two": 2, "the two": 2, "half": 2, "twice": 2, "third": 3, "Five": 5, "Four": 4, "pairs": 2}
    n_hints = 0
    for row in demo("arithmetic"):
        known = {int(number) for number in re.findall(r"\d+", row["question"])}
        known |= {value for word, value in words.items() if word in row["question"]}
        steps, answer = row["answer"].split("\n#### ")
        found = STEP.findall(steps)
        assert len(found) == steps.count("<<") > 0
        for written, annotated, result, shown in found:
            assert written.replace(" ", "") == annotated
            assert calculated(annotated) == int(result) == int(shown)
            assert {int(number) for number in re.findall(r"\d+", annotated)} <= known, row
            known.add(int(result))
        assert found[-1][2] == answer
        if hint := re.search(r"\?\s(\(.*\d\)?.*)$", row["question"]):
            n_hints += 1
            assert calculated(hint[1]) == int(answer)
    assert n_hints >= 24


def test_items_are_balanced_and_none_is_there_twice() -> None:
    sums, choices, instructions = (demo(name) for name in ("arithmetic", "korean_choice", "instructions"))
    for rows, field in ((sums, "question"), (choices, "question"), (instructions, "prompt")):
        assert len({row[field] for row in rows}) == 80
    assert Counter(row["answer"].count("<<") for row in sums) == {1: 40, 2: 25, 3: 15}
    assert Counter(row["answer"] for row in choices) == {"A": 20, "B": 20, "C": 20, "D": 20}
    assert all(len(set(row["choices"])) == 4 for row in choices)
    # a limited run sees every level
    assert {row["answer"].count("<<") for row in sums[:20]} == {1, 2, 3}
    assert {row["topic"] for row in choices[:20]} == {"상식", "어휘", "독해"}
    assert len({name for row in instructions[:20] for name in row["instruction_id_list"]}) >= 8


def test_instructions_have_the_columns_of_ifeval_and_need_no_sentences_languages_or_luck() -> None:
    rows = demo("instructions")
    assert [row["key"] for row in rows] == list(range(1, 81))
    assert len({tuple(settings) for row in rows for settings in row["kwargs"]}) == 1
    for row in rows:
        assert len(row["kwargs"]) <= 2
        for name, settings in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            assert name not in LANGUAGES | NEEDS_SENTENCES
            given = {key: value for key, value in settings.items() if value is not None}
            assert all(given.values()), "lm-eval draws a random value in place of a falsy one"
            assert len(str(given.get("letter", "x"))) == 1
            # prompts name what their instructions check
            for key in ("keywords", "forbidden_words"):
                assert all(word in row["prompt"] for word in given.get(key, ()))
            for key in ("end_phrase", "keyword", "num_words", "num_bullets", "frequency", "let_frequency"):
                assert key not in given or str(given[key]) in row["prompt"]


@pytest.mark.parametrize(
    ("answer", "flexible", "strict"),
    [
        (lambda doc, number: re.sub(r"<<.*?>>", "", doc["answer"]), 1.0, 1.0),
        (lambda doc, number: f"The answer is {number + 1}.\n#### 0", 0.0, 0.0),
        (lambda doc, number: f"That makes {number}.", 1.0, 0.0),
    ],
)
def test_sums_score_by_their_last_number_and_by_the_mark(
    loaded: LoadedTasks, items: Any, answer: Any, flexible: float, strict: float
) -> None:
    def text(item: Item) -> str:
        return str(answer(item.doc, int(item.doc["answer"].split("#### ")[1])))

    for score in scores(loaded, "demo_arithmetic", items["demo_arithmetic"], text):
        assert score == {FLEXIBLE: flexible, STRICT: strict}


def test_right_and_wrong_letters_score_so(loaded: LoadedTasks, items: Any) -> None:
    for letters, expected in (("ABCD", 1.0), ("BCDA", 0.0)):
        answer = lambda item, own=letters: "정답은 {}입니다.".format(own["ABCD".index(item.doc["answer"])])  # noqa: E731
        found = scores(loaded, "demo_korean_choice", items["demo_korean_choice"], answer)
        assert [score["exact_match,answer"] for score in found] == [expected] * 80


def test_followed_and_broken_instructions_score_so(loaded: LoadedTasks, items: Any) -> None:
    references = {row["key"]: row for row in read_jsonl(Path(__file__).with_name("instruction_references.jsonl"))}

    def scored(kind: str) -> list[Any]:
        own = items["demo_instructions"]
        return scores(loaded, "demo_instructions", own, lambda item: str(references[item.doc["key"]].get(kind, "")))

    for score in scored("right"):
        assert score["prompt_level_strict_acc,none"]
        assert score["prompt_level_loose_acc,none"]
        assert all(score["inst_level_strict_acc,none"])
    for score in scored("wrong"):
        assert not score["prompt_level_strict_acc,none"]
        assert not all(score["inst_level_strict_acc,none"])
    assert not any(score["prompt_level_loose_acc,none"] for score in scored("empty"))


def test_the_demo_loads_with_lm_eval_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def from_tasks(path: str, name: str, **_: Any) -> Any:
        return datasets.DatasetDict(test=datasets.Dataset.from_list(demo(name)))

    monkeypatch.setattr("datasets.load_dataset", from_tasks)
    manager = TaskManager(include_path=str(TASKS_DIR), include_defaults=False)
    names = ["demo_arithmetic", "demo_korean_choice", "demo_instructions"]
    sizes = {name: len(task.eval_docs) for name, task in manager.load(names)["tasks"].items()}
    assert sizes == dict.fromkeys(names, 80)


def test_short_questions_are_made_again_alike_and_scored_by_their_last_number(load: Load) -> None:
    loaded = load("demo_short")
    own = by_task(loaded)["demo_short"]
    assert len({item.doc["question"] for item in own}) == len(own) == 240
    assert list(load("demo_short").render()) == list(loaded.render())
    for item in own:
        numbers, answer = list(map(int, re.findall(r"\d+", item.doc["question"]))), int(item.target)
        assert answer in ({sum(numbers[:2])} if " gets " in item.doc["question"] else {numbers[-1], max(numbers)})
    for form, expected in (("3 + {} = {}.", 1.0), ("It is {}, not {}1.", 0.0), ("many", 0.0)):
        answered = scores(loaded, "demo_short", own, lambda item, form=form: form.format(item.target, item.target))
        assert {score["exact_match,last-number"] for score in answered} == {expected}
