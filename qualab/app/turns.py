"""A run arm by arm, where one device holds one server: the baseline's turn, then the candidate's.

Whoever starts and stops the servers calls this in between: `begin` with the baseline served, then `take_turn` with the
candidate served; for a comparison that goes on, `take_turn` with each arm that `turns_left` names. What takes both arms
to find out is found at the start of the candidate's turn, and stops the run there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from qualab.app.asking import n_requests
from qualab.app.checks import Before, TurnChecked, check_turn, stop_at
from qualab.app.experiment import Experiment, check
from qualab.app.heartbeats import kept_alive
from qualab.app.hints import way_on
from qualab.app.noise import generations
from qualab.app.pinning import find_pins, pin_findings, places_of
from qualab.app.preflight import Keys, fingerprints_of, inspect_arms, open_arm
from qualab.app.run import (
    ask_arms,
    claimed,
    conclude_run,
    lasting,
    lasting_until_here,
    new_comparison,
    planned_tasks,
    prepared_items,
    stored_tasks,
)
from qualab.app.services import Run, Services
from qualab.app.standing import check_free
from qualab.app.trials import Stored, trial_items
from qualab.domain.comparison import Analysis, Comparison
from qualab.domain.items import Item
from qualab.domain.names import AnswerStatus, ArmName, ComparisonStatus
from qualab.domain.observations import EngineSeen, PinsSeen, engines_seen, pins_seen, tokens_seen
from qualab.domain.pins import PinFound, PinPlaces
from qualab.domain.plan import Plan
from qualab.errors import PairDiffers
from qualab.ports import Progress, Store

BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE


async def begin(
    services: Services, experiment: Experiment, *, keys: Keys, progress: Progress, frozen: Plan | None = None
) -> str:
    """A new comparison's first turn, the baseline's, with its noise floor; returns the comparison's id.

    Raises PairDiffers, PlanChanged, RunStopped, and what the endpoint and the store raise.
    """
    check(experiment)
    async with open_arm(services, BASELINE, experiment.baseline, policy=experiment.policy, keys=keys) as endpoints:
        tasks, plan = await planned_tasks(services, experiment, frozen, progress)
        progress.phase("Checking the baseline; the candidate is checked when its turn comes")
        infos = await inspect_arms(endpoints, model=experiment.model)
        with lasting():
            items = await prepared_items(services, experiment, plan, tasks=tasks, endpoints=endpoints, infos=infos)
        checked = await check_turn(endpoints, plan, items, infos, Before())
        engines = {BASELINE: checked.engine}
        found = await find_pins(services.pins, plan.pins, experiment.places, engines, say=progress.phase)
        pins = _passed(plan, checked, found)
        comparison = new_comparison(services, experiment, plan)
        services.store.create(comparison, items)
        with lasting_until_here(), way_on(comparison.id), claimed(services, comparison.id):
            _record(services, comparison, BASELINE, checked, pins)
            run = Run(comparison=comparison, tasks=tasks, items=items, endpoints=endpoints, progress=progress)
            await _ask_baseline(services, run, keys)
    return comparison.id


def turns_left(services: Services, comparison_id: str, *, retry_failed: bool = False) -> tuple[ArmName, ...]:
    """The arms whose turns a stored comparison still needs. With `retry_failed` failures are to be asked again.

    Raises ComparisonNotFound, ComparisonBusy.
    """
    store = services.store
    comparison = store.get(comparison_id)
    with claimed(services, comparison.id):
        if retry_failed:
            store.drop_failures(comparison.id)
        items = list(store.items(comparison.id))
        is_done = _n_answered(store, comparison) == _n_planned(comparison.plan, items)
    return (CANDIDATE,) if is_done else (BASELINE, CANDIDATE)


async def take_turn(
    services: Services,
    comparison_id: str,
    arm: ArmName,
    *,
    keys: Keys,
    progress: Progress,
    local: Mapping[str, str] | None = None,
) -> Analysis | None:
    """One arm's turn of a stored comparison; the candidate's is the last and ends with the analysis.

    Raises as `begin`; a candidate that cannot be compared leaves the comparison stopped, to be resumed.
    """
    comparison = check_free(services.store, comparison_id, runner=services.runner, now=services.clock.now())
    here = {**comparison.local, **(local or {})}
    tasks, items = await stored_tasks(services, comparison, here, progress)
    url = comparison.baseline_url if arm is BASELINE else comparison.candidate_url
    async with open_arm(services, arm, url, policy=comparison.plan.policy, keys=keys) as endpoints:
        run = Run(comparison=comparison, tasks=tasks, items=items, endpoints=endpoints, progress=progress)
        with lasting_until_here(), way_on(comparison.id), claimed(services, comparison.id):
            await _check(services, run, arm, places_of(here))
            if arm is BASELINE:
                await _ask_baseline(services, run, keys)
                return None
            await ask_arms(services, run, keys)
            services.store.set_status(comparison.id, ComparisonStatus.ANSWERED, now=services.clock.now())
            return await conclude_run(services, run)


async def _ask_baseline(services: Services, run: Run, keys: Keys) -> None:
    """Between the turns nobody runs the comparison: whatever happens to the candidate's server, it can be resumed."""
    await ask_arms(services, run, keys)
    services.store.set_status(run.comparison.id, ComparisonStatus.INTERRUPTED, now=services.clock.now())


