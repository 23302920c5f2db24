"""The generated texts of a run, as they are stored."""

from __future__ import annotations

from collections.abc import Sequence

from qualab.domain.items import Item
from qualab.domain.names import ArmName, RequestKind
from qualab.ports import Stored


def generated_texts(
    store: Stored, comparison_id: str, items: Sequence[Item], arm: ArmName, *, run: int = 0
) -> tuple[dict[tuple[int, int], str], int]:
    """Texts by position and repeat, and how many requests of any kind were answered. `items` by position."""
    answered = [one for one in store.answers(comparison_id, arm=arm, run=run) if one.reply.status.is_answer]
    texts = {
        (one.position, one.repeat): one.reply.text or ""
        for one in answered
        if items[one.position].kind is RequestKind.GENERATION
    }
    return texts, len(answered)
