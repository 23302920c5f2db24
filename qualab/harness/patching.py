"""What lm-eval does at a bad moment, and its replacements while qualab loads or scores.

lm-eval downloads while it builds a task, compiles its templates for every document, fetches metrics from the hub that
it never calls, and lets a task's module download at import. Replacements hold for the length of a `with` block.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.abc
import importlib.machinery
import inspect
import json
import logging
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute with another value."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def quiet() -> Iterator[None]:
    """No log lines of lm-eval and no progress bars of the datasets library."""
    logger = logging.getLogger("lm_eval")
    bars = datasets.are_progress_bars_disabled()
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


@contextmanager
def restored_randomness() -> Iterator[None]:
    """Gives `random` and numpy's global generator their states back."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def reseed(seed: str) -> None:
    """Seeds `random` and numpy's global generator."""
    random.seed(seed)
    np.random.seed(zlib.crc32(seed.encode()))


def keep_compiled_templates() -> None:
    """Makes lm-eval's Jinja environment keep what it compiles. For good: rendering and scoring need it too."""
    environment = lm_eval.utils.env
    if not hasattr(environment.from_string, "cache_info"):
        environment.from_string = functools.lru_cache(maxsize=TEMPLATES_KEPT)(environment.from_string)


class LazyMetric:
    """A metric of the `evaluate` library, fetched when it is first called and not when a task merely names it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._compute: Callable[..., Any] | None = None

    def load(self) -> Callable[..., Any]:
        """Raises ScoringUnavailable."""
        if self._compute is None:
            self._compute = original_get_metric(self.name, True)
        if self._compute is None:
            raise ScoringUnavailable(
                f"Metric {self.name} of the evaluate library cannot be loaded",
                hint="It is fetched from the hub when first used: load it once with network access",
            )
        return self._compute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.load()(*args, **kwargs)


original_get_metric: Callable[..., Any] = lm_eval.api.task.get_metric


def get_metric_lazily(name: str, hf_evaluate_metric: bool = False) -> Any:
    """lm-eval's own metric, or a LazyMetric where it would go to the hub."""
    if name in metric_registry and not hf_evaluate_metric:
        return metric_registry.get(name)
    return LazyMetric(name)


class _WithoutDownloads(importlib.abc.MetaPathFinder):
    """Finds nltk as usual and takes its download function away as soon as it is imported."""

    def __init__(self) -> None:
        self._nltk: Any = None
        self._download: Any = None

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name != "nltk":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_disarm(module: ModuleType) -> None:
            execute(module)
            self.disarm(module)

        spec.loader.exec_module = execute_and_disarm  # type: ignore[method-assign]
        return spec

    def disarm(self, nltk: Any) -> None:
        self._nltk, self._download = nltk, nltk.download
        nltk.download = lambda *_args, **_kwargs: False

    def restore(self) -> None:
        if self._nltk is not None:
            self._nltk.download = self._download


@contextmanager
def no_nltk_downloads() -> Iterator[None]:
    """Task modules that call nltk.download at import get a refusal, not the network. Does not import nltk."""
    finder = _WithoutDownloads()
    if "nltk" in sys.modules:
        finder.disarm(sys.modules["nltk"])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.restore()


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
