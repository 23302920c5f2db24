"""The answer that the filters of `tasks/korean` take from a text, through lm-eval. The texts lie in phrasings.yaml."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.filters import build_filter_ensemble

from tests.tasks.conftest import TASKS_DIR

NONE = "[invalid]"
PHRASINGS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("phrasings.yaml").read_text(encoding="utf-8"))
GROUPS = [("letter", group) for group in PHRASINGS["letter"].values()]
GROUPS += [(name, PHRASINGS[name]) for name in ("yes_no", "sentiment")]


def extractor(name: str) -> Callable[[str], str]:
    config = yaml.safe_load((TASKS_DIR / f"korean/_{name}_yaml").read_text(encoding="utf-8"))
    (pipeline,) = config["filter_list"]
    steps = [(step.pop("function"), step) for step in pipeline["filter"]]
    ensemble = build_filter_ensemble(pipeline["name"], steps)

    def extract(text: str) -> str:
        instance = Instance(request_type="generate_until", doc={}, arguments=("", {}), idx=0)
        instance.resps = [text]
        ensemble.apply([instance])
        return str(instance.filtered_resps[ensemble.name])

    return extract


EXTRACT = {name: extractor(name) for name in PHRASINGS}
letter = EXTRACT["letter"]


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [(name, text, answer) for name, group in GROUPS for answer, texts in group.items() for text in texts],
)
def test_a_phrasing_gives_its_answer(name: str, text: str, answer: str) -> None:
    assert EXTRACT[name](text) == (NONE if answer == "none" else answer)


@given(
    word=st.text(string.ascii_letters, min_size=2, max_size=12),
    before=st.sampled_from(["", "정답: ", "정답은 ", "(", "**", "따라서 "]),
)
def test_no_letter_is_taken_from_a_latin_word(word: str, before: str) -> None:
    assert letter(before + word) == NONE


@given(option=st.sampled_from("ABCDE"), before=st.sampled_from(["", "정답: ", "(", "**", "답은 "]))
def test_every_letter_is_taken(option: str, before: str) -> None:
    assert letter(before + option) == option


@pytest.mark.parametrize("unit", ["A는 ", "정답은 ", "정답 \n", "(**[", "A, B ", "은 A ", "\n"])
def test_a_long_text_without_an_answer_does_not_backtrack_for_ever(unit: str) -> None:
    assert letter(unit * (2_000 // len(unit)) + "?")
