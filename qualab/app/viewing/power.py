"""The page of the plan calculator: what items can prove, as figures and as a curve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from qualab.app.viewing.words import Wording
from qualab.domain.names import Objective
from qualab.domain.numbers import count, percent, pp, proven, share
from qualab.domain.report import Curve, Fact
from qualab.errors import InsufficientData
from qualab.stats.sizing import items_needed, mde_beyond_noise, power_to_prove, smallest_margin

N_POINTS = 40
MOST_ITEMS = 100_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Fractions."""

    items: int
    discordance: float
    margin: float
    alpha: float
    power: float
    objective: Objective

    @property
    def is_one_sided(self) -> bool:
        return self.objective is Objective.NON_INFERIORITY

    def proves(self, n_items: int) -> float:
        """Power with this many items, if there is no true difference."""
        return power_to_prove(
            n_items=n_items,
            discordance=self.discordance,
            margin=self.margin,
            alpha=self.alpha,
            is_one_sided=self.is_one_sided,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPage:
    """What is computed."""

    curve: Curve
    facts: tuple[Fact, ...]
    command: str


def power_page(asked: Asked, words: Wording) -> PowerPage:
    """Raises InvalidValue for what cannot be."""
    here, needed = asked.proves(asked.items), _needed(asked)
    return PowerPage(
        curve=_curve(asked, here, needed, words), facts=_facts(asked, here, needed, words), command=_command(asked)
    )


def _needed(asked: Asked) -> int | None:
    return _if_any(
        lambda: items_needed(
            discordance=asked.discordance,
            margin=asked.margin,
            alpha=asked.alpha,
            power=asked.power,
            is_one_sided=asked.is_one_sided,
            is_guarded=True,
            max_items=MOST_ITEMS,
        )
    )


def _facts(asked: Asked, here: float, needed: int | None, words: Wording) -> tuple[Fact, ...]:
    n, none = count(asked.items), words("no margin")
    margin = _if_any(
        lambda: smallest_margin(
            n_items=asked.items,
            discordance=asked.discordance,
            alpha=asked.alpha,
            power=asked.power,
            is_one_sided=asked.is_one_sided,
            is_guarded=True,
        )
    )
    loss = _if_any(
        lambda: mde_beyond_noise(n_items=asked.items, noise=asked.discordance, alpha=asked.alpha, power=asked.power)
    )
    units = words.report.units
    said = [
        (words("power here", n=n), units(share(here))),
        (words("items needed"), words("more than", n=count(MOST_ITEMS)) if needed is None else count(needed)),
        (words("narrowest margin", n=n), none if margin is None else units(proven(margin))),
        (words("smallest loss", n=n), none if loss is None else units(proven(loss))),
    ]
    return tuple(Fact(label=label, text=text) for label, text in said)


def _curve(asked: Asked, here: float, needed: int | None, words: Wording) -> Curve:
    most = max(2 * asked.items, round(1.25 * needed) if needed else 0, N_POINTS)
    places = sorted({round(most * place / N_POINTS) for place in range(1, N_POINTS + 1)} | {asked.items})
    units, n = words.report.units, count(asked.items)
    aim, power = units(percent(asked.power)), units(share(here))
    reached = words("curve reaches", power=aim, n=count(needed)) if needed else words("curve never", power=aim)
    return Curve(
        points=((0.0, 0.0), *((float(place), asked.proves(place)) for place in places)),
        here=(float(asked.items), here),
        target=asked.power,
        axis=words("curve axis"),
        vertical_axis=words("curve vertical"),
        here_text=words("curve here", n=n, power=power),
        target_text=words("curve target", power=aim),
        description=words(
            "curve alt",
            discordance=units(percent(asked.discordance)),
            margin=units(pp(asked.margin)),
            here=power,
            n=n,
            aim=reached,
        ),
    )


def _command(asked: Asked) -> str:
    """Of the command line's calculator, which knows equivalence alone; empty for another objective."""
    if asked.is_one_sided:
        return ""
    return (
        f"qualab stats power --items {asked.items} --discordance {asked.discordance:g} "
        f"--margin {asked.margin:g} --alpha {asked.alpha:g}"
    )


def _if_any(find: Callable[[], T]) -> T | None:
    """What is found, or None where it does not exist."""
    try:
        return find()
    except InsufficientData:
        return None
