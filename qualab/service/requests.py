"""A stored comparison is analysed again over the service."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from qualab.errors import (
    EndpointForbidden,
    Forbidden,
    InvalidValue,
    TooManyTasks,
    Underpowered,
    WrongState,
)
from qualab.model.canonical import canonical_json, plan_hash, sha256
from qualab.model.comparison import Analysis
from qualab.model.items import JsonObject
from qualab.model.names import UNDER_WAY, ComparisonStatus
from qualab.model.registry import ComparisonSummary, Scope, address_of, signed_off
from qualab.model.wording import is_one_line
from qualab.planning.suite import EVERYWHERE, Given, Planning, pilot_of
from qualab.report.words import ENGLISH
from qualab.run.ask import looked_to
from qualab.run.prepare import FrozenPlan, check_frozen, to_document
from qualab.run.stored import compare_again, with_rule
from qualab.service.access import Actor, Caller
from qualab.service.context import ComparisonRequest, Context, read_rule
from qualab.service.planner import beliefs_of
from qualab.service.reading import (
    AnalysisSummary,
    analysis_summary,
    comparison_of,
    known_id,
    summary_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAnalysis:
    """A comparison that was analysed again."""

    name: AnalysisSummary
    is_as_stored: bool
    analysis: Analysis


def analyse_again(context: Context, comparison_id: str, changes: JsonObject, *, by: Actor) -> NewAnalysis:
    """Analyse under the comparison's own plan, or with another rule: then it is marked as made after the data.

    Raises as `compare_again`, `with_rule` and `read_rule`, NotYet.
    """
    comparison = comparison_of(context, comparison_id)
    rule = read_rule(changes)
    other = with_rule(comparison.plan, rule) if rule else None
    found = compare_again(context.services, comparison.id, other=other)
    if not found.is_own_plan:
        said = {name: str(value) for name, value in rule.items()}
        context.registry.note(by.entry("analysis.create", comparison.id, plan_hash=found.analysis.plan_hash, **said))
    return NewAnalysis(
        name=analysis_summary(found.analysis, comparison), is_as_stored=found.is_as_stored, analysis=found.analysis
    )


MOST_TO_READ = 50
"""Tasks of a plan whose caller may only read: every suite has fewer."""
ASSUMED = ("discordance", "design_effect", "noise")
ASSUME_RULE = "a number, or an object of numbers by benchmark, task or metric"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedPlan:
    """What a plan can prove."""

    plan_hash: str
    document: JsonObject | None
    """None where no model is named: such a plan cannot be run."""
    planning: Planning


def compute_plan(context: Context, body: JsonObject, *, caller: Caller) -> ComputedPlan:
    """Of an experiment's settings, with `assume` and `pilot` beside them. Raises as `submit` without its endpoints, and
    Forbidden for many tasks where the caller may only read."""
    said = dict(body)
    given, pilot_id = _given(said.pop("assume", None)), said.pop("pilot", None)
    if pilot_id is not None and not isinstance(pilot_id, str):
        raise InvalidValue.must_be("pilot", "the id of a comparison")
    request = context.read_document(said, needed=())
    pilot = pilot_of(context.services.store, comparison_of(context, pilot_id).id) if pilot_id else None
    may_run = caller.scope.allows(Scope.RUN)
    try:
        found = context.planner.planned(
            request.experiment,
            given,
            pilot,
            caller=caller.token_id or caller.name,
            most_tasks=None if may_run else MOST_TO_READ,
        )
    except TooManyTasks as exc:
        if may_run:
            raise
        raise Forbidden(
            f"A plan of more than {MOST_TO_READ} tasks needs the scope run; the token has read",
            hint="Name fewer tasks, or send a token with the scope run",
        ) from exc
    digest = plan_hash(found.plan)
    frozen = FrozenPlan(
        plan=found.plan, plan_hash=digest, frozen_at=context.services.clock.now(), settings=dict(request.settings)
    )
    document = to_document(frozen, {"joint_power": found.joint_power}) if request.experiment.model else None
    return ComputedPlan(plan_hash=digest, document=document, planning=found)


def _given(assume: Any) -> Given:
    if assume is None:
        return Given()
    if not isinstance(assume, dict):
        raise InvalidValue.must_be("assume", f"an object of {', '.join(ASSUMED)} and rate")
    if unknown := [name for name in assume if name not in (*ASSUMED, "rate")]:
        raise InvalidValue.must_be(f"assume.{unknown[0][:60]}", f"one of {', '.join(ASSUMED)} and rate")
    rate = assume.get("rate")
    if rate is not None and not _is_number(rate):
        raise InvalidValue.must_be("assume.rate", "a number of requests a second")
    shares = {name: _shares(name, assume[name]) for name in ASSUMED if assume.get(name) is not None}
    return Given(**shares, rate=rate)


def _shares(name: str, value: Any) -> Mapping[str, float]:
    if _is_number(value):
        return {EVERYWHERE: float(value)}
    if isinstance(value, dict) and all(_is_number(one) for one in value.values()):
        return {str(key): float(one) for key, one in value.items()}
    raise InvalidValue.must_be(f"assume.{name}", ASSUME_RULE)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


KEY = re.compile(r"[\x21-\x7e]{1,200}")
KEY_RULE = "1 to 200 printable ASCII characters without spaces"
MOST_CHARACTERS = 200


def submit(context: Context, body: JsonObject, *, by: Actor, key: str = "") -> str:
    """Queue a comparison and return its id; with an idempotency key that was used before, that comparison's.

    Raises as `Context.read_document` and loading tasks, EndpointForbidden, Underpowered, StillLoading, KeyReused.
    """
    if key and not KEY.fullmatch(key):
        raise InvalidValue.must_be("Idempotency-Key", KEY_RULE)
    request = context.read_document(body)
    check_request(context, request)
    _check_power(planned(context, request, caller=by.caller), accepted=request.accept_underpowered)
    experiment, comparison_id = request.experiment, new_id(by.at)
    return context.services.store.submit(
        comparison_id,
        request.document,
        entry=by.entry("comparison.create", comparison_id, label=experiment.label, model=experiment.model),
        baseline=experiment.baseline,
        candidate=experiment.candidate,
        model=experiment.model,
        label=experiment.label,
        is_exclusive=request.is_exclusive,
        key=key,
        body_hash=sha256(canonical_json(body)),
    )


def check_request(context: Context, request: ComparisonRequest) -> None:
    """Raises InvalidValue, EndpointForbidden."""
    experiment = request.experiment
    for name in ("label", "model"):
        text = getattr(experiment, name)
        if len(text) > MOST_CHARACTERS or not is_one_line(text):
            raise InvalidValue.must_be(
                name, f"text of at most {MOST_CHARACTERS} characters, on one line, without control characters"
            )
    for name in ("baseline", "candidate"):
        _check_endpoint(context, name, getattr(experiment, name))
    each = experiment.concurrency
    noise = experiment.noise_plan.concurrency if experiment.noise_plan else 0
    is_one_host = address_of(experiment.baseline)[0] == address_of(experiment.candidate)[0]
    if max(each, noise) + (each if is_one_host else 0) > context.settings.host_concurrency:
        limit = context.settings.host_concurrency
        raise InvalidValue.must_be("concurrency", f"so small that a host gets at most {limit} requests at once")
    if context.services.is_same_server(experiment.baseline, experiment.candidate):
        raise InvalidValue.must_be("candidate", "the URL of another server than the baseline")


def _check_endpoint(context: Context, name: str, url: str) -> None:
    try:
        context.allowed.check(url)
    except (EndpointForbidden, InvalidValue) as exc:
        raise type(exc)(exc.message, hint=exc.hint, fields={name: exc.message}) from exc


def planned(context: Context, request: ComparisonRequest, *, caller: str) -> Planning:
    """Compute what the items can prove. Raises PlanChanged where a frozen plan would not be what is run."""
    frozen = request.frozen.plan if request.frozen else None
    given = beliefs_of(frozen) if frozen else Given()
    hashed = frozen.pins.checkpoint_hash if frozen else ""
    found = context.planner.planned(request.experiment, given, checkpoint_hash=hashed, caller=caller)
    if frozen:
        check_frozen(frozen, replace(found.plan, assumptions=frozen.assumptions))
    return found


def new_id(now: datetime) -> str:
    """Make an id that sorts by time."""
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def _check_power(found: Planning, *, accepted: bool) -> None:
    if found.unproven and not accepted:
        raise Underpowered(
            "These items cannot prove the plan's margins",
            hint="Ask more items, widen the margin, or send accept_underpowered: true",
            fields={
                "margin": " ".join(ENGLISH.reasons(found.unproven)),
                "accept_underpowered": "must be true for such a plan",
            },
        )


def cancel(context: Context, comparison_id: str, *, by: Actor, seen: ComparisonSummary | None = None) -> None:
    """End what waits or runs, as it was `seen`. Raises ComparisonNotFound, WrongState, VersionConflict."""
    summary = _requested(context, comparison_id, seen)
    if summary.status is ComparisonStatus.CANCELLED:
        return
    if summary.status not in UNDER_WAY:
        raise WrongState(
            f"Comparison {comparison_id} is {summary.status.value}: there is nothing to cancel",
            hint="Only what is queued or running can be cancelled",
        )
    entry = by.entry("comparison.cancel", comparison_id)
    context.services.store.cancel(comparison_id, entry=entry, version=summary.version)


def resume(
    context: Context,
    comparison_id: str,
    *,
    by: Actor,
    retry_failed: bool = False,
    seen: ComparisonSummary | None = None,
) -> None:
    """Queue what was cancelled, stopped or failed again, as it was `seen`.

    Raises ComparisonNotFound, WrongState, ComparisonSignedOff, VersionConflict.
    """
    summary = _requested(context, comparison_id, seen)
    if summary.status in UNDER_WAY:
        raise WrongState(f"Comparison {comparison_id} is {summary.status.value} already", hint="Follow its events")
    if summary.is_signed_off:
        raise signed_off(comparison_id)
    if summary.status is ComparisonStatus.FINISHED and not retry_failed:
        raise WrongState(
            f"Comparison {comparison_id} is finished", hint="Only retry_failed: true takes up a finished comparison"
        )
    store = context.services.store
    store.requeue(
        comparison_id,
        entry=by.entry("comparison.resume", comparison_id, retry_failed=str(retry_failed).lower()),
        version=summary.version,
        drop_failures_from=looked_to(store.looks(comparison_id)) if retry_failed else None,
    )


def delete(context: Context, comparison_id: str, *, by: Actor, seen: ComparisonSummary | None = None) -> None:
    """Delete it as it was `seen`. Raises ComparisonNotFound, ComparisonBusy, ComparisonSignedOff, VersionConflict."""
    context.registry.delete(
        comparison_id,
        entry=by.entry("comparison.delete", known_id(comparison_id)),
        stale_after_s=context.services.pulse.stale_after_s,
        version=None if seen is None else seen.version,
    )


def _requested(context: Context, comparison_id: str, seen: ComparisonSummary | None) -> ComparisonSummary:
    summary = seen or summary_of(context, comparison_id)
    if not summary.is_requested:
        raise WrongState(
            f"Comparison {comparison_id} was not asked for over the service",
            hint=f"Where it was started: qualab resume {comparison_id}",
        )
    return summary
