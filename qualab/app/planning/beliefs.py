"""What is taken as true of each primary metric, and where it comes from: said by the user, or seen in a pilot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qualab.app.experiment import check_names
from qualab.app.planning.pilot import Pilot
from qualab.domain.plan import MetricSpec, Plan
from qualab.errors import InvalidValue

DEFAULT_DISCORDANCE = 0.05
EVERYWHERE = ""
"""The name under which a value is given for all metrics."""

Shares = Mapping[str, float]
"""Values by benchmark, task or metric id; under EVERYWHERE for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user says beside the experiment."""

    discordance: Shares = field(default_factory=dict)
    design_effect: Shares = field(default_factory=dict)
    noise: Shares = field(default_factory=dict)
    """Discordance of two runs of the same arm."""
    rate: float | None = None
    """Requests a second, of both arms together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """One metric's assumptions."""

    discordance: float
    discordance_source: str
    design_effect: float
    design_effect_source: str
    noise: float
    """0 where nothing is known of it: repeats then count for nothing."""
    noise_source: str
    floor: float | None
    """Discordance of two runs of the baseline as a pilot measured it; None where none did."""


def check_given(given: Given, plan: Plan) -> None:
    """Raises InvalidValue for names that the plan does not have and values that cannot be."""
    demands = [
        (given.discordance, "discordance", 0.0, 1.0, "a fraction from 0 to 1, as 0.05"),
        (given.noise, "noise", 0.0, 1.0, "a fraction from 0 to 1, as 0.02"),
        (given.design_effect, "design-effect", 1.0, float("inf"), "1 or more"),
    ]
    for values, name, least, most, allowed in demands:
        check_names({key: value for key, value in values.items() if key != EVERYWHERE}, plan, what=name)
        for key, value in values.items():
            if not least <= value <= most:
                raise InvalidValue(
                    f"{name}{f' of {key}' if key else ''} must be {allowed}",
                    hint=f"Given: {value:g}",
                    fields={name.replace("-", "_"): f"must be {allowed}"},
                )
    if given.rate is not None and not given.rate > 0.0:
        allowed = "must be a number of requests a second above 0"
        raise InvalidValue(f"rate {allowed}", hint="Leave --rate out to say nothing", fields={"rate": allowed})


def belief_of(metric: MetricSpec, plan: Plan, given: Given, pilot: Pilot | None, *, is_clustered: bool) -> Belief:
    """The assumptions about one metric: what is said of it by name, then what the pilot saw, then what is said of all.

    Raises InvalidValue where more of the discordance is said to be noise than there is.
    """
    discordance, source = _discordance(metric, plan, given, pilot)
    effect, effect_source = _design_effect(metric, plan, given, pilot, is_clustered=is_clustered)
    noise, noise_source = _noise(metric, plan, given, pilot)
    if noise > discordance:
        raise InvalidValue(
            f"The noise of {metric.id} ({noise:g}) is more than its discordance ({discordance:g})",
            hint="Noise is the part of the discordance that two runs of the same arm have too",
        )
    return Belief(
        discordance=discordance,
        discordance_source=source,
        design_effect=effect,
        design_effect_source=effect_source,
        noise=noise,
        noise_source=noise_source,
        floor=pilot.metrics[metric.id].floor if pilot and metric.id in pilot.metrics else None,
    )


def _discordance(metric: MetricSpec, plan: Plan, given: Given, pilot: Pilot | None) -> tuple[float, str]:
    named = plan.named(metric, given.discordance)
    if named is not None:
        return named, "assumed"
    if pilot and (seen := pilot.metrics.get(metric.id)):
        return seen.discordance, f"pilot {pilot.id}, {seen.n_changed} of {seen.n_scores}"
    if EVERYWHERE in given.discordance:
        return given.discordance[EVERYWHERE], "assumed"
    return DEFAULT_DISCORDANCE, "assumed by default"


def _design_effect(
    metric: MetricSpec, plan: Plan, given: Given, pilot: Pilot | None, *, is_clustered: bool
) -> tuple[float, str]:
    named = plan.named(metric, given.design_effect)
    if named is not None:
        return named, "assumed"
    if not is_clustered:
        return 1.0, ""
    if pilot and (seen := pilot.metrics.get(metric.id)) and seen.design_effect is not None:
        return seen.design_effect, f"pilot {pilot.id}"
    return given.design_effect.get(EVERYWHERE, 1.0), "assumed" if EVERYWHERE in given.design_effect else "not known"


def _noise(metric: MetricSpec, plan: Plan, given: Given, pilot: Pilot | None) -> tuple[float, str]:
    if plan.sampling.repeats == 1:
        return 0.0, ""
    named = plan.named(metric, given.noise)
    if named is not None:
        return named, "assumed"
    if pilot and (seen := pilot.metrics.get(metric.id)) and seen.noise is not None:
        return seen.noise, f"pilot {pilot.id}"
    return given.noise.get(EVERYWHERE, 0.0), "assumed" if EVERYWHERE in given.noise else "not known"
