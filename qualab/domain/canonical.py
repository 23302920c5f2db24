"""One spelling of a value: canonical JSON, and the hashes made from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces, of plain values or of (nested) frozen dataclasses."""
    plain = TypeAdapter(type(value)).dump_python(value, mode="json")
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def sha256(text: str | bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def plan_hash(plan: Any) -> str:
    """The hash that names a plan: SHA-256 of its canonical JSON."""
    return sha256(canonical_json(plan))


def encode_body(payload: Mapping[str, Any], *, seed: int) -> bytes:
    """The bytes of a request body. One function for both arms, so that they send the same."""
    return json.dumps({**payload, "seed": seed}, ensure_ascii=False, separators=(",", ":")).encode()


def body_hash(body: bytes) -> bytes:
    """First 16 bytes of the body's SHA-256."""
    return hashlib.sha256(body).digest()[:16]
