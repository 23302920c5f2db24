"""What the commands take that evaluate nothing: each a fresh process, the median of several. The target is 0.5 s,
of reports 2 s.

    python benchmarks/commands.py

A comparison to list and show is made up first, in a database of its own. Each command has run once before, so that its
modules are compiled, as they are after the first command of an installation.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.made_up import START, MadeUp, stored
from qualab.bootstrap import store_at

ROUNDS = 7
COMPILING = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        db = str(Path(directory) / "bench.db")
        comparison_id = keep_one(db)
        commands: dict[str, list[str]] = {
            "qualab --help": ["--help"],
            "qualab list": ["list", "--db", db],
            "qualab show": ["show", comparison_id, "--db", db],
            "qualab report, PDF": ["report", comparison_id, "--db", db, "-o", str(Path(directory) / "out.pdf")],
            "qualab report, Korean": [
                "report",
                comparison_id,
                "--db",
                db,
                "-o",
                str(Path(directory) / "out.pdf"),
                "--lang",
                "ko",
            ],
            "qualab report, HTML": ["report", comparison_id, "--db", db, "-o", str(Path(directory) / "out.html")],
            "qualab stats test": [
                "stats",
                "test",
                "--gains",
                "7",
                "--losses",
                "12",
                "--items",
                "600",
                "--margin",
                "0.02",
            ],
        }
        for name, arguments in commands.items():
            seconds(arguments)
            print(f"{name:<20} {statistics.median(seconds(arguments) for _ in range(ROUNDS)):.2f} s")


def keep_one(db: str) -> str:
    """Stores a comparison over the five published benchmarks with its analysis; returns its id."""
    one = stored(MadeUp(scale=0.1))
    store = store_at(db)
    store.create(one.comparison, one.items)
    store.put_scores(one.comparison.id, list(one.store.scores(one.comparison.id)))
    store.put_analysis(one.analyse(), now=START)
    return one.comparison.id


def seconds(arguments: list[str]) -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "qualab", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=COMPILING)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
