"""Loaded tasks: prompts as lm-eval builds them, its own filters and metrics over answers, its rows and documents."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
from lm_eval.api.metrics import mean

from qualab.errors import BrokenTask, HarnessError, InvalidValue
from qualab.model.items import Item, JsonObject, Prompt, Reply, cluster_of
from qualab.model.names import RequestKind
from qualab.model.plan import MetricSpec, TaskSpec

TOKEN_LIMITS = ("max_tokens", "max_gen_toks", "max_new_tokens", "max_completion_tokens")
"""Names of one setting; lm-eval's completions client prefers the first."""
DEFAULT_MAX_GEN_TOKS = 256
SETTINGS = "max_gen_toks is a whole number, temperature a number, until a text or a list of texts"

Answered = Sequence[tuple[Item, Sequence[Reply]]]
Note = Callable[[str, str], None]
"""Called with each item, and each step of its scoring, before it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTask:
    """A task with the documents that are asked."""

    spec: TaskSpec
    task: Any
    """lm-eval's object."""
    docs: Sequence[Mapping[str, Any]]
    """In the form that lm-eval's functions take."""
    plain_docs: Sequence[JsonObject]
    """The same, JSON-able."""
    cluster: tuple[str, ...]

    def metric_keys(self) -> list[str]:
        """List its "metric,filter" keys in the order of lm-eval's scoring."""
        return [f"{metric},{ensemble.name}" for ensemble in self.task._filters for metric in self.task.aggregation()]

    def response(self, item: Item, reply: Reply) -> Any:
        """Return an answer as lm-eval's filters take it. Raises HarnessError."""
        if self.spec.kind is RequestKind.GENERATION:
            if reply.text is None:
                raise HarnessError(f"Item {item.id} has no text to score")
            return reply.text
        if reply.loglikelihood is None or reply.is_greedy is None:
            raise HarnessError(f"Item {item.id} has no log-likelihood to score")
        return reply.loglikelihood, reply.is_greedy


