"""What a user asks for, and the plan that comes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qualab.errors import InvalidValue, PlanChanged, UsageError
from qualab.harness.process import LoadedTasks
from qualab.model.canonical import plain, plan_hash
from qualab.model.comparison import Comparison
from qualab.model.items import check_gen_kwargs
from qualab.model.names import Api
from qualab.model.plan import (
    Assumptions,
    DecisionRule,
    DrafterCosts,
    LookPlan,
    NoisePlan,
    PinPlaces,
    Pins,
    Plan,
    RequestPolicy,
    SamplingPlan,
    TaskSpec,
    check_names,
    commit_of,
)
from qualab.model.ports import TaskOptions
from qualab.run.pins import check_pins, places_text

DEFAULT_SUITE = "release"
MOST_LOOKS = 10
MOST_NOISE_RUNS = 9
LONGEST_TIMEOUT_S = 86_400
SMALLEST_MARGIN, SMALLEST_ALPHA, MOST_POWER = 1e-6, 1e-9, 0.999999
"""Beyond them the arithmetic of power ends, and no number of items would do."""
MARGIN = f"a fraction between 0 and 1, as 0.02 for 2 percentage points, and at least {SMALLEST_MARGIN:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A comparison as its user describes it; lm-eval's names and meanings where it has them."""

    model: str
    baseline: str = ""
    """URL; empty where nothing is asked yet. So is the next."""
    candidate: str = ""
    tasks: tuple[str, ...] = (DEFAULT_SUITE,)
    num_fewshot: int | None = None
    limit: float | None = None
    include_path: tuple[Path, ...] = ()
    data_dir: Path | None = None
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict)
    allow_extra: bool = False
    """Whether generation settings may be sent that qualab does not know."""
    seed: int = 1234
    repeats: int = 1
    looks: int | None = None
    sequential: bool = False
    noise_floor: NoisePlan | None = None
    drafter_costs: DrafterCosts | None = None
    apply_chat_template: bool | None = None
    system_instruction: str = ""
    tokenizer: str = ""
    label: str = ""
    policy: RequestPolicy = field(default_factory=RequestPolicy)
    rule: DecisionRule = field(default_factory=DecisionRule)
    expected_missing: float = 0.0
    """Share of each arm's answers that is expected to be missing: for planning alone."""
    image: str = ""
    revision: str = ""
    places: PinPlaces = field(default_factory=PinPlaces)


def task_options(experiment: Experiment, frozen: Plan | None = None) -> TaskOptions:
    """The part of an experiment that the harness needs; its data are read at the commits that a frozen plan records."""
    return TaskOptions(
        names=experiment.tasks,
        num_fewshot=experiment.num_fewshot,
        limit=experiment.limit,
        gen_kwargs=experiment.gen_kwargs or None,
        seed=experiment.seed,
        include_paths=experiment.include_path,
        data_dir=experiment.data_dir,
        revisions=_commits(frozen) if frozen else {},
        apply_chat_template=experiment.apply_chat_template,
        system_instruction=experiment.system_instruction,
    )


def planned_options(plan: Plan, local: Mapping[str, str]) -> TaskOptions:
    """The options that load a stored plan's tasks again."""
    return TaskOptions(
        names=plan.requested,
        num_fewshot=plan.num_fewshot,
        limit=plan.limit,
        gen_kwargs=plan.sampling.gen_kwargs or None,
        seed=plan.sampling.seed,
        include_paths=tuple(Path(p) for p in local.get("include_path", "").split("\n") if p),
        data_dir=Path(local["data_dir"]) if local.get("data_dir") else None,
        revisions=_commits(plan),
        apply_chat_template=plan.sampling.api is Api.CHAT,
        system_instruction=plan.sampling.system_instruction,
    )


def _commits(plan: Plan) -> dict[str, str]:
    return {task.name: task.revision for task in plan.tasks if commit_of(task.revision)}


def local_of(experiment: Experiment) -> dict[str, str]:
    """Where this machine finds things: kept with the comparison, not in its plan."""
    return {
        "data_dir": str(experiment.data_dir.resolve()) if experiment.data_dir else "",
        "include_path": "\n".join(str(path.resolve()) for path in experiment.include_path),
        "tokenizer": experiment.tokenizer,
        **places_text(experiment.places),
    }