async def _check(services: Services, run: Run, arm: ArmName, places: PinPlaces) -> None:
    store, comparison, plan = services.store, run.comparison, run.comparison.plan
    run.progress.phase(f"Checking the {arm}{', against what was seen of the baseline' if arm is CANDIDATE else ''}")
    with kept_alive(services, comparison.id):
        infos = await inspect_arms(run.endpoints, model=plan.sampling.model)
        seen = store.observations(comparison.id)
        before = Before(
            engines=engines_seen(seen),
            tokens=tokens_seen(seen),
            fingerprints=fingerprints_of(store, comparison.id),
            baseline=await asyncio.to_thread(_baseline_of, store, comparison, run.items) if arm is CANDIDATE else None,
        )
        checked = await check_turn(run.endpoints, plan, run.items, infos, before)
        found = await find_pins(services.pins, plan.pins, places, {arm: checked.engine}, say=run.progress.phase)
        try:
            pins = _passed(plan, checked, found, pins_seen(seen))
        except PairDiffers as stop:
            now = services.clock.now()
            store.set_status(comparison.id, ComparisonStatus.STOPPED, now=now, stop_reason=stop.message)
            raise
    _record(services, comparison, arm, checked, pins)


def _baseline_of(store: Store, comparison: Comparison, items: Sequence[Item]) -> Stored:
    """The baseline's answers to what the candidate is tried with."""
    positions = {item.position for item in trial_items(items)}
    return {
        one.position: one.reply
        for one in store.answers(comparison.id, arm=BASELINE)
        if one.position in positions and (one.choice, one.repeat) == (0, 0) and _is_verdict_on_request(one.reply.status)
    }


def _is_verdict_on_request(status: AnswerStatus) -> bool:
    return status.is_answer or status is AnswerStatus.REJECTED


def _passed(
    plan: Plan, checked: TurnChecked, found: tuple[PinFound, ...], earlier: tuple[PinFound, ...] = ()
) -> tuple[PinFound, ...]:
    """The pins of both arms, as far as known. Raises PairDiffers where the arm cannot be compared."""
    arms = {one.arm for one in found}
    known = sorted((*(one for one in earlier if one.arm not in arms), *found), key=lambda one: one.arm)
    stop_at([*checked.findings, *pin_findings(plan.pins, known, earlier)])
    return tuple(known)


def _record(
    services: Services, comparison: Comparison, arm: ArmName, checked: TurnChecked, pins: tuple[PinFound, ...]
) -> None:
    now = services.clock.now()
    seen = EngineSeen(arm=arm, seen_at=now, engine=checked.engine, tokens=checked.tokens)
    services.store.add_observation(comparison.id, seen)
    services.store.add_observation(comparison.id, PinsSeen(seen_at=now, pins=pins))


def _n_planned(plan: Plan, items: Sequence[Item]) -> int:
    """Requests that the baseline gets, those of the noise floor among them."""
    runs = plan.noise_floor.runs if plan.noise_floor else 0
    return n_requests(items, plan.sampling) + runs * n_requests(generations(items), plan.sampling)


def _n_answered(store: Store, comparison: Comparison) -> int:
    runs = comparison.plan.noise_floor.runs if comparison.plan.noise_floor else 0
    numbers = range(runs + 1)
    found = (store.answered(comparison.id, run=number) for number in numbers)
    return sum(key[0] is BASELINE for keys in found for key in keys)
