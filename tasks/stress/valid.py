"""Scoring of `stress`: has an answer the structure that was asked for?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Score one answer 1 or 0. A code fence around the whole of it and reasoning before it do not count."""
    answer = _unfenced(results[0].rpartition("</think>")[2])
    read = READERS[doc["check"]]
    try:
        return {"valid": float(read(answer) == read(doc["answer"]))}
    except (ValueError, RecursionError):  # no JSON
        return {"valid": 0.0}


def _unfenced(text: str) -> str:
    lines = text.strip().split("\n")
    is_fenced = len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1] if is_fenced else lines)


def _code(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().split("\n")]


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.split("\n") if line.strip()]


def _table(text: str) -> tuple[list[str], list[int]]:
    """Its header's cells, and the number of cells of each line."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.split("\n") if line.strip()]
    return rows[0] if rows else [], [len(row) for row in rows]


def _shape(value: Any) -> Any:
    """Keys, lengths and types; an integer may stand where the reference has a fraction."""
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shape(inner) for inner in value]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


READERS: Mapping[str, Callable[[str], Any]] = {
    "copy": str.split,
    "code": _code,
    "lines": _lines,
    "table": _table,
    "json": lambda text: _shape(json.loads(text)),
}
"""What of an answer has to be that of the reference, by the item's check."""
