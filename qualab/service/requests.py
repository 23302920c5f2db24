"""Requests that plan, queue, change and analyse again."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from qualab.errors import EndpointForbidden, InvalidValue, WrongState
from qualab.model.canonical import canonical_json, plan_hash, sha256
from qualab.model.comparison import Analysis, Comparison
from qualab.model.items import JsonObject
from qualab.model.names import UNDER_WAY, ArmName, ComparisonStatus, Verdict
from qualab.model.registry import ComparisonSummary, address_of, signed_off, urls_of
from qualab.model.wording import is_one_line
from qualab.planning.suite import EVERYWHERE, Given, Planning, pilot_of
from qualab.report.words import ENGLISH, shown
from qualab.run.ask import looked_to
from qualab.run.bank import find_banked
from qualab.run.preflight import check_urls
from qualab.run.prepare import FrozenPlan, check_frozen, to_document
from qualab.run.stored import compare_again, with_rule
from qualab.service.access import Actor
from qualab.service.context import ComparisonRequest, Context, read_rule, validated
from qualab.service.reading import comparison_of
from qualab.settings import PLAN_FIELDS


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisSummary:
    """One stored analysis."""

    plan_hash: str
    is_own_plan: bool
    """False: its plan was made after the data."""
    verdict: Verdict
    hash: str


def summary_of(analysis: Analysis, comparison: Comparison) -> AnalysisSummary:
    """Sum up an analysis of a comparison."""
    return AnalysisSummary(
        plan_hash=analysis.plan_hash,
        is_own_plan=analysis.plan_hash == comparison.plan_hash,
        verdict=analysis.verdict,
        hash=sha256(canonical_json(analysis)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAnalysis:
    """A comparison that was analysed again."""

    name: AnalysisSummary
    is_as_stored: bool
    analysis: Analysis


def analyse_again(context: Context, comparison_id: str, changes: JsonObject, *, by: Actor) -> NewAnalysis:
    """Analyse under the comparison's own plan, or with another rule: then it is marked as made after the data.

    Raises as `compare_again`, `with_rule` and `read_rule`, WrongState.
    """
    comparison = comparison_of(context, comparison_id)
    rule = read_rule(changes)
    other = with_rule(comparison.plan, rule) if rule else None
    again = compare_again(context.services, comparison.id, other=other)
    if not again.is_own_plan:
        changed = {name: str(value) for name, value in rule.items()}
        context.store.note(by.entry("analysis.create", comparison.id, plan_hash=again.analysis.plan_hash, **changed))
    name = summary_of(again.analysis, comparison)
    return NewAnalysis(name=name, is_as_stored=again.is_as_stored, analysis=again.analysis)


def _by_name(value: object) -> object:
    return {EVERYWHERE: value} if type(value) in (int, float) else {} if value is None else value


Numbers = Annotated[dict[str, float], BeforeValidator(_by_name, json_schema_input_type=float | dict[str, float])]


class Assumptions(BaseModel):
    """Assumption about the items: a number for all, or numbers by benchmark, task or metric."""

    model_config = ConfigDict(extra="forbid", strict=True)

    discordance: Numbers = {}
    design_effect: Numbers = {}
    noise: Numbers = {}
    rate: float | None = Field(default=None, description="Requests a second")


class PlanRequest(BaseModel):
    """Fields beside the experiment's settings where a plan is asked for."""

    model_config = ConfigDict(strict=True)

    assume: Assumptions | None = None
    pilot: str | None = Field(default=None, description="A comparison that has run: what is not assumed comes from it")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComputed:
    """Answer of a planning request: what items can prove, and the frozen plan."""

    plan_hash: str
    document: JsonObject | None
    """The content of a plan file, to run; None where no model is named."""
    planning: JsonObject
    """The document of `qualab plan --format json`."""


