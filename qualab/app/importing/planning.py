"""The plan of an imported comparison: made of its logs and of what is known of their tasks, after the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from qualab.app.importing.entries import ArmLog, Entry
from qualab.app.importing.joining import Match
from qualab.app.importing.metrics import Values, metric_specs
from qualab.domain.canonical import canonical_json, plan_hash, sha256
from qualab.domain.imported import FindingCode, ImportFinding
from qualab.domain.logged import LoggedRun, LoggedTask
from qualab.domain.names import Api, ArmName
from qualab.domain.pins import Pins
from qualab.domain.plan import DecisionRule, Plan, RequestPolicy, SamplingPlan, TaskSpec
from qualab.ports import TaskKnowledge

UNKNOWN = "unknown"


def exported_plan(baseline: LoggedRun, candidate: LoggedRun) -> Plan | None:
    """The plan of the comparison whose two arms these logs are; None where they are not, or it is not whole."""
    document, arms = baseline.plan, [run.exported_from.rpartition("/") for run in (baseline, candidate)]
    are_its_arms = arms[0][0] == arms[1][0] and [arm[2] for arm in arms] == list(ArmName)
    if document is None or not are_its_arms or baseline.plan_hash != candidate.plan_hash:
        return None
    try:
        plan: Plan = TypeAdapter(Plan).validate_python(document)
    except ValidationError:
        return None
    return plan if baseline.plan_hash in (plan_hash(plan), sha256(canonical_json(document))) else None


def untaken_plan(baseline: ArmLog, candidate: ArmLog, exported: Plan | None) -> Iterator[ImportFinding]:
    """Says so where the logs hold plans that are not taken up."""
    if exported is None and (baseline.run.plan or candidate.run.plan):
        what = "the plans in the logs are not taken up: they are not of the two arms of one comparison, or were edited"
        yield ImportFinding(code=FindingCode.ASSUMED, what=what)


def adopted(plan: Plan) -> Plan:
    """A run's plan for what its export holds: every item once, without looks, a noise floor, or anything pinned."""
    sampling = replace(plan.sampling, repeats=1)
    return replace(plan, looks=None, noise_floor=None, drafter_costs=None, pins=Pins(), sampling=sampling)


def made_plan(
    logs: tuple[ArmLog, ArmLog], joined: Mapping[str, Sequence[Match]], knows: TaskKnowledge, rule: DecisionRule
) -> tuple[Plan, list[ImportFinding]]:
    """A plan from the logs, and what had to be assumed for it."""
    baseline, candidate = logs
    run = baseline.run
    tasks = tuple(_task_spec(name, baseline, matches, knows) for name, matches in joined.items())
    metrics, findings = metric_specs(logs, tasks, knows)
    plan = Plan(
        suite="imported",
        requested=tuple(_requested(run, [task.name for task in tasks])),
        tasks=tasks,
        metrics=metrics,
        sampling=SamplingPlan(
            model=candidate.run.model or run.model or UNKNOWN,
            api=Api.CHAT if any(entries.is_chat for entries in baseline.tasks.values()) else Api.COMPLETIONS,
            gen_kwargs=dict(run.gen_kwargs),
            seed=1234 if run.seed is None else run.seed,
            repeats=1 + max((match.content.repeat for one in joined.values() for match in one), default=0),
            system_instruction=run.settings.get("system instruction", ""),
        ),
        policy=RequestPolicy(),
        rule=replace(rule, allow_unobserved=True),
        limit=run.limit,
        num_fewshot=None,
        harness_version=run.harness_version or UNKNOWN,
    )
    return plan, findings


def value_findings(logs: tuple[ArmLog, ArmLog], plan: Plan) -> Iterator[ImportFinding]:
    """Where a log's own aggregates are not those of its rows."""
    for name, log in zip(("baseline", "candidate"), logs, strict=True):
        values = Values(log)
        for spec in plan.metrics:
            said, found = log.run.reported.get(spec.task, {}).get(spec.key), values.of(spec)
            if said is not None and found is not None and not values.agree(spec, said):
                what = f"{spec.id}: the {name}'s results say {said:.6g}, its rows give {found:.6g}"
                yield ImportFinding(code=FindingCode.VALUES, what=what)


def _task_spec(name: str, log: ArmLog, matches: Sequence[Match], knows: TaskKnowledge) -> TaskSpec:
    entries = log.tasks[name]
    said = log.run.tasks.get(name, LoggedTask(name=name))
    facts = knows(name)
    items = {(match.content.key, match.content.doc_id) for match in matches}
    return TaskSpec(
        name=name,
        benchmark=facts.benchmark if facts else _root(name, log.run),
        kind=entries.kind,
        version=said.version,
        config_hash=sha256(canonical_json(said.config)) if said.config else "",
        data_hash=_data_hash(match.content for match in matches),
        dataset=said.dataset,
        revision=UNKNOWN,
        num_fewshot=said.num_fewshot or 0,
        n_items=len(items),
        n_available=max(said.n_available or 0, len(items)),
        cluster_field="+".join(entries.cluster),
        n_choices=facts.n_choices if facts else None,
    )


def _data_hash(entries: Iterable[Entry]) -> str:
    return sha256(b"".join(sorted({entry.key for entry in entries})))


def _root(task: str, run: LoggedRun) -> str:
    """The largest group that a task belongs to, else the task."""
    groups = [name for name, members in run.groups.items() if task in members]
    return max(groups, key=lambda name: (len(run.groups[name]), name), default=task)


def _requested(run: LoggedRun, tasks: Sequence[str]) -> Iterator[str]:
    yield from dict.fromkeys(_root(task, run) for task in tasks)
