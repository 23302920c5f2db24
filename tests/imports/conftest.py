"""An import into memory, with what the catalog knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qualab.adapters.harness.catalog import read_catalog
from qualab.adapters.imports import LogFiles
from qualab.adapters.memory import FixedClock, MemoryStore
from qualab.app.import_ import ImportServices, Wanted, import_logs
from qualab.bootstrap import share
from qualab.domain.comparison import Analysis, Comparison
from qualab.domain.imported import Imported, TaskJoin
from qualab.domain.names import ArmName
from qualab.ports import ComparisonFilter
from tests.imports.lm_eval_files import Row, Run

BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE


@dataclass(kw_only=True)
class Importer:
    """Imports two folders; keeps what is stored."""

    folder: Path
    store: MemoryStore = field(default_factory=MemoryStore)

    @property
    def services(self) -> ImportServices:
        knows = read_catalog(share("tasks")).facts
        return ImportServices(store=self.store, logs=LogFiles(), knows=knows, clock=FixedClock())

    def __call__(self, baseline: Path, candidate: Path, **wanted: Any) -> Analysis:
        return import_logs(self.services, Wanted(places={BASELINE: baseline, CANDIDATE: candidate}, **wanted))

    def runs(self, baseline: Run, candidate: Run, **wanted: Any) -> Analysis:
        """Imports two runs that are written first."""
        return self(baseline.write(self.folder / "off"), candidate.write(self.folder / "on"), **wanted)

    def rows(self, baseline: list[Row], candidate: list[Row], *, task: str = "sums", **wanted: Any) -> Analysis:
        """Imports one task's rows."""
        return self.runs(Run(samples={task: baseline}), Run(samples={task: candidate}), **wanted)

    @property
    def comparison(self) -> Comparison:
        return self.store.list(ComparisonFilter())[0]

    @property
    def imported(self) -> Imported:
        found = self.comparison.plan.imported
        assert found is not None
        return found

    @property
    def join(self) -> TaskJoin:
        (found,) = self.imported.joins
        return found


@pytest.fixture
def importer(tmp_path: Path) -> Importer:
    return Importer(folder=tmp_path)
