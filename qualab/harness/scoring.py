"""lm-eval's own filters and metrics over answers, made deterministic."""

from __future__ import annotations

import hashlib
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


def unnoted(item: str, step: str) -> None:
    """A note that nobody reads."""


class Answer:
    """What lm-eval's filters need of a request: its answers and its document."""

    __slots__ = ("doc", "filtered_resps", "resps")

    def __init__(self, doc: JsonObject, response: Any) -> None:
        self.doc = doc
        self.resps = [response]
        self.filtered_resps: dict[str, Any] = {}


class Scorer:
    """Scores one task's answers. Remembers the last answer to each item: two arms often give the same."""

    def __init__(self, loaded: LoadedTask, note: Note = unnoted) -> None:
        self._task = loaded.task
        self._note = note
        self._name = loaded.spec.name
        self._is_generation = loaded.spec.kind is RequestKind.GENERATION
        self._is_custom = callable(getattr(loaded.task.config, "process_results", None))
        self._docs = loaded.plain_docs
        self._known: dict[int, tuple[Hashable, Values]] = {}

    def score(self, answered: Sequence[Answered]) -> list[Values]:
        """Values by "metric,filter", in the order of `answered`. Raises HarnessError."""
        if not answered:
            return []
        with self._determinism():
            return self._score(answered)

    def _score(self, answered: Sequence[Answered]) -> list[Values]:
        keys = [self._key(place, item, replies) for place, (item, replies) in enumerate(answered)]
        values = {key: known for key in keys if (known := self._remembered(key)) is not None}
        new = {key: entry for key, entry in zip(keys, answered, strict=True) if key not in values}
        values.update(zip(new, self._apply(list(new.values())), strict=True) if new else ())
        self._known.update({key[0]: (key[1], values[key]) for key in new if key[2] is None})
        return [dict(values[key]) for key in keys]

    def _key(self, place: int, item: Item, replies: Sequence[Reply]) -> Key:
        is_loaded = item.doc_id < len(self._docs) and self._docs[item.doc_id] == item.doc
        return item.doc_id, tuple(self._sign(reply, item) for reply in replies), None if is_loaded else place

    def _sign(self, reply: Reply, item: Item) -> Hashable:
        if not self._is_generation:
            if reply.loglikelihood is None or reply.is_greedy is None:
                raise HarnessError(f"Item {item.id} has no log-likelihood to score")
            return reply.loglikelihood, reply.is_greedy
        if reply.text is None:
            raise HarnessError(f"Item {item.id} has no text to score")
        return hashlib.blake2b(reply.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def _remembered(self, key: Key) -> Values | None:
        known = self._known.get(key[0]) if key[2] is None else None
        return known[1] if known and known[0] == key[1] else None

    def _apply(self, answered: Sequence[Answered]) -> list[Values]:
        values: list[Values] = [{} for _ in answered]
        for name, groups in self._filtered(answered):
            for (item, _), results, own in zip(answered, groups, values, strict=True):
                self._note(item.id, f"the metrics of task {self._name}, after filter {name}")
                for metric, value in self._process(item, results).items():
                    own[f"{metric},{name}"] = plain_value(value)
        return values

    def _filtered(self, answered: Sequence[Answered]) -> Iterator[tuple[str, list[list[Any]]]]:
        """Each filter's name and what it makes of every item's answers."""
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

    def extracted(self, answered: Sequence[Answered]) -> Iterator[tuple[str, Sequence[Any]]]:
        """Each filter's name, and what it makes of every entry's answers. Draws nothing at random and changes nothing
        of the process, so that another thread may score. Raises HarnessError."""
        return self._filtered(answered)

    def log(self, answered: Sequence[Answered]) -> Iterator[tuple[str, Answered, list[Any], Values]]:
        """Filter, entry, filtered answers and metric values, filter by filter. Raises HarnessError."""
        if not answered:
            return
        values = self.score(answered)
        for name, groups in self._filtered(answered):
            ending = f",{name}"
            for entry, results, all_metrics in zip(answered, groups, values, strict=True):
                own = {key.removesuffix(ending): v for key, v in all_metrics.items() if key.endswith(ending)}
                yield name, entry, results, own

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
