"""The main job: plan, preflight, ask, score, analyse. A killed run resumes and asks only what is missing."""

from __future__ import annotations

import asyncio
import gc
import importlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from qualab.analysis.analyse import analyse
from qualab.analysis.scoring import score_answers
from qualab.errors import ComparisonBusy, PairDiffers, RunStopped, UsageError
from qualab.harness.process import LoadedTasks
from qualab.model.canonical import plan_hash
from qualab.model.comparison import Analysis, Comparison
from qualab.model.engine import Engine, EngineSeen, PinsSeen, Preflight, engines_seen, pins_seen, tokens_seen
from qualab.model.items import Item
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus, RequestKind
from qualab.model.plan import PinFound, PinPlaces, Plan
from qualab.model.ports import EndpointInfo, Progress, TaskOptions
from qualab.run.ask import Arm, Pause, ask_all, in_thread, kept_alive, n_requests, observation_pauses
from qualab.run.experiment import (
    Experiment,
    check,
    check_frozen,
    check_unchanged,
    local_of,
    make_plan,
    planned_options,
    refuse_imported,
    task_options,
)
from qualab.run.hints import resume_hint, way_on
from qualab.run.looks import look_pauses, looked_to
from qualab.run.noise import ask_noise, generations, tell_progress
from qualab.run.pins import find_pins, pin_findings, places_of, planned_hash, with_pins
from qualab.run.preflight import (
    Before,
    Endpoints,
    Keys,
    Stored,
    TurnChecked,
    check_again,
    check_pair,
    check_turn,
    fingerprints_of,
    inspect_arms,
    open_arm,
    open_arms,
    stop_at,
    trial_items,
)
from qualab.run.prepare import in_random_order, token_source, with_requests
from qualab.run.prune import check_free
from qualab.run.services import PairServices, Run, Services
from qualab.run.tokens import count_tokens

if TYPE_CHECKING:
    from qualab.store import Store


async def start(
    services: Services,
    experiment: Experiment,
    *,
    keys: Keys,
    progress: Progress,
    frozen: Plan | None = None,
    comparison_id: str = "",
    asked_at: datetime | None = None,
) -> Analysis:
    """Runs a new comparison to its verdict; it gets an id unless one is given. `asked_at`: when, if not now.

    Raises PlanChanged where it would not be the `frozen` plan.
    """
    check(experiment)
    if experiment.sequential:
        raise takes_turns()
    urls = {ArmName.BASELINE: experiment.baseline, ArmName.CANDIDATE: experiment.candidate}
    check_endpoints(services, *urls.values())
    async with open_arms(services, urls, policy=experiment.policy, keys=keys) as endpoints:
        tasks, plan = await planned_tasks(services, experiment, frozen, progress)
        progress.phase("Checking both endpoints")
        with lasting():
            items, preflight = await _prepared(services, experiment, plan, tasks, endpoints, progress=progress)
            stop_at(preflight.findings)
            comparison = new_comparison(services, experiment, plan, comparison_id, asked_at)
            services.store.create(comparison, items)
        with way_on(comparison.id):
            record_arms(services, comparison, preflight.engines, preflight.pins)
            run = Run(comparison=comparison, tasks=tasks, items=items, endpoints=endpoints, progress=progress)
            return await _carry_out(services, run, keys=keys)


async def look_before(
    services: PairServices, experiment: Experiment, *, keys: Keys, progress: Progress, frozen: Plan | None = None
) -> Preflight:
    """Everything that `start` would check before its first item, and nothing stored.

    Raises PlanChanged where a run would not be the `frozen` plan.
    """
    check(experiment)
    urls = {ArmName.BASELINE: experiment.baseline, ArmName.CANDIDATE: experiment.candidate}
    async with open_arms(services, urls, policy=experiment.policy, keys=keys) as endpoints:
        tasks, plan = await planned_tasks(services, experiment, frozen, progress)
        progress.phase("Checking both endpoints")
        return (await _prepared(services, experiment, plan, tasks, endpoints, progress=progress))[1]


async def resume(
    services: Services,
    comparison_id: str,
    *,
    keys: Keys,
    progress: Progress,
    local: Mapping[str, str] | None = None,
    retry_failed: bool = False,
) -> Analysis:
    """Goes on with a stored comparison. `local` overrides where this machine finds things. Raises ComparisonBusy."""
    comparison = check_free(services.store, comparison_id, runner=services.runner, now=services.clock.now())
    refuse_imported(comparison, "resumed")
    plan = comparison.plan
    if plan.sequential:
        raise takes_turns()
    here = {**comparison.local, **(local or {})}
    tasks, items = await stored_tasks(services, comparison, here, progress)
    urls = {ArmName.BASELINE: comparison.baseline_url, ArmName.CANDIDATE: comparison.candidate_url}
    check_endpoints(services, *urls.values())
    async with open_arms(services, urls, policy=plan.policy, keys=keys) as endpoints:
        progress.phase("Checking both endpoints")
        await inspect_arms(endpoints, model=plan.sampling.model)
        seen = services.store.observations(comparison.id)
        stored = fingerprints_of(services.store, comparison.id)
        engines = await check_again(endpoints, plan, engines_seen(seen), stored)
        pins = await find_pins(services.pins, plan.pins, places_of(here), engines, say=progress.phase)
        stop_at(pin_findings(plan.pins, pins, pins_seen(seen)))
        with way_on(comparison.id):
            record_arms(services, comparison, engines, pins)
            run = Run(comparison=comparison, tasks=tasks, items=items, endpoints=endpoints, progress=progress)
            return await _carry_out(services, run, keys=keys, retry_failed=retry_failed)


