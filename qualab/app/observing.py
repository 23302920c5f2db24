"""Looks into the engines while a run asks: counters before and after each third of each task that generates.

So after each task of log-likelihoods, which draft nothing: an engine may start anew there, too. The counters are an
engine's own, so what they say of a task holds only where nothing else of this run is under way: the asking pauses
there. Where both arms' metrics are closed, nothing is looked at and nothing pauses.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from qualab.app.asking import Arm, Pause
from qualab.app.preflight import counters_of
from qualab.app.preparing import stage_ends
from qualab.app.services import Run, Services
from qualab.domain.engine import Counters
from qualab.domain.items import Item
from qualab.domain.names import ArmName, RequestKind
from qualab.domain.observations import Segment

PARTS = 3
SMALLEST_TO_PART = 30
"""Items of a task, from which on its first third can be told from its last."""


async def observation_pauses(services: Services, run: Run, arms: Sequence[Arm]) -> list[Pause]:
    """The pauses at which the engines of these arms are looked into; takes the first look."""
    observer = _Observer(services, run, arms)
    await observer.begin()
    if not any(observer.before.values()):
        return []
    looks = run.comparison.plan.looks
    ends = stage_ends(run.items, n_stages=looks.n_looks if looks else 1)
    return [
        Pause(end=stretch.end, then=partial(observer.ended, stretch)) for stretch in stretches(run.items, stages=ends)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Items of one task that are asked one after the other."""

    task: str
    part: int
    end: int


def stretches(items: Sequence[Item], *, stages: Sequence[int]) -> Iterator[Stretch]:
    """`items` task by task, generations in thirds where a task is large enough. `stages` end at these places."""
    totals, seen = Counter(item.task for item in items), Counter[str]()
    start = 0
    for stage_end in stages:
        for (task, kind), block in groupby(items[start:stage_end], key=lambda item: (item.task, item.kind)):
            members = list(block)
            total = totals[task] if kind is RequestKind.GENERATION else 0
            parts = [_part(seen[task] + place, total) for place in range(len(members))]
            seen[task] += len(members)
            for part, run_of in groupby(zip(parts, members, strict=True), key=lambda entry: entry[0]):
                *_, (_, last) = run_of
                yield Stretch(task=task, part=part, end=last.position + 1)
        start = stage_end


def _part(place: int, total: int) -> int:
    return place * PARTS // total if total >= SMALLEST_TO_PART else 0


class _Observer:
    def __init__(self, services: Services, run: Run, arms: Sequence[Arm]) -> None:
        self._services = services
        self._run = run
        self._arms = arms
        self.before: Mapping[ArmName, Counters | None] = {}
        self._sent: Mapping[ArmName, tuple[int, int]] = {}
        self._began_at = services.clock.now()

    async def begin(self) -> None:
        """Takes the counters from which the next stretch counts."""
        self.before = await counters_of(self._run.endpoints)
        self._sent = {arm.name: (arm.tally.attempts, arm.tally.prompt_tokens) for arm in self._arms}
        self._began_at = self._services.clock.now()

    async def ended(self, stretch: Stretch) -> bool:
        """Stores what the stretch that has ended did to the counters."""
        before, sent, began_at = self.before, self._sent, self._began_at
        await self.begin()
        for arm in self._arms:
            attempts, tokens = (now - then for now, then in zip(self._sent[arm.name], sent[arm.name], strict=True))
            if attempts:
                segment = Segment(
                    arm=arm.name,
                    task=stretch.task,
                    part=stretch.part,
                    began_at=began_at,
                    ended_at=self._began_at,
                    before=before[arm.name],
                    after=self.before[arm.name],
                    attempts=attempts,
                    prompt_tokens=tokens,
                )
                await asyncio.to_thread(self._services.store.add_observation, self._run.comparison.id, segment)
        return True
