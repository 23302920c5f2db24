"""An import into a new store, with what the catalog knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qualab.bootstrap import task_catalog
from qualab.imports.import_ import ImportRequest, import_logs
from qualab.model.comparison import Analysis, Comparison, Evidence
from qualab.model.names import ArmName
from qualab.model.plan import Imported, TaskJoin
from qualab.model.ports import ComparisonFilter
from qualab.store import Store
from tests.app.fakes import Clock
from tests.fresh_store import fresh_store
from tests.imports.lm_eval_files import Row, Run

BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE


@dataclass(kw_only=True)
class Importer:
    """Import two folders into a store of its own."""

    folder: Path
    store: Store = field(default_factory=fresh_store)

    def __call__(self, baseline: Path, candidate: Path, **wanted: Any) -> Analysis:
        return self.take(ImportRequest(paths={BASELINE: baseline, CANDIDATE: candidate}, **wanted))

    def table(self, path: Path, **wanted: Any) -> Analysis:
        return self.take(ImportRequest(table=path, **wanted))

    def take(self, request: ImportRequest) -> Analysis:
        return import_logs(self.store, task_catalog(), request, now=Clock().now())

    def runs(self, baseline: Run, candidate: Run, **wanted: Any) -> Analysis:
        return self(baseline.write(self.folder / "off"), candidate.write(self.folder / "on"), **wanted)

    def rows(self, baseline: list[Row], candidate: list[Row], *, task: str = "sums", **wanted: Any) -> Analysis:
        return self.runs(Run(samples={task: baseline}), Run(samples={task: candidate}), **wanted)

    @property
    def comparisons(self) -> list[Comparison]:
        return self.store.list(ComparisonFilter())

    @property
    def comparison(self) -> Comparison:
        return self.comparisons[0]

    @property
    def imported(self) -> Imported:
        assert self.comparison.plan.imported is not None
        return self.comparison.plan.imported

    @property
    def join(self) -> TaskJoin:
        (join,) = self.imported.joins
        return join


def evidence(analysis: Analysis, metric: int = 0) -> Evidence:
    """Return a metric's evidence, which must be there."""
    tested = analysis.metrics[metric].evidence
    assert tested is not None
    return tested


@pytest.fixture
def importer(tmp_path: Path) -> Importer:
    return Importer(folder=tmp_path)
