"""lm-eval's tasks loaded into the test's own process: quicker, and open to monkeypatching; and answers to score."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from qualab.harness.loading import load_tasks
from qualab.harness.tasks import LmEvalTasks, Note
from qualab.model.items import Item, Reply
from qualab.model.names import AnswerStatus
from qualab.model.ports import TaskOptions

LoadedTasks = LmEvalTasks


@dataclass(frozen=True, kw_only=True)
class LmEvalHarness:
    tasks_dir: Path
    note: Note = lambda _item, _step: None

    def load(self, options: TaskOptions) -> LmEvalTasks:
        return load_tasks(options, tasks_dir=self.tasks_dir, note=self.note)


def by_task(loaded: LmEvalTasks) -> dict[str, list[Item]]:
    items: dict[str, list[Item]] = {}
    for item in loaded.render():
        items.setdefault(item.task, []).append(item)
    return items


def reply(text: str | None = None, loglikelihood: float | None = None, is_greedy: bool | None = None) -> Reply:
    return Reply(
        status=AnswerStatus.OK,
        text=text,
        loglikelihood=loglikelihood,
        is_greedy=is_greedy,
        finish_reason="stop",
        prompt_tokens=1,
        completion_tokens=1,
        attempts=1,
        latency_s=0.0,
        sent_at=datetime(2026, 1, 1, tzinfo=UTC),
        system_fingerprint="",
        error="",
    )
