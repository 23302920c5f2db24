"""A plan is computed over the service: figures, and the content of a plan file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qualab.app.experiment import check
from qualab.app.frozen import FrozenPlan, to_document
from qualab.app.planning.beliefs import EVERYWHERE, Given
from qualab.app.planning.pilot import pilot_of
from qualab.app.planning.suite import Planning
from qualab.app.service.access import Caller
from qualab.app.service.desk import Desk
from qualab.app.service.reading import comparison_of
from qualab.domain.access import Scope
from qualab.domain.canonical import plan_hash
from qualab.domain.items import JsonObject
from qualab.errors import Forbidden, InvalidValue, TooManyTasks

MOST_TO_READ = 50
"""Tasks of a plan whose caller may only read: every suite has fewer."""
ASSUMED = ("discordance", "design_effect", "noise")
ASSUME_RULE = "a number, or an object of numbers by benchmark, task or metric"


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What came of it."""

    plan_hash: str
    document: JsonObject | None
    """None where no model is named: such a plan cannot be run."""
    planning: Planning


def compute_plan(desk: Desk, body: JsonObject, *, caller: Caller) -> Computed:
    """Of an experiment's settings, with `assume` and `pilot` beside them. Raises as `submit` without its endpoints, and
    Forbidden for many tasks where the caller may only read."""
    said = dict(body)
    given, pilot_id = _given(said.pop("assume", None)), said.pop("pilot", None)
    if pilot_id is not None and not isinstance(pilot_id, str):
        raise InvalidValue.must_be("pilot", "the id of a comparison")
    wanted = desk.read_plan(said)
    check(wanted.experiment)
    pilot = pilot_of(desk.services.store, comparison_of(desk, pilot_id).id) if pilot_id else None
    may_run = caller.scope.allows(Scope.RUN)
    try:
        found = desk.planner.planned(
            wanted.experiment,
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
        plan=found.plan, plan_hash=digest, frozen_at=desk.services.clock.now(), settings=dict(wanted.settings)
    )
    document = to_document(frozen, {"joint_power": found.joint_power}) if wanted.experiment.model else None
    return Computed(plan_hash=digest, document=document, planning=found)


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
