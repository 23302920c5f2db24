"""The page of the plan calculator: what items can prove, as figures and as a curve."""

from __future__ import annotations

from dataclasses import dataclass

from qualab.analysis.ruling import MAX_ITEMS, is_one_sided
from qualab.errors import InsufficientData
from qualab.model.names import Objective
from qualab.model.plan import DecisionRule
from qualab.model.report import Curve, Fact
from qualab.model.wording import count, percent, pp, proven, share
from qualab.planning.power import Missing, narrowest_margin, sufficient_items, verdict_power
from qualab.service.words import Wording
from qualab.stats.sizing import mde_beyond_noise

N_POINTS = 40
MOST_ITEMS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Fractions."""

    items: int
    discordance: float
    margin: float
    alpha: float
    power: float
    objective: Objective
    missing: float = 0.0
    """Expected share of each arm's answers."""

    @property
    def rule(self) -> DecisionRule:
        return DecisionRule(margin=self.margin, alpha=self.alpha, power=self.power, objective=self.objective)

    @property
    def expected(self) -> Missing:
        return Missing(share=self.missing)

    def proves(self, n_items: int, *, is_guarded: bool = False) -> float:
        """Power if there is no true difference; points of a curve take the guard where it matters."""
        return verdict_power(
            n_items=n_items,
            discordance=self.discordance,
            margin=self.margin,
            alpha=self.alpha,
            is_one_sided=is_one_sided(self.rule),
            missing=self.expected,
            is_guarded=is_guarded,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPage:
    """What is computed."""

    curve: Curve
    facts: tuple[Fact, ...]
    command: str


def power_page(asked: Asked, words: Wording) -> PowerPage:
    """Raises InvalidValue for what cannot be."""
    here = asked.proves(asked.items, is_guarded=True)
    needed = sufficient_items(asked.discordance, asked.power, rule=asked.rule, missing=asked.expected)
    return PowerPage(
        curve=_curve(asked, here, needed, words), facts=_facts(asked, here, needed, words), command=_command(asked)
    )


def _facts(asked: Asked, here: float, needed: int | None, words: Wording) -> tuple[Fact, ...]:
    n, none = count(asked.items), words("no margin")
    margin = narrowest_margin(asked.items, asked.discordance, asked.power, rule=asked.rule, missing=asked.expected)
    try:
        loss = mde_beyond_noise(n_items=asked.items, noise=asked.discordance, alpha=asked.alpha, power=asked.power)
    except InsufficientData:
        loss = None
    units = words.report.units
    said = [
        (words("power here", n=n), units(share(here))),
        (words("items needed"), words("more than", n=count(MAX_ITEMS)) if needed is None else count(needed)),
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
        points=((0.0, 0.0), *((float(n), here if n == asked.items else asked.proves(n)) for n in places)),
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
    """Of the command line's calculator, which knows equivalence alone and no missing answers; empty for others."""
    if is_one_sided(asked.rule) or asked.missing:
        return ""
    return (
        f"qualab stats power --items {asked.items} --discordance {asked.discordance:g} "
        f"--margin {asked.margin:g} --alpha {asked.alpha:g}"
    )
