"""Write what a plan's items can prove as blocks of a report, in English."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from qualab.analysis.ruling import MAX_ITEMS, is_one_sided
from qualab.model.engine import cells_of
from qualab.model.reason import of
from qualab.model.report import Block, Bullets, Curve, Paragraph
from qualab.model.wording import count, percent, pp, proven, share
from qualab.report.source import Cells, table
from qualab.report.words import ENGLISH, Words

if TYPE_CHECKING:
    from qualab.model.plan import DecisionRule, MetricRule
    from qualab.planning.power import Missing
    from qualab.planning.suite import Figures, Planning


def planning_blocks(planning: Planning) -> Iterator[Block]:
    """Show one table, what cannot be proven, and what the figures rest on."""
    plan, rule, metrics, words = planning.plan, planning.plan.rule, planning.metrics, ENGLISH
    n_primaries = len(plan.primaries)
    name = plan.suite if plan.suite != "custom" else ",".join(plan.requested)
    sizes = {"n_items": planning.n_items, "n_tasks": len(plan.tasks)}
    yield Paragraph(text=words("plan items", name=name, **sizes, n_primaries=n_primaries, n_metrics=len(plan.metrics)))
    strict = f" {words('plan strict')}" if rule.strict else ""
    yield Paragraph(text=words(f"plan objective {rule.objective}", rule=rule) + strict)
    if metrics:
        rows = [_cells(figures, planning) for figures in metrics]
        is_joint = n_primaries > 1 and planning.power_each is not None
        values = {
            "power": rule.power,
            "missing": planning.expected_missing,
            "n_looks": metrics[0].looks.n_looks if metrics[0].looks else 0,
            "together": words("plan each", power=planning.power_each) if is_joint else "",
        }
        legends = {column: words.optional(f"plan legend {column}", **values) for column in rows[0]}
        yield table(words, tuple(rows[0]), rows, titles={column: column for column in rows[0]}, legends=legends)
    if planning.joint_power is not None and n_primaries > 1:
        looks = words("plan with looks") if any(figures.power_looks is not None for figures in metrics) else ""
        missing = words("plan with missing") if planning.expected_missing else ""
        yield Paragraph(text=words("plan together", n=n_primaries, power=planning.joint_power, terms=looks + missing))
    yield from (Paragraph(text=f"{words.reason(of(metric.id, metric.reason))}.") for metric in planning.unplanned)
    if not n_primaries:
        yield Paragraph(text=words("plan without primaries"))
    floor = words("plan noise floor") if plan.noise_floor else ""
    yield Paragraph(text=words("plan requests", n=planning.n_requests, floor=floor, time=_time(planning)))
    if (audit := planning.audit) and plan.audit:
        about = {name: _about(getattr(audit, name)) for name in ("n_tokens", "generated_tokens", "prefilled_tokens")}
        proves = "plan audit proves" if audit.provable_share else "plan audit proves nothing"
        proven = words(proves, **about, one_in=_about(int(1.0 / (audit.provable_share or 1.0))), outlook=audit)
        yield Paragraph(text=f"{proven} {words('plan audit costs', **about, n=audit.n_asked_again)}")
    if speed := plan.speed:
        yield Paragraph(text=words("plan speed", n=len(cells_of(speed)), budget=speed.budget_s, speed=speed))
    if planning.unproven:
        yield Bullets(title=words("plan unproven"), items=words.reasons(planning.unproven))
    elif metrics and not planning.unplanned:
        yield Paragraph(text=words("plan proven"))
    if planning.caveats:
        yield Bullets(title=words("plan notes"), items=words.reasons(planning.caveats))


def _about(tokens: int) -> str:
    """Write an estimate to two digits."""
    return count(round(tokens, 2 - len(str(tokens))))


def _time(planning: Planning) -> str:
    if planning.duration_s is None or planning.rate is None:
        return ""
    rate = f"{planning.rate:,.0f}" if planning.rate >= 100 else f"{planning.rate:.3g}"
    seconds = max(1, round(planning.duration_s))
    # rounded to minutes where there are some: it is a guess
    return ENGLISH("plan time", duration=seconds if seconds < 90 else 60 * round(seconds / 60), rate=rate)


def _cells(figures: Figures, planning: Planning) -> Cells:
    asked, looks, sign = figures.asked, figures.looks, "−" if is_one_sided(planning.plan.rule) else "±"
    has_effect = any(round(other.belief.design_effect, 2) > 1.0 for other in planning.metrics)

    def items(n: int | None) -> str:
        return f">{count(MAX_ITEMS)}" if n is None else count(n)

    def loss(fraction: float | None) -> str:
        return "none exists" if fraction is None else f"{100 * fraction:.2f} pp"

    return {
        "primary metric": figures.name,
        "items": items(asked.n_items),
        "clusters": items(asked.n_clusters) if asked.n_clusters < asked.n_items else None,
        "design effect": (figures.belief.design_effect if has_effect else None, "tokens"),
        "discordance": percent(float(f"{figures.belief.discordance:.3g}")),
        "with repeats": percent(float(f"{figures.variance:.3g}")) if planning.plan.sampling.repeats > 1 else None,
        "margin": f"{sign}{pp(figures.margin)}",
        "power": share(figures.power),
        "with missing": (figures.power_missing, "share"),
        "with looks": (figures.power_looks, "share"),
        "provable": "none" if figures.provable_margin is None else f"{sign}{proven(figures.provable_margin)}",
        "items needed": items(figures.items_needed),
        "alone": items(figures.items_needed_alone) if len(planning.plan.primaries) > 1 else None,
        "looks: most": items(looks.most_items) if looks else None,
        "average": (looks.expected_items if looks else None, "place"),
        "MDE": loss(figures.mde),
        "noise + loss": loss(figures.mde_beyond_noise),
    }


N_POINTS = 40


def power_curve(
    items: int, discordance: float, rule: DecisionRule | MetricRule, words: Words, *, missing: Missing | None = None
) -> Curve:
    """Draw the power to prove the margin by items, with these items on it. Raises InvalidValue."""
    from qualab.planning.power import Missing, sufficient_items, verdict_power  # noqa: PLC0415  scipy

    missing, units, n = missing or Missing(), words.units, count(items)
    design: dict[str, Any] = {"discordance": discordance, "margin": rule.margin, "alpha": rule.alpha}
    proves = partial(verdict_power, **design, is_one_sided=is_one_sided(rule), missing=missing)
    here = proves(n_items=items, is_guarded=True)
    needed = sufficient_items(discordance, rule.power, rule=rule, missing=missing)
    most = max(2 * items, round(1.25 * needed) if needed else 0, N_POINTS)
    places = sorted({round(most * place / N_POINTS) for place in range(1, N_POINTS + 1)} | {items})
    aim, reached = units(percent(rule.power)), units(share(here))
    needs = words("curve reaches", power=aim, n=count(needed)) if needed else words("curve never", power=aim)
    assumed = {"discordance": units(percent(discordance)), "margin": units(pp(rule.margin))}
    return Curve(
        points=((0.0, 0.0), *((float(k), here if k == items else proves(n_items=k, is_guarded=False)) for k in places)),
        here=(float(items), here),
        target=rule.power,
        axis=words("curve axis"),
        vertical_axis=words("curve vertical"),
        here_text=words("curve here", n=n, power=reached),
        target_text=words("curve target", power=aim),
        description=words("curve alt", here=reached, n=n, aim=needs, **assumed),
    )
