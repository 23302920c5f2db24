"""Pages of long lists: what a page holds, and where the next begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """One page, and the cursor of the next one."""

    entries: tuple[T, ...]
    next_cursor: str | None
    """Opaque; None where this page is the last."""
