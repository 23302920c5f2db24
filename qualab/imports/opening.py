"""Finds out what a folder or file is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from qualab.errors import BadLog
from qualab.imports.inspect_logs import open_inspect
from qualab.imports.lighteval import open_lighteval
from qualab.imports.lm_eval import open_lm_eval
from qualab.imports.nemo import open_nemo
from qualab.imports.tables import open_table
from qualab.model.ports import LogSource

KNOWN = (
    "lm-eval's results_*.json with samples_*.jsonl, Inspect's .eval or .json, lighteval's details_*.parquet, or NeMo "
    "Evaluator's eval-*.json with results.jsonl (a table of scores stands alone: qualab import TABLE)"
)
AGGREGATES = ("results.yml", "eval_factory_metrics.json")
"""What NeMo Evaluator's containers write of any harness: aggregates alone."""


class LogFiles:
    """`qualab.model.ports.ReadLogs` over files."""

    def one(self, path: Path, *, run: str = "") -> LogSource:
        """One arm's logs. Raises BadLog where there are none."""
        _check_there(path)
        openers: tuple[Callable[..., LogSource | None], ...] = (open_lighteval, open_inspect, open_nemo, open_lm_eval)
        for opener in openers:
            if found := opener(path, run=run):
                return found
        if path.is_dir() and any(True for name in AGGREGATES for _ in path.rglob(name)):
            raise BadLog(
                f"{path} holds NeMo Evaluator's results, which are aggregates without items",
                hint="Let its harness log samples too (lm-eval: --log_samples), and import again",
            )
        raise BadLog(f"{path} holds no evaluation logs that are known", hint=f"Expected {KNOWN}")

    def both(self, path: Path) -> tuple[LogSource, LogSource]:
        """Both arms out of one table. Raises BadLog."""
        _check_there(path)
        return open_table(path)


def _check_there(path: Path) -> None:
    if not path.exists():
        raise BadLog(f"{path} does not exist", hint="Check the path")


__all__ = ["LogFiles"]
