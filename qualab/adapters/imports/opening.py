"""Finds out what a folder or file is."""

from __future__ import annotations

from pathlib import Path

from qualab.adapters.imports.lm_eval import open_lm_eval
from qualab.errors import BadLog
from qualab.ports import LogSource

KNOWN = "lm-eval's results_*.json with samples_*.jsonl"


class LogFiles:
    """`qualab.ports.ReadLogs` over files."""

    def one(self, path: Path, *, run: str = "") -> LogSource:
        """One arm's logs. Raises BadLog where there are none."""
        _check_there(path)
        found = open_lm_eval(path, run=run)
        if found is None:
            raise BadLog(f"{path} holds no evaluation logs that are known", hint=f"Expected {KNOWN}")
        return found

    def both(self, path: Path) -> tuple[LogSource, LogSource]:
        """Both arms out of one table."""
        raise NotImplementedError


def _check_there(path: Path) -> None:
    if not path.exists():
        raise BadLog(f"{path} does not exist", hint="Check the path")
