"""Make a comparison of two logs of other tools: read, joined, analysed and stored at once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualab.analysis.analyse import analyse
from qualab.analysis.imported import ALLOWABLE, ImportedTasks, ScoresAlone
from qualab.analysis.summaries import Summary
from qualab.errors import BadLog, InvalidValue, UsageError
from qualab.imports.findings import run_findings, settle
from qualab.imports.inspect_logs import open_inspect
from qualab.imports.join import (
    ArmLog,
    Kind,
    Match,
    answers,
    check_score_bounds,
    counted,
    join,
    lost,
    placed,
    read_arm,
    scores,
    whole_items,
)
from qualab.imports.lighteval import open_lighteval
from qualab.imports.lm_eval import open_lm_eval
from qualab.imports.nemo import open_nemo
from qualab.imports.plan import adopted, exported_plan, made_plan, value_findings
from qualab.imports.store_source import stored_log
from qualab.imports.tables import open_table
from qualab.model.canonical import plan_hash
from qualab.model.comparison import Analysis, Comparison
from qualab.model.items import Answer
from qualab.model.logged import Log
from qualab.model.names import ArmName, ComparisonStatus
from qualab.model.plan import DecisionRule, FindingCode, Imported, ImportFinding, Plan
from qualab.model.reason import Reason
from qualab.run.prepare import check_rule_names
from qualab.run.stored import with_rule

if TYPE_CHECKING:
    from qualab.harness.catalog import Catalog
    from qualab.store import Store

KNOWN = (
    "lm-eval's results_*.json with samples_*.jsonl, Inspect's .eval or .json, lighteval's details_*.parquet, or NeMo "
    "Evaluator's eval-*.json with results.jsonl, item by item (a table of scores stands alone: qualab import TABLE)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """Logs to import, and how to judge them."""

    paths: Mapping[ArmName, Path] = field(default_factory=dict)
    """Each arm's folder or file. Empty for a table, and for two runs of the store."""
    table: Path | None = None
    """Holds both arms."""
    runs: Mapping[ArmName, str] = field(default_factory=dict)
    """Part of a run's file name; the newest run where it is empty."""
    allowed: tuple[FindingCode, ...] = ()
    rule: DecisionRule = field(default_factory=DecisionRule)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Parts of the rule that the user gave; they also change that of an exported plan."""
    label: str = ""


def import_logs(store: Store, catalog: Catalog, request: ImportRequest, *, now: datetime) -> Analysis:
    """Analyse two logs and store the result. Raises BadLog, PairDiffers, UsageError, InvalidValue."""
    for path in (request.table, *request.paths.values()):
        if path and not path.exists():
            raise BadLog(f"{path} does not exist", hint="Check the path")
    if request.table:
        logs = dict(zip(ArmName, open_table(request.table), strict=True))
    else:
        logs = {arm: _open_log(request.paths[arm], run=request.runs.get(arm, "")) for arm in ArmName}
        baseline, candidate = (log.run.files for log in logs.values())
        if twice := sorted(baseline.keys() & candidate.keys()):
            raise UsageError(
                f"Both arms are one file, {twice[0]}",
                hint="Name the run of each arm by a part of its file's name: --run baseline=TEXT,candidate=TEXT",
            )
    return _join_and_store(store, catalog, logs, request, now=now)


def compare_runs(
    store: Store, catalog: Catalog, baseline: str, candidate: str, request: ImportRequest, *, now: datetime
) -> Analysis:
    """Analyse two runs in the store, as "ID/candidate", also of different comparisons. Raises as `import_logs`."""
    runs = [_stored_run(store, name) for name in (baseline, candidate)]
    logs = {arm: stored_log(store, *run) for arm, run in zip(ArmName, runs, strict=True)}
    names = [log.run.name for log in logs.values()]
    if names[0] == names[1]:
        raise UsageError(f"Both arms are one run, {names[0]}", hint="Name two runs, as ID/baseline and ID/candidate")
    are_asked = all(comparison.plan.imported is None for comparison, _ in runs)
    return _join_and_store(store, catalog, logs, request, now=now, is_of_store=True, leaves_unasked=are_asked)


def _open_log(path: Path, *, run: str) -> Log:
    for reader in (open_lighteval, open_inspect, open_nemo, open_lm_eval):
        if log := reader(path, run=run):
            return log
    raise BadLog(f"{path} holds no known evaluation logs", hint=f"Expected {KNOWN}")


def _stored_run(store: Store, name: str) -> tuple[Comparison, ArmName]:
    """Read ID/ARM; an id alone is its candidate. Raises InvalidValue, ComparisonNotFound."""
    comparison_id, slash, arm = name.partition("/")
    if slash and arm not in set(ArmName):
        hint = "A run is ID/baseline or ID/candidate; ID alone is its candidate"
        raise InvalidValue(f"{name} names no run", hint=hint)
    comparison = store.get(comparison_id)
    if comparison.status is not ComparisonStatus.FINISHED:
        raise InvalidValue(
            f"Comparison {comparison.id} is {comparison.status.value}: its answers are not scored yet",
            hint=f"Finish it first: qualab resume {comparison.id}",
        )
    return comparison, ArmName(arm) if slash else ArmName.CANDIDATE


def _join_and_store(
    store: Store,
    catalog: Catalog,
    logs: Mapping[ArmName, Log],
    request: ImportRequest,
    *,
    now: datetime,
    is_of_store: bool = False,
    leaves_unasked: bool = False,
) -> Analysis:
    runs = [log.run for log in logs.values()]
    exported = exported_plan(*runs)
    planned = {task.name: task.cluster_field for task in exported.tasks} if exported else {}

    def cluster_fields(task: str) -> tuple[str, ...]:
        if task in planned:
            return tuple(planned[task].split("+")) if planned[task] else ()
        return catalog.hints(task).cluster or ()

    baseline, candidate = arms = tuple(read_arm(log, cluster_fields) for log in logs.values())
    joined = _joined(baseline, candidate)
    joins = tuple(counted(task, matches) for task, matches in joined.items())
    if FindingCode.ROWS in request.allowed:
        joined = {task: [match for match in matches if match.kind is not Kind.LOST] for task, matches in joined.items()}
    if leaves_unasked:  # a failed request is stored: an item absent in one run was never asked
        joined = {
            task: [match for match in all_ if match.baseline and match.candidate] for task, all_ in joined.items()
        }
        joined = {task: matches for task, matches in joined.items() if matches}
    assumed: list[ImportFinding] = []
    if exported:
        plan = adopted(exported)
        plan = with_rule(plan, dict(request.changes)) if request.changes else plan
    else:
        if any(run.plan for run in runs):
            assumed.append(ImportFinding(code=FindingCode.ASSUMED, what=Reason("plans-untaken")))
        plan, more = made_plan((baseline, candidate), joined, catalog, request.rule)
        assumed += more
    findings = [*run_findings(baseline, candidate, joined), *assumed, *value_findings((baseline, candidate), plan)]
    settled = settle(findings, request.allowed)
    check_rule_names(plan)
    names = [f"{f'{run.format} {run.harness_version}'.strip()}, {run.name}" for run in runs]
    imported = Imported(
        baseline=names[0],
        candidate=names[1],
        joins=joins,
        baseline_model=runs[0].model,
        candidate_model=runs[1].model,
        findings=settled,
        allowed=tuple(code for code in ALLOWABLE.values() if code in request.allowed),
        plan_hash=runs[0].plan_hash if exported else "",
        is_rule_changed=exported is not None and plan.rule != exported.rule,
        tasks_with_more_answers=tuple(task for task in joined if any(arm.tasks[task].has_more_answers for arm in arms)),
        is_of_store=is_of_store,
        leaves_unasked=leaves_unasked,
    )
    return _store(store, replace(plan, imported=imported), logs, joined, request.label, now=now)


def _joined(baseline: ArmLog, candidate: ArmLog) -> dict[str, list[Match]]:
    tasks = [task for task in baseline.tasks if task in candidate.tasks]
    if not tasks:
        shown = " and ".join(", ".join(sorted(log.tasks)) or "nothing" for log in (baseline, candidate))
        raise BadLog(f"The two logs have no task in common: {shown}", hint="Compare two runs of the same tasks")
    joined = {task: join(baseline.tasks[task].entries, candidate.tasks[task].entries) for task in tasks}
    if not any(match.baseline and match.candidate for matches in joined.values() for match in matches):
        raise BadLog(
            f"Not one item of {baseline.run.name} is in {candidate.run.name}",
            hint="Compare two runs over the same items",
        )
    for task, matches in joined.items():
        matches.extend(lost(matches, max(log.run.task(task).n_evaluated or 0 for log in (baseline, candidate))))
    return joined


def _store(
    store: Store,
    plan: Plan,
    logs: Mapping[ArmName, Log],
    joined: Mapping[str, list[Match]],
    label: str,
    *,
    now: datetime,
) -> Analysis:
    comparison = Comparison(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        plan=plan,
        plan_hash=plan_hash(plan),
        status=ComparisonStatus.PLANNED,
        label=label,
        created_at=now,
    )
    placed_items = placed(plan, joined)
    items = [item for item, _ in placed_items]
    assert plan.imported is not None
    scored = list(scores(placed_items, plan.imported.allowed))
    check_score_bounds(scored, placed_items, plan)
    summary = Summary(items)

    def summarized() -> Iterator[Answer]:
        for answer in answers(logs, placed_items, now=now):
            summary.add(answer)
            yield answer

    return store.put_whole(
        comparison,
        whole_items(logs, placed_items),
        summarized(),
        scored,
        lambda: analyse(ScoresAlone(scored), comparison, ImportedTasks(plan), items, summary),
        now=now,
    )
