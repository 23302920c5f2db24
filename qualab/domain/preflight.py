"""What was found before a run asks its first item."""

from __future__ import annotations

from dataclasses import dataclass

from qualab.domain.engine import Engine
from qualab.domain.names import ArmName
from qualab.domain.pins import PinFound


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that a person should know, or that stops the comparison."""

    stops: bool
    what: str
    mend: str
    """What to do about it; empty for what is only said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """Both engines, and what was found about them."""

    engines: dict[ArmName, Engine]
    findings: tuple[Finding, ...]
    """Those that stop first."""
    pins: tuple[PinFound, ...] = ()

    @property
    def stopping(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.stops)
