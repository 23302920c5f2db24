"""One spelling of a value: canonical JSON, and the hashes made from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import orjson
from pydantic import TypeAdapter

adapter: Any = cache(TypeAdapter)


def plain(value: Any) -> Any:
    """Convert a (nested) frozen dataclass to mappings, lists, texts and numbers."""
    return adapter(type(value)).dump_python(value, mode="json")


def canonical_json(value: Any) -> str:
    """Write JSON with sorted keys and no spaces, of plain values or (nested) frozen dataclasses."""
    return json.dumps(plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def sha256(text: str | bytes) -> str:
    """Return the hexadecimal SHA-256."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def plan_hash(plan: Any) -> str:
    """Return the SHA-256 of a plan's canonical JSON, which names it."""
    return sha256(canonical_json(plan))


def encode_body(payload: Mapping[str, Any], *, seed: int) -> bytes:
    """Encode a request body: one function for both arms, so that they send the same bytes."""
    body = {**payload, "seed": seed}
    try:
        return orjson.dumps(body)
    except TypeError:
        # lone surrogates and numbers beyond 64 bits: ASCII with escapes holds what UTF-8 cannot
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def body_hash(body: bytes) -> bytes:
    """Return the first 16 bytes of the body's SHA-256."""
    return hashlib.sha256(body).digest()[:16]
