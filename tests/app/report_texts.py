"""Every text of a report's model, and what tells English sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from qualab.model.report import Excerpt

FOUR_WORDS = re.compile(r"[A-Za-z]{3,}(?: [A-Za-z']{2,}){3,}")
"""Four English words in a row."""
NAMES = re.compile(
    r"[A-Z][\w’]+(?:[, &]+[A-Z][\w’]+)+|lm-evaluation-harness|step-down max-T|BCa|mid-p McNemar|route [a-z]+|few-shot"
)


def texts(value: Any) -> Iterator[str]:
    """Every text of a model but a model's answers and what is asked."""
    if isinstance(value, Excerpt):
        return
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from texts(getattr(value, field.name))
    elif isinstance(value, dict):
        for one in value.values():
            yield from texts(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from texts(one)


def english_in(value: Any) -> list[str]:
    """Texts with four English words in a row that are no names."""
    return [text for text in texts(value) if FOUR_WORDS.search(NAMES.sub("", text))]
