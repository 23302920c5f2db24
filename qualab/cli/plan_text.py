"""What `qualab plan` shows a person: one table, what cannot be proven, and what the figures rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qualab.cli.output import table_in_parts, wrapped
from qualab.model.names import Objective
from qualab.model.wording import percent, pp, proven, share
from qualab.report.words import ENGLISH

if TYPE_CHECKING:
    from qualab.planning.suite import Figures, Planning


WIDTH = 120
"""Of text, at most; a table may be wider where its reader is no terminal."""


def planning_text(found: Planning, *, width: int) -> str:
    """Everything that planning has found, in lines of this width at most."""
    text = min(width, WIDTH)
    blocks = [
        *(_head(found, text), _table(found, width), _legend(found, text), _together(found)),
        *(_unproven(found, text), _caveats(found, text)),
    ]
    return "\n\n".join(block for block in blocks if block)


def _head(found: Planning, width: int) -> str:
    plan, rule = found.plan, found.plan.rule
    what = plan.suite if plan.suite != "custom" else ",".join(plan.requested)
    n_tasks = len(plan.tasks)
    goal = "to prove that no more than the margin is lost (non-inferiority)"
    if rule.objective is Objective.EQUIVALENCE:
        goal = "to prove that every primary metric changes by less than its margin (equivalence)"
    strict = " Strict: a loss inside the margin is a REGRESSION too." if rule.strict else ""
    sentences = [
        f"{what}: {found.n_items:,} items in {n_tasks} task{'s' if n_tasks > 1 else ''}, "
        f"{len(plan.primaries)} primary metric{'s' if len(plan.primaries) != 1 else ''} of {len(plan.metrics)}.",
        f"Objective: {goal}, at {percent(rule.alpha)} a side; power aimed at: {percent(rule.power)}.{strict}",
    ]
    return "\n".join(wrapped(one, width) for one in sentences)


def _table(found: Planning, width: int) -> str:
    """With the metrics' names in each part."""
    if not found.metrics:
        return ""
    return table_in_parts([("primary metric", [one.name for one in found.metrics]), *_columns(found)], width)


def _columns(found: Planning) -> Iterator[tuple[str, list[str]]]:
    metrics, sign = found.metrics, _sign(found)
    yield "items", [f"{one.asked.n_items:,}" for one in metrics]
    if any(one.asked.n_clusters < one.asked.n_items for one in metrics):
        yield "clusters", [_clusters(one) for one in metrics]
    if any(round(one.belief.design_effect, 2) > 1.0 for one in metrics):
        yield "design effect", [f"{one.belief.design_effect:.2f}" for one in metrics]
    yield "discordance", [percent(_short(one.belief.discordance)) for one in metrics]
    if found.plan.sampling.repeats > 1:
        yield "with repeats", [percent(_short(one.variance)) for one in metrics]
    yield "margin", [f"{sign}{pp(one.margin)}" for one in metrics]
    yield "power", [share(one.power) for one in metrics]
    if found.expected_missing:
        yield "with missing", ["" if one.power_missing is None else share(one.power_missing) for one in metrics]
    if found.plan.looks and any(one.power_looks is not None for one in metrics):
        yield "with looks", ["" if one.power_looks is None else share(one.power_looks) for one in metrics]
    yield "provable", [_margin(one.provable_margin, sign) for one in metrics]
    yield "items needed", [_count(one.items_needed) for one in metrics]
    if len(found.plan.primaries) > 1:
        yield "alone", [_count(one.items_needed_alone) for one in metrics]
    if any(one.looks for one in metrics):
        yield "looks: most", [_count(one.looks.most_items if one.looks else None) for one in metrics]
        yield "average", [_average(one) for one in metrics]
    yield "MDE", [_loss(one.mde) for one in metrics]
    yield "noise + loss", [_loss(one.mde_beyond_noise) for one in metrics]


