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
class PowerQuery:
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


def power_page(query: PowerQuery, words: Wording) -> PowerPage:
    """Raises InvalidValue for what cannot be."""
    here = query.proves(query.items, is_guarded=True)
    needed = sufficient_items(query.discordance, query.power, rule=query.rule, missing=query.expected)
    return PowerPage(
        curve=_curve(query, here, needed, words), facts=_facts(query, here, needed, words), command=_command(query)
    )


def _facts(query: PowerQuery, here: float, needed: int | None, words: Wording) -> tuple[Fact, ...]:
    n, none = count(query.items), words("no margin")
    margin = narrowest_margin(query.items, query.discordance, query.power, rule=query.rule, missing=query.expected)
    try:
        loss = mde_beyond_noise(n_items=query.items, noise=query.discordance, alpha=query.alpha, power=query.power)
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


def _curve(query: PowerQuery, here: float, needed: int | None, words: Wording) -> Curve:
    most = max(2 * query.items, round(1.25 * needed) if needed else 0, N_POINTS)
    places = sorted({round(most * place / N_POINTS) for place in range(1, N_POINTS + 1)} | {query.items})
    units, n = words.report.units, count(query.items)
    aim, power = units(percent(query.power)), units(share(here))
    reached = words("curve reaches", power=aim, n=count(needed)) if needed else words("curve never", power=aim)
    return Curve(
        points=((0.0, 0.0), *((float(n), here if n == query.items else query.proves(n)) for n in places)),
        here=(float(query.items), here),
        target=query.power,
        axis=words("curve axis"),
        vertical_axis=words("curve vertical"),
        here_text=words("curve here", n=n, power=power),
        target_text=words("curve target", power=aim),
        description=words(
            "curve alt",
            discordance=units(percent(query.discordance)),
            margin=units(pp(query.margin)),
            here=power,
            n=n,
            aim=reached,
        ),
    )


def _command(query: PowerQuery) -> str:
    """Of the command line's calculator, which knows equivalence alone and no missing answers; empty for others."""
    if is_one_sided(query.rule) or query.missing:
        return ""
    return (
        f"qualab stats power --items {query.items} --discordance {query.discordance:g} "
        f"--margin {query.margin:g} --alpha {query.alpha:g}"
    )
