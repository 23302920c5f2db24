"""Runs a comparison: plan, preflight, ask, score, analyse. A killed run resumes and asks only what is missing."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from qualab.analysis.analyse import analyse
from qualab.analysis.replicas import known_fingerprints
from qualab.analysis.scoring import score_answers
from qualab.errors import (
    ComparisonBusy,
    ComparisonNotFound,
    EndpointMisconfigured,
    InvalidValue,
    PairDiffers,
    QualabError,
    RunStopped,
    StoreError,
    UsageError,
    WrongState,
)
from qualab.harness.process import LoadedTasks
from qualab.model.comparison import Analysis, Comparison
from qualab.model.engine import (
    AuditSeen,
    EngineSeen,
    PinsSeen,
    Preflight,
    engines_seen,
    last_seen,
    pins_seen,
    tokens_seen,
)
from qualab.model.items import Item, Reply, generations, n_requests
from qualab.model.names import AnswerStatus, ArmName, ComparisonStatus, RequestKind
from qualab.model.plan import NO_TASKS, Plan
from qualab.model.reason import Reason
from qualab.model.registry import signed_off
from qualab.report.words import ENGLISH
from qualab.run import preflight, prepare
from qualab.run.ask import ask_all, ask_noise, in_thread, kept_alive, looked_to
from qualab.run.audit import BASELINE_AWAY, audit_answers, telling_ids
from qualab.run.bank import bank_findings, banked_answers, check_requests, find_banked, sample_of, sample_run, with_bank
from qualab.run.pins import find_pins, pin_findings
from qualab.run.preflight import BASELINE, CANDIDATE, Endpoints
from qualab.run.prepare import PairServices, Run, Services
from qualab.run.prune import check_free, resume_hint, way_on
from qualab.run.replicas import check_arms, leave_out_dead, look_again, record_replicas
from qualab.run.speed import measure_speed
from qualab.run.tokens import count_tokens
from qualab.run.workloads import read_prompts
from qualab.settings import Settings, check_given

if TYPE_CHECKING:
    from qualab.store import Store

FINGERPRINTED = range(500)
"""Items whose answers tell an arm's fingerprints, of which what goes on has to have one: replicas take turns."""
FREE_WITHIN_S = 60
"""Seconds that timing waits for hosts that other comparisons use."""


async def start(
    services: Services,
    settings: Settings,
    *,
    arms: Iterable[ArmName] = ArmName,
    frozen: Plan | None = None,
    comparison_id: str = "",
    asked_at: datetime | None = None,
) -> Analysis | None:
    """Run a new comparison to its verdict, or to the end of the baseline's turn, which has none.

    `asked_at` says when it was asked for, if not now. Raises InvalidValue, PairDiffers, PlanChanged where it would not
    be the `frozen` plan, RunStopped, and what the endpoints and the store raise.
    """
    check_given(settings)
    urls = _served(services, settings.baseline, settings.candidate, arms, is_sequential=settings.sequential)
    async with preflight.open_arms(services, urls, policy=settings.policy) as endpoints:
        tasks, plan, items, checked = await prepared(services, settings, endpoints, frozen)
        preflight.stop_at(checked.findings)
        now = asked_at or services.clock.now()
        comparison = prepare.new_comparison(comparison_id or prepare.new_id(now), plan, settings, now=now)
        services.store.create(comparison, items, banked_answers(services.store, plan, items))
        run = Run(services, comparison, tasks, items, endpoints)
        with way_on(run.id), claimed(services, run.id):
            record(run, checked)
            return await to_the_end(run)


async def look_before(services: PairServices, settings: Settings, *, frozen: Plan | None = None) -> Preflight:
    """Check everything that `start` would before its first item, and store nothing. Raises as `start`."""
    check_given(settings)
    urls = {BASELINE: settings.baseline, CANDIDATE: settings.candidate}
    async with preflight.open_arms(services, urls, policy=settings.policy) as endpoints:
        _, _, _, checked = await prepared(services, settings, endpoints, frozen)
        findings = sorted(checked.findings, key=lambda finding: not finding.stops)
        return replace(checked, findings=tuple(findings))


async def resume(
    services: Services,
    comparison_id: str,
    *,
    arms: Iterable[ArmName] = ArmName,
    local: Mapping[str, str] | None = None,
    retry_failed: bool = False,
) -> Analysis | None:
    """Go on with a stored comparison, or take one arm's turn. `local` overrides where this machine finds things.

    Raises ComparisonBusy, and as `start`; a candidate that cannot be compared in its turn leaves the comparison
    stopped, to be resumed.
    """
    comparison = check_free(services, comparison_id)
    prepare.refuse_imported(comparison, "resumed")
    async with _reopened(services, comparison, arms, local, way_on(comparison.id)) as run:
        if retry_failed:
            services.store.drop_failures(run.id, from_position=looked_to(services.store.looks(run.id)))
        return await to_the_end(run)


