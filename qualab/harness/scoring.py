"""lm-eval's own filters and metrics over answers, made deterministic; and its sample rows and results document."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from qualab.errors import HarnessError
from qualab.harness.patching import quiet, replaced, reseed, restored_randomness
from qualab.harness.rendering import LoadedTask
from qualab.model.items import Item, JsonObject, Reply
from qualab.model.names import RequestKind

Answered = tuple[Item, Sequence[Reply]]
Values = dict[str, Any]
Key = tuple[int, Hashable, int | None]
"""Document, its answers, and the place in the call of an item that is not the loaded one: it is never remembered."""

Note = Callable[[str, str], None]
"""Is told each item, and each step of its scoring, before it begins."""

LANGDETECT_SEED = 0


class Answer:
    """What lm-eval's filters need of a request: its answers and its document."""

    __slots__ = ("doc", "filtered_resps", "resps")

    def __init__(self, doc: JsonObject, response: Any) -> None:
        self.doc = doc
        self.resps = [response]
        self.filtered_resps: dict[str, Any] = {}


class Scorer:
    """Scores one task's answers. Remembers the last answer to each item: two arms often give the same."""

    def __init__(self, loaded: LoadedTask, note: Note) -> None:
        self._task = loaded.task
        self._note = note
        self._name = loaded.spec.name
        self._is_generation = loaded.spec.kind is RequestKind.GENERATION
        self._is_custom = callable(getattr(loaded.task.config, "process_results", None))
        self._docs = loaded.plain_docs
        self._known: dict[int, tuple[Hashable, Values]] = {}

    def score(self, answered: Sequence[Answered]) -> list[Values]:
        """Values by "metric,filter", in the order of `answered`. Raises HarnessError."""
        keys = [self._key(index, item, replies) for index, (item, replies) in enumerate(answered)]
        values: dict[Key, Values] = {}
        for doc_id, signature, index in keys:
            known = self._known.get(doc_id) if index is None else None
            if known and known[0] == signature:
                values[doc_id, signature, index] = known[1]
        new = {key: entry for key, entry in zip(keys, answered, strict=True) if key not in values}
        if new:
            with self._determinism():
                values.update(zip(new, self._apply(list(new.values())), strict=True))
        self._known.update({key[0]: (key[1], values[key]) for key in new if key[2] is None})
        return [dict(values[key]) for key in keys]

    def _key(self, index: int, item: Item, replies: Sequence[Reply]) -> Key:
        is_loaded = item.doc_id < len(self._docs) and self._docs[item.doc_id] == item.doc
        return item.doc_id, tuple(self._sign(reply, item) for reply in replies), None if is_loaded else index

    def _sign(self, reply: Reply, item: Item) -> Hashable:
        if not self._is_generation:
            if reply.loglikelihood is None or reply.is_greedy is None:
                raise HarnessError(f"Item {item.id} has no log-likelihood to score")
            return reply.loglikelihood, reply.is_greedy
        if reply.text is None:
            raise HarnessError(f"Item {item.id} has no text to score")
        return hashlib.blake2b(reply.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def _apply(self, answered: Sequence[Answered]) -> list[Values]:
        values: list[Values] = [{} for _ in answered]
        for name, groups in self.extracted(answered):
            for (item, _), results, own in zip(answered, groups, values, strict=True):
                self._note(item.id, f"the metrics of task {self._name}, after filter {name}")
                for metric, value in self._process(item, results).items():
                    own[f"{metric},{name}"] = plain_value(value)
        return values

    def extracted(self, answered: Sequence[Answered]) -> Iterator[tuple[str, list[list[Any]]]]:
        """Each filter's name, and what it makes of every entry's answers. Draws nothing at random and changes nothing
        of the process, so that another thread may score. Raises HarnessError."""
        answers = [[Answer(item.doc, self._response(reply)) for reply in replies] for item, replies in answered]
        for ensemble in self._task._filters:
            name, groups = ensemble.name, list[list[Any]]()
            for (item, _), group in zip(answered, answers, strict=True):  # each by itself: one may never end
                self._note(item.id, f"filter {name} of task {self._name}")
                try:
                    ensemble.apply(group)
                except Exception as exc:  # whatever a task's filters raise
                    raise _failed(f"Filter {name} of task {self._name}", exc) from exc
                groups.append([answer.filtered_resps[name] for answer in group])
            yield name, groups

    def samples(self, answered: Sequence[Answered]) -> Iterator[JsonObject]:
        """One row a filter and document, filter by filter, as --log_samples writes them. Raises HarnessError."""
        if not answered:
            return
        values = self.score(answered)
        for name, groups in self.extracted(answered):
            ending = f",{name}"
            for (item, replies), results, all_metrics in zip(answered, groups, values, strict=True):
                metrics = {key.removesuffix(ending): v for key, v in all_metrics.items() if key.endswith(ending)}
                arguments = [_arguments(item, choice) for choice in range(len(item.prompts))]
                yield {
                    "doc_id": item.doc_id,
                    "doc": item.doc,
                    "target": item.target,
                    "arguments": {
                        f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(parts)}
                        for i, parts in enumerate(arguments)
                    },
                    "resps": [[_texts(self._response(reply))] for reply in replies],
                    "filtered_resps": [_texts(result) for result in results],
                    "filter": name,
                    "metrics": list(metrics),
                    "doc_hash": _hash(json.dumps(item.doc, indent=2, default=str, ensure_ascii=False)),
                    "prompt_hash": _hash(item.prompts[0].text),
                    "target_hash": _hash(item.target),
                    **metrics,
                }

    def _response(self, reply: Reply) -> Any:
        return reply.text if self._is_generation else (reply.loglikelihood, reply.is_greedy)

    def _process(self, item: Item, results: list[Any]) -> Mapping[str, Any]:
        try:
            if self._is_custom:
                reseed(item.id)
            return self._task.process_results(item.doc, results)  # type: ignore[no-any-return]
        except Exception as exc:  # whatever a task's own scoring raises
            raise _failed(f"Scoring item {item.id}", exc) from exc

    @contextmanager
    def _determinism(self) -> Iterator[None]:
        """A task's own scoring may draw at random, as IFEval's does; langdetect draws from a generator of its own."""
        with ExitStack() as stack:
            stack.enter_context(quiet())
            if self._is_custom:
                stack.enter_context(restored_randomness())
            if "langdetect" in sys.modules:
                factory = sys.modules["langdetect"].DetectorFactory
                stack.enter_context(replaced(factory, "seed", LANGDETECT_SEED))
            yield


