"""What a terminal shows of pins: each part once where both arms have it from the same source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qualab.domain.names import ArmName
from qualab.domain.pins import DIGEST, PinFound

SHOWN = 12
"""Digits of a digest or commit."""


def pin_lines(found: Sequence[PinFound]) -> Iterator[str]:
    """One line a part and source."""
    groups: dict[tuple[str, str, str], list[ArmName]] = {}
    for one in found:
        groups.setdefault((one.part, _short(one), _source(one)), []).append(one.arm)
    for number, ((part, value, source), arms) in enumerate(groups.items()):
        whose = "" if len(arms) == len(ArmName) else f" of the {arms[0]}"
        yield f"{'' if number else 'pins':<9} {part}{whose} {value} ({source})"


def _short(one: PinFound) -> str:
    value = one.values[0]
    if digest := DIGEST.search(value):
        kind, _, digits = digest[0].partition(":")
        return value.replace(digest[0], f"{kind}:{digits[:SHOWN]}")
    return value[:SHOWN] if one.is_verified else value[:40]


def _source(one: PinFound) -> str:
    return f"verified by {one.source}" if one.is_verified else one.source