@asynccontextmanager
async def _reopened(
    services: Services,
    comparison: Comparison,
    arms: Iterable[ArmName],
    local: Mapping[str, str] | None,
    way: AbstractContextManager[object],
) -> AsyncIterator[Run]:
    """Hold a stored comparison with its arms open: they have to be what they were. `way` is entered with its claim."""
    plan, both = comparison.plan, (comparison.baseline_url, comparison.candidate_url)
    urls = _served(services, *both, arms, is_sequential=plan.sequential)
    here = {**comparison.local, **(local or {})}
    tasks = await load(services, lambda: prepare.tasks_again(services, comparison, here))
    items = list(services.store.items(comparison.id))
    async with preflight.open_arms(services, urls, policy=plan.policy) as endpoints:
        run = Run(services, comparison, tasks, items, endpoints)
        with way, claimed(services, run.id):
            with kept_alive(run):
                await check_again(run, here)
            yield run


def auditable(services: Services, comparison_id: str, *, is_given: bool = False) -> Comparison:
    """Return a finished comparison whose tokens can be audited. `is_given`: sizes of an audit are.

    Raises ComparisonNotFound, ComparisonBusy, ComparisonSignedOff, WrongState, InvalidValue where it was imported,
    generates nothing, or its plan has sizes of its own.
    """
    store = services.store
    comparison = check_free(services, comparison_id)
    plan = prepare.refuse_imported(comparison, "audited").plan
    if comparison.status is not ComparisonStatus.FINISHED:
        raise WrongState(
            f"Comparison {comparison.id} is {comparison.status}: it has no verdict yet", hint=resume_hint(comparison.id)
        )
    if store.signoffs(comparison.id):
        raise signed_off(comparison.id)
    if not any(task.kind is RequestKind.GENERATION for task in plan.tasks):
        raise InvalidValue(
            f"Comparison {comparison.id} generates nothing: there are no tokens to audit",
            hint="Choose tasks that generate, as suite release",
        )
    if is_given and plan.audit:
        raise InvalidValue(
            f"The plan of comparison {comparison.id} holds the audit's sizes",
            hint="Leave out the options of the audit, or start a new comparison with others",
        )
    return comparison


async def audit(
    services: Services,
    comparison_id: str,
    settings: Settings,
    *,
    arms: Iterable[ArmName] = ArmName,
    local: Mapping[str, str] | None = None,
) -> Analysis:
    """Audit the tokens of a finished comparison, or go on with its audit, and analyse it again.

    The sizes are those of its plan, else of `settings`. Its pair has to be what it was; of a sequential one the
    baseline alone may be served. Raises as `auditable` and `resume`.
    """
    comparison = auditable(services, comparison_id)
    plan = comparison.plan
    planned = plan.audit or settings.model_copy(update={"audit": True}).audit_plan(plan.suite)
    assert planned is not None
    async with _reopened(services, comparison, arms, local, nullcontext()) as run:
        await audit_answers(run, planned)
        await record_replicas(run, run.endpoints)
        return await analysed_run(run)


def lacks_baseline(store: Store, comparison_id: str) -> bool:
    """True where a sequential comparison's audit ended because the baseline's turn was over."""
    seen = last_seen(store.observations(comparison_id), AuditSeen)
    return seen is not None and seen.lack is not None and seen.lack.code == BASELINE_AWAY


def turns_left(services: Services, comparison_id: str, *, retry_failed: bool = False) -> tuple[ArmName, ...]:
    """List the arms whose turns a stored sequential comparison needs. With `retry_failed` failures are asked again.

    Raises ComparisonNotFound, ComparisonBusy.
    """
    store = services.store
    comparison = store.get(comparison_id)
    floor, sampling = comparison.plan.noise_floor, comparison.plan.sampling
    n_runs = floor.runs if floor else 0
    with claimed(services, comparison.id):
        if retry_failed:
            store.drop_failures(comparison.id)
        items = list(store.items(comparison.id))
        answered = [key for number in range(n_runs + 1) for key in store.answered(comparison.id, run=number)]
    n_planned = n_requests(items, sampling) + n_runs * n_requests(generations(items), sampling)
    is_done = sum(arm is BASELINE for arm, *_ in answered) == n_planned
    return (CANDIDATE,) if is_done else (BASELINE, CANDIDATE)


