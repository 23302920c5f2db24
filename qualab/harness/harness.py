"""`qualab.model.ports.Harness` over lm-evaluation-harness. Imports lm-eval only when tasks are loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from qualab.model.ports import LoadedTasks, TaskOptions


class LmEvalHarness:
    """Loads tasks of lm-eval, of qualab (`tasks_dir`, with its catalog) and of a user's include paths."""

    def __init__(self, *, tasks_dir: Path, note: Callable[[str, str], None] | None = None) -> None:
        self._tasks_dir = tasks_dir
        self._note = note

    def stop(self) -> None:
        """Does nothing: what runs in this process cannot be ended."""

    def load(self, options: TaskOptions) -> LoadedTasks:
        """Raises InvalidValue, UnknownTask, BrokenTask, DatasetUnavailable, BadDataFile, EmptyDataset,
        ScoringUnavailable. Reads data, and touches no network where a data directory is given."""
        from qualab.harness.loading import load_tasks  # noqa: PLC0415  (lm-eval takes seconds to import)

        return load_tasks(options, tasks_dir=self._tasks_dir, note=self._note)