def make_plan(
    experiment: Experiment,
    tasks: LoadedTasks,
    *,
    assumptions: Assumptions | None = None,
    checkpoint_hash: str = "",
) -> Plan:
    """Freezes what will be asked and how it will be judged. Raises InvalidValue."""
    check(experiment)
    plan = Plan(
        suite=tasks.suite,
        requested=experiment.tasks,
        tasks=tasks.tasks,
        metrics=tasks.metrics,
        sampling=SamplingPlan(
            model=experiment.model,
            api=Api.CHAT if tasks.applies_chat_template else Api.COMPLETIONS,
            gen_kwargs=dict(experiment.gen_kwargs),
            allow_extra=experiment.allow_extra,
            seed=experiment.seed,
            repeats=experiment.repeats,
            system_instruction=experiment.system_instruction,
        ),
        policy=experiment.policy,
        rule=experiment.rule,
        limit=experiment.limit,
        num_fewshot=experiment.num_fewshot,
        harness_version=tasks.harness_version,
        assumptions=assumptions,
        looks=_looks(experiment),
        noise_floor=experiment.noise_floor,
        pins=Pins(image=experiment.image, revision=experiment.revision, checkpoint_hash=checkpoint_hash),
        drafter_costs=experiment.drafter_costs,
        sequential=experiment.sequential,
    )
    check_names(plan.rule.margins, plan, what="margins")
    check_names(plan.rule.score_bounds, plan, what="score_bounds")
    return plan


def _looks(experiment: Experiment) -> LookPlan | None:
    """A loss has half the level, as it has in a two-sided test."""
    n_looks = experiment.looks
    return None if n_looks is None else LookPlan(n_looks=n_looks, harm_alpha=experiment.rule.alpha / 2.0)


def check(experiment: Experiment) -> None:
    """Raises InvalidValue for settings that no run can be made of."""
    check_rule(experiment.rule)
    check_gen_kwargs(experiment.gen_kwargs, allow_extra=experiment.allow_extra)
    check_pins(experiment.image, experiment.places)
    policy, noise, costs = experiment.policy, experiment.noise_floor, experiment.drafter_costs
    _check_demands(
        [
            (0 < policy.max_failed_share <= 1, "max_failed_share", "above 0 and at most 1"),
            (0 <= experiment.expected_missing < 1, "expected_missing", "at least 0 and below 1, as 0.005"),
            (policy.concurrency >= 1, "concurrency", "1 or more"),
            (0 < policy.timeout_s <= LONGEST_TIMEOUT_S, "timeout", f"above 0 and at most {LONGEST_TIMEOUT_S} seconds"),
            (policy.max_attempts >= 1, "max_attempts", "1 or more"),
            (0 <= policy.max_wait_s <= LONGEST_TIMEOUT_S, "max_wait", f"0 to {LONGEST_TIMEOUT_S} seconds"),
            (experiment.repeats >= 1, "repeats", "1 or more"),
            (noise is None or 1 <= noise.runs <= MOST_NOISE_RUNS, "noise_floor_runs", f"1 to {MOST_NOISE_RUNS}"),
            (noise is None or noise.concurrency >= 1, "noise_floor_concurrency", "1 or more"),
            (costs is None or min(costs.draft, costs.overhead) >= 0, "drafter_costs", "0 or more"),
            (
                experiment.looks is None or 2 <= experiment.looks <= MOST_LOOKS,
                "looks",
                f"2 to {MOST_LOOKS}, or not given",
            ),
            (
                experiment.limit is None or experiment.limit > 0,
                "limit",
                "a number above 0 (below 1: a share of the items)",
            ),
            (experiment.num_fewshot is None or experiment.num_fewshot >= 0, "num_fewshot", "0 or more"),
        ]
    )
    if experiment.sequential and experiment.looks:
        raise InvalidValue(
            "Looks compare the arms while both are asked, and --sequential asks one after the other",
            hint="Leave out looks, or serve both arms at once",
            fields={"looks": "may not be given with sequential"},
        )
    sampled = is_sampled(experiment.gen_kwargs)
    if experiment.repeats > 1 and not sampled:
        raise InvalidValue(
            f"repeats {experiment.repeats} at temperature 0 would ask the same thing again",
            hint="Set a temperature, as --gen_kwargs temperature=0.7, or leave --repeats at 1",
            fields={"repeats": "must be 1 at temperature 0"},
        )


def check_rule(rule: DecisionRule) -> None:
    """Raises InvalidValue for a rule that nothing can be judged by."""
    _check_demands(
        [
            (_is_margin(rule.margin), "margin", MARGIN),
            (SMALLEST_ALPHA <= rule.alpha < 0.5, "alpha", f"between 0 and 0.5, and at least {SMALLEST_ALPHA:g}"),
            (0 < rule.power <= MOST_POWER, "power", f"between 0 and 1, as 0.8, and at most {MOST_POWER:g}"),
            (_is_share(rule.max_missing_share), "max_missing_share", "at least 0 and below 1, or not given"),
            (_is_share(rule.missing_lost), "missing_lost", "at least 0 and below 1, or not given"),
            (0 <= rule.min_accepted_share < 1, "min_accepted_share", "at least 0 and below 1"),
        ]
    )
    for name, (low, high) in rule.score_bounds.items():
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InvalidValue(
                f"score_bounds: those of {name} must be two numbers, the lower first",
                hint=f"Given: {low:g} to {high:g}",
                fields={f"score_bounds.{name}": "must be two numbers, the lower first"},
            )
    for name, margin in rule.margins.items():
        if not _is_margin(margin):
            raise InvalidValue(
                f"margins: that of {name} must be {MARGIN}",
                hint=f"Given: {margin:g}",
                fields={f"margins.{name}": f"must be {MARGIN}"},
            )