def takes_turns() -> UsageError:
    """For a sequential comparison on two servers that are simply there."""
    return UsageError(
        "Arm by arm, one server has to be stopped and the other started in the middle of the comparison",
        hint="Give --managed PAIR, whose servers this command starts and stops itself",
    )


# what the above share, in the order in which it is done


def _served(
    services: Services, baseline: str, candidate: str, arms: Iterable[ArmName], *, is_sequential: bool
) -> dict[ArmName, str]:
    """Map the arms that are served to their URLs.

    Raises UsageError for two at once where they take turns, ComparisonBusy where another comparison uses one of them.
    """
    urls = {arm: {BASELINE: baseline, CANDIDATE: candidate}[arm] for arm in arms}
    if is_sequential and len(urls) > 1:
        raise takes_turns()
    stale_after_s = services.heartbeat.stale_after_s
    services.store.check_endpoints(
        urls.values(), runner=services.runner, now=services.clock.now(), stale_after_s=stale_after_s
    )
    return urls


async def prepared(
    services: PairServices,
    settings: Settings,
    endpoints: Endpoints,
    frozen: Plan | None,
    *,
    others: Sequence[Endpoints] = (),
) -> tuple[LoadedTasks, Plan, list[Item], Preflight]:
    """Load tasks, make the plan and its requests, and look at the arms. `others`: pairs that get the same requests.

    Raises PlanChanged.
    """
    if settings.speed and settings.speed_prompts:
        read_prompts(settings.speed_prompts)  # what is wrong with them shows before anything is asked
    has_tasks = settings.tasks != NO_TASKS
    tasks = await load(
        services, lambda: services.harness.load(prepare.task_options(settings, frozen)), is_told=has_tasks
    )
    if frozen:
        prepare.check_unchanged(frozen, tasks)
    say = services.progress.phase
    fitting = await preflight.fitting_tasks(
        (endpoints, *others), tasks.tasks, settings.model, is_frozen=bool(frozen), say=say
    )
    if len(fitting) < len(tasks.tasks):
        tasks = await load(services, lambda: services.harness.load(prepare.task_options(settings, only=fitting)))
    local = prepare.local_of(settings)
    checkpoint_hash = frozen.pins.checkpoint_hash if frozen else ""
    if frozen is None and local["checkpoint"]:
        checkpoint_hash = await services.pins.checkpoint_hash(Path(local["checkpoint"]), say=say)
    assumptions = frozen.assumptions if frozen else None
    plan = prepare.make_plan(settings, tasks, assumptions=assumptions, checkpoint_hash=checkpoint_hash)
    store = services.store if isinstance(services, Services) else None  # a preflight has one where there is a bank
    banked = find_banked(store, settings.bank) if store else None
    plan = with_bank(plan, settings, banked)
    if frozen:
        prepare.check_frozen(frozen, plan)
        plan = frozen
    tokenize = await preflight.inspect_arms(endpoints, model=settings.model, say=say)
    scores = any(task.kind is RequestKind.LOGLIKELIHOOD for task in plan.tasks)
    named = services.named_tokenizer(settings.tokenizer) if scores and settings.tokenizer else None
    if scores and named is None and not tokenize[BASELINE]:
        raise EndpointMisconfigured(
            f"{endpoints[BASELINE].url} offers no /tokenize, and log-likelihood tasks need token ids",
            hint="Name the model's tokenizer with --tokenizer DIR_OR_FILE (a tokenizer.json)",
        )
    seed, n_stages = settings.seed, settings.looks or 1
    ordered = await in_thread(services, lambda: prepare.in_random_order(tasks.render(), seed=seed, n_stages=n_stages))
    told = [await telling_ids(pair, plan.sampling.api) for pair in (endpoints, *others)] if plan.audit else [{}]
    telling = min(told, key=len)  # where every arm takes it
    items = await prepare.with_requests(
        ordered, sampling=plan.sampling, endpoint=endpoints[BASELINE], named=named, telling=telling
    )
    if store:
        await asyncio.to_thread(check_requests, store, plan, items)
    checked = await checked_pair(services, plan, items, endpoints, tokenize=tokenize, local=local)
    if banked:
        checked = replace(checked, findings=(*checked.findings, *bank_findings(banked, plan, checked)))
    return tasks, plan, items, checked


