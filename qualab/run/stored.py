"""Analyses and scores a stored comparison again, and writes lm-eval's files of it. No endpoint is asked anything."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualab.analysis.advice import payoff_of
from qualab.analysis.analyse import analyse
from qualab.analysis.imported import ImportedTasks, ScoresAlone
from qualab.analysis.scoring import answered_items, raw_value, scores_of, summary_of
from qualab.errors import ComparisonNotFound, InfrastructureError, InvalidValue, PlanChanged, UsageError
from qualab.model.canonical import canonical_json, plain, plan_hash
from qualab.model.comparison import Analysis, Comparison
from qualab.model.items import Item, JsonObject, Reply, Score
from qualab.model.names import Api, ArmName, Verdict
from qualab.model.plan import DecisionRule, Plan, TaskSpec
from qualab.model.ports import ScoredTasks
from qualab.model.reason import Reason
from qualab.model.speed import Payoff
from qualab.run.prepare import Services, check_rule_names, refuse_imported, tasks_again
from qualab.run.sign import analysed

if TYPE_CHECKING:
    from qualab.store import Store

ASKED = ("tasks", "sampling", "limit", "num_fewshot", "looks", "noise_floor", "pins", "imported", "sequential", "bank")
"""Parts that another plan has to share with the comparison's own: they say what was asked of what."""


def payoff_in(store: Store, comparison_id: str, part: str) -> Payoff:
    """Compute what a stored comparison's drafter costs and gains. Raises ComparisonNotFound without this part of it."""
    comparison, analysis = analysed(store, comparison_id)
    payoff = payoff_of(analysis, store.observations(comparison.id), seed=comparison.plan.sampling.seed)
    if getattr(payoff, part) is None and not (part == "limits" and payoff.capacity):
        hint = f"qualab {'limits' if part == 'limits' else 'speed'} {comparison.id} measures it"
        raise ComparisonNotFound(f"Nothing is known of {part}: it was not measured", hint=hint, code="not-measured")
    return payoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Reanalysis:
    comparison: Comparison
    analysis: Analysis
    is_own_plan: bool
    is_as_stored: bool
    """Byte for byte what is stored under the same plan, also where it has just been stored."""


def compare_again(
    services: Services, comparison_id: str, *, other: Plan | None = None, local: Mapping[str, str] | None = None
) -> Reanalysis:
    """Analyse the stored scores under the comparison's own plan, or under `other`.

    Under another plan the analysis is marked as made after the data, INVALID as a whole, and stored beside the original
    one. Raises ComparisonNotFound, WrongState where nothing is analysed yet, PlanChanged for a plan of other items.
    """
    store = services.store
    comparison, _ = analysed(services.store, comparison_id)
    judged = comparison if other is None or other == comparison.plan else _under(comparison, other)
    tasks = tasks_of(services, comparison, local)
    items = list(store.items(comparison.id))
    analysis = analyse(store, judged, tasks, items, summary_of(store, comparison.id, items))
    is_own = judged.plan_hash == comparison.plan_hash
    if not is_own:
        changes = tuple(_changes(comparison.plan, judged.plan)) or (Reason("nothing-changed"),)
        analysis = _marked(analysis, Reason("after-data", {"changes": changes}))
    stored = store.analysis(comparison.id, plan_hash=analysis.plan_hash)
    if stored is not None and canonical_json(stored) == canonical_json(analysis):
        return Reanalysis(comparison=comparison, analysis=stored, is_own_plan=is_own, is_as_stored=True)
    if not is_own:
        store.put_analysis(analysis, now=services.clock.now())
    return Reanalysis(comparison=comparison, analysis=analysis, is_own_plan=is_own, is_as_stored=not is_own)


def tasks_of(services: Services, comparison: Comparison, local: Mapping[str, str] | None) -> ScoredTasks:
    """Load the tasks that add up a comparison's scores. Raises PlanChanged."""
    plan = comparison.plan
    return ImportedTasks(plan) if plan.imported else tasks_again(services, comparison, local)


def with_rule(plan: Plan, changes: Mapping[str, object]) -> Plan:
    """Change parts of a plan's rule. Raises InvalidValue for names that the plan does not have."""
    changed = replace(plan, rule=replace(plan.rule, **changes))  # type: ignore[arg-type]  # the caller's names are the rule's
    check_rule_names(changed)
    return changed


def _under(comparison: Comparison, other: Plan) -> Comparison:
    differing = [name for name in ASKED if getattr(other, name) != getattr(comparison.plan, name)]
    if differing:
        raise PlanChanged(
            f"That plan is not for comparison {comparison.id}: {', '.join(differing)} differ",
            hint="Only a plan for the same items, asked in the same way, can judge what is stored",
        )
    if other.looks:
        raise PlanChanged(
            f"Comparison {comparison.id} has looks: what was asked followed from its own plan",
            hint="Only that plan can judge it",
        )
    return replace(comparison, plan=other, plan_hash=plan_hash(other))


