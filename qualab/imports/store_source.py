"""One arm of a stored comparison as a log: so that any two runs in the store can be joined and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from qualab.analysis.scoring import raw_value
from qualab.model.comparison import Comparison
from qualab.model.items import Answer, Item, Reply, Score
from qualab.model.logged import LoggedReply, LoggedRow, LoggedRun, LoggedTask
from qualab.model.names import Api, ArmName
from qualab.model.plan import Plan, TaskSpec

if TYPE_CHECKING:
    from qualab.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArm:
    """`qualab.model.ports.LogSource` over the store."""

    store: Store
    comparison: Comparison
    arm: ArmName

    @property
    def run(self) -> LoggedRun:
        plan = self.comparison.plan
        return LoggedRun(
            format="lm-eval",
            name=f"{self.comparison.id}/{self.arm}",
            harness_version=plan.harness_version,
            date=self.comparison.created_at,
            model=plan.sampling.model,
            is_chat=plan.sampling.api is Api.CHAT,
            limit=plan.limit,
            seed=plan.sampling.seed,
            gen_kwargs=dict(plan.sampling.gen_kwargs),
            settings={
                "chat template": plan.sampling.api.value,
                "system instruction": plan.sampling.system_instruction,
            },
            tasks={task.name: _task(task, plan) for task in plan.tasks},
            exported_from=f"{self.comparison.id}/{self.arm}",
            groups={spec.task: spec.members for spec in plan.metrics if spec.members},
            metrics={spec.id: spec for spec in plan.metrics},
        )

    def rows(self) -> Iterator[LoggedRow]:
        """In order of position: items, answers and scores go by together."""
        own = (score for score in self.store.scores(self.comparison.id) if score.arm is self.arm)
        answers_at = _by_position(self.store.answers(self.comparison.id, arm=self.arm))
        scores_at = _by_position(own)
        for item in self.store.items(self.comparison.id):
            answers, scores = answers_at(item.position), scores_at(item.position)
            for repeat in sorted({one.repeat for one in answers} | {one.repeat for one in scores}):
                replies = tuple(_reply(one.reply) for one in answers if one.repeat == repeat)
                yield from _rows(item, repeat, replies, [one for one in scores if one.repeat == repeat])


T = TypeVar("T", Answer, Score)


def _by_position(rows: Iterator[T]) -> Callable[[int], list[T]]:
    """Rows in order of position, asked for by rising positions."""
    groups = groupby(rows, key=attrgetter("position"))
    waiting: list[tuple[int, list[T]]] = []

    def at(position: int) -> list[T]:
        if not waiting and (group := next(groups, None)) is not None:
            waiting.append((group[0], list(group[1])))
        if waiting and waiting[0][0] == position:
            return waiting.pop()[1]
        return []

    return at


def _rows(item: Item, repeat: int, replies: tuple[LoggedReply, ...], scores: list[Score]) -> Iterator[LoggedRow]:
    """One row a filter, as in a log; one without scores where there are none."""
    by_filter: dict[str, dict[str, Any]] = {}
    for score in scores:
        metric, _, ensemble = score.metric.partition(",")
        by_filter.setdefault(ensemble, {})[metric] = raw_value(score)
    for ensemble, values in (by_filter or {"none": {}}).items():
        yield LoggedRow(
            task=item.task,
            filter=ensemble,
            doc_id=item.doc_id,
            doc=item.doc,
            target=item.target,
            prompts=item.prompts,
            replies=replies,
            scores=values,
            repeat=repeat,
            cluster=item.cluster,
        )


def _reply(reply: Reply) -> LoggedReply:
    return LoggedReply(
        text=reply.text,
        loglikelihood=reply.loglikelihood,
        is_greedy=reply.is_greedy,
        status=reply.status,
        finish_reason=reply.finish_reason,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        error=reply.error,
    )


def _task(task: TaskSpec, plan: Plan) -> LoggedTask:
    return LoggedTask(
        name=task.name,
        version=task.version,
        num_fewshot=task.num_fewshot,
        n_available=task.n_available,
        dataset=task.dataset,
        kind=task.kind,
        scoring=task.config_hash,
        higher_is_better={spec.name: spec.higher_is_better for spec in plan.metrics if spec.task == task.name},
    )
