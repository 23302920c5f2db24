"""What planning says in sentences: what cannot be proven, and what the figures rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from qualab.app.analysis.ruling import MAX_ITEMS, is_one_sided
from qualab.app.interleaving import lost_interleaving
from qualab.app.pinning import unpinned_sentence
from qualab.app.planning.figures import BEST_REPEATS, Figures
from qualab.app.planning.pilot import Pilot
from qualab.domain.numbers import percent, pp, proven, share
from qualab.domain.plan import DecisionRule, MetricSpec, Plan

_NEAR = 0.025
"""Powers with looks are simulated, and sizes with looks are right to about two percentage points of them."""


def unproven(
    figures: Sequence[Figures], rule: DecisionRule, *, power_each: float | None, joint: float | None
) -> Iterator[str]:
    """A sentence or two for each metric whose items have too little power as planned.

    None where all together have the power that is aimed at, though one has less than its part of it.
    """
    target = power_each or rule.power
    if joint is not None and joint >= rule.power:
        return
    for one in figures:
        if one.items_needed is None or one.asked.n_items < one.items_needed:
            yield " ".join(
                filter(None, (_short_of(one, rule, target), _cost_of_missing(one, target), _what_helps(one)))
            )
        elif one.power_looks is not None and one.power_looks < target - _NEAR:
            yield _short_with_looks(one, target)


def _short_with_looks(one: Figures, target: float) -> str:
    needed = "" if one.looks is None else f": they need up to {one.looks.most_items:,} items"
    return (
        f"{one.name}: these items have {share(_at_the_end(one))} power in one look at the end, but "
        f"{share(one.planned_power)} with the looks of this plan, short of {percent(round(target, 3))}{needed}, "
        "or no looks."
    )


def _at_the_end(one: Figures) -> float:
    return one.power if one.power_missing is None else one.power_missing


def _cost_of_missing(one: Figures, target: float) -> str:
    """Where missing answers alone take the power."""
    if one.power_missing is None or one.power < target:
        return ""
    return f"Without a missing answer these have {share(one.power)}."


def _short_of(one: Figures, rule: DecisionRule, target: float) -> str:
    goal = f"rule out a loss of {pp(one.margin)}" if is_one_sided(rule) else f"prove ±{pp(one.margin)}"
    n_items = one.asked.n_items
    what = "1 item" if n_items == 1 else f"{n_items:,} items"
    needed = f"{one.items_needed:,} are" if one.items_needed else f"more than {MAX_ITEMS:,} would be"
    sign = "−" if is_one_sided(rule) else "±"
    own = "no margin at all" if one.provable_margin is None else f"{sign}{proven(one.provable_margin)}"
    with_looks = "" if one.power_looks is None else f" ({share(one.power_looks)} with looks)"
    together = "" if target == rule.power else f", so that all metrics together have {percent(rule.power)}"
    these = f"These have {share(_at_the_end(one))}{with_looks}, and prove {own}."
    return (
        f"{one.name}: {what} cannot {goal} at {percent(one.belief.discordance)} discordance: {needed} needed for "
        f"{percent(round(target, 3))} power{together}. {these}"
    )


def _what_helps(one: Figures) -> str:
    said = []
    if one.items_needed:
        said.append(f"A second set of {one.items_needed - one.asked.n_items:,} more items would do.")
    if one.exercises_drafter and one.asked.repeats == 1:
        at_best = one.items_needed_repeated
        if at_best and at_best <= one.asked.n_items:
            said.append(f"{BEST_REPEATS} answers an item would do if nearly all of the discordance were run noise.")
        else:
            enough = f"{at_best:,} items would still be needed" if at_best else "they would still be too few"
            said.append(f"{BEST_REPEATS} answers an item would not: even if all discordance were run noise, {enough}.")
    return " ".join(said)


def caveats(figures: Sequence[Figures], plan: Plan, pilot: Pilot | None, *, rate_is_given: bool) -> Iterator[str]:
    """What the figures rest on, a sentence each."""
    yield from _of_discordance(figures, pilot)
    yield from _of_missing(figures, plan)
    yield from _of_clusters(figures)
    yield from _of_noise_floors(figures, plan)
    yield from _of_repeats(figures, plan)
    yield from _of_joint_power(plan)
    if plan.looks and is_one_sided(plan.rule):
        yield "What early looks save is planned for equivalence only: no figures for non-inferiority."
    if pilot and pilot.rate and not rate_is_given:
        yield f"The rate is that of pilot {pilot.id}: at its concurrency, with its mix of tasks."
    if quiet := [one.name for one in figures if not one.exercises_drafter]:
        yield f"Log-likelihoods draft no token, so that these say nothing about a drafter: {_listed(quiet)}."
    if plan.is_limited:
        yield f"Limited to {plan.limit:g} items a task: not for sign-off."
    if sentence := unpinned_sentence(plan.pins):
        yield sentence
    yield from lost_interleaving(plan)


def _of_discordance(figures: Sequence[Figures], pilot: Pilot | None) -> Iterator[str]:
    if any(one.belief.discordance_source.startswith("assumed") for one in figures):
        measured = "" if pilot else "; --pilot ID takes it from a comparison that has run"
        yield f"Discordance is the share of items right in exactly one arm. It is assumed, not measured{measured}."
    for one in figures:
        seen = pilot and pilot.metrics.get(one.id)
        if pilot and not seen:
            yield f"Pilot {pilot.id} has no {one.id}: its discordance is {one.belief.discordance_source}."
        if seen and not seen.n_changed and one.belief.discordance_source.startswith("pilot"):
            most = 1.0 - 0.05 ** (1.0 / seen.n_scores)  # Clopper and Pearson's upper limit, 95 %
            yield (
                f"No item of {one.name} changed in the pilot: of {seen.n_scores:,}, that fits a discordance of up to "
                f"{share(most)} as well; plan for more with --discordance."
            )


def _of_missing(figures: Sequence[Figures], plan: Plan) -> Iterator[str]:
    missing = plan.assumptions.missing if plan.assumptions else 0.0
    if figures and not missing:
        yield "No answer is expected to be missing: --expected-missing 0.005 shows what half a percent an arm costs."
    if over := [one.name for one in figures if _is_above_cap(one, plan.rule, missing)]:
        yield (
            f"With {percent(missing)} of each arm's answers missing, more pairs lack an answer than the plan allows: "
            f"INVALID until they are asked again, or with a higher --max-missing-share: {_listed(over)}."
        )


def _is_above_cap(one: Figures, rule: DecisionRule, missing: float) -> bool:
    return 1.0 - (1.0 - missing) ** 2 > replace(rule, margin=one.margin).missing_cap(is_primary=True)


def _of_clusters(figures: Sequence[Figures]) -> Iterator[str]:
    for one in figures:
        if one.belief.design_effect_source == "not known":
            yield (
                f"{one.name}: {one.asked.n_items:,} items in {one.asked.n_clusters:,} clusters count as independent "
                "(design effect 1). Changes that come together need more: --design-effect, or a pilot."
            )


def _of_noise_floors(figures: Sequence[Figures], plan: Plan) -> Iterator[str]:
    if plan.sampling.repeats == 1:
        for one in figures:
            if (floor := one.belief.floor) is not None:
                yield (
                    f"{one.name}: two runs of the baseline alone differ in {share(floor)} of the scores: "
                    '"noise + loss" counts from there.'
                )


def _of_repeats(figures: Sequence[Figures], plan: Plan) -> Iterator[str]:
    repeats = plan.sampling.repeats
    if repeats == 1:
        return
    yield (
        f"{repeats} answers an item divide run noise by {repeats}, and never what differs between items: "
        "discordance − noise + noise / answers stands in for the discordance."
    )
    if unknown := [one.name for one in figures if one.belief.noise_source == "not known"]:
        yield (
            f"How much of the discordance is run noise is not known for {_listed(unknown)}: repeats count for nothing "
            "there. --noise says it, or a pilot with repeats."
        )


def _of_joint_power(plan: Plan) -> Iterator[str]:
    if len(plan.primaries) < 2:
        return
    if _share_items(plan):
        yield "Primary metrics share items: their joint power is given as if they did not, which is a guess."
    else:
        yield "Joint power is the product of the powers: primary metrics share no items, and are taken as independent."


def _share_items(plan: Plan) -> bool:
    tasks = [task for metric in plan.primaries for task in _tasks(metric)]
    return len(set(tasks)) < len(tasks)


def _tasks(metric: MetricSpec) -> Sequence[str]:
    return metric.members or (metric.task,)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
