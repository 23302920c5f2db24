"""What scoring needs beyond lm-eval itself, checked before anything is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qualab.adapters.harness.patching import LazyMetric
from qualab.errors import ScoringUnavailable

NEEDS_SENTENCES = frozenset({"length_constraints:number_sentences", "change_case:capital_word_frequency"})
"""IFEval's instructions whose checks split a text into sentences, with NLTK's punkt_tab. The others do without."""

NLTK_FOLDER = "nltk_data"


def check_scoring(task: Any, docs: Iterable[Mapping[str, Any]], *, data_dir: Path | None) -> None:
    """Raises ScoringUnavailable for a metric, a package or data without which these documents cannot be scored."""
    if getattr(task.config, "process_results", None) is None:
        for metric in getattr(task, "_metric_fn_list", {}).values():
            if isinstance(metric, LazyMetric) and task.config.output_type == "generate_until":
                _ = metric.compute
        return
    asked = {instruction for doc in docs for instruction in _instructions(doc)}
    if asked & NEEDS_SENTENCES:
        _check_sentences(str(task.task_name), data_dir)


def _instructions(doc: Mapping[str, Any]) -> Iterable[str]:
    return doc.get("instruction_id_list") or ()


def _check_sentences(task: str, data_dir: Path | None) -> None:
    import nltk  # noqa: PLC0415  (takes a second or two to import)

    folder = data_dir / NLTK_FOLDER if data_dir else None
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