def _marked(analysis: Analysis, why: Reason) -> Analysis:
    # it stands beside the original one, its rows as they are
    return replace(analysis, verdict=Verdict.INVALID, reasons=(why, *analysis.reasons))


def _changes(before: Plan, after: Plan) -> Iterator[Reason]:
    parts: list[tuple[str, object, object]] = [
        (part.name, getattr(before.rule, part.name), getattr(after.rule, part.name)) for part in fields(DecisionRule)
    ]
    if before.audit and after.audit:
        for name in ("tau", "max_foreign_share", "calibration_margin"):
            parts.append((f"audit_{name}", getattr(before.audit, name), getattr(after.audit, name)))
    else:
        parts.append(("audit", before.audit is not None, after.audit is not None))
    for name, old, new in parts:
        if old != new:
            yield Reason("changed", {"part": name, "before": _value(old), "after": _value(new)})


def _value(value: object) -> object:
    return value if isinstance(value, bool | int | float | None) else _text(value)


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_text(part)}" for name, part in value.items()) or "none"
    if isinstance(value, tuple):
        return ":".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


ScoreKey = tuple[ArmName, int, int, str]
Scores = Mapping[ScoreKey, Score]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedScore:
    item: str
    arm: ArmName
    repeat: int
    metric: str
    before: Any
    now: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    metric: str
    n_scores: int
    n_changed: int
    verdict_before: Verdict | None
    verdict_now: Verdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    comparison: Comparison
    tasks_changed: tuple[Reason, ...]
    """Tasks that are not those of the plan, each with what differs."""
    metrics: tuple[MetricChange, ...]
    scores: tuple[ChangedScore, ...]
    analysis: Analysis
    """Analysis of the new scores, under the plan with the installed tasks."""
    is_stored: bool


def rescore(
    services: Services, comparison_id: str, *, local: Mapping[str, str] | None = None, store: bool = False
) -> Rescored:
    """Score every stored answer with the installed tasks, and compare; nothing stored is replaced.

    With `store` the new analysis is kept beside the others, as one whose plan was made after the data. Raises
    UnknownTask and DatasetUnavailable where the tasks are not here.
    """
    comparison, stored = analysed(services.store, comparison_id)
    own = comparison.plan
    tasks = tasks_again(services, comparison, local, may_differ=True)
    items = list(services.store.items(comparison.id))
    before = {key_of(score): score for score in services.store.scores(comparison.id)}
    # of an imported comparison only what it compares is scored
    compared = {key[:3] for key in before} if own.imported else None
    now = {
        key_of(score): score
        for arm in ArmName
        for score in scores_of(services.store.answers(comparison.id, arm=arm), tasks, items)
        if compared is None or (score.arm, score.position, score.repeat) in compared
    }
    plan = own
    if not own.imported:
        installed = {task.name: task for task in tasks.tasks}
        specs = tuple(installed.get(task.name, task) for task in own.tasks)
        plan = replace(own, tasks=specs, harness_version=tasks.harness_version)
    judged = replace(comparison, plan=plan, plan_hash=plan_hash(plan))
    scores = ScoresAlone([now[key] for key in sorted(now)], services.store)
    analysis = analyse(scores, judged, tasks, items, summary_of(services.store, comparison.id, items))
    differing = tuple(_tasks_changed(own, plan))
    if plan != own:
        analysis = _marked(analysis, Reason("rescored", {"changes": differing}))
        if store:
            services.store.put_analysis(analysis, now=services.clock.now())
    return Rescored(
        comparison=comparison,
        tasks_changed=differing,
        metrics=tuple(_metric_changes(before, now, items, stored, analysis)),
        scores=tuple(_changed(before, now, items)),
        analysis=analysis,
        is_stored=store and plan != own,
    )


def key_of(score: Score) -> ScoreKey:
    """Tell a score from the others of its comparison."""
    return score.arm, score.position, score.repeat, score.metric


def _tasks_changed(before: Plan, now: Plan) -> Iterator[Reason]:
    if before.harness_version != now.harness_version:
        yield Reason("harness-changed", {"before": before.harness_version, "after": now.harness_version})
    for old, new in zip(before.tasks, now.tasks, strict=True):
        if changes := tuple(_differing(old, new)):
            yield Reason("task-changed", {"task": old.name, "changes": changes})


def _differing(old: TaskSpec, new: TaskSpec) -> Iterator[Reason]:
    if old.version != new.version:
        yield Reason("version-changed", {"before": old.version, "after": new.version})
    if old.config_hash != new.config_hash:
        yield Reason("configuration-changed")
    if old.data_hash != new.data_hash:
        yield Reason("documents-changed")
    if replace(old, version=new.version, config_hash=new.config_hash, data_hash=new.data_hash) != new:
        yield Reason("sizes-changed")


