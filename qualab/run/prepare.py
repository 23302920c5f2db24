"""Makes a frozen plan of settings, and requests of its tasks in the plan's order."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from qualab.errors import InvalidValue, PlanChanged, UsageError
from qualab.harness.process import Harness, LoadedTasks
from qualab.model.canonical import plain, plan_hash
from qualab.model.comparison import Comparison
from qualab.model.items import Item, Prompt, Request, generation_request, loglikelihood_parts, loglikelihood_request
from qualab.model.names import Api, ArmName, ComparisonStatus, RequestKind, Tier
from qualab.model.plan import (
    Assumptions,
    LookPlan,
    Pins,
    Plan,
    SamplingPlan,
    TaskSpec,
    arms_text,
    check_names,
    commit_of,
)
from qualab.model.ports import Clock, Progress, TaskOptions, Tokenize
from qualab.model.registry import Heartbeat
from qualab.run.pins import LocalPins
from qualab.settings import Settings

if TYPE_CHECKING:
    from qualab.endpoints.replicas import Endpoint
    from qualab.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PairServices:
    """Services of planning and preflight: nothing is stored."""

    harness: Harness
    open_endpoint: Callable[..., AbstractAsyncContextManager[Endpoint]]
    named_tokenizer: Callable[[str], Tokenize]
    is_same_server: Callable[[str, str], bool]
    pins: LocalPins = field(default_factory=LocalPins)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    progress: Progress = field(default_factory=Progress)
    keys: Mapping[ArmName, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(PairServices):
    store: Store
    clock: Clock
    runner: str
    """Names this process in claims, as "host:pid:nonce"."""


@dataclass(frozen=True, slots=True)
class Run:
    """One comparison being carried out, as its steps share it."""

    services: Services
    comparison: Comparison
    tasks: LoadedTasks
    items: Sequence[Item]
    """In order of position."""
    endpoints: Mapping[ArmName, Endpoint]
    """Both arms', or that of the one whose turn it is."""

    @property
    def plan(self) -> Plan:
        return self.comparison.plan

    @property
    def id(self) -> str:
        return self.comparison.id


def task_options(settings: Settings, frozen: Plan | None = None, *, only: tuple[str, ...] | None = None) -> TaskOptions:
    """Return the harness's options; data sets are read at the commits that a frozen plan records."""
    return TaskOptions(
        names=settings.tasks,
        only=only,
        num_fewshot=settings.num_fewshot,
        limit=settings.limit,
        gen_kwargs=settings.gen_kwargs or None,
        seed=settings.seed,
        include_paths=settings.include_path,
        data_dir=settings.data_dir,
        revisions=_commits(frozen) if frozen else {},
        apply_chat_template=settings.apply_chat_template,
        system_instruction=settings.system_instruction,
    )


def tasks_again(
    services: PairServices, comparison: Comparison, local: Mapping[str, str] | None = None, *, may_differ: bool = False
) -> LoadedTasks:
    """Load a stored comparison's tasks; `local` overrides where this machine finds them. Raises PlanChanged."""
    tasks = services.harness.load(planned_options(comparison.plan, {**comparison.local, **(local or {})}))
    if not may_differ:
        check_unchanged(comparison.plan, tasks)
    return tasks


def planned_options(plan: Plan, local: Mapping[str, str]) -> TaskOptions:
    """Return the options that load a stored plan's tasks again."""
    return TaskOptions(
        names=plan.requested,
        only=tuple(task.name for task in plan.tasks),
        num_fewshot=plan.num_fewshot,
        limit=plan.limit,
        gen_kwargs=plan.sampling.gen_kwargs or None,
        seed=plan.sampling.seed,
        include_paths=tuple(Path(path) for path in local.get("include_path", "").split("\n") if path),
        data_dir=Path(local["data_dir"]) if local.get("data_dir") else None,
        revisions=_commits(plan),
        apply_chat_template=plan.sampling.api is Api.CHAT,
        system_instruction=plan.sampling.system_instruction,
    )


