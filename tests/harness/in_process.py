"""lm-eval's tasks loaded into the test's own process: quicker, and open to monkeypatching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qualab.harness.loading import load_tasks
from qualab.harness.tasks import LmEvalTasks
from qualab.model.ports import TaskOptions

LoadedTasks = LmEvalTasks


@dataclass(frozen=True, kw_only=True)
class LmEvalHarness:
    tasks_dir: Path
    note: Callable[[str, str], None] | None = None

    def load(self, options: TaskOptions) -> LmEvalTasks:
        return load_tasks(options, tasks_dir=self.tasks_dir, note=self.note)
