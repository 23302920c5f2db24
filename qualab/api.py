"""The Python API: `qualab.compare` and `qualab.load`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qualab import bootstrap
from qualab.errors import InvalidValue
from qualab.model.comparison import Analysis, Comparison
from qualab.model.names import Verdict
from qualab.report.words import ENGLISH
from qualab.run.pairs import pairs_of
from qualab.run.run import start
from qualab.run.sign import analysed
from qualab.run.stored import export
from qualab.settings import checked_experiment, keys_of, read_experiment
from qualab.settings import load as load_settings

if TYPE_CHECKING:
    import pandas as pd

    from qualab.store import Store

T = TypeVar("T")
OF_METRIC = ("id", "task", "metric", "is_primary", "exercises_drafter", "verdict", "baseline", "candidate", "margin")
COUNTS = ("n_items", "n_missing")
OF_EVIDENCE = ("difference", "pvalue", "pvalue_adjusted", "pvalue_equivalence", "provable_margin", "items_needed")


@dataclass(frozen=True)
class StoredComparison:
    """A stored comparison and what came of it, read when it is asked for."""

    comparison: Comparison
    store: Store

    def __repr__(self) -> str:
        return f"<qualab comparison {self.id} of {self.comparison.plan.sampling.model}>"

    @property
    def id(self) -> str:
        return self.comparison.id

    @cached_property
    def analysis(self) -> Analysis:
        """Everything that was computed. Raises WrongState where nothing is analysed yet."""
        return analysed(self.store, self.id)[1]

    @property
    def verdict(self) -> Verdict:
        """A text too, as "EQUIVALENT". Raises WrongState where there is none yet."""
        return self.analysis.verdict

    @property
    def reasons(self) -> list[str]:
        """Sentences that say why the verdict is what it is."""
        return list(ENGLISH.reasons(self.analysis.reasons))

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row a metric, fractions; missing where nothing was tested. `analysis.metrics` has every detail."""
        import pandas as pd  # noqa: PLC0415

        rows = []
        for metric in self.analysis.metrics:
            row = {name: getattr(metric, name) for name in (*OF_METRIC, *COUNTS)} | {"verdict": metric.verdict.value}
            row |= {name: getattr(metric.evidence, name, None) for name in OF_EVIDENCE}
            interval = metric.evidence and metric.evidence.interval
            rows.append(row | {"low": interval and interval.low, "high": interval and interval.high})
        return pd.DataFrame(rows)

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """One row an item and repeat, with both arms' scores, texts and audit; what `qualab export --format` writes."""
        return pairs_of(self.store, self.id)


def load(comparison_id: str, *, db: str | Path | None = None) -> StoredComparison:
    """Open a stored comparison by its id, or the id's beginning.

    Args:
        comparison_id: as `qualab list` shows it.
        db: SQLite file or database URL; None is QUALAB_DB, or the user's own database.

    Raises:
        QualabError: no such comparison, or no such database.
    """
    store = bootstrap.store_at(None if db is None else str(db))
    return StoredComparison(store.get(comparison_id), store)


def compare(experiment: str | Path | None = None, *, show_progress: bool = True, **settings: Any) -> StoredComparison:
    """Compare two endpoints to the verdict, as `qualab run` does, also where an event loop runs already.

    Args:
        experiment: file of settings (`qualab init`), which those given here override.
        show_progress: on standard error.
        settings: of an experiment file by name: baseline, candidate, model, tasks, limit, margin, db ...

    Raises:
        QualabError: a setting is wrong, the arms are no pair, or an endpoint failed. KeyboardInterrupt stops the run;
            `qualab resume` goes on with it.
    """
    if experiment is not None:
        settings = {**read_experiment(Path(experiment)), **settings}
    own = load_settings(command_line=checked_experiment(settings, where="compare"))
    if own.candidates:
        raise InvalidValue("compare takes one candidate", hint="Call it for each, or give them to `qualab run`")
    services = replace(bootstrap.services_of(own), keys=keys_of(own))
    if show_progress:
        from qualab.cli.run import new_progress  # noqa: PLC0415

        services = replace(services, progress=new_progress())
    analysis = _in_a_thread(start(services, own))
    assert analysis is not None  # a sequential one is refused
    if own.output_path:
        list(export(services, analysis.comparison_id, own.output_path))
    return StoredComparison(services.store.get(analysis.comparison_id), services.store)


def _in_a_thread(job: Coroutine[Any, Any, T]) -> T:
    """Run a job on a loop of its own: a notebook's thread has one already. An interrupt cancels it, and waits."""
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def noted() -> T:
        running.append((asyncio.get_running_loop(), asyncio.ensure_future(job)))
        return await running[0][1]

    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(lambda: bootstrap.run_async(noted()))
        try:
            return future.result()
        except KeyboardInterrupt:
            for loop, task in running:
                loop.call_soon_threadsafe(task.cancel)
            raise
