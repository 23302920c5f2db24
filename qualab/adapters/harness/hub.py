"""Data sets from the hub, always at a commit, with a bound on how long an unreachable hub can take."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import datasets
import huggingface_hub
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from qualab.adapters.harness.patching import replaced
from qualab.domain.pins import commit_of
from qualab.errors import DatasetUnavailable

T = TypeVar("T")

PROBE_S = 3.0
"""How long the hub has to answer at all."""
RESOLVE_S = 6.0
"""How long it has to say which commit a branch is at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromHub:
    """A data set as it was read."""

    splits: Any
    commit: str
    """Of the hub, or what was asked for where the library's cache does not tell."""


def load_from_hub(path: str, config: str | None, *, revision: str, options: Mapping[str, Any]) -> FromHub:
    """The splits of a data set at a commit, or at the commit that a branch or tag is at now; from the library's own
    cache where the hub cannot be reached.

    Raises DatasetUnavailable, and whatever the library raises, within ten seconds where the hub cannot be reached.
    """
    with _without_waiting() as is_online:
        commit = commit_of(revision)
        if not commit and is_online:
            commit = newest_commit(path, revision)
        builder = datasets.load_dataset_builder(path, config, **{**options, "revision": commit or revision})
        read = commit_of(str(builder.hash or ""))
        if commit and read and read != commit:  # without a hub the library gives what it read last
            raise DatasetUnavailable(
                f"Data set {path} is in the cache at commit {read}, not at {commit}, and the hub cannot be reached"
            )
        builder.download_and_prepare()
        return FromHub(splits=builder.as_dataset(), commit=commit or read or revision)


def load_local(path: str, config: str | None, *, options: Mapping[str, Any]) -> Any:
    """The splits that one of the library's own builders, or a folder, gives. Raises whatever the library raises."""
    with _without_waiting():
        return datasets.load_dataset(path, config, **options)


def newest_commit(path: str, revision: str) -> str:
    """The commit that a branch or tag is at now. Raises DatasetUnavailable, and whatever the library raises."""
    api = huggingface_hub.HfApi(endpoint=huggingface_hub.constants.ENDPOINT)
    try:
        info = within(RESOLVE_S, lambda: api.dataset_info(path, revision=revision, timeout=RESOLVE_S))
    except RevisionNotFoundError as exc:
        raise DatasetUnavailable(f"Data set {path} has no revision {revision} on the hub") from exc
    except RepositoryNotFoundError as exc:
        raise DatasetUnavailable(f"Data set {path} is not on the hub, or not open to you") from exc
    return str(info.sha)


@contextmanager
def _without_waiting() -> Iterator[bool]:
    """Goes offline where the hub does not answer: the libraries would retry for half a minute otherwise."""
    with ExitStack() as stack:
        is_online = is_reachable()
        if not is_online:
            stack.enter_context(replaced(huggingface_hub.constants, "HF_HUB_OFFLINE", True))
            stack.enter_context(replaced(datasets.config, "HF_HUB_OFFLINE", True))
        yield is_online


def is_reachable() -> bool:
    """Whether the hub may be asked and answers at all."""
    if huggingface_hub.constants.is_offline_mode() or datasets.config.HF_HUB_OFFLINE:
        return False
    return answers(huggingface_hub.constants.ENDPOINT, timeout_s=PROBE_S)


def answers(url: str, *, timeout_s: float) -> bool:
    """Whether anything answers HTTP there, whatever it says."""

    def probe() -> bool:
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=timeout_s).close()
        return True

    try:
        return within(timeout_s, probe)
    except OSError:
        return False


def within(timeout_s: float, job: Callable[[], T]) -> T:
    """What a job gives, or raises. Raises TimeoutError. In a thread, as resolving a name knows no time limit."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(job())
        except Exception as exc:  # raised again in the caller's thread
            outcome.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    try:
        return outcome.result(timeout_s)
    except TimeoutError as exc:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from exc