async def checked_pair(
    services: PairServices,
    plan: Plan,
    items: Sequence[Item],
    endpoints: Endpoints,
    *,
    tokenize: Mapping[ArmName, bool],
    local: Mapping[str, str],
) -> Preflight:
    """Look at the arms of a new comparison, and at what pins them."""
    checked = await check_arms(endpoints, plan, items, tokenize, preflight.Before())
    pins = await find_pins(services.pins, plan.pins, local, checked.engines, say=services.progress.phase)
    findings = (*checked.findings, *pin_findings(plan.pins, pins))
    return replace(checked, findings=findings, pins=pins)


async def load(services: PairServices, job: Callable[[], LoadedTasks], *, is_told: bool = True) -> LoadedTasks:
    """Load tasks in a thread."""
    if is_told:
        services.progress.phase("Loading tasks")
    importlib.import_module("scipy.special")  # the analysis needs it: a broken installation should show here
    return await in_thread(services, job)


async def check_again(run: Run, here: Mapping[str, str]) -> None:
    """Store what the served arms are now. Raises PairDiffers where they are no pair, or not what they were."""
    services, store, plan = run.services, run.services.store, run.plan
    await leave_out_dead(run.endpoints)
    tokenize = await preflight.inspect_arms(run.endpoints, model=plan.sampling.model, say=services.progress.phase)
    observations = store.observations(run.id)
    earlier = pins_seen(observations)
    first = {arm: store.answers(run.id, arm=arm, positions=FINGERPRINTED) for arm in ArmName}
    before = preflight.Before(
        engines=engines_seen(observations),
        tokens=tokens_seen(observations),
        fingerprints={
            arm: {answer.reply.system_fingerprint for answer in own} - {""} | known_fingerprints(observations, arm)
            for arm, own in first.items()
        },
        baseline={} if BASELINE in run.endpoints else await asyncio.to_thread(_tried_answers, run),
    )
    checked = await check_arms(run.endpoints, plan, run.items, tokenize, before)
    new_pins = await find_pins(services.pins, plan.pins, here, checked.engines, say=services.progress.phase)
    pins = tuple(
        sorted((*(pin for pin in earlier if pin.arm not in run.endpoints), *new_pins), key=lambda pin: pin.arm)
    )
    try:
        preflight.stop_at([*checked.findings, *pin_findings(plan.pins, pins, earlier)])
    except PairDiffers as stop:
        # the candidate's turn has begun: lists show why it goes no further
        if plan.sequential and run.comparison.status is not ComparisonStatus.FINISHED:
            set_status(run, ComparisonStatus.STOPPED, stop)
        raise
    record(run, replace(checked, pins=pins))


def _tried_answers(run: Run) -> dict[int, Reply]:
    """Read the baseline's answers to what the candidate is tried with."""
    positions = {item.position for item in preflight.trial_items(run.items)}
    return {
        answer.position: answer.reply
        for answer in run.services.store.answers(run.id, arm=BASELINE, positions=positions)
        if (answer.choice, answer.repeat) == (0, 0)
        and (answer.reply.status.is_answer or answer.reply.status is AnswerStatus.REJECTED)
    }


def record(run: Run, checked: Preflight) -> None:
    """Store what the arms are."""
    now, store = run.services.clock.now(), run.services.store
    for arm, engine in checked.engines.items():
        seen = EngineSeen(arm=arm, seen_at=now, engine=engine, tokens=checked.tokens.get(arm, ""))
        store.add_observation(run.id, seen)
    store.add_observation(run.id, PinsSeen(seen_at=now, pins=checked.pins))


@contextmanager
def claimed(services: Services, comparison_id: str) -> Iterator[None]:
    """Hold the right to run a comparison; a worker has it already, and keeps it. Raises ComparisonBusy."""
    store, runner, stale_after_s = services.store, services.runner, services.heartbeat.stale_after_s
    is_new = store.claim(comparison_id, runner=runner, now=services.clock.now(), stale_after_s=stale_after_s)
    try:
        yield
    finally:
        if is_new:
            store.release(comparison_id, runner=runner)


@contextmanager
def alone_on_hosts(runs: Iterable[Run]) -> Iterator[None]:
    """Keep other comparisons off the hosts of those that are claimed, as for what is timed. Raises ComparisonBusy."""
    with ExitStack() as stack:
        for run in runs:
            store, runner, now = run.services.store, run.services.runner, run.services.clock.now()
            stale_after_s = run.services.heartbeat.stale_after_s
            if store.hold_hosts(run.id, runner=runner, now=now, stale_after_s=stale_after_s):
                stack.callback(store.free_hosts, run.id, runner=runner)
        yield