def compute_plan(context: Context, body: JsonObject, *, caller: str) -> PlanComputed:
    """Plan an experiment, with `assume` and `pilot` beside its settings. Raises as `submit` without its endpoints."""
    beside = validated(PlanRequest, body)
    given = Given(**(beside.assume or Assumptions()).model_dump())
    settings = {name: value for name, value in body.items() if name not in PlanRequest.model_fields}
    request = context.read_document(settings, needed=())
    pilot = pilot_of(context.store, comparison_of(context, beside.pilot).id) if beside.pilot else None
    planning = context.planner.planned(
        request.experiment, given, pilot, banked=find_banked(context.store, request.experiment.bank), caller=caller
    )
    digest = plan_hash(planning.plan)
    everything = request.experiment.model_dump(mode="json", include=set(PLAN_FIELDS))
    settings = {name: value for name, value in everything.items() if value is not None}
    frozen = FrozenPlan(plan=planning.plan, plan_hash=digest, frozen_at=context.services.clock.now(), settings=settings)
    document = to_document(frozen, {"joint_power": planning.joint_power}) if request.experiment.model else None
    return PlanComputed(plan_hash=digest, document=document, planning=shown(planning))


KEY = re.compile(r"[\x21-\x7e]{1,200}")
MOST_CHARACTERS = 200


def planned(context: Context, body: JsonObject, *, by: Actor) -> tuple[ComparisonRequest, Planning]:
    """Read a request, check that it may be asked, and compute what its items can prove.

    Raises as `Context.read_document` and `Planner.planned`, EndpointForbidden, PlanChanged, InvalidValue.
    """
    request = context.read_document(body)
    _check(context, request)
    frozen = request.frozen.plan if request.frozen else None
    assumed = frozen.assumptions if frozen else None
    shares = {name: getattr(assumed, name) for name in ("discordance", "design_effect", "noise")} if assumed else {}
    hashed = frozen.pins.checkpoint_hash if frozen else ""
    banked = find_banked(context.store, request.experiment.bank)
    planning = context.planner.planned(
        request.experiment, Given(**shares), checkpoint_hash=hashed, banked=banked, caller=by.caller
    )
    if frozen:
        check_frozen(frozen, replace(planning.plan, assumptions=assumed))
    return request, planning


def submit(context: Context, body: JsonObject, *, by: Actor, key: str = "") -> str:
    """Queue a comparison and return its id; with an idempotency key that was used before, that comparison's.

    Raises as `planned`, and InvalidValue for margins that these items cannot prove.
    """
    if key and not KEY.fullmatch(key):
        raise InvalidValue.must_be("Idempotency-Key", "1 to 200 printable ASCII characters without spaces")
    request, planning = planned(context, body, by=by)
    if planning.unproven and not request.accept_underpowered:
        raise InvalidValue(
            "These items cannot prove the plan's margins",
            hint="Ask more items, widen the margin, or send accept_underpowered: true",
            code="underpowered",
            fields={
                "margin": " ".join(ENGLISH.reasons(planning.unproven)),
                "accept_underpowered": "must be true for such a plan",
            },
        )
    experiment, comparison_id = request.experiment, f"{by.at:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    if experiment.candidates:  # the first one's comparison; its worker adds the others'
        comparison_id = f"{comparison_id}-{next(iter(experiment.candidates))}"
    return context.store.submit(
        comparison_id,
        request.document,
        entry=by.entry("comparison.create", comparison_id, label=experiment.label, model=experiment.model),
        baseline_url=experiment.baseline,
        candidate_url=", ".join(own.candidate for own in experiment.pairs.values()),  # until it has a plan
        model=experiment.model,
        label=experiment.label,
        is_exclusive=request.is_exclusive,
        key=key,
        body_hash=sha256(canonical_json(body)),
        webhook_url=request.webhook,
    )


