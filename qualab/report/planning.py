"""What a plan's items can prove, as blocks of a report, in English."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from qualab.analysis.ruling import MAX_ITEMS, is_one_sided
from qualab.model.report import Block, Bullets, Cell, Column, Paragraph, Row, Table
from qualab.model.wording import count, percent, pp, proven, share
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
    yield from (Paragraph(text=f"{one.id}: {one.reason}.") for one in found.unplanned)
    if not n_primaries:
        yield Paragraph(text="No primary metric: no verdict but INCONCLUSIVE or REGRESSION is possible.")
    floor = " and the noise floor" if found.plan.noise_floor else ""
    yield Paragraph(text=f"Requests: {found.n_requests:,} to both arms{floor} together{_time(found)}.")
    if found.unproven:
        yield Bullets(title="What these items cannot prove:", items=found.unproven)
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
    shown = list(_columns(found))
    heads = (Column(id=title, title=title, note=note) for title, note, _ in shown)
    name = Column(id="metric", title="primary metric", is_number=False)
    texts = ([one.name, *(text(one) for _, _, text in shown)] for one in found.metrics)
    rows = tuple(Row(cells=tuple(Cell(text=text) for text in row)) for row in texts)
    return Table(columns=(name, *heads), rows=rows)


def _columns(found: Planning) -> Iterator[tuple[str, str, Callable[[Figures], str]]]:
    """Title, note, and the text of a metric."""
    metrics, sign = found.metrics, "−" if is_one_sided(found.plan.rule) else "±"
    target, looks = percent(found.plan.rule.power), metrics[0].looks
    each = ""
    if len(found.plan.primaries) > 1 and found.power_each:
        each = f", so that all primary metrics pass together with it, each with {share(found.power_each)}"
    missing = (
        f"with missing: power with {percent(found.expected_missing)} of each arm's answers missing and taken at their "
        "worst (simulated); provable margins, items needed and looks count them too"
    )

    def discordance(fraction: float) -> str:
        return percent(float(f"{fraction:.3g}"))

    def items(n: int | None) -> str:
        return f">{count(MAX_ITEMS)}" if n is None else count(n)

    def loss(fraction: float | None) -> str:
        return "none exists" if fraction is None else f"{100 * fraction:.2f} pp"

    def power(fraction: float | None) -> str:
        return "" if fraction is None else share(fraction)

    yield "items", "", lambda one: items(one.asked.n_items)
    if any(one.asked.n_clusters < one.asked.n_items for one in metrics):
        yield (
            "clusters",
            "",
            lambda one: items(one.asked.n_clusters) if one.asked.n_clusters < one.asked.n_items else "",
        )
    if any(round(one.belief.design_effect, 2) > 1.0 for one in metrics):
        yield "design effect", "", lambda one: f"{one.belief.design_effect:.2f}"
    yield "discordance", "", lambda one: discordance(one.belief.discordance)
    if found.plan.sampling.repeats > 1:
        yield "with repeats", "", lambda one: discordance(one.variance)
    yield "margin", "", lambda one: f"{sign}{pp(one.margin)}"
    note = "power: chance of proving the margin with these items if nothing changes in truth and none is missing"
    yield "power", note, lambda one: power(one.power)
    if found.expected_missing:
        yield "with missing", missing, lambda one: power(one.power_missing)
    if found.plan.looks and any(one.power_looks is not None for one in metrics):
        note = f"with looks: power if these items are looked at {looks.n_looks} times (simulated)" if looks else ""
        yield "with looks", note, lambda one: power(one.power_looks)
    note = f"provable: narrowest margin that these items prove with {target} power{each}"
    yield (
        "provable",
        note,
        lambda one: "none" if one.provable_margin is None else f"{sign}{proven(one.provable_margin)}",
    )
    yield (
        "items needed",
        f"items needed: for the plan's margin with {target} power{each}",
        lambda one: items(one.items_needed),
    )
    if len(found.plan.primaries) > 1:
        note = f"alone: items needed for {target} power of the metric alone"
        yield "alone", note, lambda one: items(one.items_needed_alone)
    if any(one.looks for one in metrics):
        note = "looks: items needed with looks (O'Brien-Fleming type), at most, and on average if nothing changes"
        yield "looks: most", note, lambda one: items(one.looks.most_items if one.looks else None)
        yield (
            "average",
            "",
            lambda one: (
                count(round(one.looks.expected_items)) if one.looks and one.looks.expected_items is not None else ""
            ),
        )
    yield (
        "MDE",
        "MDE: smallest loss that these items find, where all changed items together are the discordance; noise + loss: "
        "where the loss comes on top of it; both before the adjustment for other metrics",
        lambda one: loss(one.mde),
    )
    yield "noise + loss", "", lambda one: loss(one.mde_beyond_noise)
