"""Runs several candidates against one baseline, which is asked once: each has a comparison of its own, all in step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import combinations, product

from qualab.errors import ComparisonBusy, InvalidValue, QualabError, RunStopped, UsageError, WrongState
from qualab.model.comparison import Analysis, Comparison
from qualab.model.items import Answer
from qualab.model.names import AuditPart, ComparisonStatus
from qualab.model.plan import Group, Plan, RequestPolicy
from qualab.model.registry import urls_of
from qualab.run import preflight, prepare
from qualab.run.ask import (
    AnswerKey,
    Arm,
    Job,
    Pause,
    Recorder,
    answers_there,
    arms_of,
    at_once,
    feed,
    jobs_of_plan,
    kept_alive,
    lacking,
    looked_to,
    pauses_of,
    work,
)
from qualab.run.bank import banked_answers, sample_left, sample_run
from qualab.run.preflight import BASELINE, CANDIDATE, Endpoints
from qualab.run.prepare import Run, Services
from qualab.run.prune import check_free, resume_hint, way_on
from qualab.run.run import check_again, checked_pair, claimed, load, prepared, record, set_status, time_arms, to_the_end
from qualab.settings import Settings, check_given


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """Outcome of each candidate: its analysis, or what stopped it."""

    id: str
    outcomes: Mapping[str, Analysis | RunStopped]


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One candidate while it is asked."""

    run: Run
    arm: Arm
    lacks: Callable[[Arm, Job | Answer], bool]
    stop: RunStopped | None = None


async def start_group(
    services: Services,
    settings: Settings,
    *,
    frozen: Plan | None = None,
    comparison_id: str = "",
    asked_at: datetime | None = None,
) -> GroupResult:
    """Run new comparisons of several candidates to their verdicts. `comparison_id`: the first one's, if it has one.

    A candidate that cannot be compared keeps all from starting; one that fails later stops alone. Raises as `start`.
    """
    check_given(settings)
    pairs = settings.pairs
    first, *others = pairs
    async with opened_pairs(services, settings.baseline, settings.candidates, settings.policy) as arms:
        with _of_candidate(first):
            also = [arms[name] for name in others]
            tasks, plan, items, checked = await prepared(services, pairs[first], arms[first], frozen, others=also)
            preflight.stop_at(checked.findings)
        all_checked, local, say = [checked], prepare.local_of(settings), services.progress.phase
        for name in others:
            with _of_candidate(name):
                tokenize = await preflight.inspect_arms(arms[name], model=settings.model, say=say)
                checked = await checked_pair(services, plan, items, arms[name], tokenize=tokenize, local=local)
                preflight.stop_at(checked.findings)
            all_checked.append(checked)
        now = asked_at or services.clock.now()
        group_id = comparison_id.removesuffix(f"-{first}") or prepare.new_id(now)
        runs = []
        for name, pair in pairs.items():
            own = replace(plan, group=Group(id=group_id, name=name, names=tuple(pairs)))
            comparison = prepare.new_comparison(f"{group_id}-{name}", own, pair, now=now)
            runs.append(Run(services, comparison, tasks, items, arms[name]))
        banked = banked_answers(services.store, plan, items)
        services.store.create(runs[0].comparison, items, banked, more=[run.comparison for run in runs[1:]])
        with way_on(group_id), held(runs):
            for run, seen in zip(runs, all_checked, strict=True):
                record(run, seen)
            return await _to_the_ends(group_id, runs)


async def resume_group(
    services: Services, group_id: str, *, local: Mapping[str, str] | None = None, retry_failed: bool = False
) -> GroupResult:
    """Go on with all comparisons of a group that have not finished, in step. Raises as `resume`, WrongState."""
    store = services.store
    known = [check_free(services, own.id) for own in store.group(group_id)]
    known = [own for own in known if own.status is not ComparisonStatus.FINISHED or retry_failed]
    known = [own for own in known if not store.signoffs(own.id)]
    if not known:
        raise WrongState(f"Every comparison of group {group_id} is finished", hint=f"See: qualab show {group_id}")
    here = {**known[0].local, **(local or {})}
    tasks = await load(services, lambda: prepare.tasks_again(services, known[0], here))
    items, urls = list(store.items(known[0].id)), {_name(own): own.candidate_url for own in known}
    async with opened_pairs(services, known[0].baseline_url, urls, known[0].plan.policy) as arms:
        runs = [Run(services, own, tasks, items, arms[_name(own)]) for own in known]
        with way_on(group_id), held(runs):
            for run in runs:
                with _of_candidate(_name(run.comparison)):
                    await check_again(run, here)
                if retry_failed:
                    store.drop_failures(run.id, from_position=looked_to(store.looks(run.id)))
            return await _to_the_ends(group_id, runs)


