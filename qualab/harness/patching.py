"""What lm-eval does at a bad moment, and its replacements; and hashes of what a task is made of.

lm-eval downloads while it builds a task, compiles its templates for every document, fetches metrics from the hub that
it never calls, and lets a task's module download at import. It runs in a process of its own, so that most of this is
replaced for good.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import logging
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import lm_eval.api.task
import lm_eval.utils
import numpy as np
from lm_eval.api.registry import metric_registry

from qualab.errors import ScoringUnavailable
from qualab.model.items import JsonObject

TEMPLATES_KEPT = 4_096


def prepare_process() -> None:
    """Silences lm-eval, makes it keep compiled templates, and refuses NLTK's downloads. For good."""
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL + 1)
    datasets.disable_progress_bars()
    environment = lm_eval.utils.env
    if not hasattr(environment.from_string, "cache_info"):
        environment.from_string = functools.lru_cache(maxsize=TEMPLATES_KEPT)(environment.from_string)
    # task modules call nltk.download when they are imported; importing nltk here would take seconds
    downloader: Any = ModuleType("nltk.downloader")
    downloader.download = downloader.download_shell = downloader.download_gui = lambda *_args, **_kwargs: False
    sys.modules["nltk.downloader"] = downloader
    if nltk := sys.modules.get("nltk"):
        nltk.download = downloader.download  # type: ignore[attr-defined]


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute with another value."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def reseed(seed: str) -> None:
    """Seeds `random` and numpy's global generator."""
    random.seed(seed)
    np.random.seed(zlib.crc32(seed.encode()))


class LazyMetric:
    """A metric of the `evaluate` library, fetched when it is first called and not when a task merely names it."""

    def __init__(self, name: str) -> None:
        self.name = name

    @functools.cached_property
    def compute(self) -> Callable[..., Any]:
        """The metric itself. Raises ScoringUnavailable."""
        if found := original_get_metric(self.name, True):
            return found  # type: ignore[no-any-return]
        raise ScoringUnavailable(
            f"Metric {self.name} of the evaluate library cannot be loaded",
            hint="It is fetched from the hub when first used: load it once with network access",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compute(*args, **kwargs)


original_get_metric: Callable[..., Any] = lm_eval.api.task.get_metric


def get_metric_lazily(name: str, hf_evaluate_metric: bool = False) -> Any:
    """lm-eval's own metric, or a LazyMetric where it would go to the hub."""
    if name in metric_registry and not hf_evaluate_metric:
        return metric_registry.get(name)
    return LazyMetric(name)


OF_THIS_MACHINE = frozenset({"config_source", "data_files", "data_dir", "cache_dir"})
"""Keys that say where files lie here; what the files hold is in the hash of the documents."""


def config_hash(task: Any) -> str:
    """SHA-256 of the task's class and configuration, functions by the source of their module."""
    return data_hash([{"class": _plain(type(task)), "config": _plain(task.config)}])


def data_hash(docs: Iterable[JsonObject]) -> str:
    """SHA-256 of documents in their order."""
    digest = hashlib.sha256()
    for doc in docs:
        digest.update(json.dumps(doc, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """A value as JSON, without addresses of objects and without paths of this machine."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, functools.partial):
        return ["partial", _plain(value.func), _plain(value.args), _plain(value.keywords)]
    if callable(value):
        return [getattr(value, "__qualname__", type(value).__qualname__), _source_hash(value)]
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items() if key not in OF_THIS_MACHINE}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_plain(one), sort_keys=True) for one in value)
    return [type(value).__qualname__, _plain(getattr(value, "__dict__", {}))]


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
