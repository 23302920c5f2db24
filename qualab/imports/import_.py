"""Makes a comparison of two logs that somebody else's runs left: read, joined, analysed and stored at once."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualab.analysis.analyse import analyse
from qualab.analysis.summaries import Summary
from qualab.errors import BadLog, InvalidValue, UsageError
from qualab.imports.contents import answers, whole_items
from qualab.imports.findings import names_of, run_findings, settle
from qualab.imports.join import (
    ALLOWABLE,
    ArmLog,
    Kind,
    Match,
    check_score_bounds,
    counted,
    join,
    light_items,
    lost,
    place,
    read_arm,
    scores,
)
from qualab.imports.plan import (
    ImportedTasks,
    ScoresAlone,
    adopted,
    exported_plan,
    made_plan,
    untaken_plan,
    value_findings,
)
from qualab.imports.store_source import StoredArm
from qualab.model.canonical import plan_hash
from qualab.model.comparison import Analysis, Comparison
from qualab.model.items import Answer
from qualab.model.names import ArmName, ComparisonStatus
from qualab.model.plan import DecisionRule, FindingCode, Imported, Plan, check_names
from qualab.model.ports import Clock, LogSource, ReadLogs, TaskKnowledge
from qualab.run.compare import with_rule
from qualab.run.experiment import check_rule

if TYPE_CHECKING:
    from qualab.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportServices:
    """What an import needs: no endpoint and no harness."""

    store: Store
    logs: ReadLogs
    knows: TaskKnowledge
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be imported, and how it is to be judged."""

    places: Mapping[ArmName, Path] = field(default_factory=dict)
    """Each arm's folder or file; or one table with both, under both names. Empty for two runs of the store."""
    is_table: bool = False
    runs: Mapping[ArmName, str] = field(default_factory=dict)
    """Parts of the names of the runs that are meant; the newest where nothing is said."""
    allowed: tuple[FindingCode, ...] = ()
    rule: DecisionRule = field(default_factory=DecisionRule)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Parts of the rule that were given by the user; they also change that of an exported plan."""
    label: str = ""


def import_logs(services: ImportServices, wanted: Wanted) -> Analysis:
    """Stores and returns the analysis of two logs. Raises BadLog, PairDiffers for runs that cannot be compared,
    UsageError for one run given twice, InvalidValue for a rule that cannot be; nothing is stored then."""
    check_rule(wanted.rule)
    with _uncollected():
        return _join_and_store(services, _open(services.logs, wanted), wanted)


def compare_runs(services: ImportServices, baseline: str, candidate: str, wanted: Wanted) -> Analysis:
    """The same for two runs in the store, as "ID/candidate", also of different comparisons."""
    check_rule(wanted.rule)
    first, second = (_stored(services.store, name) for name in (baseline, candidate))
    if first.run.exported_from == second.run.exported_from:
        raise UsageError(
            f"Both arms are one run, {first.run.name}", hint="Name two runs, as ID/baseline and ID/candidate"
        )
    sources: dict[ArmName, LogSource] = {ArmName.BASELINE: first, ArmName.CANDIDATE: second}
    with _uncollected():
        return _join_and_store(services, sources, wanted, is_of_store=True)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Nothing that an import makes is part of a cycle: walking it again and again would take a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _stored(store: Store, name: str) -> StoredArm:
    """The candidate of a comparison where no arm is named. Raises InvalidValue, ComparisonNotFound."""
    comparison_id, slash, arm = name.partition("/")
    if slash and arm not in set(ArmName):
        raise InvalidValue(
            f"{name} names no run", hint="A run is ID/baseline or ID/candidate; ID alone is its candidate"
        )
    comparison = store.get(comparison_id)
    if comparison.status is not ComparisonStatus.FINISHED:
        raise InvalidValue(
            f"Comparison {comparison.id} is {comparison.status.value}: its answers are not scored yet",
            hint=f"Finish it first: qualab resume {comparison.id}",
        )
    return StoredArm(store=store, comparison=comparison, arm=ArmName(arm) if slash else ArmName.CANDIDATE)


def _join_and_store(
    services: ImportServices, sources: Mapping[ArmName, LogSource], wanted: Wanted, *, is_of_store: bool = False
) -> Analysis:
    exported = exported_plan(sources[ArmName.BASELINE].run, sources[ArmName.CANDIDATE].run)
    logs = _read(services.knows, sources, exported)
    joined = _joined(logs)
    joins = tuple(counted(task, matches) for task, matches in joined.items())
    if FindingCode.ROWS in wanted.allowed:
        joined = {task: [one for one in matches if one.kind is not Kind.LOST] for task, matches in joined.items()}
    are_asked = {one.comparison.plan.imported is None for one in sources.values() if isinstance(one, StoredArm)}
    leaves_unasked = is_of_store and are_asked == {True}
    if leaves_unasked:
        joined = _asked_of_both(joined)
    plan, findings = (adopted(exported), []) if exported else made_plan(logs, joined, services.knows, wanted.rule)
    own = run_findings(*logs, joined)
    findings = [*own, *untaken_plan(*logs, exported), *findings, *value_findings(logs, plan)]
    settled = settle(findings, wanted.allowed)
    plan = _judged(plan, exported, wanted)
    imported = Imported(
        **names_of({"baseline": logs[0].run, "candidate": logs[1].run}),
        joins=joins,
        baseline_model=logs[0].run.model,
        candidate_model=logs[1].run.model,
        findings=settled,
        allowed=tuple(code for code in ALLOWABLE.values() if code in wanted.allowed),
        plan_hash=logs[0].run.plan_hash if exported else "",
        is_rule_changed=exported is not None and plan.rule != exported.rule,
        tasks_with_more_answers=tuple(task for task in joined if any(log.tasks[task].has_more_answers for log in logs)),
        is_of_store=is_of_store,
        leaves_unasked=leaves_unasked,
    )
    return _store(services, replace(plan, imported=imported), sources, joined, wanted.label)


def _open(logs: ReadLogs, wanted: Wanted) -> dict[ArmName, LogSource]:
    if wanted.is_table:
        return dict(zip(ArmName, logs.both(wanted.places[ArmName.BASELINE]), strict=True))
    sources = {arm: logs.one(wanted.places[arm], run=wanted.runs.get(arm, "")) for arm in ArmName}
    baseline, candidate = (source.run.files for source in sources.values())
    if twice := sorted(baseline.keys() & candidate.keys()):
        raise UsageError(
            f"Both arms are one file, {twice[0]}",
            hint="Name the run of each arm by a part of its file's name: --run baseline=TEXT,candidate=TEXT",
        )
    return sources


def _read(knows: TaskKnowledge, sources: Mapping[ArmName, LogSource], exported: Plan | None) -> tuple[ArmLog, ArmLog]:
    planned = {task.name: task.cluster_field for task in exported.tasks} if exported else {}

    def fields(task: str) -> tuple[str, ...]:
        if task in planned:
            return tuple(planned[task].split("+")) if planned[task] else ()
        facts = knows(task)
        return facts.cluster if facts else ()

    return read_arm(sources[ArmName.BASELINE], fields), read_arm(sources[ArmName.CANDIDATE], fields)


def _joined(logs: tuple[ArmLog, ArmLog]) -> dict[str, list[Match]]:
    baseline, candidate = logs
    both = [task for task in baseline.tasks if task in candidate.tasks]
    if not both:
        shown = " and ".join(", ".join(sorted(log.tasks)) or "nothing" for log in logs)
        raise BadLog(f"The two logs have no task in common: {shown}", hint="Compare two runs of the same tasks")
    joined = {task: join(baseline.tasks[task].entries, candidate.tasks[task].entries) for task in both}
    if not any(match.baseline and match.candidate for matches in joined.values() for match in matches):
        off, on = (log.run.name for log in logs)
        raise BadLog(f"Not one item of {off} is in {on}", hint="Compare two runs over the same items")
    for task, matches in joined.items():
        matches.extend(lost(matches, max(log.n_evaluated(task) for log in logs)))
    return joined


def _asked_of_both(joins: Mapping[str, Sequence[Match]]) -> dict[str, list[Match]]:
    """Without what one of two runs never asked: a failed request is stored, so that what is absent is not missing."""
    both = {task: [one for one in matches if one.baseline and one.candidate] for task, matches in joins.items()}
    return {task: matches for task, matches in both.items() if matches}


def _judged(plan: Plan, exported: Plan | None, wanted: Wanted) -> Plan:
    """The plan with the rule that was asked for."""
    if exported is None:
        check_names(plan.rule.margins, plan, what="margins")
        check_names(plan.rule.score_bounds, plan, what="score_bounds")
        return plan
    return with_rule(plan, dict(wanted.changes)) if wanted.changes else plan


def _store(
    services: ImportServices,
    plan: Plan,
    sources: Mapping[ArmName, LogSource],
    joined: Mapping[str, Sequence[Match]],
    label: str,
) -> Analysis:
    now = services.clock.now()
    comparison = Comparison(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        plan=plan,
        plan_hash=plan_hash(plan),
        status=ComparisonStatus.PLANNED,
        label=label,
        created_at=now,
        started_at=None,
        finished_at=None,
        verdict=None,
        stop_reason="",
        duplicates=0,
    )
    places = place(plan, joined)
    light = light_items(plan, places)
    imported = plan.imported
    assert imported is not None
    found = list(scores(places, imported.allowed))
    check_score_bounds(found, light, plan)
    summary = Summary(light)

    def seen() -> Iterator[Answer]:
        for answer in answers(sources, places, now=now):
            summary.add(answer)
            yield answer

    return services.store.put_whole(
        comparison,
        whole_items(sources, places, light),
        seen(),
        found,
        lambda: analyse(ScoresAlone(found), comparison, ImportedTasks(plan), light, summary),
        now=now,
    )
