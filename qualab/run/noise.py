"""The noise floor: further runs of the baseline, after the arms, at a concurrency and in an order of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from qualab.model.items import Item
from qualab.model.names import ArmName, RequestKind
from qualab.model.plan import NoisePlan
from qualab.run.ask import AnswerKey, Arm, Recorder, arm_of, ask_fed, feed_ends, feed_items, n_requests
from qualab.run.looks import looked_to
from qualab.run.preflight import Keys
from qualab.run.services import Run, Services


async def ask_noise(services: Services, run: Run, *, keys: Keys) -> None:
    """Asks what is missing of the noise floor's runs; nothing where none is planned. Raises as `ask_all`."""
    plan = run.comparison.plan
    if plan.noise_floor is None:
        return
    items = _asked(services, run)
    policy = replace(plan.policy, concurrency=plan.noise_floor.concurrency)
    url, key = run.endpoints[ArmName.BASELINE].url, keys.get(ArmName.BASELINE)
    async with services.open_endpoint(url, policy=policy, key=key) as endpoint:
        total = n_requests(items, plan.sampling)
        for number in range(1, plan.noise_floor.runs + 1):
            done = services.store.answered(run.comparison.id, run=number)
            if len(done) < total:
                run.progress.phase(_said(number, plan.noise_floor, total))
                arm = arm_of(ArmName.BASELINE, endpoint, concurrency=policy.concurrency, total=total, run=number)
                recorder = Recorder(services.store, run.comparison.id)
                await ask_fed(services, run, [arm], recorder, _feed(run, items, arm, done))


def _asked(services: Services, run: Run) -> list[Item]:
    """Of the items that the arms were asked, those that generate."""
    end = looked_to(services.store.looks(run.comparison.id)) if run.comparison.plan.looks else len(run.items)
    return [*generations(run.items[:end])]


def generations(items: Sequence[Item]) -> Iterator[Item]:
    """The items that the noise floor is about: a log-likelihood draws no text."""
    return (item for item in items if item.kind is RequestKind.GENERATION)


def _said(number: int, plan: NoisePlan, total: int) -> str:
    what = f"{total:,} requests to the baseline at concurrency {plan.concurrency}"
    return f"Noise floor, run {number} of {plan.runs}: {what}"


async def _feed(run: Run, items: Sequence[Item], arm: Arm, done: set[AnswerKey]) -> None:
    order = list(items)
    random.Random(f"{run.comparison.plan.sampling.seed}:noise:{arm.run}").shuffle(order)
    await feed_items(run, order, [arm], done)
    await feed_ends([arm])


def tell_progress(services: Services, run: Run) -> None:
    """Starts the progress of a run with everything that it may ask."""
    comparison, store = run.comparison, services.store
    plan = comparison.plan
    totals = dict.fromkeys(ArmName, n_requests(run.items, plan.sampling))
    answered = store.answered(comparison.id)
    done = {name: sum(key[0] is name for key in answered) for name in ArmName}
    if plan.noise_floor:
        runs = range(1, plan.noise_floor.runs + 1)
        totals[ArmName.BASELINE] += len(runs) * n_requests(generations(run.items), plan.sampling)
        done[ArmName.BASELINE] += sum(len(store.answered(comparison.id, run=number)) for number in runs)
    run.progress.started(comparison, totals=totals, done=done)
