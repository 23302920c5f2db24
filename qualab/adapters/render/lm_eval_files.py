"""Results as the `lm_eval` command writes them with --log_samples, so that other tools read them."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qualab.domain.items import JsonObject
from qualab.errors import InfrastructureError, UsageError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def write_lm_eval_files(
    folder: Path, *, date_id: str, results: Mapping[str, Any], samples: Iterable[tuple[str, Iterable[JsonObject]]]
) -> Iterator[Path]:
    """Writes `results_<date>.json` and a `samples_<task>_<date>.jsonl` for each task, and yields their paths.

    Raises UsageError for a file that cannot be written, InfrastructureError where there is no room for it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"results_{date_id}.json"
        path.write_text(json.dumps(results, indent=2, ensure_ascii=False), encoding="utf-8")
        yield path
        for task, rows in samples:
            path = folder / f"samples_{_file_name(task)}_{date_id}.jsonl"
            with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            yield path
    except OSError as exc:
        kind = InfrastructureError if exc.errno in NO_ROOM else UsageError
        raise kind(f"Cannot write {exc.filename or folder}: {exc.strerror}", hint="Give another folder") from exc


def _file_name(task: str) -> str:
    return re.sub(r"[^\w.-]", "_", task)