def _metric_changes(
    before: Scores, now: Scores, items: Sequence[Item], stored: Analysis, analysis: Analysis
) -> Iterator[MetricChange]:
    totals: dict[str, list[int]] = {}
    for key in before.keys() | now.keys():
        count = totals.setdefault(f"{items[key[1]].task}/{key[3]}", [0, 0])
        count[0] += 1
        count[1] += _raw(before.get(key)) != _raw(now.get(key))
    old, new = ({row.id: row.verdict for row in part.metrics} for part in (stored, analysis))
    for name in dict.fromkeys((*new, *old, *sorted(totals))):
        n_scores, n_changed = totals.get(name, (0, 0))
        verdicts = {"verdict_before": old.get(name), "verdict_now": new.get(name)}
        yield MetricChange(metric=name, n_scores=n_scores, n_changed=n_changed, **verdicts)


def _changed(before: Scores, now: Scores, items: Sequence[Item]) -> Iterator[ChangedScore]:
    for key in sorted(before.keys() | now.keys()):
        old, new = _raw(before.get(key)), _raw(now.get(key))
        if old != new:
            arm, position, repeat, metric = key
            yield ChangedScore(item=items[position].id, arm=arm, repeat=repeat, metric=metric, before=old, now=new)


def _raw(score: Score | None) -> Any:
    return None if score is None else raw_value(score)


NOT_IN_FILE_NAMES = re.compile(r"[^\w.-]")
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def export(
    services: Services, comparison_id: str, folder: Path, *, local: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Write one folder an arm (and repeat), each an lm-eval run; yields the files' paths.

    Raises InvalidValue for an arm without answers, UsageError for a file that cannot be written, InfrastructureError
    where there is no room for it.
    """
    comparison = refuse_imported(services.store.get(comparison_id), "exported")
    plan = comparison.plan
    tasks = tasks_again(services, comparison, local)
    items = list(services.store.items(comparison.id))
    date_id = f"{comparison.created_at:%Y-%m-%dT%H-%M-%S.%f}"
    for arm in ArmName:
        answered = list(answered_items(services.store.answers(comparison.id, arm=arm), items))
        if not answered:
            raise InvalidValue(f"The {arm} of {comparison.id} has no answers to export")
        for repeat in range(plan.sampling.repeats):
            name = arm.value if repeat == 0 else f"{arm}-repeat-{repeat}"
            entries: dict[str, list[tuple[Item, tuple[Reply, ...]]]] = {task.name: [] for task in plan.tasks}
            for _, item, own_repeat, replies in sorted(answered, key=lambda row: row[1].doc_id):  # as lm-eval logs them
                if own_repeat == repeat:
                    entries[item.task].append((item, replies))
            entries = {task: rows for task, rows in entries.items() if rows}
            results = {**tasks.results(entries), **_settings(comparison, arm, repeat)}
            samples = ((task, tasks.samples(task, rows)) for task, rows in entries.items())
            yield from _write_files(folder / name, date_id=date_id, results=results, samples=samples)


def _settings(comparison: Comparison, arm: ArmName, repeat: int) -> JsonObject:
    """Name the run's settings as lm-eval does, and which comparison this was."""
    plan, sampling = comparison.plan, comparison.plan.sampling
    url = comparison.baseline_url if arm is ArmName.BASELINE else comparison.candidate_url
    model = "local-chat-completions" if sampling.api is Api.CHAT else "local-completions"
    return {
        "config": {
            "model": model,
            "model_args": {"model": sampling.model, "base_url": url, "num_concurrent": plan.policy.concurrency},
            "batch_size": 1,
            "limit": plan.limit,
            "bootstrap_iters": 0,
            "gen_kwargs": sampling.gen_kwargs or None,
            "random_seed": sampling.seed + repeat,
            "fewshot_seed": sampling.seed,
        },
        "date": comparison.created_at.timestamp(),
        "model_source": model,
        "model_name": sampling.model,
        "system_instruction": sampling.system_instruction or None,
        "fewshot_as_multiturn": sampling.api is Api.CHAT,
        "lm_eval_version": plan.harness_version,
        "qualab": {
            "comparison": comparison.id,
            "plan_hash": comparison.plan_hash,
            "plan": plain(plan),  # for `qualab import`
            "arm": arm.value,
        },
    }


def _write_files(
    folder: Path, *, date_id: str, results: Mapping[str, Any], samples: Iterable[tuple[str, Iterable[JsonObject]]]
) -> Iterator[Path]:
    """`results_<date>.json`, and a `samples_<task>_<date>.jsonl` for each task."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"results_{date_id}.json"
        path.write_text(json.dumps(results, indent=2, ensure_ascii=False), encoding="utf-8")
        yield path
        for task, rows in samples:
            path = folder / f"samples_{NOT_IN_FILE_NAMES.sub('_', task)}_{date_id}.jsonl"
            with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            yield path
    except OSError as exc:
        kind = InfrastructureError if exc.errno in NO_ROOM else UsageError
        raise kind(f"Cannot write {exc.filename or folder}: {exc.strerror}", hint="Give another folder") from exc
