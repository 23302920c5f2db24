"""Data sets from the hub, at a pinned revision, with a bound on how long an unreachable hub can take."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import datasets
import huggingface_hub

from qualab.adapters.harness.patching import replaced

PROBE_S = 3.0
"""How long the hub has to answer at all."""


def load_from_hub(path: str, config: str | None, *, revision: str | None, options: Mapping[str, Any]) -> Any:
    """The splits of a data set, from the library's own cache where it is there. Raises whatever the library raises,
    within a few seconds where the hub cannot be reached."""
    pinned = {"revision": revision} if revision else {}
    with _without_waiting():
        return datasets.load_dataset(path, config, **{**pinned, **options})


@contextmanager
def _without_waiting() -> Iterator[None]:
    """Goes offline where the hub does not answer: the libraries would retry for half a minute otherwise."""
    with ExitStack() as stack:
        if not is_reachable():
            stack.enter_context(replaced(huggingface_hub.constants, "HF_HUB_OFFLINE", True))
            stack.enter_context(replaced(datasets.config, "HF_HUB_OFFLINE", True))
        yield


def is_reachable() -> bool:
    """Whether the hub may be asked and answers at all."""
    if huggingface_hub.constants.is_offline_mode() or datasets.config.HF_HUB_OFFLINE:
        return False
    return answers(huggingface_hub.constants.ENDPOINT, timeout_s=PROBE_S)


def answers(url: str, *, timeout_s: float) -> bool:
    """Whether anything answers HTTP there, whatever it says. In a thread, as resolving a name knows no time limit."""
    outcome: list[bool] = []

    def probe() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=timeout_s).close()
            outcome.append(True)
        except urllib.error.HTTPError:
            outcome.append(True)
        except OSError:
            outcome.append(False)

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return outcome == [True]
