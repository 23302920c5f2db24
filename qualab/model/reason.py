"""Reasons as data: what an analysis says is a code with values; a report's catalogue makes words of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason, caveat, note or finding: a stable code with values.

    Values are fractions, counts, names, further reasons, or tuples of these.
    """

    code: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _reason, serialization=core_schema.plain_serializer_function_ser_schema(_plain)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return {
            "title": "Reason",
            "description": "A code with values, and an English sentence made of them.",
            "type": "object",
            "properties": {"code": {"type": "string"}, "values": {"type": "object"}, "text": {"type": "string"}},
            "required": ["code", "values"],
        }


def of(name: str, reason: Reason) -> Reason:
    """Prefix a reason with the metric or task that it is about."""
    return Reason("of", {"name": name, "reason": reason})


def _reason(value: Any) -> Reason:
    if isinstance(value, Reason):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("code"), str) and isinstance(value.get("values"), Mapping):
        return Reason(value["code"], {name: _value(one) for name, one in value["values"].items()})
    raise ValueError("must be an object with a code and values")


def _value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_value, value))
    return _reason(value) if isinstance(value, Mapping) and "code" in value else value


def _plain(value: Any) -> Any:
    if isinstance(value, Reason):
        return {"code": value.code, "values": {name: _plain(one) for name, one in value.values.items()}}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Enum):
        return value.value
    return float(value) if isinstance(value, float) else value  # numpy's are floats that JSON does not know
