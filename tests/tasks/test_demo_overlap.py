"""The demo's items are this project's own: no near-copies of benchmark items. Needs QUALAB_SHARED."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tasks.conftest import demo, read_jsonl

FIXED = re.compile(r"my answer is (yes|no|maybe)\W")
"""Sentences that one of IFEval's checks looks for to the letter."""


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", FIXED.sub("", text.lower()))


def syllables(text: str) -> list[str]:
    return list(re.sub(r"\W+", "", text))


def runs(units: list[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(units[i : i + n]) for i in range(len(units) - n + 1)}


def test_no_eight_words_in_a_row_are_those_of_gsm8k_or_ifeval(shared_data: Path) -> None:
    own = [row["question"] for row in demo("arithmetic")] + [row["prompt"] for row in demo("instructions")]
    rows = [
        row
        for file in ("gsm8k/train", "gsm8k/test", "ifeval/train")
        for row in read_jsonl(shared_data / f"{file}.jsonl")
    ]
    theirs = set().union(*(runs(words(row.get("question") or row["prompt"]), 8) for row in rows))
    assert not any(runs(words(text), 8) & theirs for text in own)


def test_no_eleven_korean_syllables_in_a_row_are_those_of_a_korean_benchmark(shared_data: Path) -> None:
    own = set().union(*(runs(syllables(row["question"]), 11) for row in demo("korean_choice")))
    for folder in ("kobest", "belebele", "haerae_sample"):
        for file in (shared_data / folder).rglob("*.jsonl"):
            for row in read_jsonl(file):
                assert not any(runs(syllables(value), 11) & own for value in row.values() if isinstance(value, str)), (
                    row
                )
