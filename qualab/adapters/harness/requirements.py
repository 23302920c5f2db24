"""What scoring needs beyond lm-eval itself, checked before anything is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from qualab.adapters.harness.patching import LazyMetric, no_nltk_downloads
from qualab.errors import ScoringUnavailable

NEEDS_SENTENCES = frozenset({"length_constraints:number_sentences", "change_case:capital_word_frequency"})
"""IFEval's instructions whose checks split a text into sentences, with NLTK's punkt_tab. The others do without."""

NLTK_FOLDER = "nltk_data"


def check_scoring(task: Any, docs: Iterable[Mapping[str, Any]], *, data_dir: Path | None) -> None:
    """Raises ScoringUnavailable for a metric, a package or data without which these documents cannot be scored."""
    if getattr(task.config, "process_results", None) is None:
        _check_metrics(task)
        return
    asked = {instruction for doc in docs for instruction in doc.get("instruction_id_list") or ()}
    if asked:
        _check_instructions(str(task.task_name))
    if asked & NEEDS_SENTENCES:
        _check_sentences(str(task.task_name), data_dir)


def _check_metrics(task: Any) -> None:
    """Fetches metrics of the evaluate library where they will be called: only generations call them."""
    if task.config.output_type == "generate_until":
        for metric in task._metric_fn_list.values():
            if isinstance(metric, LazyMetric):
                metric.load()


def _check_instructions(task: str) -> None:
    """Imports IFEval's checks now: a task may do so only when it scores, and their import downloads and prints."""
    try:
        with no_nltk_downloads(), redirect_stdout(StringIO()):
            import_module("lm_eval.tasks.ifeval.instructions_registry")
    except ModuleNotFoundError as exc:
        raise missing_package(task, exc) from exc


def missing_package(task: str, exc: ModuleNotFoundError) -> ScoringUnavailable:
    """The error for a task whose code imports what is not installed."""
    return ScoringUnavailable(f"Task {task} needs the Python package {exc.name}", hint="Install it and start again")


def _check_sentences(task: str, data_dir: Path | None) -> None:
    nltk = import_module("nltk")  # here, as it takes a second or two
    folder = (data_dir / NLTK_FOLDER).resolve() if data_dir else None
    if folder is not None and folder.is_dir() and str(folder) not in nltk.data.path:
        nltk.data.path.insert(0, str(folder))
    try:
        nltk.word_tokenize("One sentence. Another one.")
    except (LookupError, OSError) as exc:
        looked_in = ", ".join(dict.fromkeys([*([str(folder)] if folder else []), *nltk.data.path]))
        raise ScoringUnavailable(
            f"Task {task} needs NLTK's punkt_tab to score, and it is in none of {looked_in}",
            hint=f"Put it into DATA_DIR/{NLTK_FOLDER}/tokenizers/punkt_tab, or: python -m nltk.downloader punkt_tab",
        ) from exc
