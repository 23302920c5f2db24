"""Answers of both arms held against the schema that they were asked in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from qualab.model.audit import StructuredCount
from qualab.model.items import Item
from qualab.model.structured import FIELDS
from qualab.stats.counts import PairedCounts
from qualab.stats.difference import mcnemar

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


def structured_count(pairs: Iterable[tuple[Item, str | None, str | None]]) -> StructuredCount | None:
    """Count items whose answer keeps to the schema in one arm alone, by exact McNemar; None without a pair.

    Args:
        pairs: each item with the texts of baseline and candidate; None for one that was not answered.
    """
    cells = [
        (is_valid(item, baseline), is_valid(item, candidate))
        for item, baseline, candidate in pairs
        if baseline is not None and candidate is not None and any(item.doc.get(name) for name in FIELDS)
    ]
    if not cells:
        return None
    gains, losses, both = (cells.count(cell) for cell in ((False, True), (True, False), (True, True)))
    counts = PairedCounts(n_items=len(cells), gains=gains, losses=losses, both_right=both)
    return StructuredCount(
        n_pairs=len(cells),
        baseline_only=losses,
        candidate_only=gains,
        n_valid=both,
        pvalue=mcnemar(counts).pvalue_exact,
    )


def is_valid(item: Item, text: str) -> bool:
    """Tell whether an answer is JSON that keeps to the item's schema; of tools, the list of calls as JSON.

    A key that an object has twice is an error, which JSON itself would let pass.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return False
    return bool(_validator(*(item.doc.get(name) or "" for name in ("response_format", "tools"))).is_valid(value))


@lru_cache(maxsize=128)
def _validator(response_format: str, tools: str) -> Validator:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - takes a tenth of a second

    if response_format:
        return Draft202012Validator(json.loads(response_format)["json_schema"]["schema"])
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": function["name"]}, "arguments": function["parameters"]},
            "required": ["name", "arguments"],
        }
        for function in (tool["function"] for tool in json.loads(tools))
    ]
    return Draft202012Validator({"type": "array", "minItems": 1, "items": {"anyOf": calls}})


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(value := dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice")
    return value


def _not_json(name: str) -> None:
    raise ValueError(name)
