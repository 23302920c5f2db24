"""An item's document, prompts and requests as one compressed JSON, where the requests repeat the prompts for little."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import zstandard

from qualab.errors import StoreError
from qualab.model.items import Item, Prompt, Request
from qualab.model.names import Api

_PROMPT_FIELDS = tuple(field.name for field in fields(Prompt))
_REQUEST_FIELDS = tuple(field.name for field in fields(Request))


def to_json(value: Any, *, of: str) -> str:
    """Exact JSON (NaN and large integers included) that UTF-8 can say. `of` names the value in an error."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as exc:
        raise StoreError(f"{of} holds a value that JSON cannot say: {exc}") from exc
    return text if _is_valid(text) else json.dumps(value, separators=(",", ":"))


def pack_item(item: Item, compressor: zstandard.ZstdCompressor) -> bytes:
    """All that no column of `item` holds."""
    content = {
        "doc": item.doc,
        "target": item.target,
        "cluster": item.cluster,
        "prompts": [{name: getattr(prompt, name) for name in _PROMPT_FIELDS} for prompt in item.prompts],
        "requests": [{name: getattr(request, name) for name in _REQUEST_FIELDS} for request in item.requests],
    }
    return compressor.compress(to_json(content, of=f"item {item.id}").encode())


def unpack_item(payload: bytes, decompressor: zstandard.ZstdDecompressor) -> dict[str, Any]:
    """The fields of `Item` that the payload holds."""
    content: dict[str, Any] = json.loads(decompressor.decompress(payload))
    content["prompts"] = tuple(Prompt(**prompt) for prompt in content["prompts"])
    content["requests"] = tuple(_request(request) for request in content["requests"])
    return content


def _request(plain: dict[str, Any]) -> Request:
    return Request(**{**plain, "api": Api(plain["api"])})


def _is_valid(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
