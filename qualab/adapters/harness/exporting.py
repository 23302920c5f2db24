"""What lm-eval's own command writes about a run: the results document and the sample rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qualab.adapters.harness.building import Built
from qualab.adapters.harness.patching import quiet
from qualab.adapters.harness.rendering import LoadedTask
from qualab.adapters.harness.scoring import Answered, Scorer
from qualab.domain.items import Item, JsonObject, Reply
from qualab.domain.names import RequestKind


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