def _name(comparison: Comparison) -> str:
    assert comparison.plan.group
    return comparison.plan.group.name


@asynccontextmanager
async def opened_pairs(
    services: Services, baseline: str, candidates: Mapping[str, str], policy: RequestPolicy
) -> AsyncIterator[dict[str, Endpoints]]:
    """Open each candidate's pair.

    Raises InvalidValue for one server twice, ComparisonBusy where another comparison uses one.
    """
    for (name, urls_text), (other, other_text) in combinations(candidates.items(), 2):
        for url, other_url in product(urls_of(urls_text), urls_of(other_text)):
            if services.is_same_server(url, other_url):
                message = f"Candidates {name} and {other} are the same server ({url})"
                raise InvalidValue(message, hint="Give each candidate a server of its own")
    urls, stale_after_s = (baseline, *candidates.values()), services.heartbeat.stale_after_s
    services.store.check_endpoints(urls, runner=services.runner, now=services.clock.now(), stale_after_s=stale_after_s)
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(
                preflight.open_arms(services, {BASELINE: baseline, CANDIDATE: url}, policy=policy)
            )
            for name, url in candidates.items()
        }


@contextmanager
def _of_candidate(name: str) -> Iterator[None]:
    """Name the candidate in an error that is about its pair."""
    try:
        yield
    except QualabError as error:
        if not isinstance(error, UsageError) or error.message.startswith("Candidate"):
            error.message = f"Candidate {name}: {error.message.removeprefix('Candidate: ')}"
        raise


@contextmanager
def held(runs: Iterable[Run]) -> Iterator[None]:
    """Hold every run's claim, with heartbeats, until the last has ended."""
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(claimed(run.services, run.id))
            stack.enter_context(kept_alive(run))
        yield


async def _to_the_ends(group_id: str, runs: Sequence[Run]) -> GroupResult:
    """Ask all in step, then bring each comparison to its end as if it were alone: nothing is left to ask in step."""
    outcomes: dict[str, Analysis | RunStopped] = {}
    try:
        first, *others = await _ask_together(group_id, runs)
        if to_time := [member.run for member in (first, *others) if not member.stop]:
            await time_arms(to_time)
        for member in (*others, first):  # the first may stand for all in a queue
            run, name = member.run, _name(member.run.comparison)
            if member.stop:
                set_status(run, ComparisonStatus.STOPPED, member.stop)
                outcomes[name] = member.stop
                continue
            await asyncio.to_thread(_share, run, [other for other in runs if _name(other.comparison) in outcomes])
            try:
                analysis = await to_the_end(run)
            except RunStopped as stop:
                outcomes[name] = stop
            else:
                assert analysis is not None  # both arms are served
                outcomes[name] = analysis
    except asyncio.CancelledError:
        for run in runs:
            if _name(run.comparison) not in outcomes:
                with suppress(ComparisonBusy):  # another runner has taken over meanwhile
                    run.services.store.heartbeat(run.id, runner=run.services.runner, now=run.services.clock.now())
                    set_status(run, ComparisonStatus.INTERRUPTED)
        raise
    return GroupResult(id=group_id, outcomes=outcomes)