def takes_turns() -> UsageError:
    """Why a sequential comparison cannot be run on two servers that are simply there."""
    return UsageError(
        "Arm by arm, one server has to be stopped and the other started in the middle of the comparison",
        hint="Give --managed PAIR, whose servers this command starts and stops itself",
    )


async def planned_tasks(
    services: PairServices, experiment: Experiment, frozen: Plan | None, progress: Progress
) -> tuple[LoadedTasks, Plan]:
    """The tasks of a new comparison and its plan. Raises PlanChanged where that is not the `frozen` one."""
    tasks = await load_tasks(services, task_options(experiment, frozen), progress)
    return tasks, await _plan(services, experiment, tasks, frozen, progress)


async def stored_tasks(
    services: Services, comparison: Comparison, here: Mapping[str, str], progress: Progress
) -> tuple[LoadedTasks, list[Item]]:
    """A stored comparison's tasks, loaded again, and its items. Raises PlanChanged."""
    tasks = await load_tasks(services, planned_options(comparison.plan, here), progress)
    check_unchanged(comparison.plan, tasks)
    with lasting():
        return tasks, list(services.store.items(comparison.id))


async def load_tasks(services: PairServices, options: TaskOptions, progress: Progress) -> LoadedTasks:
    """Tasks with their documents."""
    progress.phase("Loading tasks")
    importlib.import_module("scipy.special")  # the analysis needs it: a broken installation should show here
    return await in_thread(services, lambda: services.harness.load(options))


async def _plan(
    services: PairServices, experiment: Experiment, tasks: LoadedTasks, frozen: Plan | None, progress: Progress
) -> Plan:
    """The plan: the frozen one, if what would be run is that, else PlanChanged.

    Of the checkpoint's hash in a frozen one the preflight says whether it is that of the folder here.
    """
    if frozen:
        check_unchanged(frozen, tasks)
    pins = frozen.pins if frozen else None
    checkpoint_hash = await planned_hash(services.pins, experiment.places, pins, say=progress.phase)
    assumptions = frozen.assumptions if frozen else None
    plan = make_plan(experiment, tasks, assumptions=assumptions, checkpoint_hash=checkpoint_hash)
    if frozen is None:
        return plan
    check_frozen(frozen, plan)
    return frozen


async def _prepared(
    services: PairServices,
    experiment: Experiment,
    plan: Plan,
    tasks: LoadedTasks,
    endpoints: Endpoints,
    *,
    progress: Progress,
) -> tuple[list[Item], Preflight]:
    infos = await inspect_arms(endpoints, model=experiment.model)
    items = await prepared_items(services, experiment, plan, tasks=tasks, endpoints=endpoints, infos=infos)
    preflight = await check_pair(endpoints, plan, items, infos)
    pins = await find_pins(services.pins, plan.pins, experiment.places, preflight.engines, say=progress.phase)
    return items, with_pins(preflight, plan.pins, pins)


async def prepared_items(
    services: PairServices,
    experiment: Experiment,
    plan: Plan,
    *,
    tasks: LoadedTasks,
    endpoints: Endpoints,
    infos: Mapping[ArmName, EndpointInfo],
) -> list[Item]:
    """The items of a new comparison in the plan's order, with their requests. The baseline tokenizes."""
    tokens, baseline = None, ArmName.BASELINE
    if any(task.kind is RequestKind.LOGLIKELIHOOD for task in plan.tasks):
        named = services.named_tokenizer(experiment.tokenizer) if experiment.tokenizer else None
        tokens = token_source(endpoints[baseline], infos[baseline], model=experiment.model, named=named)
    seed, n_stages = experiment.seed, experiment.looks or 1
    ordered = await in_thread(services, lambda: in_random_order(tasks.render(), seed=seed, n_stages=n_stages))
    return await with_requests(ordered, sampling=plan.sampling, tokens=tokens)


def record_arms(
    services: Services, comparison: Comparison, engines: Mapping[ArmName, Engine], pins: tuple[PinFound, ...]
) -> None:
    """Stores what both arms are made of."""
    for arm, engine in engines.items():
        seen = EngineSeen(arm=arm, seen_at=services.clock.now(), engine=engine)
        services.store.add_observation(comparison.id, seen)
    services.store.add_observation(comparison.id, PinsSeen(seen_at=services.clock.now(), pins=pins))