@dataclass(frozen=True, slots=True, kw_only=True)
class LmEvalTasks:
    """Tasks with their documents, ready to render and to score."""

    suite: str
    loaded: Mapping[str, LoadedTask]
    groups: Mapping[str, Any]
    metrics: tuple[MetricSpec, ...]
    applies_chat_template: bool
    seed: int
    system_instruction: str
    note: Note
    harness_version: str = version("lm_eval")

    @property
    def tasks(self) -> tuple[TaskSpec, ...]:
        return tuple(task.spec for task in self.loaded.values())

    def render(self) -> Iterator[Item]:
        """Yield every item with its prompts, in task and document order. The same seed draws the same examples.

        Log-likelihood prompts are never in chat form. Raises BrokenTask.
        """
        start = 0
        for loaded in self.loaded.values():
            loaded.task.set_fewshot_seed(self.seed)
            is_chat = self.applies_chat_template and loaded.spec.kind is RequestKind.GENERATION
            for doc_id, doc in enumerate(loaded.docs):
                try:
                    prompts = self._prompts(loaded.task, doc, is_chat=is_chat)
                    target = str(loaded.task.doc_to_target(doc))
                except InvalidValue:
                    raise
                except Exception as exc:  # whatever a task's templates and functions raise
                    raise broken(loaded.spec.name, f"cannot render its item {doc_id}", exc) from exc
                yield Item(
                    position=start + doc_id,
                    task=loaded.spec.name,
                    doc_id=doc_id,
                    kind=loaded.spec.kind,
                    doc=loaded.plain_docs[doc_id],
                    target=target,
                    prompts=prompts,
                    cluster=cluster_of(loaded.plain_docs[doc_id], loaded.cluster),
                )
            start += len(loaded.docs)

    def _prompts(self, task: Any, doc: Any, *, is_chat: bool) -> tuple[Prompt, ...]:
        # as lm_eval.api.task.Task.build_all_requests makes them, a document at a time
        template = {"apply_chat_template": is_chat, "chat_template": as_json if is_chat else None}
        context = task.fewshot_context(
            doc,
            num_fewshot=task.config.num_fewshot or 0,
            system_instruction=self.system_instruction or None,
            fewshot_as_multiturn=is_chat,
            gen_prefix=task.doc_to_prefix(doc),
            **template,
        )
        requests = task.construct_requests(doc=doc, ctx=context, metadata=(task.task_name, 0, 1), **template)
        prompts = []
        for instance in requests if isinstance(requests, list) else [requests]:
            text, second = instance.args
            if instance.request_type == "generate_until":
                prompts.append(Prompt(text=text, is_chat=is_chat, gen_kwargs=resolved(second)))
            else:
                prompts.append(Prompt(text=text, continuation=second))
        return tuple(prompts)

    def score(self, task: str, answered: Answered) -> list[dict[str, Any]]:
        """Score answers: values by "metric,filter", in the order of `answered`. Raises HarnessError.

        The same answer always scores the same, whatever a task's own scoring draws at random, as IFEval's does.
        """
        loaded = self._task(task)
        is_custom = callable(getattr(loaded.task.config, "process_results", None))
        if langdetect := sys.modules.get("langdetect"):
            langdetect.DetectorFactory.seed = 0  # it draws from a generator of its own
        values: list[dict[str, Any]] = [{} for _ in answered]
        for name, groups in self.extracted(task, answered):
            for (item, _), results, row in zip(answered, groups, values, strict=True):
                self.note(item.id, f"the metrics of task {task}, after filter {name}")
                try:
                    if is_custom:
                        reseed(item.id)
                    metrics = loaded.task.process_results(item.doc, results)
                except Exception as exc:  # whatever a task's own scoring raises
                    raise _failed(f"Scoring item {item.id}", exc) from exc
                row.update((f"{metric},{name}", plain_value(value)) for metric, value in metrics.items())
        return values

    def extracted(self, task: str, answered: Answered) -> Iterator[tuple[str, list[list[Any]]]]:
        """Yield each filter's name and what it extracts from every entry's answers. Raises HarnessError."""
        loaded = self._task(task)
        instances = [  # what lm-eval's filters need of a request
            [
                SimpleNamespace(doc=item.doc, resps=[loaded.response(item, reply)], filtered_resps={})
                for reply in replies
            ]
            for item, replies in answered
        ]
        for ensemble in loaded.task._filters:
            groups: list[list[Any]] = []
            for (item, _), group in zip(answered, instances, strict=True):  # each by itself: one may never end
                self.note(item.id, f"filter {ensemble.name} of task {task}")
                try:
                    ensemble.apply(group)
                except Exception as exc:  # whatever a task's filters raise
                    raise _failed(f"Filter {ensemble.name} of task {task}", exc) from exc
                groups.append([instance.filtered_resps[ensemble.name] for instance in group])
            yield ensemble.name, groups

    def aggregate(self, values: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, float]]:
        """Aggregate tasks and groups as lm-eval, without its bootstrap. Raises HarnessError."""
        rows: dict[str, dict[str, Any]] = {}
        for name, columns in values.items():
            functions = self._task(name).task.aggregation()
            rows[name] = {"sample_len": max(map(len, columns.values()), default=0)}
            for key, column in columns.items():
                if column:
                    rows[name][key] = float(functions.get(key.partition(",")[0], mean)(column))
        everything = {**rows, **{name: group.aggregate(rows) for name, group in self.groups.items()}}
        aggregated = {}
        for name in (row.task for row in self.metrics):
            row = everything.get(name, {})
            if metrics := {key: value for key, value in row.items() if "," in key and "_stderr," not in key}:
                aggregated[name] = metrics
        return aggregated

    def samples(self, task: str, answered: Answered) -> Iterator[JsonObject]:
        """Yield the rows that lm-eval's --log_samples writes, filter by filter."""
        loaded, values = self._task(task), self.score(task, answered)
        for name, groups in self.extracted(task, answered):
            for (item, replies), results, row in zip(answered, groups, values, strict=True):
                ending = f",{name}"
                metrics = {key.removesuffix(ending): value for key, value in row.items() if key.endswith(ending)}
                yield {
                    "doc_id": item.doc_id,
                    "doc": item.doc,
                    "target": item.target,
                    "arguments": {
                        f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(_arguments(item, prompt))}
                        for i, prompt in enumerate(item.prompts)
                    },
                    "resps": [[_texts(loaded.response(item, reply))] for reply in replies],
                    "filtered_resps": [_texts(result) for result in results],
                    "filter": name,
                    "metrics": list(metrics),
                    "doc_hash": _hash(json.dumps(item.doc, indent=2, default=str, ensure_ascii=False)),
                    "prompt_hash": _hash(item.prompts[0].text),
                    "target_hash": _hash(item.target),
                    **metrics,
                }

    def results(self, answered: Mapping[str, Answered]) -> JsonObject:
        """Return lm-eval's results document: aggregates, groups, configurations, versions, counts."""
        from lm_eval.evaluator_utils import _process_results  # noqa: PLC0415

        accumulated = {}
        for task, entries in answered.items():
            columns: dict[tuple[str, str], list[Any]] = {}
            for row in self.score(task, entries):
                for key, value in row.items():
                    metric, _, name = key.partition(",")
                    columns.setdefault((metric, name), []).append(value)
            accumulated[task] = {"task": self._task(task).task, "raw_metrics": columns, "logged_samples": []}
        document = _process_results(accumulated, self.groups, bootstrap_iters=0)._to_eval_results()
        return json.loads(json.dumps(document, default=str))  # type: ignore[no-any-return]

    def _task(self, task: str) -> LoadedTask:
        if task not in self.loaded:
            raise HarnessError(f"Task {task} is not loaded")
        return self.loaded[task]


