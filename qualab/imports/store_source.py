"""One arm of a stored comparison as a log: so that any two runs in the store can be joined and compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qualab.analysis.scoring import raw_value
from qualab.model.comparison import Comparison
from qualab.model.logged import Log, LoggedReply, LoggedRow, LoggedRun, LoggedTask
from qualab.model.names import ArmName
from qualab.model.plan import Plan, TaskSpec

if TYPE_CHECKING:
    from qualab.store import Store


def stored_log(store: Store, comparison: Comparison, arm: ArmName) -> Log:
    """Open one arm of a comparison."""
    plan, name = comparison.plan, f"{comparison.id}/{arm}"
    return Log(
        run=LoggedRun(
            format="lm-eval",
            name=name,
            harness_version=plan.harness_version,
            date=comparison.created_at,
            model=plan.sampling.model,
            limit=plan.limit,
            seed=plan.sampling.seed,
            gen_kwargs=dict(plan.sampling.gen_kwargs),
            settings={
                "chat template": plan.sampling.api.value,
                "system instruction": plan.sampling.system_instruction,
            },
            tasks={task.name: _task(task, plan) for task in plan.tasks},
            exported_from=name,
            groups={spec.task: spec.members for spec in plan.metrics if spec.members},
            metrics={spec.id: spec for spec in plan.metrics},
        ),
        rows=lambda: _rows(store, comparison.id, arm),
    )


def _task(task: TaskSpec, plan: Plan) -> LoggedTask:
    return LoggedTask(
        name=task.name,
        version=task.version,
        num_fewshot=task.num_fewshot,
        n_available=task.n_available,
        dataset=task.dataset,
        scoring=task.config_hash,
        higher_is_better={spec.name: spec.higher_is_better for spec in plan.metrics if spec.task == task.name},
    )


def _rows(store: Store, comparison_id: str, arm: ArmName) -> Iterator[LoggedRow]:
    """One row an item, repeat and filter; one without scores where there are none."""
    stored: defaultdict[int, defaultdict[int, tuple[list[LoggedReply], dict[str, dict[str, Any]]]]]
    stored = defaultdict(lambda: defaultdict(lambda: ([], {})))  # replies, and scores by filter: by position and repeat
    for answer in store.answers(comparison_id, arm=arm):
        reply = LoggedReply(**{name: getattr(answer.reply, name) for name in LoggedReply._fields})
        stored[answer.position][answer.repeat][0].append(reply)
    for score in store.scores(comparison_id):
        if score.arm is arm:
            metric, _, ensemble = score.metric.partition(",")
            stored[score.position][score.repeat][1].setdefault(ensemble, {})[metric] = raw_value(score)
    for item in store.items(comparison_id):
        for repeat, (replies, scores) in sorted(stored[item.position].items()):
            for ensemble, values in (scores or {"none": {}}).items():
                yield LoggedRow(
                    task=item.task,
                    filter=ensemble,
                    doc_id=item.doc_id,
                    doc=item.doc,
                    target=item.target,
                    prompts=item.prompts,
                    replies=tuple(replies),
                    scores=values,
                    repeat=repeat,
                    cluster=item.cluster,
                )
