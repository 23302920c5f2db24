"""Starts comparisons that are timed alone, without tasks, and times the arms of stored ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace

from qualab.errors import WrongState
from qualab.model.engine import Burst
from qualab.model.names import ComparisonStatus
from qualab.model.plan import NO_TASKS, SpeedPlan
from qualab.model.ports import TaskOptions
from qualab.run.group import held, opened_pairs, start_group
from qualab.run.prepare import Run, Services, local_of, refuse_imported
from qualab.run.prune import check_free
from qualab.run.run import alone_on_hosts, analysed_run, check_again, set_status, start
from qualab.run.speed import measure_speed
from qualab.settings import Settings

HERE = ("speed_prompts", "tokenizer")
"""Places that may be given anew with an id."""
OF_TASKS = (
    *("num_fewshot", "limit", "looks", "sequential", "noise_floor_runs", "noise_floor_concurrency", "repeats"),
    *("bank", "bank_sample", "bank_signoff", "margins", "score_bounds"),
)


async def start_speed(services: Services, settings: Settings, *, is_timed: bool = True) -> None:
    """Store a new pair, or several candidates, as comparisons without tasks, and time them. Raises as `start`.

    Engines may differ in more than the drafter: that is told with the result.
    """
    defaults = {name: Settings.model_fields[name].default for name in OF_TASKS}
    own = settings.model_copy(update={**defaults, "tasks": NO_TASKS, "audit": False, "speed": is_timed})
    await (start_group if own.candidates else start)(services, own)


async def speed_of_stored(
    services: Services, comparison_id: str, settings: Settings, *, given: Collection[str] = ()
) -> None:
    """Time the arms of a stored comparison or group, or go on with that.

    It is timed as before, or as planned, but for the settings named in `given`. Raises as `stored_runs` and
    `measure_speed`; ComparisonBusy where another comparison uses the hosts.
    """
    async with stored_runs(services, comparison_id, settings) as runs:
        seen = services.store.observations(runs[0].id)
        before = [own.plan for own in seen if isinstance(own, Burst)]
        plan = changed_plan(before[-1] if before else runs[0].plan.speed, settings, given)
        with alone_on_hosts(runs):
            await measure_speed(runs, plan)
        for run in runs:
            if not run.plan.tasks and run.comparison.status is not ComparisonStatus.FINISHED:
                set_status(run, ComparisonStatus.ANSWERED)
                await analysed_run(run)


def changed_plan(before: SpeedPlan | None, settings: Settings, given: Collection[str]) -> SpeedPlan:
    """Change what `given` settings name in a plan; a new plan where there was none."""
    new, names = settings.speed_plan, {name.removeprefix("speed_") for name in given}
    names |= {"works"} if "prompts" in names else set()
    parts = (part.name for part in fields(SpeedPlan))
    changed = {part for part in parts if part.removesuffix("_s").removesuffix("_hash") in names}
    return replace(before or new, **{part: getattr(new, part) for part in changed})


@asynccontextmanager
async def stored_runs(services: Services, comparison_id: str, settings: Settings) -> AsyncIterator[Sequence[Run]]:
    """Hold a stored comparison, or all of a group, with its arms open: they have to be what they were. Tasks are none.

    Raises ComparisonNotFound, ComparisonBusy, WrongState where it waits for a worker, InvalidValue where it was
    imported, and as `check_again`.
    """
    members = services.store.group(comparison_id) or [services.store.get(comparison_id)]
    known = [check_free(services, own.id) for own in members]
    for own in known:
        if refuse_imported(own, "timed").status is ComparisonStatus.QUEUED:
            raise WrongState(f"Comparison {own.id} waits for a worker", hint=f"See: qualab gate {own.id}")
    here = {name: place for name, place in local_of(settings).items() if place and name in HERE}
    known = [replace(own, local={**own.local, **here}) for own in known]
    tasks = services.harness.load(TaskOptions(names=NO_TASKS))
    urls = {own.id: own.candidate_url for own in known}
    async with opened_pairs(services, known[0].baseline_url, urls, known[0].plan.policy) as pairs:
        runs = [Run(services, own, tasks, (), pairs[own.id]) for own in known]
        with held(runs):
            for run in runs:
                await check_again(run, run.comparison.local)
            yield runs
