"""The 200 items of `stress`, their scoring, and the requests and answers with a schema."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from qualab.analysis.structured import is_valid, structured_count
from qualab.model.audit import StructuredCount
from qualab.model.items import Item
from qualab.model.names import Api
from qualab.model.plan import SamplingPlan
from qualab.model.structured import structured_request
from tests.tasks.conftest import TASKS_DIR, Load, read_jsonl, scores

CHAT = SamplingPlan(model="m", api=Api.CHAT)
ROWS = read_jsonl(TASKS_DIR / "stress/items.jsonl")


@pytest.fixture(scope="module")
def loaded(load: Load) -> Any:
    return load("stress")


@pytest.fixture(scope="module")
def items(loaded: Any) -> list[Item]:
    return list(loaded.render())


def test_the_script_remakes_the_items() -> None:
    spec = util.spec_from_file_location("make", TASKS_DIR / "stress/make.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(make := util.module_from_spec(spec))
    assert list(make.items()) == ROWS


def test_items_are_200_different_ones_in_two_languages_and_seven_categories() -> None:
    assert len({row["prompt"] for row in ROWS}) == len(ROWS) == 200
    sizes = {"copy": 15, "json": 15, "code": 15, "tools": 15, "table": 14, "names": 12, "repeat": 14}
    expected = {(name, language): n for name, n in sizes.items() for language in ("en", "ko")}
    assert Counter((row["category"], row["language"]) for row in ROWS) == expected
    assert len({(row["category"], row["language"]) for row in ROWS[:14]}) == 14, "a limited run sees all"
    assert {type(value) for row in ROWS for name, value in row.items() if name != "key"} == {str}
    assert all(("가" <= max(row["prompt"].replace("·", "")) <= "힣") == (row["language"] == "ko") for row in ROWS)
    assert all(row["answer"] not in row["prompt"] for row in ROWS if row["category"] != "copy")
    assert all(50 < len(row["answer"]) < 700 and len(row["prompt"]) < 900 for row in ROWS)


def test_the_suite_decides_by_validity_only_where_nothing_else_decides(
    load: Load, loaded: Any, tiny_data: Path
) -> None:
    assert (loaded.suite, loaded.applies_chat_template, loaded.tasks[0].n_items) == ("stress", True, 200)
    primaries = [
        [row.id for row in tasks.metrics if row.is_primary]
        for tasks in (loaded, load("gsm8k", "stress", data_dir=tiny_data))
    ]
    assert primaries == [["stress/valid,none"], ["gsm8k/exact_match,flexible-extract"]]


def doubled(answer: str) -> str:
    words = answer.split(" ")
    return " ".join([*words[:3], words[2], *words[3:]])


def without_last_line(answer: str) -> str:
    return answer[: answer.rindex("\n")]


SPOILED: dict[str, dict[str, Any]] = {
    "copy": {"doubled": doubled, "a digit": lambda text: text.translate(str.maketrans("12", "21"))},
    "code": {
        "doubled": doubled,
        "a blank": lambda text: text.replace("\n  ", "\n   ", 1),
        "a line lost": without_last_line,
    },
    "lines": {"doubled": lambda text: text.replace("\n", "\n\n1\n", 1), "a line lost": without_last_line},
    "table": {"a row lost": without_last_line, "a cell more": lambda text: text + " |"},
    "json": {
        "doubled": lambda text: text.replace('": ', '": ": ', 1),
        "an object lost": lambda text: text[: text.rindex(", {")] + text[text.rindex("}]") + 1 :],
        "a number as text": lambda text: text.replace(": false", ': "false"').replace(": true", ': "true"'),
        "another key": lambda text: text.replace('"arguments"', '"argument"').replace('": [{"', '": [{"x', 1),
    },
}


def test_references_are_valid_and_spoiled_ones_are_not(loaded: Any, items: list[Item]) -> None:
    def valid(answer: Any) -> list[float]:
        return [score["valid,none"] for score in scores(loaded, "stress", items, answer)]

    for form in ("{}", "{}\n", "```\n{}\n```", "<think>Hm.</think>\n{}"):
        assert valid(lambda item, own=form: own.format(item.target)) == [1.0] * 200, form
    for text in ("", "Sure!", "[" * 5_000, "```"):
        assert valid(lambda _, own=text: own) == [0.0] * 200, text
    for check, ways in SPOILED.items():
        for name, spoil in ways.items():
            own = [item for item in items if item.doc["check"] == check and spoil(item.target) != item.target]
            assert len(own) > 10
            found = scores(loaded, "stress", own, lambda item, how=spoil: how(item.target))
            assert {score["valid,none"] for score in found} == {0.0}, (check, name)
    # an integer for a fraction has the shape
    whole = [replace(item, target=item.target.replace(".", "")) for item in items if "celsius" in item.target]
    assert {score["valid,none"] for score in scores(loaded, "stress", whole, lambda item: item.target)} == {1.0}


def test_sixty_items_are_asked_greedily_with_their_schema_over_chat_alone(load: Load, items: list[Item]) -> None:
    hot = load("stress", gen_kwargs={"temperature": 0.7})
    requests = {item.doc_id: structured_request(item, sampling=CHAT) for item in hot.render()}
    asked = {doc_id: request.payload for doc_id, request in requests.items() if request}
    assert Counter(items[doc_id].doc["category"] for doc_id in asked) == {"json": 30, "tools": 30}
    for doc_id, payload in asked.items():
        assert payload["messages"] == [{"role": "user", "content": items[doc_id].doc["prompt"]}]
        assert (payload["temperature"], payload["max_tokens"]) == (0, 384)
        if items[doc_id].doc["tools"]:
            assert (payload["tool_choice"], len(payload["tools"])) == ("required", 2)
        else:
            assert payload["response_format"]["type"] == "json_schema"
            assert "tools" not in payload
    assert not any(structured_request(item, sampling=replace(CHAT, api=Api.COMPLETIONS)) for item in items)
    assert not any(structured_request(replace(item, task="other"), sampling=CHAT) for item in items)


FIRST_VALUE = re.compile(r'"(\w+)": (?=["\d])')
INVALID: dict[str, Any] = {
    "not JSON": lambda text: text[:-1],
    "prose before": lambda text: f"Sure: {text}",
    "another type": lambda text: re.sub(r'": (false|true|\d[\d.]*)', '": "1"', text),
    "a key more": lambda text: text.replace('": {"', '": {"x": 1, "').replace('": [{"', '": [{"x": 1, "'),
    "a key twice": lambda text: FIRST_VALUE.sub(r'"\1": 1, "\1": ', text, count=1),
    "another name": lambda text: FIRST_VALUE.sub(r'"\1x": ', text, count=1),
    "none": lambda text: "[]",
    "not a number": lambda text: re.sub(r'": \d[\d.]*', '": NaN', text),
    "deep": lambda text: "[" * 100_000,
    "empty": lambda text: "",
}


def test_answers_are_held_against_their_schema(items: list[Item]) -> None:
    own = [item for item in items if structured_request(item, sampling=CHAT)]
    assert all(
        is_valid(item, text) for item in own for text in (item.target, json.dumps(json.loads(item.target), indent=2))
    )
    for name, spoil in INVALID.items():
        assert [item.id for item in own if is_valid(item, spoil(item.target))] == [], name


def test_the_count_takes_pairs_of_answers_alone(items: list[Item]) -> None:
    item = next(item for item in items if item.doc["response_format"])
    good, bad = item.target, item.target.replace(", ", ", , ", 1)
    pairs = [
        *[(item, good, good)] * 3,
        *[(item, good, bad)] * 7,
        (item, bad, good),
        (item, bad, bad),
        (item, None, good),
    ]
    expected = StructuredCount(
        n_pairs=12, baseline_only=7, candidate_only=1, n_valid=3, pvalue=pytest.approx(0.0703125)
    )
    assert structured_count(pairs) == expected
    assert structured_count([(item, good, None)]) is None
    assert structured_count([]) is None


def test_jsonschema_is_imported_when_an_answer_is_held_against_it() -> None:
    code = "import sys, qualab.analysis.structured; sys.exit('jsonschema' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
