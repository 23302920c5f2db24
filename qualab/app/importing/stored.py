"""Scores that are not in the store (yet), as an analysis reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qualab.domain.comparison import Look
from qualab.domain.items import Answer, Score
from qualab.domain.names import ArmName
from qualab.domain.observations import Observation
from qualab.ports import Store


class ScoresAlone:
    """`qualab.ports.Stored`: these scores, and the rest from a store where there is one."""

    def __init__(self, scores: Sequence[Score], store: Store | None = None) -> None:
        """`scores` in order of arm, position, repeat and metric."""
        self._scores = scores
        self._store = store

    def scores(self, comparison_id: str) -> Iterator[Score]:
        del comparison_id
        return iter(self._scores)

    def answers(self, comparison_id: str, *, arm: ArmName, run: int = 0) -> Iterator[Answer]:
        return self._store.answers(comparison_id, arm=arm, run=run) if self._store else iter(())

    def looks(self, comparison_id: str) -> Sequence[Look]:
        return self._store.looks(comparison_id) if self._store else ()

    def observations(self, comparison_id: str) -> Sequence[Observation]:
        return self._store.observations(comparison_id) if self._store else ()
