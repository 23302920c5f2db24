"""Hashes of a task's resolved configuration and documents: the same in every process and on every machine."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qualab.domain.items import JsonObject

OF_THIS_MACHINE = frozenset({"config_source", "data_files", "data_dir", "cache_dir"})
"""Keys that say where files lie here; what the files hold is in the hash of the documents."""


def config_hash(task: Any) -> str:
    """SHA-256 of the task's class and configuration, functions by the source of their module."""
    resolved = {"class": plain(type(task)), "config": plain(task.config)}
    return _digest([json.dumps(resolved, sort_keys=True, ensure_ascii=False)])


def data_hash(docs: Iterable[JsonObject]) -> str:
    """SHA-256 of documents in their order."""
    return _digest(json.dumps(doc, sort_keys=True, ensure_ascii=False) for doc in docs)


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def plain(value: Any) -> Any:
    """A value as JSON, without addresses of objects and without paths of this machine."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _function(value) if callable(value) else _structure(value)


def _function(value: Any) -> list[Any]:
    if isinstance(value, functools.partial):
        return ["partial", plain(value.func), plain(value.args), plain(value.keywords)]
    return [getattr(value, "__qualname__", type(value).__qualname__), _source_hash(value)]


def _structure(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items() if key not in OF_THIS_MACHINE}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(plain(one), sort_keys=True) for one in value)
    return [type(value).__qualname__, plain(getattr(value, "__dict__", {}))]


def _source_hash(function: Any) -> str:
    """Of the whole module, as a function's helpers decide too; of nothing where there is no source."""
    subject = inspect.unwrap(function) if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    try:
        file = inspect.getsourcefile(subject)
    except (TypeError, OSError):
        return ""
    return _file_hash(file) if file else ""


@functools.lru_cache(maxsize=256)
def _file_hash(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""
