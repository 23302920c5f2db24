"""Values passed between rooms; Protocols and base classes where two things stand behind a seam."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from qualab.model.audit import ScoredAnswer
from qualab.model.comparison import Comparison, Look
from qualab.model.engine import Observation
from qualab.model.items import Answer, Item, Reply, Score
from qualab.model.names import ArmName, ComparisonStatus, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """A user's choice of tasks, in lm-eval's names and meanings."""

    names: tuple[str, ...]
    only: tuple[str, ...] | None = None
    """Tasks of the catalog that may be among these; None where all may."""
    num_fewshot: int | None = None
    limit: float | None = None
    gen_kwargs: Mapping[str, Any] | None = None
    seed: int = 1234
    include_paths: tuple[Path, ...] = ()
    data_dir: Path | None = None
    revisions: Mapping[str, str] = field(default_factory=dict)
    """Hub commits of data sets by task, as a plan records them: read at these, not at the newest."""
    apply_chat_template: bool | None = None
    system_instruction: str = ""
    most_tasks: int | None = None


class ScoredTasks(Protocol):
    def score(self, task: str, answered: Sequence[tuple[Item, Sequence[Reply]]]) -> list[dict[str, Any]]:
        """Score items, each with its replies in the order of its choices, as lm-eval does.

        Returns each item's values by "metric,filter": a number, a list (IFEval) or a pair (f1).
        """

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        """Aggregate {task: {"metric,filter": items' values}} to {task or group: {"metric,filter": value}}.

        A metric without items is left out.
        """


Tokenize = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonFilter:
    """Conditions that must all hold; None sets none."""

    status: ComparisonStatus | None = None
    verdict: Verdict | None = None
    label: str | None = None
    model: str | None = None
    group: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50


class Stored(Protocol):
    """The store, or logs that are being imported."""

    def answers(self, comparison_id: str, *, arm: ArmName, run: int = 0) -> Iterator[Answer]: ...

    def scores(self, comparison_id: str) -> Iterator[Score]: ...

    def looks(self, comparison_id: str) -> Sequence[Look]: ...

    def observations(self, comparison_id: str) -> Sequence[Observation]: ...

    def scored(
        self, comparison_id: str, *, positions: Collection[int] | None = None, with_pieces: bool = False
    ) -> Iterator[ScoredAnswer]: ...


class Clock:
    """Wall time in aware UTC, and the monotonic clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()


class Progress:
    """Progress of a run, which nobody watches here."""

    def started(
        self, comparison: Comparison, *, totals: Mapping[ArmName, int], done: Mapping[ArmName, int]
    ) -> None: ...

    def answered(self, arm: ArmName, reply: Reply) -> None: ...

    def waiting(self, arm: ArmName, seconds: float) -> None: ...

    def phase(self, text: str) -> None: ...

    def finished(self) -> None: ...
