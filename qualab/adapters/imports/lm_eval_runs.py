"""Which lm-eval runs a folder holds, and which files belong to each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qualab.errors import BadLog

_DATE = r"(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)"
_RESULTS = re.compile(rf".+_{_DATE}\.json(\.gz)?")
_SAMPLES = re.compile(rf"samples_(?P<task>.+)_{_DATE}\.jsonl(\.gz)?")
_UNDATED_RESULTS = re.compile(r"results\.json(\.gz)?")
_JSONL = re.compile(r".+\.jsonl(\.gz)?")


@dataclass(slots=True, kw_only=True)
class RunFiles:
    """The files of one run."""

    folder: Path
    date: str
    """As in the files' names; empty for lm-eval before 0.4.3, which wrote none."""
    results: Path | None = None
    samples: list[Path] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.results.name if self.results else self.samples[0].name

    @property
    def age(self) -> tuple[str, float]:
        """Sorts runs; those without a date by when their file was written."""
        return self.date, 0.0 if self.date else (self.results or self.samples[0]).stat().st_mtime


def file_task(path: Path) -> str:
    """The task that a sample file's name holds, as its writer spelled it."""
    found = _SAMPLES.fullmatch(path.name)
    return found["task"] if found else re.sub(r"\.jsonl(\.gz)?$", "", path.name)


def find_run(path: Path, wanted: str) -> tuple[RunFiles, int] | None:
    """The newest run with samples in a folder (or of a file), or the newest whose name has `wanted` in it; and how many
    others there are. None where nothing looks like lm-eval's. Raises BadLog."""
    runs = _runs(path)
    whole = [run for run in runs if run.samples]
    if not whole:
        if any(run.results and run.date for run in runs):
            raise BadLog(
                f"{path} holds lm-eval's results, but no samples_*.jsonl",
                hint="Scores item by item are needed: run lm_eval with --log_samples",
            )
        return None
    named = [run for run in whole if wanted in _label(run, path)]
    if not named:
        raise BadLog(f"{path} has no run named {wanted}", hint=f"It has: {', '.join(_labels(whole, path))}")
    return max(named, key=lambda run: run.age), len(whole) - 1


def _label(run: RunFiles, path: Path) -> str:
    base = path if path.is_dir() else path.parent
    return str((run.folder / run.name).relative_to(base))


def _labels(runs: Sequence[RunFiles], path: Path) -> Iterator[str]:
    yield from (_label(run, path) for run in sorted(runs, key=lambda run: run.age, reverse=True)[:5])


def _runs(path: Path) -> list[RunFiles]:
    if not path.is_dir():
        return _runs_of_file(path)
    runs: dict[tuple[Path, str], RunFiles] = {}
    for file in sorted(one for one in path.rglob("*") if one.is_file()):
        if found := (_SAMPLES.fullmatch(file.name) or _RESULTS.fullmatch(file.name)):
            run = runs.setdefault((file.parent, found["date"]), RunFiles(folder=file.parent, date=found["date"]))
            _add(run, file)
        elif _UNDATED_RESULTS.fullmatch(file.name):
            runs[file.parent, ""] = _undated(file)
    return list(runs.values())


def _add(run: RunFiles, file: Path) -> None:
    if _SAMPLES.fullmatch(file.name):
        run.samples.append(file)
    else:
        run.results = file


def _undated(results: Path) -> RunFiles:
    """Before 0.4.3 the file of a task was named by the model's arguments and the task."""
    siblings = sorted(results.parent.iterdir())
    samples = [one for one in siblings if _JSONL.fullmatch(one.name) and not _SAMPLES.fullmatch(one.name)]
    return RunFiles(folder=results.parent, date="", results=results, samples=samples)


def _runs_of_file(path: Path) -> list[RunFiles]:
    """A results file stands for its run, a sample file for itself."""
    if _UNDATED_RESULTS.fullmatch(path.name):
        return [_undated(path)]
    found = _SAMPLES.fullmatch(path.name) or _RESULTS.fullmatch(path.name)
    if found is None:
        return []
    of_folder = [run for run in _runs(path.parent) if run.date == found["date"] and run.folder == path.parent]
    for run in of_folder:
        if path in run.samples:
            run.samples = [path]
    return of_folder