def reseed(seed: str) -> None:
    """Seeds `random` and numpy's global generator."""
    random.seed(seed)
    np.random.seed(zlib.crc32(seed.encode()))


def as_json(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
    """Write a conversation as lm-eval's clients of chat endpoints carry it."""
    del add_generation_prompt  # the server's template decides
    return json.dumps(messages, ensure_ascii=False)


def resolved(gen_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in lm-eval's defaults, with one name for the token limit. Raises InvalidValue for a wrong type."""
    settings = dict(gen_kwargs)
    limits = [settings.pop(name) for name in TOKEN_LIMITS if name in settings]
    until = settings.pop("until", None) or []
    try:
        return {
            "until": [until] if isinstance(until, str) else list(until),
            "max_gen_toks": int(limits[0]) if limits else DEFAULT_MAX_GEN_TOKS,
            "temperature": float(settings.pop("temperature", 0.0)),
            "do_sample": bool(settings.pop("do_sample", False)),
            **settings,
        }
    except (TypeError, ValueError, OverflowError) as exc:
        message = f"Generation settings {dict(gen_kwargs)} cannot be used: {exc}"
        raise InvalidValue(message, hint=SETTINGS, fields={"gen_kwargs": SETTINGS}) from exc


def overridden(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Lay a user's generation settings over a task's; a token limit replaces one of another name."""
    replaces = TOKEN_LIMITS if any(name in given for name in TOKEN_LIMITS) else ()
    return {**{key: value for key, value in own.items() if key not in replaces}, **given}


def plain_value(value: Any) -> Any:
    """Strip numpy's types off a score; lists stay lists and pairs stay tuples."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return type(value)(plain_value(part) for part in value)
    return value


def broken(task: str, event: str, exc: Exception) -> BrokenTask:
    """Describe a task whose own YAML or code fails."""
    reason = " ".join(str(exc).split())
    message = f"Task {task} {event}: {type(exc).__name__}: {reason}"
    return BrokenTask(message, hint="Correct its YAML, its functions or its data")


def _failed(step: str, exc: Exception) -> HarnessError:
    reason = " ".join(str(exc).split())
    return HarnessError(f"{step} failed: {type(exc).__name__}: {reason}", hint="The answers are kept")


def _arguments(item: Item, prompt: Prompt) -> tuple[Any, Any]:
    if item.kind is RequestKind.LOGLIKELIHOOD:
        return prompt.text, prompt.continuation
    return [prompt.text] if prompt.is_chat else prompt.text, prompt.gen_kwargs


def _texts(value: Any) -> Any:
    # lm-eval does so to keep its files loadable as a table
    return [_texts(part) for part in value] if isinstance(value, list | tuple) else str(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