def new_comparison(
    services: Services, experiment: Experiment, plan: Plan, comparison_id: str = "", asked_at: datetime | None = None
) -> Comparison:
    """A comparison that has yet to be stored; it gets an id unless one is given. `asked_at`: when, if not now."""
    now = asked_at or services.clock.now()
    return Comparison(
        id=comparison_id or f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        plan=plan,
        plan_hash=plan_hash(plan),
        status=ComparisonStatus.PLANNED,
        label=experiment.label,
        created_at=now,
        started_at=None,
        finished_at=None,
        verdict=None,
        stop_reason="",
        duplicates=0,
        baseline_url=experiment.baseline,
        candidate_url=experiment.candidate,
        local=local_of(experiment),
    )


async def _carry_out(services: Services, run: Run, *, keys: Keys, retry_failed: bool = False) -> Analysis:
    store, clock, comparison_id = services.store, services.clock, run.comparison.id
    with lasting_until_here(), claimed(services, comparison_id):
        if retry_failed:
            store.drop_failures(comparison_id, from_position=looked_to(store.looks(comparison_id)))
        await ask_arms(services, run, keys)
        store.set_status(comparison_id, ComparisonStatus.ANSWERED, now=clock.now())
        return await conclude_run(services, run)


async def ask_arms(services: Services, run: Run, keys: Keys) -> None:
    """Asks what is missing of the run's arms, and of the noise floor where the baseline is one of them; after the
    candidate's last answer, for tokens of texts that differ.

    The status says how that ended. Raises as `ask_all`.
    """
    store, clock, comparison_id = services.store, services.clock, run.comparison.id
    store.set_status(comparison_id, ComparisonStatus.RUNNING, now=clock.now())
    try:
        tell_progress(services, run)
        await ask_all(services, run, pauses=partial(_pauses, services, run))
        if ArmName.BASELINE in run.endpoints:
            await ask_noise(services, run, keys=keys)
        if ArmName.CANDIDATE in run.endpoints:
            await count_tokens(services, run, keys=keys)
    except RunStopped as stop:
        store.set_status(comparison_id, ComparisonStatus.STOPPED, now=clock.now(), stop_reason=stop.message)
        raise RunStopped(stop.message, hint=resume_hint(comparison_id, retry_failed=True)) from stop
    except asyncio.CancelledError:
        _interrupted(services, comparison_id)
        raise
    finally:
        run.progress.finished()


def _interrupted(services: Services, comparison_id: str) -> None:
    """Notes it, unless another runner has taken over meanwhile: then the status is that runner's."""
    store, now = services.store, services.clock.now()
    with suppress(ComparisonBusy):
        store.heartbeat(comparison_id, runner=services.runner, now=now)
        store.set_status(comparison_id, ComparisonStatus.INTERRUPTED, now=now)


async def _pauses(services: Services, run: Run, arms: Sequence[Arm]) -> Sequence[Pause]:
    """Where engines are looked into, and where looks are taken; at one place in this order."""
    pauses = [*await observation_pauses(services, run, arms), *look_pauses(services, run)]
    return sorted(pauses, key=lambda pause: pause.end)


async def conclude_run(services: Services, run: Run) -> Analysis:
    """Scores and analyses what is stored, and stores the result. Raises ScoringTimedOut."""
    run.progress.phase("Scoring and analysing")

    def analysed() -> Analysis:
        with kept_alive(services, run.comparison.id):
            summary = score_answers(services.store, run.comparison.id, run.tasks, run.items, run.tasks.metrics)
            return analyse(services.store, run.comparison, run.tasks, run.items, summary)

    analysis = await in_thread(services, analysed)
    services.store.put_analysis(analysis, now=services.clock.now())
    return analysis


@contextmanager
def lasting() -> Iterator[None]:
    """What is made here lives until the run ends, as the tasks do: the garbage collector need not walk through it."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@contextmanager
def lasting_until_here() -> Iterator[None]:
    """Gives what is `lasting` back to the garbage collector in the end."""
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def claimed(services: Services, comparison_id: str) -> Iterator[None]:
    """Holds the right to run a comparison; a worker has it already, and keeps it. Raises ComparisonBusy."""
    store, runner = services.store, services.runner
    stale_after_s = services.pulse.stale_after_s
    is_new = store.claim(comparison_id, runner=runner, now=services.clock.now(), stale_after_s=stale_after_s)
    try:
        yield
    finally:
        if is_new:
            store.release(comparison_id, runner=runner)


def check_endpoints(services: Services, *urls: str) -> None:
    """Before anything is sent. Raises ComparisonBusy where another comparison that runs uses one of them."""
    services.store.check_endpoints(
        urls, runner=services.runner, now=services.clock.now(), stale_after_s=services.pulse.stale_after_s
    )


BASELINE, CANDIDATE = ArmName.BASELINE, ArmName.CANDIDATE


async def begin(
    services: Services, experiment: Experiment, *, keys: Keys, progress: Progress, frozen: Plan | None = None
) -> str:
    """A new comparison's first turn, the baseline's, with its noise floor; returns the comparison's id.

    Raises PairDiffers, PlanChanged, RunStopped, and what the endpoint and the store raise.
    """
    check(experiment)
    check_endpoints(services, experiment.baseline)
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
    check_endpoints(services, url)
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
