"""Which items stand and fall together, told from their documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

LONGEST_CLUSTER = 64
"""Characters of a document field that is its own cluster name; longer ones are hashed."""


def cluster_of(doc: Mapping[str, Any], fields: Sequence[str]) -> str:
    """What items of one cluster share: the field's text where it is one short field, else a hash of all of them."""
    if not fields:
        return ""
    values = [str(doc[name]) for name in fields]
    if len(values) == 1 and len(values[0]) <= LONGEST_CLUSTER:
        return values[0]
    return hashlib.sha256(json.dumps(values, ensure_ascii=False).encode()).hexdigest()[:16]
