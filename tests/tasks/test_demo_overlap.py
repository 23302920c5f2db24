"""The demo's items are this project's own: no near-copies of benchmark items. Needs QUALAB_SHARED."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.tasks.conftest import demo, read_jsonl

WORDS_IN_A_ROW = 8
SYLLABLES_IN_A_ROW = 11
MOST_SHARED = 0.5
"""Share of a text's word triples that one benchmark item may hold."""


FIXED = re.compile(r"my answer is (yes|no|maybe)\W")
"""Sentences that one of IFEval's checks looks for to the letter."""


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", FIXED.sub("", text.lower()))


def syllables(text: str) -> str:
    return re.sub(r"\W+", "", text)


def runs(units: Sequence[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(units[i : i + n]) for i in range(len(units) - n + 1)}


def own_english() -> list[str]:
    return [row["question"] for row in demo("arithmetic")] + [row["prompt"] for row in demo("instructions")]


@pytest.fixture(scope="module")
def english(shared_data: Path) -> list[str]:
    sums = [row["question"] for split in ("train", "test") for row in read_jsonl(shared_data / f"gsm8k/{split}.jsonl")]
    return sums + [row["prompt"] for row in read_jsonl(shared_data / "ifeval/train.jsonl")]


@pytest.fixture(scope="module")
def korean(shared_data: Path) -> list[str]:
    folders = ("kobest", "belebele", "haerae_sample")
    files = (file for folder in folders for file in (shared_data / folder).rglob("*.jsonl"))
    return [value for file in files for row in read_jsonl(file) for value in row.values() if isinstance(value, str)]


def shared_runs(texts: Iterable[str], runs_of_benchmarks: set[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    for text in texts:
        yield from runs(words(text), WORDS_IN_A_ROW) & runs_of_benchmarks


def test_no_eight_words_in_a_row_are_those_of_gsm8k_or_ifeval(english: list[str]) -> None:
    theirs = set().union(*(runs(words(text), WORDS_IN_A_ROW) for text in english))
    assert list(shared_runs(own_english(), theirs)) == []


def test_the_check_would_find_a_copy(english: list[str]) -> None:
    theirs = set().union(*(runs(words(text), WORDS_IN_A_ROW) for text in english))
    assert list(shared_runs([english[0]], theirs))


def test_no_item_shares_half_of_its_word_triples_with_one_benchmark_item(english: list[str]) -> None:
    theirs = [runs(words(text), 3) for text in english]
    for text in own_english():
        own = runs(words(text), 3)
        assert max(len(own & other) for other in theirs) <= MOST_SHARED * len(own), text


def test_no_eleven_korean_syllables_in_a_row_are_those_of_a_korean_benchmark(korean: list[str]) -> None:
    everything = "\n".join(syllables(text) for text in korean)
    for row in demo("korean_choice"):
        own = syllables(row["question"])
        pieces = {own[i : i + SYLLABLES_IN_A_ROW] for i in range(max(1, len(own) - SYLLABLES_IN_A_ROW + 1))}
        assert not [piece for piece in pieces if len(piece) == SYLLABLES_IN_A_ROW and piece in everything]