def _is_margin(value: float) -> bool:
    return SMALLEST_MARGIN <= value < 1


def _is_share(value: float | None) -> bool:
    return value is None or 0 <= value < 1


def _check_demands(demands: Sequence[tuple[bool, str, str]]) -> None:
    for holds, name, allowed in demands:
        if not holds:
            raise InvalidValue(
                f"{name} must be {allowed}",
                hint=f"Change --{name.replace('_', '-')}",
                fields={name: f"must be {allowed}"},
            )


def is_sampled(gen_kwargs: Mapping[str, Any]) -> bool:
    """Whether these generation settings draw at random. Raises InvalidValue for a temperature that is no number."""
    temperature = gen_kwargs.get("temperature") or 0
    try:
        return float(temperature) > 0
    except (TypeError, ValueError) as exc:
        raise InvalidValue(
            f"temperature {temperature!r} is not a number",
            hint="Change --gen-kwargs",
            fields={"gen_kwargs": "its temperature must be a number"},
        ) from exc


AGAIN = "A changed plan is a new plan: run `qualab plan` again"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenPlan:
    """A plan with its hash, and the settings that it was made from."""

    plan: Plan
    plan_hash: str
    frozen_at: datetime
    settings: dict[str, Any]
    """As in an experiment file."""


def to_document(frozen: FrozenPlan, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values, what a person looks for first."""
    return {
        "qualab_plan": frozen.plan.schema,
        "hash": frozen.plan_hash,
        "frozen_at": frozen.frozen_at.isoformat(timespec="seconds"),
        "figures": dict(figures),
        "experiment": frozen.settings,
        "plan": plain(frozen.plan),
    }


def from_document(document: Mapping[str, Any], *, where: str) -> FrozenPlan:
    """Raises UsageError for what is no plan, PlanChanged where the plan is not the one that was hashed."""
    try:
        content, named = document["plan"], str(document["hash"])
        plan = _plans().validate_python(content)
        frozen = FrozenPlan(
            plan=plan,
            plan_hash=named,
            frozen_at=datetime.fromisoformat(str(document["frozen_at"])),
            settings=dict(document["experiment"]),
        )
    except (KeyError, TypeError, ValueError, ValidationError) as exc:
        raise UsageError(f"{where} is not a whole plan file", hint=f"It was edited or cut short. {AGAIN}") from exc
    if plan_hash(content) != named or plan_hash(plan) != named:
        raise PlanChanged(f"{where} was edited: its plan is not the one that was frozen as {named[:12]}", hint=AGAIN)
    return frozen


def refuse_imported(comparison: Comparison, what: str) -> Comparison:
    """The comparison. Raises InvalidValue for an imported one: qualab asked nothing, and has no tasks to ask with."""
    if comparison.plan.imported:
        raise InvalidValue(
            f"Comparison {comparison.id} was imported from logs: it cannot be {what}",
            hint="Its answers and scores are here: qualab show, compare, rescore",
        )
    return comparison


def check_unchanged(plan: Plan, tasks: LoadedTasks) -> None:
    """Raises PlanChanged when the tasks loaded now do not ask what those of the plan asked."""
    now = {task.name: deciding(task) for task in tasks.tasks}
    changed = [task.name for task in plan.tasks if now.get(task.name) != deciding(task)]
    if changed:
        raise PlanChanged(
            f"The prompts or items of {', '.join(changed)} are not those of the plan any more",
            hint="Use the same task files, data and lm-eval version as when the comparison started, or start a new one",
        )


def check_frozen(frozen: Plan, now: Plan) -> None:
    """Raises PlanChanged where a plan made now, of the same settings, is not the frozen one."""
    one, other = (replace(plan, tasks=tuple(map(deciding, plan.tasks))) for plan in (frozen, now))
    parts = [part.name for part in fields(Plan) if getattr(one, part.name) != getattr(other, part.name)]
    if parts:
        raise PlanChanged(
            f"What would be run now is not the frozen plan: {', '.join(parts)} differ",
            hint=f"Use the same task files, data, settings and lm-eval version as then. {AGAIN}",
        )


def deciding(task: TaskSpec) -> TaskSpec:
    """What decides what is asked: not where the documents were read, whose hash says whether they are the same, nor
    what is known of their choices."""
    return replace(task, revision="", n_choices=None)


@cache
def _plans() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)
