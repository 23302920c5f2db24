"""Runs several candidates against one baseline, which is asked once: each has a comparison of its own, all in step."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations

from qualab.errors import ComparisonBusy, InvalidValue, QualabError, RunStopped, UsageError, WrongState
from qualab.model.canonical import plan_hash
from qualab.model.comparison import Analysis, Comparison
from qualab.model.items import Answer
from qualab.model.names import ArmName, AuditPart, ComparisonStatus
from qualab.model.plan import Group, Plan, RequestPolicy
from qualab.model.reason import Reason
from qualab.run import preflight, prepare
from qualab.run.ask import (
    AnswerKey,
    Arm,
    Pause,
    Recorder,
    answers_there,
    arms_of,
    beat,
    jobs_in_step,
    kept_alive,
    looked_to,
    own_error,
    pauses_of,
    work,
)
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
    done: Mapping[int, set[AnswerKey]]
    pauses: Sequence[Pause]
    is_asked: bool = True
    """False once its comparison has reached a decision or was stopped."""
    stop: RunStopped | None = None

    def lacks(self, arm: ArmName, position: int, choice: int, repeat: int, run: int) -> bool:
        return self.is_asked and (arm, position, choice, repeat) not in self.done[run]


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
        group_id = comparison_id.removesuffix(f"-{first}") or f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        runs = []
        for name, url in settings.candidates.items():
            own = replace(plan, group=Group(id=group_id, name=name, names=tuple(pairs)))
            comparison = Comparison(
                id=f"{group_id}-{name}",
                plan=own,
                plan_hash=plan_hash(own),
                status=ComparisonStatus.PLANNED,
                label=settings.label,
                created_at=now,
                baseline_url=settings.baseline,
                candidate_url=url,
                local=local,
            )
            runs.append(Run(services, comparison, tasks, items, arms[name]))
        services.store.create(runs[0].comparison, items, more=[run.comparison for run in runs[1:]])
        with way_on(group_id), held(runs):
            for run, seen in zip(runs, all_checked, strict=True):
                record(run, seen)
            return await _to_the_ends(group_id, runs)


async def resume_group(
    services: Services, group_id: str, *, local: Mapping[str, str] | None = None, retry_failed: bool = False
) -> GroupResult:
    """Go on with all comparisons of a group that have not finished, in step. Raises as `resume`, WrongState."""
    store, now = services.store, services.clock.now()
    known = [check_free(store, own.id, runner=services.runner, now=now) for own in store.group(group_id)]
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
    for (name, url), (other, other_url) in combinations(candidates.items(), 2):
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
    members = []
    for run in runs:
        candidate = next(arm for arm in arms_of(run) if arm.name is CANDIDATE)
        pauses = await pauses_of(run, [baseline, candidate])
        members.append(Member(run=run, arm=candidate, done=answers_there(run), pauses=pauses))
        set_status(run, ComparisonStatus.RUNNING)
    n_done = [Counter(key[0] for keys in member.done.values() for key in keys) for member in members]
    done = {BASELINE: min(own[BASELINE] for own in n_done), CANDIDATE: sum(own[CANDIDATE] for own in n_done)}
    totals = {BASELINE: baseline.total, CANDIDATE: sum(member.arm.total for member in members)}
    progress.started(replace(runs[0].comparison, id=group_id), totals=totals, done=done)

    def put(answers: Sequence[tuple[Sequence[str], Answer]]) -> None:
        by_comparison: dict[str, list[Answer]] = {run.id: [] for run in runs}
        for ids, answer in answers:
            for comparison_id in ids:
                by_comparison[comparison_id].append(answer)
        services.store.add_shared({name: own for name, own in by_comparison.items() if own})

    recorder = Recorder(put)

    async def add_shared(answer: Answer) -> None:
        place = (answer.position, answer.choice, answer.repeat, answer.run)
        await recorder.add(([member.run.id for member in members if member.lacks(BASELINE, *place)], answer))

    try:
        with own_error():
            async with asyncio.TaskGroup() as group:
                beats = [group.create_task(beat(run)) for run in runs]
                async with asyncio.TaskGroup() as asking:
                    asking.create_task(_feed(members, baseline, recorder))
                    for _ in range(baseline.concurrency):
                        asking.create_task(work(baseline, add_shared, runs[0]))
                    for member in members:
                        asking.create_task(_ask_candidate(member, recorder))
                for beating in beats:
                    beating.cancel()
        if baseline.missing == baseline.total > 0:
            raise baseline.stopped(Reason("stopped.no-answers", {"total": baseline.total}))
    except RunStopped as stop:
        for member in members:
            if not member.stop:
                set_status(member.run, ComparisonStatus.STOPPED, stop)
        stop.hint = resume_hint(group_id, retry_failed=True)
        raise
    finally:
        await recorder.flush()
        progress.finished()
    for member in members:
        if member.arm.missing == member.arm.total > 0 and not member.stop:
            _stop(member, member.arm.stopped(Reason("stopped.no-answers", {"total": member.arm.total})))
    return members


async def _feed(members: Sequence[Member], baseline: Arm, recorder: Recorder[tuple[Sequence[str], Answer]]) -> None:
    """Hand each job to the baseline and to every candidate that is still asked, in an order that turns round."""
    run, start = members[0].run, 0
    ends = {len(run.items), *(position for member in members for position, _ in member.pauses)}
    for end in sorted(ends):
        for item in run.items[start:end]:
            turn = 1 if item.position % 2 == 0 else -1
            for job in jobs_in_step(run, item):
                place = (job.position, job.choice, job.repeat, job.run)
                lacking = [member.arm for member in members if not job.run and member.lacks(CANDIDATE, *place)]
                is_shared = any(member.lacks(BASELINE, *place) for member in members)
                for arm in [*([baseline] if is_shared else []), *lacking][::turn]:
                    if arm is baseline or any(member.arm is arm and member.is_asked for member in members):
                        await arm.queue.put(job)
        start = end
        for arm in (baseline, *(member.arm for member in members if member.is_asked)):
            await arm.queue.join()
        await recorder.flush()
        for member in members:
            for position, then in member.pauses:
                if member.is_asked and position == end and not await then():
                    member.is_asked = False
                    await _end(member.arm)
        if not any(member.is_asked for member in members):
            break
    await _end(baseline)
    for member in members:
        if member.is_asked:
            await _end(member.arm)


async def _end(arm: Arm) -> None:
    for _ in range(arm.concurrency):
        await arm.queue.put(None)


async def _ask_candidate(member: Member, recorder: Recorder[tuple[Sequence[str], Answer]]) -> None:
    """Ask one candidate until it has had all, or fails too often, which ends its own comparison alone."""
    arm, ids = member.arm, (member.run.id,)

    async def add(answer: Answer) -> None:
        await recorder.add((ids, answer))

    try:
        with own_error():
            async with asyncio.TaskGroup() as workers:
                for _ in range(arm.concurrency):
                    workers.create_task(work(arm, add, member.run))
    except RunStopped as stop:
        _stop(member, stop)
        while not arm.queue.empty():
            arm.queue.get_nowait()
        with suppress(ValueError):  # nobody waits any more for what was in flight
            while True:
                arm.queue.task_done()


def _stop(member: Member, stop: RunStopped) -> None:
    member.is_asked, member.stop = False, stop
    stop.hint = resume_hint(member.run.id, retry_failed=True)
    set_status(member.run, ComparisonStatus.STOPPED, stop)
    member.run.services.progress.phase(f"Candidate {_name(member.run.comparison)}: {stop.message}; the others go on")


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