def _check(context: Context, request: ComparisonRequest) -> None:
    """Raises InvalidValue, EndpointForbidden."""
    experiment = request.experiment
    for name in ("label", "model"):
        text = getattr(experiment, name)
        if len(text) > MOST_CHARACTERS or not is_one_line(text):
            raise InvalidValue.must_be(
                name, f"text of at most {MOST_CHARACTERS} characters, on one line, without control characters"
            )
    if request.webhook:
        context.webhooks.check(request.webhook)
    candidates = [own.candidate for own in experiment.pairs.values()]
    field = "candidates" if experiment.candidates else "candidate"
    for name, text in (("baseline", experiment.baseline), *((field, own) for own in candidates)):
        try:
            for url in urls_of(text):
                context.allowed.check(url)
        except (EndpointForbidden, InvalidValue) as exc:
            raise type(exc)(exc.message, hint=exc.hint, fields={name: exc.message}) from exc
    each = experiment.concurrency
    noise = experiment.noise_plan.concurrency if experiment.noise_plan else 0
    on_host = Counter({host: max(each, noise) for host in _hosts(experiment.baseline)})
    for text in candidates:
        on_host.update(dict.fromkeys(_hosts(text), each))
    if max(on_host.values()) > context.settings.host_concurrency:
        limit = context.settings.host_concurrency
        raise InvalidValue.must_be("concurrency", f"so small that a host gets at most {limit} requests at once")
    for text in candidates:
        urls = {ArmName.BASELINE: experiment.baseline, ArmName.CANDIDATE: text}
        try:
            check_urls(urls, context.services.is_same_server)
        except InvalidValue as exc:
            if experiment.candidates:
                raise InvalidValue(exc.message, hint=exc.hint, fields={field: exc.message}) from exc
            raise


def _hosts(text: str) -> set[str]:
    return {address_of(url)[0] for url in urls_of(text)}


def cancel(context: Context, summary: ComparisonSummary, *, by: Actor) -> None:
    """End what waits or runs, as it was read; of a group all. Raises WrongState, VersionConflict."""
    summary, *others = _with_group(context, summary)
    _check_requested(summary)
    if not any(own.status in UNDER_WAY for own in (summary, *others)):
        if summary.status is ComparisonStatus.CANCELLED:
            return
        raise WrongState(
            f"Comparison {summary.id} is {summary.status.value}: there is nothing to cancel",
            hint="Only what is queued or running can be cancelled",
        )
    context.store.cancel(summary.id, entry=by.entry("comparison.cancel", summary.id), version=summary.version)


def resume(context: Context, summary: ComparisonSummary, *, by: Actor, retry_failed: bool) -> None:
    """Queue what was cancelled, stopped or failed again, as it was read; of a group all.

    Raises WrongState, ComparisonSignedOff, VersionConflict.
    """
    summary, *others = _with_group(context, summary)
    _check_requested(summary)
    if summary.status in UNDER_WAY:
        raise WrongState(f"Comparison {summary.id} is {summary.status.value} already", hint="Follow its events")
    if summary.is_signed_off:
        raise signed_off(summary.id)
    is_finished = all(own.status is ComparisonStatus.FINISHED for own in (summary, *others))
    if is_finished and not retry_failed:
        raise WrongState(
            f"Comparison {summary.id} is finished", hint="Only retry_failed: true takes up a finished comparison"
        )
    store = context.store
    for own in others if retry_failed else ():
        if own.status is not ComparisonStatus.FINISHED:
            store.drop_failures(own.id, from_position=looked_to(store.looks(own.id)))
    store.requeue(
        summary.id,
        entry=by.entry("comparison.resume", summary.id, retry_failed=str(retry_failed).lower()),
        version=summary.version,
        drop_failures_from=looked_to(store.looks(summary.id)) if retry_failed else None,
    )


def _with_group(context: Context, summary: ComparisonSummary) -> Iterator[ComparisonSummary]:
    """Yield the first of its group, which stands for all in the queue, then the others; itself where alone."""
    store = context.store
    group = store.get(summary.id).plan.group if summary.plan_hash else None
    ids = group.ids if group else [summary.id]
    known = {**store.summaries(ids), summary.id: summary}
    return (known[own] for own in ids if own in known)


def _check_requested(summary: ComparisonSummary) -> None:
    if not summary.is_requested:
        raise WrongState(
            f"Comparison {summary.id} was not asked for over the service",
            hint=f"Where it was started: qualab resume {summary.id}",
        )
