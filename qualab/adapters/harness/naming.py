"""From task names to lm-eval's index, without reading its 14,000 YAMLs unless a name is only there."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.tasks._yaml_loader import load_yaml

from qualab.adapters.harness.catalog import Catalog
from qualab.errors import BrokenTask, TooManyTasks, UnknownTask

LM_EVAL_TASKS = Path(lm_eval.tasks.__file__).parent

N_SUGGESTIONS = 3

DECLARATION = re.compile(rb"""^[ \t]*["']?(?:task|group)["']?[ \t]*:[ \t]*["']?([\w.:-]+)["']?[ \t]*(?:#.*)?$""", re.M)
"""A line of a YAML that names its task or group."""


def index(
    names: Sequence[str],
    *,
    catalog: Catalog,
    tasks_dir: Path,
    include_paths: Sequence[Path],
    most_tasks: int | None = None,
) -> Any:
    """lm-eval's TaskManager over the folders that these names need; later folders win, the user's last.

    Raises UnknownTask and TooManyTasks (within a second or two) and BrokenTask.
    """
    if most_tasks is not None and any(
        len(fnmatch.filter(_declared(), name)) > 2 * most_tasks for name in names if is_pattern(name)
    ):  # "*": the index alone would take half a minute. What is near the bound is counted when it is loaded
        raise too_many(most_tasks)
    own = (tasks_dir, *include_paths)
    folders = [LM_EVAL_TASKS / folder for folder in catalog.folders(names)]
    manager = lm_eval.tasks.TaskManager(include_defaults=False, include_path=[str(path) for path in (*folders, *own)])
    missing = [name for name in names if is_pattern(name) or not _matches(manager, name)]
    if not missing:
        return manager
    for name in missing:
        _raise_if_broken(name, own)
    unknown = [name for name in missing if not is_pattern(name) and not _mentioned(name)]
    if not unknown:
        manager = lm_eval.tasks.TaskManager(include_path=[str(path) for path in own])
        unknown = [name for name in missing if not _matches(manager, name)]
    if unknown:
        raise _unknown(unknown, catalog, manager)
    return manager


def resolve(manager: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Patterns ("kobest_*") replaced by what they match; each name once."""
    return tuple(dict.fromkeys(match for name in names for match in _matches(manager, name)))


def is_pattern(name: str) -> bool:
    """Whether a name stands for all that match it."""
    return any(sign in name for sign in "*?[")


def _matches(manager: Any, name: str) -> list[str]:
    if is_pattern(name):
        return [known for known in manager.all_tasks if fnmatch.fnmatch(known, name)]
    is_file = name.endswith((".yaml", ".yml")) and Path(name).is_file()
    return [name] if is_file or name in manager.task_index else []


def _mentioned(name: str) -> bool:
    """Whether any of lm-eval's YAMLs holds this name as a word: a tenth of the time that indexing takes."""
    word = re.compile(rb"(?<![\w-])" + re.escape(name.encode()) + rb"(?![\w-])")
    return any(word.search(file.read_bytes()) for file in _yaml_files(LM_EVAL_TASKS))


def _yaml_files(root: Path) -> Iterator[Path]:
    # templates that YAMLs include have names like "_default_yaml"
    return (file for file in root.rglob("*") if file.name.endswith("yaml") and file.is_file())


def _declared() -> set[str]:
    """Tasks and groups that lm-eval's YAMLs seem to name."""
    return {match.decode() for file in _yaml_files(LM_EVAL_TASKS) for match in DECLARATION.findall(file.read_bytes())}


def too_many(most_tasks: int) -> TooManyTasks:
    """The error for more tasks than may be loaded."""
    return TooManyTasks(
        f"These are more than {most_tasks} tasks",
        hint="Name fewer tasks, or groups that hold fewer",
        fields={"tasks": f"must be at most {most_tasks} tasks"},
    )


def _unknown(names: Sequence[str], catalog: Catalog, manager: Any) -> UnknownTask:
    known = sorted({*catalog.names, *manager.all_tasks, *_declared()})
    near = list(dict.fromkeys(match for name in names for match in _nearest(name, known)))
    return UnknownTask(
        f"There is no task, group or suite named {', '.join(names)}",
        hint=f"Did you mean {', '.join(near)}?" if near else "Own tasks are found with --include-path DIR",
        names=list(names),
        nearest=near,
    )


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(name, known, n=N_SUGGESTIONS, cutoff=0.6)


def _raise_if_broken(name: str, folders: Iterable[Path]) -> None:
    """Raises BrokenTask where a YAML that lm-eval skipped as unreadable is the one that was asked for."""
    for file in (path for folder in folders for path in _yaml_files(folder)):
        try:
            load_yaml(file, resolve_func=False)
        except Exception as exc:  # lm-eval's own index skips on any exception too
            if name in file.read_bytes().decode(errors="replace"):
                reason = " ".join(str(exc).split())
                raise BrokenTask(f"{file} is not a valid task YAML: {reason}", hint="Correct the file") from exc
