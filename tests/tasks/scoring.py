"""Scores of made-up answers by lm-eval, through the harness adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from qualab.model.items import Item, Reply
from qualab.model.names import AnswerStatus
from tests.harness.in_process import LoadedTasks


def reply(text: str) -> Reply:
    return Reply(
        status=AnswerStatus.OK,
        text=text,
        loglikelihood=None,
        is_greedy=None,
        finish_reason="stop",
        prompt_tokens=None,
        completion_tokens=None,
        attempts=1,
        latency_s=0.0,
        sent_at=datetime(2026, 1, 1, tzinfo=UTC),
        system_fingerprint="",
        error="",
    )


def items_of(loaded: LoadedTasks) -> Mapping[str, Sequence[Item]]:
    """Items by task."""
    items: dict[str, list[Item]] = {}
    for item in loaded.render():
        items.setdefault(item.task, []).append(item)
    return items


def scores(loaded: LoadedTasks, task: str, items: Sequence[Item], answer: Callable[[Item], str]) -> list[Any]:
    """lm-eval's values of one answer an item, in the order of `items`."""
    return loaded.score(task, [(item, [reply(answer(item))]) for item in items])