def _commits(plan: Plan) -> dict[str, str]:
    return {task.name: task.revision for task in plan.tasks if commit_of(task.revision)}


def local_of(settings: Settings) -> dict[str, str]:
    """Tell where this machine finds things: kept with the comparison, not in its plan."""
    return {
        "data_dir": str(settings.data_dir.resolve()) if settings.data_dir else "",
        "include_path": "\n".join(str(path.resolve()) for path in settings.include_path),
        "tokenizer": settings.tokenizer,
        "checkpoint": str(Path(settings.checkpoint).resolve()) if settings.checkpoint else "",
        "pods": arms_text(settings.pods),
        "containers": arms_text(settings.containers),
        **({"speed_prompts": str(settings.speed_prompts.resolve())} if settings.speed_prompts else {}),
    }


def new_id(now: datetime) -> str:
    """Make an id that nobody has."""
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def new_comparison(comparison_id: str, plan: Plan, settings: Settings, *, now: datetime) -> Comparison:
    """Make a comparison that nothing is asked of yet."""
    return Comparison(
        id=comparison_id,
        plan=plan,
        plan_hash=plan_hash(plan),
        status=ComparisonStatus.PLANNED,
        label=settings.label,
        created_at=now,
        baseline_url=settings.baseline,
        candidate_url=settings.candidate,
        local=local_of(settings),
    )


def make_plan(
    settings: Settings, tasks: LoadedTasks, *, assumptions: Assumptions | None = None, checkpoint_hash: str = ""
) -> Plan:
    """Freeze what will be asked and how it will be judged. Raises InvalidValue."""
    plan = Plan(
        suite=tasks.suite,
        requested=settings.tasks,
        tasks=tasks.tasks,
        metrics=tasks.metrics,
        sampling=SamplingPlan(
            model=settings.model,
            api=Api.CHAT if tasks.applies_chat_template else Api.COMPLETIONS,
            gen_kwargs=dict(settings.gen_kwargs),
            allow_extra=settings.allow_extra,
            seed=settings.seed,
            repeats=settings.repeats,
            system_instruction=settings.system_instruction,
        ),
        policy=settings.policy,
        rule=settings.rule,
        limit=settings.limit,
        num_fewshot=settings.num_fewshot,
        harness_version=tasks.harness_version,
        assumptions=assumptions,
        # a loss has half the level, as in a two-sided test
        looks=LookPlan(n_looks=settings.looks, harm_alpha=settings.alpha / 2.0) if settings.looks else None,
        noise_floor=settings.noise_plan,
        audit=settings.audit_plan(tasks.suite),
        speed=settings.speed_plan if settings.speed else None,
        pins=Pins(image=settings.image, revision=settings.revision, checkpoint_hash=checkpoint_hash),
        drafter_costs=settings.drafter_costs,
        sequential=settings.sequential,
    )
    check_rule_names(plan)
    return with_tiers(plan, {tier: getattr(settings, tier) for tier in Tier})


