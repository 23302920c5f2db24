"""What lm-eval's own command writes about a run: the results document and the sample rows."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qualab.errors import InfrastructureError, UsageError
from qualab.harness.building import Built
from qualab.harness.patching import quiet
from qualab.harness.rendering import LoadedTask
from qualab.harness.scoring import Answered, Scorer
from qualab.model.items import Item, JsonObject, Reply
from qualab.model.names import RequestKind


def sample_rows(scorer: Scorer, answered: Sequence[Answered]) -> Iterator[JsonObject]:
    """One row a filter and document, filter by filter, in the order of `answered`, as --log_samples writes them."""
    for name, (item, replies), results, metrics in scorer.log(answered):
        yield _row(name, item, replies, results, metrics)


def _row(name: str, item: Item, replies: Sequence[Reply], results: Sequence[Any], metrics: JsonObject) -> JsonObject:
    arguments = [_arguments(item, choice) for choice in range(len(item.prompts))]
    return {
        "doc_id": item.doc_id,
        "doc": item.doc,
        "target": item.target,
        "arguments": {
            f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(parts)} for i, parts in enumerate(arguments)
        },
        "resps": [[_texts(_response(item, reply))] for reply in replies],
        "filtered_resps": [_texts(result) for result in results],
        "filter": name,
        "metrics": list(metrics),
        "doc_hash": _hash(json.dumps(item.doc, indent=2, default=str, ensure_ascii=False)),
        "prompt_hash": _hash(item.prompts[0].text),
        "target_hash": _hash(item.target),
        **metrics,
    }


def _arguments(item: Item, choice: int) -> tuple[Any, Any]:
    prompt = item.prompts[choice]
    if item.kind is RequestKind.LOGLIKELIHOOD:
        return prompt.text, prompt.continuation
    text = [prompt.text] if prompt.is_chat else prompt.text
    return text, prompt.gen_kwargs


def _response(item: Item, reply: Reply) -> Any:
    return reply.text if item.kind is RequestKind.GENERATION else (reply.loglikelihood, reply.is_greedy)


def _texts(value: Any) -> Any:
    """Every leaf as text: lm-eval does so to keep its files loadable as a table."""
    if isinstance(value, list | tuple):
        return [_texts(part) for part in value]
    return str(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def results_document(
    built: Built, loaded: Mapping[str, LoadedTask], values: Mapping[str, Sequence[JsonObject]]
) -> JsonObject:
    """lm-eval's results of these per-item values by task: aggregates, groups, configurations, versions, counts."""
    from lm_eval.evaluator_utils import _process_results  # noqa: PLC0415

    accumulated = {name: _accumulated(loaded[name], rows) for name, rows in values.items()}
    with quiet():
        document = _process_results(accumulated, built.groups, bootstrap_iters=0)._to_eval_results()
    return json.loads(json.dumps(document, default=str))  # type: ignore[no-any-return]


def _accumulated(loaded: LoadedTask, rows: Sequence[JsonObject]) -> JsonObject:
    columns: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        for key, value in row.items():
            metric, _, name = key.partition(",")
            columns.setdefault((metric, name), []).append(value)
    return {"task": loaded.task, "raw_metrics": columns, "logged_samples": []}


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
