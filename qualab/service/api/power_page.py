"""The page of the plan calculator: what items can prove, as figures and as a curve."""

from __future__ import annotations

from functools import partial

from qualab.analysis.ruling import MAX_ITEMS, is_one_sided
from qualab.errors import InsufficientData
from qualab.model.plan import DecisionRule
from qualab.model.report import Curve, Fact
from qualab.model.wording import count, percent, pp, proven, share
from qualab.planning.power import Missing, narrowest_margin, sufficient_items, verdict_power
from qualab.service.words import Wording
from qualab.stats.sizing import mde_beyond_noise

N_POINTS = 40


def power_figures(
    items: int, discordance: float, missing_share: float, rule: DecisionRule, words: Wording
) -> tuple[Curve, tuple[Fact, ...], str]:
    """Compute the curve, the figures beside it, and the same as a command; empty where the command line cannot.

    `discordance` and the expected `missing_share` of each arm's answers are fractions. Raises InvalidValue.
    """
    missing, is_loss_alone, n = Missing(share=missing_share), is_one_sided(rule), count(items)
    proves = partial(
        verdict_power,
        discordance=discordance,
        margin=rule.margin,
        alpha=rule.alpha,
        is_one_sided=is_loss_alone,
        missing=missing,
    )
    here = proves(n_items=items, is_guarded=True)
    needed = sufficient_items(discordance, rule.power, rule=rule, missing=missing)
    narrowest = narrowest_margin(items, discordance, rule.power, rule=rule, missing=missing)
    try:
        loss = mde_beyond_noise(n_items=items, noise=discordance, alpha=rule.alpha, power=rule.power)
    except InsufficientData:
        loss = None
    units, none = words.report.units, words("no margin")
    facts = (
        Fact(label=words("power here", n=n), text=units(share(here))),
        Fact(
            label=words("items needed"),
            text=words("more than", n=count(MAX_ITEMS)) if needed is None else count(needed),
        ),
        Fact(label=words("narrowest margin", n=n), text=none if narrowest is None else units(proven(narrowest))),
        Fact(label=words("smallest loss", n=n), text=none if loss is None else units(proven(loss))),
    )
    most = max(2 * items, round(1.25 * needed) if needed else 0, N_POINTS)
    places = sorted({round(most * place / N_POINTS) for place in range(1, N_POINTS + 1)} | {items})
    aim, reached = units(percent(rule.power)), units(share(here))
    needs = words("curve reaches", power=aim, n=count(needed)) if needed else words("curve never", power=aim)
    assumed = {"discordance": units(percent(discordance)), "margin": units(pp(rule.margin))}
    curve = Curve(
        points=((0.0, 0.0), *((float(k), here if k == items else proves(n_items=k, is_guarded=False)) for k in places)),
        here=(float(items), here),
        target=rule.power,
        axis=words("curve axis"),
        vertical_axis=words("curve vertical"),
        here_text=words("curve here", n=n, power=reached),
        target_text=words("curve target", power=aim),
        description=words("curve alt", here=reached, n=n, aim=needs, **assumed),
    )
    command = f"qualab stats power --items {items} --discordance {discordance:g} --margin {rule.margin:g}"
    is_known = not is_loss_alone and not missing_share  # to the command line, which plans equivalence of whole data
    return curve, facts, f"{command} --alpha {rule.alpha:g}" if is_known else ""
