"""What every use case is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qualab.harness.process import Harness, LoadedTasks
from qualab.model.comparison import Comparison
from qualab.model.items import Item
from qualab.model.names import ArmName
from qualab.model.ports import Clock, Endpoint, OpenEndpoint, Progress, Tokenize
from qualab.model.registry import Pulse
from qualab.run.pin_sources import LocalPins

if TYPE_CHECKING:
    from qualab.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PairServices:
    """What planning and preflight need: nothing is stored."""

    harness: Harness
    open_endpoint: OpenEndpoint
    named_tokenizer: Callable[[str], Tokenize]
    is_same_server: Callable[[str, str], bool]
    pins: LocalPins
    pulse: Pulse = field(default_factory=Pulse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(PairServices):
    """What a run needs, joined by `bootstrap`."""

    store: Store
    clock: Clock
    runner: str
    """Names this process in claims, as "host:pid:nonce"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One comparison being carried out: what its steps share."""

    comparison: Comparison
    tasks: LoadedTasks
    items: Sequence[Item]
    """In order of position."""
    endpoints: Mapping[ArmName, Endpoint]
    """Of both arms, or of the one whose turn it is."""
    progress: Progress