def _failed(what: str, exc: Exception) -> HarnessError:
    reason = " ".join(str(exc).split())
    return HarnessError(f"{what} failed: {type(exc).__name__}: {reason}", hint="The answers are kept")


def plain_value(value: Any) -> Any:
    """A score without numpy's types; lists stay lists and pairs stay tuples."""
    if type(value) in (float, int, bool, str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return type(value)(plain_value(part) for part in value)
    return value


def _arguments(item: Item, choice: int) -> tuple[Any, Any]:
    prompt = item.prompts[choice]
    if item.kind is RequestKind.LOGLIKELIHOOD:
        return prompt.text, prompt.continuation
    text = [prompt.text] if prompt.is_chat else prompt.text
    return text, prompt.gen_kwargs


def _texts(value: Any) -> Any:
    """Every leaf as text: lm-eval does so to keep its files loadable as a table."""
    if isinstance(value, list | tuple):
        return [_texts(part) for part in value]
    return str(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def results_document(
    groups: Mapping[str, Any], loaded: Mapping[str, LoadedTask], values: Mapping[str, Sequence[JsonObject]]
) -> JsonObject:
    """lm-eval's results of these per-item values by task: aggregates, groups, configurations, versions, counts."""
    from lm_eval.evaluator_utils import _process_results  # noqa: PLC0415

    accumulated = {}
    for task, rows in values.items():
        columns: dict[tuple[str, str], list[Any]] = {}
        for row in rows:
            for key, value in row.items():
                metric, _, name = key.partition(",")
                columns.setdefault((metric, name), []).append(value)
        accumulated[task] = {"task": loaded[task].task, "raw_metrics": columns, "logged_samples": []}
    with quiet():
        document = _process_results(accumulated, groups, bootstrap_iters=0)._to_eval_results()
    return json.loads(json.dumps(document, default=str))  # type: ignore[no-any-return]
