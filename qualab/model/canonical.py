"""One spelling of a value: canonical JSON, and the hashes made from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import orjson
from pydantic import TypeAdapter


def plain(value: Any) -> Any:
    """A (nested) frozen dataclass as what JSON holds: mappings, lists, texts and numbers."""
    return _adapter(type(value)).dump_python(value, mode="json")


_adapter: Any = cache(TypeAdapter)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces, of plain values or of (nested) frozen dataclasses."""
    return json.dumps(plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def sha256(text: str | bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def plan_hash(plan: Any) -> str:
    """The hash that names a plan: SHA-256 of its canonical JSON."""
    return sha256(canonical_json(plan))


def encode_body(payload: Mapping[str, Any], *, seed: int) -> bytes:
    """The bytes of a request body. One function for both arms, so that they send the same."""
    body = {**payload, "seed": seed}
    try:
        return orjson.dumps(body)
    except TypeError:
        # lone surrogates and numbers beyond 64 bits: ASCII with escapes holds what UTF-8 cannot
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def body_hash(body: bytes) -> bytes:
    """First 16 bytes of the body's SHA-256."""
    return hashlib.sha256(body).digest()[:16]