def with_tiers(plan: Plan, names: Mapping[Tier, Sequence[str]]) -> Plan:
    """Put the metrics into a policy's tiers, by id, task, benchmark or pattern; others are supporting.

    Of a critical task or benchmark the metrics decide that would without a policy. Raises InvalidValue.
    """
    if not any(names.values()):
        return plan
    if not names[Tier.CRITICAL]:
        raise InvalidValue.must_be("critical", "at least one metric, task or benchmark: critical metrics decide")
    found, metrics = set[str](), []
    for metric in plan.metrics:
        known = {metric.id, metric.task, *plan.benchmarks_of(metric)}
        matched = {tier: [own for own in names[tier] if any(fnmatchcase(name, own) for name in known)] for tier in Tier}
        found.update(*matched.values())
        tiers = [tier for tier, own in matched.items() if own]
        by_id = {tier for tier in tiers if any(fnmatchcase(metric.id, own) for own in matched[tier])}
        if len(tiers) > 1 and len(by_id) != 1:
            raise InvalidValue.must_be(tiers[1], f"other metrics than {tiers[0]}: {metric.id} is in both")
        tier = next(iter(by_id or tiers), Tier.SUPPORTING)
        if tier is Tier.CRITICAL and not by_id and not metric.is_primary:
            tier = Tier.SUPPORTING
        metrics.append(replace(metric, tier=tier, is_primary=tier is Tier.CRITICAL))
    for tier in Tier:
        if unknown := [name for name in names[tier] if name not in found]:
            raise InvalidValue.must_be(tier, f"metrics, tasks or benchmarks of this plan; {unknown[0]} matches none")
    if not any(metric.is_primary for metric in metrics):
        raise InvalidValue.must_be("critical", "metrics that can decide, by id, as gsm8k/exact_match,*")
    return replace(plan, metrics=tuple(metrics))


def check_rule_names(plan: Plan) -> None:
    """Raise InvalidValue for a margin or bounds of a metric that the plan does not have."""
    check_names(plan.rule.margins, plan, what="margins")
    check_names(plan.rule.score_bounds, plan, what="score_bounds")


AGAIN = "A changed plan is a new plan: run `qualab plan` again"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenPlan:
    plan: Plan
    plan_hash: str
    frozen_at: datetime
    settings: dict[str, Any]