async def time_arms(runs: Sequence[Run]) -> None:
    """Time arms as their plan says, alone on their hosts. Raises as `measure_speed`, and ComparisonBusy.

    After tasks it waits a while for the hosts, and what still keeps it from its end is told of alone.
    """
    services, plan = runs[0].services, runs[0].plan
    if plan.speed is None:
        return
    try:
        with ExitStack() as stack:
            for run in runs:
                stack.enter_context(kept_alive(run))
            for n_left in reversed(range(FREE_WITHIN_S if plan.tasks else 1)):
                try:
                    stack.enter_context(alone_on_hosts(runs))
                    break
                except ComparisonBusy:
                    if not n_left:
                        raise
                await asyncio.sleep(1.0)
            await measure_speed(runs, plan.speed)
    except (StoreError, ComparisonNotFound):
        raise
    except QualabError as error:
        if not plan.tasks:
            raise
        of_all = plan.group.id if plan.group else runs[0].id
        services.progress.phase(ENGLISH.reason(Reason("speed-lack.stopped", {"why": error.message, "id": of_all})))


async def to_the_end(run: Run) -> Analysis | None:
    """Ask what is missing, score and analyse what is stored, and store the result. Raises ScoringTimedOut."""
    await _ask_arms(run)
    if CANDIDATE not in run.endpoints:
        set_status(run, ComparisonStatus.INTERRUPTED)  # until the candidate's turn, whatever becomes of its server
        return None
    set_status(run, ComparisonStatus.ANSWERED)
    return await analysed_run(run)


async def analysed_run(run: Run) -> Analysis:
    """Score and analyse what is stored, and store the result. Raises ScoringTimedOut."""
    run.services.progress.phase("Scoring and analysing")
    store = run.services.store

    def analysed() -> Analysis:
        with kept_alive(run):
            summary = score_answers(store, run.id, run.tasks, run.items, run.tasks.metrics)
            return analyse(store, run.comparison, run.tasks, run.items, summary)

    analysis = await in_thread(run.services, analysed)
    store.put_analysis(analysis, now=run.services.clock.now())
    return analysis


async def _ask_arms(run: Run) -> None:
    """Ask what is missing of the arms that are served, then of the noise floor, then tokens; then audit them.

    The status says how that ended. Raises as `ask_all`.
    """
    store, sampling = run.services.store, run.plan.sampling
    set_status(run, ComparisonStatus.RUNNING)
    try:
        totals, answered = dict.fromkeys(ArmName, n_requests(run.items, sampling)), store.answered(run.id)
        done = {name: sum(key[0] is name for key in answered) for name in ArmName}
        for number in range(1, run.plan.n_baseline_runs):  # the others have a progress of their own
            totals[BASELINE] += n_requests(generations(run.items), sampling)
            done[BASELINE] += len(store.answered(run.id, run=number))
        if run.plan.bank:
            totals[BASELINE] += len(sample_of(run.plan, run.items))
            done[BASELINE] += len(store.answered(run.id, run=sample_run(run.plan)))
        run.services.progress.started(run.comparison, totals=totals, done=done)
        await ask_all(run)
        if run.plan.bank:  # what a look left out stands in for nothing
            store.drop_answers(run.id, from_position=looked_to(store.looks(run.id)) or len(run.items))
        if BASELINE in run.endpoints:
            await ask_noise(run)
        if CANDIDATE in run.endpoints:
            await count_tokens(run)
        if run.plan.audit:
            await audit_answers(run, run.plan.audit)
        if not run.plan.group:
            await time_arms([run])
        await look_again(run)
    except RunStopped as stop:
        await record_replicas(run, run.endpoints)
        set_status(run, ComparisonStatus.STOPPED, stop)
        stop.hint = stop.hint or resume_hint(run.id, retry_failed=True)
        raise
    except PairDiffers as stop:  # a replica is not what it was
        set_status(run, ComparisonStatus.STOPPED, stop)
        raise
    except asyncio.CancelledError:
        with suppress(ComparisonBusy):  # another runner has taken over meanwhile: then the status is that runner's
            store.heartbeat(run.id, runner=run.services.runner, now=run.services.clock.now())
            set_status(run, ComparisonStatus.INTERRUPTED)
        raise
    finally:
        run.services.progress.finished()


def set_status(run: Run, status: ComparisonStatus, stop: QualabError | None = None) -> None:
    """Set the status of a run that goes on, or why it `stop`s."""
    reason = stop.details["reason"] if stop else None
    assert reason is None or isinstance(reason, Reason)
    run.services.store.set_status(run.id, status, now=run.services.clock.now(), stop_reason=reason)
