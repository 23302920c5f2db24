"""What a plan's items can prove, as blocks of a report, in English."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qualab.analysis.ruling import MAX_ITEMS, is_one_sided
from qualab.model.report import Block, Bullets, Paragraph, Table
from qualab.model.wording import count, percent, pp, proven, share
from qualab.report.source import Cells, table
from qualab.report.words import ENGLISH

if TYPE_CHECKING:
    from qualab.planning.suite import Figures, Planning


def planning_blocks(found: Planning) -> Iterator[Block]:
    """One table, what cannot be proven, and what the figures rest on."""
    plan, rule, n_primaries = found.plan, found.plan.rule, len(found.plan.primaries)
    what = plan.suite if plan.suite != "custom" else ",".join(plan.requested)
    goal = "to prove that every primary metric changes by less than its margin (equivalence)"
    if is_one_sided(rule):
        goal = "to prove that no more than the margin is lost (non-inferiority)"
    yield Paragraph(
        text=f"{what}: {found.n_items:,} items in {_n(len(plan.tasks), 'task')}, "
        f"{_n(n_primaries, 'primary metric')} of {len(plan.metrics)}."
    )
    strict = " Strict: a loss inside the margin is a REGRESSION too." if rule.strict else ""
    aim = f"at {percent(rule.alpha)} a side; power aimed at: {percent(rule.power)}.{strict}"
    yield Paragraph(text=f"Objective: {goal}, {aim}")
    if found.metrics:
        yield _table(found)
    if found.joint_power is not None and n_primaries > 1:
        looked = ", with looks" if any(one.power_looks is not None for one in found.metrics) else ""
        missing = ", with the expected missing answers" if found.expected_missing else ""
        yield Paragraph(text=f"All {n_primaries} together: {share(found.joint_power)} power{looked}{missing}.")
    yield from (Paragraph(text=f"{one.id}: {ENGLISH.reason(one.reason)}.") for one in found.unplanned)
    if not n_primaries:
        yield Paragraph(text="No primary metric: no verdict but INCONCLUSIVE or REGRESSION is possible.")
    floor = " and the noise floor" if found.plan.noise_floor else ""
    yield Paragraph(text=f"Requests: {found.n_requests:,} to both arms{floor} together{_time(found)}.")
    if found.unproven:
        yield Bullets(title="What these items cannot prove:", items=ENGLISH.reasons(found.unproven))
    elif found.metrics and not found.unplanned:
        yield Paragraph(text="Every primary metric can be proven with the power that is aimed at.")
    if found.caveats:
        yield Bullets(title="Notes:", items=ENGLISH.reasons(found.caveats))


def _n(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _time(found: Planning) -> str:
    if found.duration_s is None or found.rate is None:
        return ""
    rate = f"{found.rate:,.0f}" if found.rate >= 100 else f"{found.rate:.3g}"
    seconds, minutes = found.duration_s, found.duration_s / 60
    duration = f"{max(1, round(seconds))} s"
    if seconds >= 90:
        duration = f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"
    return f", about {duration} at {rate} a second"


def _table(found: Planning) -> Table:
    target, looks = percent(found.plan.rule.power), found.metrics[0].looks
    is_joint = len(found.plan.primaries) > 1 and found.power_each is not None
    together = f" for all primary metrics together ({share(found.power_each or 0.0)} each)" if is_joint else ""
    legends = {
        "power": "power: chance of proving the margin with these items if nothing changes in truth and none is missing",
        "with missing": f"with missing: power with {percent(found.expected_missing)} of each arm's answers missing and "
        "taken at their worst (simulated); provable margins, items needed and looks count them too",
        "with looks": f"with looks: power at {looks.n_looks if looks else 0} looks (simulated)",
        "provable": f"provable: narrowest margin that these items prove with {target} power{together}",
        "items needed": "items needed: for the plan's margin, likewise",
        "alone": f"alone: items needed for {target} power of the metric alone",
        "looks: most": "looks: items needed with looks (O'Brien-Fleming), at most and on average if nothing changes",
        "MDE": "MDE: smallest loss that these items find, where all changed items together are the discordance; "
        "noise + loss: where the loss comes on top of it; both before the adjustment for other metrics",
    }
    rows = [_cells(one, found) for one in found.metrics]
    return table(ENGLISH, tuple(rows[0]), rows, titles={name: name for name in rows[0]}, legends=legends)


def _cells(one: Figures, found: Planning) -> Cells:
    """One metric; None for what its plan does not have."""
    asked, looks, sign = one.asked, one.looks, "−" if is_one_sided(found.plan.rule) else "±"
    has_effect = any(round(other.belief.design_effect, 2) > 1.0 for other in found.metrics)

    def discordance(fraction: float) -> str:
        return percent(float(f"{fraction:.3g}"))

    def items(n: int | None) -> str:
        return f">{count(MAX_ITEMS)}" if n is None else count(n)

    def loss(fraction: float | None) -> str:
        return "none exists" if fraction is None else f"{100 * fraction:.2f} pp"

    return {
        "primary metric": one.name,
        "items": items(asked.n_items),
        "clusters": items(asked.n_clusters) if asked.n_clusters < asked.n_items else None,
        "design effect": f"{one.belief.design_effect:.2f}" if has_effect else None,
        "discordance": discordance(one.belief.discordance),
        "with repeats": discordance(one.variance) if found.plan.sampling.repeats > 1 else None,
        "margin": f"{sign}{pp(one.margin)}",
        "power": share(one.power),
        "with missing": None if one.power_missing is None else share(one.power_missing),
        "with looks": None if one.power_looks is None else share(one.power_looks),
        "provable": "none" if one.provable_margin is None else f"{sign}{proven(one.provable_margin)}",
        "items needed": items(one.items_needed),
        "alone": items(one.items_needed_alone) if len(found.plan.primaries) > 1 else None,
        "looks: most": items(looks.most_items) if looks else None,
        "average": count(round(looks.expected_items)) if looks and looks.expected_items is not None else None,
        "MDE": loss(one.mde),
        "noise + loss": loss(one.mde_beyond_noise),
    }