def to_document(frozen: FrozenPlan, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan file's content; what a person looks for comes first."""
    return {
        "qualab_plan": frozen.plan.schema,
        "hash": frozen.plan_hash,
        "frozen_at": frozen.frozen_at.isoformat(timespec="seconds"),
        "figures": dict(figures),
        "experiment": frozen.settings,
        "plan": plain(frozen.plan),
    }


def from_document(document: Mapping[str, Any], *, where: str) -> FrozenPlan:
    """Read a plan file's content.

    The hash is that of the plan as it stands in the file. Raises UsageError where parts are missing, PlanChanged where
    the plan was edited, or made by a version whose plans have other fields.
    """
    try:
        content, given_hash = document["plan"], str(document["hash"])
        frozen_at, settings = datetime.fromisoformat(str(document["frozen_at"])), dict(document["experiment"])
        content_hash = plan_hash(content)
    except (KeyError, TypeError, ValueError) as exc:
        raise UsageError(f"{where} is not a whole plan file", hint=f"It was edited or cut short. {AGAIN}") from exc
    if content_hash != given_hash:
        raise PlanChanged(
            f"{where} was edited: its plan is not the one that was frozen as {given_hash[:12]}", hint=AGAIN
        )
    try:
        plan = TypeAdapter(Plan).validate_python(content)
    except ValidationError:
        plan = None
    if plan is None or plan_hash(plan) != given_hash:
        raise PlanChanged(
            f"{where} was made by another version of qualab: plans of this version have other fields",
            hint="Run `qualab plan` again with this version, or run the plan with the version that made it",
        )
    return FrozenPlan(plan=plan, plan_hash=given_hash, frozen_at=frozen_at, settings=settings)


def refuse_imported(comparison: Comparison, action: str) -> Comparison:
    """Return the comparison. Raises InvalidValue for an imported one: there are no tasks to ask with."""
    if comparison.plan.imported:
        raise InvalidValue(
            f"Comparison {comparison.id} was imported from logs: it cannot be {action}",
            hint="Its answers and scores are here: qualab show, compare, rescore",
        )
    return comparison


def check_unchanged(plan: Plan, tasks: LoadedTasks) -> None:
    """Raise PlanChanged when the tasks loaded now do not ask what those of the plan asked."""
    now = {task.name: _deciding(task) for task in tasks.tasks}
    changed = [task.name for task in plan.tasks if now.get(task.name) != _deciding(task)]
    if changed:
        raise PlanChanged(
            f"The prompts or items of {', '.join(changed)} no longer match the plan",
            hint="Use the same task files, data and lm-eval version as when the comparison started, or start a new one",
        )


def check_frozen(frozen: Plan, now: Plan) -> None:
    """Raise PlanChanged where a plan made now of the same settings is not the frozen one."""
    before, after = (replace(plan, tasks=tuple(map(_deciding, plan.tasks))) for plan in (frozen, now))
    parts = [part.name for part in fields(Plan) if getattr(before, part.name) != getattr(after, part.name)]
    if parts:
        raise PlanChanged(
            f"What would be run now is not the frozen plan: {', '.join(parts)} differ",
            hint=f"Use the same task files, data, settings and lm-eval version as then. {AGAIN}",
        )


def _deciding(task: TaskSpec) -> TaskSpec:
    return replace(task, revision="", n_choices=None)


TOKENIZE_CHUNK = 2_000


async def token_ids(
    texts: Iterable[str], *, endpoint: Endpoint, model: str, named: Tokenize | None
) -> dict[str, list[int]]:
    """Tokenize each distinct text with a named tokenizer, or the server's own."""
    distinct = list(dict.fromkeys(texts))
    encoded: dict[str, list[int]] = {}
    for start in range(0, len(distinct), TOKENIZE_CHUNK):
        chunk = distinct[start : start + TOKENIZE_CHUNK]
        ids = named(chunk) if named else await endpoint.tokenize(chunk, model=model)
        encoded.update(zip(chunk, ids, strict=True))
    return encoded


def in_random_order(items: Iterable[Item], *, seed: int, n_stages: int = 1) -> list[Item]:
    """Put generations before log-likelihoods, task by task, each task's items in a seeded random order.

    With stages, each holds the next equal share of every task's order.
    """
    blocks: dict[tuple[bool, str], list[Item]] = {}
    for item in items:
        blocks.setdefault((item.kind is RequestKind.LOGLIKELIHOOD, item.task), []).append(item)
    in_order = sorted(blocks.items(), key=lambda entry: entry[0][0])
    for (_, task), block in in_order:
        random.Random(f"{seed}:{task}").shuffle(block)
    ordered = [
        item
        for stage in range(n_stages)
        for _, block in in_order
        for item in block[len(block) * stage // n_stages : len(block) * (stage + 1) // n_stages]
    ]
    return [replace(item, position=position) for position, item in enumerate(ordered)]


def stage_ends(items: Iterable[Item], *, n_stages: int) -> list[int]:
    """Return the position after the last item of each stage."""
    sizes = Counter(item.task for item in items).values()
    return [sum(size * (stage + 1) // n_stages for size in sizes) for stage in range(n_stages)]


async def with_requests(
    items: Sequence[Item],
    *,
    sampling: SamplingPlan,
    endpoint: Endpoint,
    named: Tokenize | None,
    telling: Mapping[str, object],
) -> list[Item]:
    """Add their bodies to the items. `telling` are settings that only add to what a generation's answer tells."""
    scored = [prompt for item in items if item.kind is RequestKind.LOGLIKELIHOOD for prompt in item.prompts]
    texts = (text for prompt in scored for text in loglikelihood_parts(prompt))
    encoded = await token_ids(texts, endpoint=endpoint, model=sampling.model, named=named)

    def request(item: Item, choice: int, prompt: Prompt) -> Request:
        if item.kind is RequestKind.GENERATION:
            made = generation_request(prompt, sampling=sampling)
            return replace(made, payload={**made.payload, **telling})
        context, whole = (encoded[text] for text in loglikelihood_parts(prompt))
        return loglikelihood_request(choice=choice, context_ids=context, whole_ids=whole, model=sampling.model)

    return [
        replace(item, requests=tuple(request(item, choice, prompt) for choice, prompt in enumerate(item.prompts)))
        for item in items
    ]