async def _ask_together(group_id: str, runs: Sequence[Run]) -> list[Member]:
    """Ask what is missing of all arms. A candidate that fails too often is stopped; the baseline stops all."""
    services, progress = runs[0].services, runs[0].services.progress
    baseline = next(arm for arm in arms_of(runs[0]) if arm.name is BASELINE)
    members: list[Member] = []
    pauses: list[Pause] = []
    there: list[Mapping[int, set[AnswerKey]]] = []
    for run in runs:
        candidate = next(arm for arm in arms_of(run) if arm.name is CANDIDATE)
        there.append(answers_there(run))
        members.append(Member(run=run, arm=candidate, lacks=lacking(there[-1])))
        own_pauses = await pauses_of(run, [baseline, candidate])
        pauses += [(end, partial(_goes_on, members, members[-1], then)) for end, then in own_pauses]
        set_status(run, ComparisonStatus.RUNNING)
    asked = [sample_run(runs[0].plan)] if runs[0].plan.bank else [*there[0]]
    done = {
        BASELINE: min(sum(key[0] is BASELINE for number in asked for key in own[number]) for own in there),
        CANDIDATE: sum(key[0] is CANDIDATE for own in there for key in own[0]),
    }
    totals = {BASELINE: baseline.total, CANDIDATE: sum(member.arm.total for member in members)}
    progress.started(replace(runs[0].comparison, id=group_id), totals=totals, done=done)

    def put(answers: Sequence[tuple[Sequence[str], Answer]]) -> None:
        by_comparison: dict[str, list[Answer]] = {run.id: [] for run in runs}
        for ids, answer in answers:
            for comparison_id in ids:
                by_comparison[comparison_id].append(answer)
        services.store.add_shared({name: own for name, own in by_comparison.items() if own})

    recorder = Recorder(put)

    def lacks(arm: Arm, job: Job) -> bool:
        return any(own.arm.is_asked and arm in (baseline, own.arm) and own.lacks(arm, job) for own in members)

    async def add_shared(answer: Answer) -> None:
        ids = [own.run.id for own in members if own.arm.is_asked and own.lacks(baseline, answer)]
        await recorder.add((ids, answer))

    try:
        arms = [baseline, *(member.arm for member in members)]
        jobs = jobs_of_plan(next(filter(sample_left, runs), runs[0]))
        pauses.sort(key=lambda pause: pause[0])
        feeding = feed(runs[0].items, arms, lacks, jobs=jobs, recorder=recorder, pauses=pauses)
        asking = [feeding, work(baseline, add_shared, runs[0]), *(_ask_candidate(own, recorder) for own in members)]
        await at_once(runs, recorder, asking)
        baseline.check_answered()
    except RunStopped as stop:
        for member in members:
            set_status(member.run, ComparisonStatus.STOPPED, member.stop or stop)
        stop.hint = stop.hint or resume_hint(group_id, retry_failed=True)
        raise
    finally:
        progress.finished()
    return members


async def _goes_on(members: Sequence[Member], own: Member, then: Callable[[], Awaitable[bool]]) -> bool:
    """Do what a member's pause asks for, unless it is asked no more; tell whether any is."""
    if own.arm.is_asked:
        own.arm.is_asked = await then()
    return any(member.arm.is_asked for member in members)


async def _ask_candidate(member: Member, recorder: Recorder[tuple[Sequence[str], Answer]]) -> None:
    """Ask one candidate until it has had all, or fails too often, which ends its own comparison alone."""
    arm, run = member.arm, member.run

    async def add(answer: Answer) -> None:
        await recorder.add(((run.id,), answer))

    try:
        await work(arm, add, run)
        arm.check_answered()
    except RunStopped as stop:
        arm.is_asked, member.stop = False, stop
        stop.hint, group = resume_hint(run.id, retry_failed=True), run.plan.group
        if group and group.name != group.names[0]:  # the first may stand for all in a queue: it stops last
            set_status(run, ComparisonStatus.STOPPED, stop)
        run.services.progress.phase(f"Candidate {_name(run.comparison)}: {stop.message}; the others go on")
        while not arm.queue.empty():
            arm.queue.get_nowait()
        with suppress(ValueError):  # nobody waits any more for what was in flight
            while True:
                arm.queue.task_done()


def _share(run: Run, others: Sequence[Run]) -> None:
    """Copy what the baseline has answered for others beside the arms: its noise floor, and the audit's questions."""
    store, floor = run.services.store, run.plan.noise_floor

    def end_of(own: Run) -> int:
        return looked_to(store.looks(own.id)) if own.plan.looks else len(own.items)

    end = end_of(run)
    for other in others:
        for number in range(1, floor.runs + 1) if floor and run.plan.n_baseline_runs == 1 else ():
            known = store.answered(run.id, run=number)
            answers = [
                answer
                for answer in store.answers(other.id, arm=BASELINE, run=number)
                if answer.position < end and (BASELINE, answer.position, answer.choice, answer.repeat) not in known
            ]
            store.add_answers(run.id, answers)
        if end_of(other) == end:  # else other items are drawn
            shared = (own for own in store.scored(other.id, with_pieces=True) if own.arm is BASELINE)
            store.put_scored(run.id, [own for own in shared if own.part is not AuditPart.GREEDY])