def _legend(found: Planning, width: int) -> str:
    if not found.metrics:
        return ""
    target, looks = percent(found.plan.rule.power), found.metrics[0].looks
    lines = [
        "power: chance of proving the margin with these items if nothing changes in truth and none is missing.",
        f"provable: narrowest margin that these items prove with {target} power. items needed: for the plan's margin.",
        "MDE: smallest loss that these items find, where all changed items together are the discordance; noise + loss: "
        "where the loss comes on top of it. Before the adjustment for other metrics.",
    ]
    if len(found.plan.primaries) > 1 and found.power_each:
        each = share(found.power_each)
        lines[1] = (
            f"provable, items needed: so that all primary metrics pass together with {target} power, each with {each}. "
            f"alone: items needed for {target} power of the metric alone."
        )
    if found.expected_missing:
        lines.insert(
            1,
            f"with missing: the same with {percent(found.expected_missing)} of each arm's answers missing and taken at "
            "their worst (simulated); provable margins, items needed and looks count them too.",
        )
    if looks:
        lines.append(
            f"with looks: power if these items are looked at {looks.n_looks} times (O'Brien-Fleming type; simulated). "
            f"looks: items needed then, at most, and on average if nothing changes."
        )
    return "\n".join(wrapped(line, width) for line in lines)


def _together(found: Planning) -> str:
    lines = []
    n_metrics = len(found.plan.primaries)
    if found.joint_power is not None and n_metrics > 1:
        looked = ", with looks" if any(one.power_looks is not None for one in found.metrics) else ""
        missing = ", with the expected missing answers" if found.expected_missing else ""
        lines.append(f"All {n_metrics} together: {share(found.joint_power)} power{looked}{missing}.")
    lines += [f"{one.id}: {one.reason}." for one in found.unplanned]
    if not n_metrics:
        lines.append("No primary metric: nothing would decide, and every verdict would be INCONCLUSIVE or REGRESSION.")
    more = " and the noise floor" if found.plan.noise_floor else ""
    lines.append(f"Requests: {found.n_requests:,} to both arms{more} together{_time(found)}.")
    return "\n".join(lines)


def _time(found: Planning) -> str:
    if found.duration_s is None or found.rate is None:
        return ""
    rate = f"{found.rate:,.0f}" if found.rate >= 100 else f"{found.rate:.3g}"
    return f", {_duration(found.duration_s)} at {rate} a second"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    minutes = seconds / 60
    return f"about {minutes:.0f} minutes" if minutes < 90 else f"about {minutes / 60:.1f} hours"


def _unproven(found: Planning, width: int) -> str:
    if found.unproven:
        return _listed("What these items cannot prove:", found.unproven, width)
    if found.metrics and not found.unplanned:
        return "Every primary metric can be proven with the power that is aimed at."
    return ""


def _caveats(found: Planning, width: int) -> str:
    return _listed("Notes:", ENGLISH.reasons(found.caveats), width) if found.caveats else ""


def _listed(title: str, lines: Sequence[str], width: int) -> str:
    return "\n".join([title, *(wrapped(line, width, first="  - ", then="    ") for line in lines)])


def _sign(found: Planning) -> str:
    return "±" if found.plan.rule.objective is Objective.EQUIVALENCE else "−"


def _short(fraction: float) -> float:
    """Three digits of a measured share."""
    return float(f"{fraction:.3g}")


def _clusters(one: Figures) -> str:
    return f"{one.asked.n_clusters:,}" if one.asked.n_clusters < one.asked.n_items else ""


def _margin(margin: float | None, sign: str) -> str:
    return "none" if margin is None else f"{sign}{proven(margin)}"


def _loss(loss: float | None) -> str:
    return "none exists" if loss is None else f"{100 * loss:.2f} pp"


def _count(count: int | None) -> str:
    return ">200,000" if count is None else f"{count:,}"


def _average(one: Figures) -> str:
    return "" if one.looks is None or one.looks.expected_items is None else f"{one.looks.expected_items:,.0f}"
