"""What lm-eval's results document says of a run: settings, versions, groups, aggregates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from numbers import Real
from typing import Any

from qualab.domain.canonical import canonical_json
from qualab.domain.items import JsonObject
from qualab.domain.logged import LoggedRun, LoggedTask
from qualab.domain.names import RequestKind

_MODEL_KEYS = ("peft", "delta", "pretrained", "model", "path", "engine")
_LOGLIKELIHOODS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SCORING = ("filter_list", "metric_list")


def run_of(document: Mapping[str, Any], *, name: str, date: str, others: int) -> LoggedRun:
    """The run that a results document describes; an empty one says nothing."""
    config = _mapping(document.get("config"))
    own = _mapping(document.get("qualab"))
    aggregates = {**_mapping(document.get("results")), **_mapping(document.get("groups"))}
    return LoggedRun(
        format="lm-eval",
        name=name,
        others=others,
        harness_version=str(document.get("lm_eval_version") or ""),
        date=_moment(document.get("date"), date),
        model=str(document.get("model_name") or _model(config.get("model_args")) or ""),
        is_chat="chat" in str(document.get("model_source") or "") or bool(document.get("chat_template")),
        limit=_number(config.get("limit")),
        seed=_whole(config.get("random_seed")),
        gen_kwargs=_settings(config.get("gen_kwargs")),
        settings=dict(_run_settings(document)),
        tasks={task: _task(task, document) for task in _mapping(document.get("configs"))},
        groups=_groups(document),
        reported={task: dict(_values(row)) for task, row in aggregates.items()},
        plan=own.get("plan"),
        plan_hash=str(own.get("plan_hash") or ""),
        exported_from=f"{own.get('comparison')}/{own.get('arm')}" if own else "",
    )


def filters_of(task: LoggedTask | None) -> tuple[str, ...]:
    """A task's filters in lm-eval's order; before 0.4.7 rows did not name theirs."""
    listed = (task.config.get("filter_list") if task else None) or ()
    return tuple(str(one.get("name")) for one in listed if isinstance(one, Mapping)) or ("none",)


def _run_settings(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Those that the document tells: without one, or before 0.4.3, nothing is known of them."""
    if "chat_template_sha" in document:
        yield "chat template", str(document["chat_template_sha"] or "")
    if "system_instruction" in document:
        yield "system instruction", str(document["system_instruction"] or "")
    if "fewshot_as_multiturn" in document:
        yield "few-shot examples as turns", str(bool(document["fewshot_as_multiturn"]))


def _task(name: str, document: Mapping[str, Any]) -> LoggedTask:
    config = _mapping(_mapping(document.get("configs")).get(name))
    version = _mapping(document.get("versions")).get(name, _mapping(config.get("metadata")).get("version"))
    samples = _mapping(_mapping(document.get("n-samples")).get(name))
    shots = _mapping(document.get("n-shot")).get(name, config.get("num_fewshot"))
    dataset = [str(config[key]) for key in ("dataset_path", "dataset_name") if config.get(key)]
    better = _mapping(_mapping(document.get("higher_is_better")).get(name))
    output = config.get("output_type")
    return LoggedTask(
        name=name,
        version="" if version is None else str(version),
        num_fewshot=_whole(shots),
        n_available=_whole(samples.get("original")),
        n_evaluated=_whole(_mapping(_mapping(document.get("results")).get(name)).get("sample_len"))
        or _whole(samples.get("effective")),
        dataset=":".join(dataset),
        config=dict(config),
        generation=_mapping(config.get("generation_kwargs")),
        scoring=_scoring(config),
        kind=RequestKind.LOGLIKELIHOOD if output in _LOGLIKELIHOODS else RequestKind.GENERATION if output else None,
        higher_is_better={metric: bool(one) for metric, one in better.items() if one is not None},
    )


def _scoring(config: Mapping[str, Any]) -> str:
    """Filters and metrics; functions in them stand without their addresses."""
    return _ADDRESS.sub("", canonical_json({key: config.get(key) for key in _SCORING}))


def _groups(document: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Tasks of each group that has aggregates of its own; groups within groups are resolved."""
    children = {name: list(names) for name, names in _mapping(document.get("group_subtasks")).items() if names}
    scored = _mapping(document.get("groups")) or _mapping(document.get("results"))

    def leaves(name: str, above: frozenset[str]) -> Iterator[str]:
        for child in children.get(name, ()):
            if child not in children:
                yield child
            elif child not in above:
                yield from leaves(child, above | {child})

    found = {name: tuple(dict.fromkeys(leaves(name, frozenset({name})))) for name in children}
    return {name: members for name, members in found.items() if members and any(_values(_mapping(scored.get(name))))}


def _values(row: Any) -> Iterator[tuple[str, float]]:
    for key, value in _mapping(row).items():
        metric, comma, name = key.partition(",")
        if isinstance(value, Real) and not metric.endswith("_stderr") and comma:
            yield f"{metric},{name}", float(value)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _model(arguments: Any) -> str:
    if isinstance(arguments, str):
        pairs = (part.partition("=") for part in arguments.split(","))
        arguments = {name: value for name, _, value in pairs}
    known = _mapping(arguments)
    return next((str(known[key]) for key in _MODEL_KEYS if known.get(key)), "")


def _settings(value: Any) -> JsonObject:
    """Generation settings as a mapping; lm-eval before 0.4.9 kept them as it was given them, in one text."""
    if isinstance(value, str):
        return {name: text for name, _, text in (part.partition("=") for part in value.split(",")) if name}
    return _mapping(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    """An integer, also where a tool wrote 5 as 5.0."""
    number = _number(value)
    return int(number) if number is not None and number.is_integer() else None


def _moment(stamp: Any, named: str) -> datetime | None:
    if (seconds := _number(stamp)) is not None:
        return datetime.fromtimestamp(seconds, UTC)
    if not named:
        return None
    day, _, clock = named.partition("T")
    return datetime.fromisoformat(f"{day}T{clock.replace('-', ':')}").replace(tzinfo=UTC)
