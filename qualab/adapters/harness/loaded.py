"""Loaded tasks: `qualab.ports.LoadedTasks` over lm-eval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any

from lm_eval.api.metrics import mean

from qualab.adapters.harness.building import Built
from qualab.adapters.harness.exporting import results_document, sample_rows
from qualab.adapters.harness.metrics import table_order
from qualab.adapters.harness.patching import quiet
from qualab.adapters.harness.rendering import LoadedTask, render
from qualab.adapters.harness.scoring import Note, Scorer, unnoted
from qualab.domain.items import Item, JsonObject, Reply
from qualab.domain.plan import MetricSpec, TaskSpec
from qualab.errors import HarnessError


class LmEvalTasks:
    """Tasks with their documents, ready to render and to score."""

    def __init__(
        self,
        *,
        suite: str,
        loaded: Mapping[str, LoadedTask],
        built: Built,
        metrics: tuple[MetricSpec, ...],
        applies_chat_template: bool,
        seed: int,
        system_instruction: str,
        note: Note = unnoted,
    ) -> None:
        self._suite = suite
        self._loaded = dict(loaded)
        self._built = built
        self._metrics = metrics
        self._applies_chat_template = applies_chat_template
        self._seed = seed
        self._system_instruction = system_instruction
        self._scorers = {name: Scorer(task, note) for name, task in self._loaded.items()}

    @property
    def suite(self) -> str:
        return self._suite

    @property
    def applies_chat_template(self) -> bool:
        return self._applies_chat_template

    @property
    def tasks(self) -> tuple[TaskSpec, ...]:
        return tuple(task.spec for task in self._loaded.values())

    @property
    def metrics(self) -> tuple[MetricSpec, ...]:
        return self._metrics

    @cached_property
    def harness_version(self) -> str:
        return version("lm_eval")

    def render(self) -> Iterator[Item]:
        """Every item with its prompts, in task and document order. Raises BrokenTask."""
        start = 0
        for loaded in self._loaded.values():
            yield from render(
                loaded,
                seed=self._seed,
                system_instruction=self._system_instruction,
                as_chat=self._applies_chat_template,
                start=start,
            )
            start += len(loaded.docs)

    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        """Per-item values by "metric,filter", in the order of `answered`. Raises HarnessError."""
        if task not in self._scorers:
            raise HarnessError(f"Task {task} is not loaded")
        return self._scorers[task].score(answered)

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        """Task and group values by lm-eval's aggregations. Raises HarnessError."""
        with quiet():
            rows = {name: self._task_row(name, columns) for name, columns in values.items()}
            groups = {name: _group_row(group, rows) for name, group in self._built.groups.items()}
        found = {**rows, **groups}
        keyed = {name: {key: value for key, value in found.get(name, {}).items() if "," in key} for name in self._order}
        return {name: row for name, row in keyed.items() if row}

    def extracted(
        self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """What each filter takes out of every entry's answers. Raises HarnessError."""
        return self._scorers[task].extracted(answered)

    def samples(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> Iterator[JsonObject]:
        """The rows that lm-eval's --log_samples writes. Raises HarnessError."""
        return sample_rows(self._scorers[task], answered)

    def results(self, answered: Mapping[str, Sequence[tuple[Item, Sequence[Reply]]]]) -> JsonObject:
        """lm-eval's results document of these answers by task. Raises HarnessError."""
        values = {name: self.score(name, entries) for name, entries in answered.items()}
        return results_document(self._built, self._loaded, values)

    @cached_property
    def _order(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(table_order(self._built)))

    def _task_row(self, name: str, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """As lm_eval.evaluator_utils computes it, without its bootstrap."""
        if name not in self._loaded:
            raise HarnessError(f"Task {name} is not loaded")
        functions = self._loaded[name].task.aggregation()
        row: dict[str, Any] = {"sample_len": max((len(column) for column in columns.values()), default=0)}
        for key, column in columns.items():
            if column:
                row[key] = float(functions.get(key.partition(",")[0], mean)(column))
        return row


def _group_row(group: Any, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in group.aggregate(rows).items() if "_stderr," not in key}
