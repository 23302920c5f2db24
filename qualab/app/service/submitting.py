"""A comparison is asked for. What cannot be run, or cannot prove its margins, is refused before it is stored."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from datetime import datetime

from qualab.app.experiment import check
from qualab.app.frozen import check_frozen
from qualab.app.planning.beliefs import Given
from qualab.app.planning.suite import Planning
from qualab.app.service.desk import By, Desk, Wanted
from qualab.app.service.hosts import check_hosts
from qualab.app.service.planning import beliefs_of
from qualab.domain.canonical import canonical_json, sha256
from qualab.domain.items import JsonObject
from qualab.domain.submissions import Submission, SubmissionStatus
from qualab.domain.text import is_one_line
from qualab.errors import EndpointForbidden, InvalidValue, Underpowered

KEY = re.compile(r"[\x21-\x7e]{1,200}")
KEY_RULE = "1 to 200 printable ASCII characters without spaces"
MOST_CHARACTERS = 200


def submit(desk: Desk, body: JsonObject, *, by: By, key: str = "") -> tuple[Submission, bool]:
    """Stores and enqueues a comparison; False where an idempotency key was used before, with what was stored then.

    Raises what `ReadDocument` and loading tasks raise, EndpointForbidden, Underpowered, StillLoading, KeyReused.
    """
    if key and not KEY.fullmatch(key):
        raise InvalidValue.must_be("Idempotency-Key", KEY_RULE)
    wanted = desk.read_document(body)
    check_wanted(desk, wanted)
    _check_power(planned(desk, wanted, caller=by.caller), accepted=wanted.accept_underpowered)
    submission = Submission(
        id=new_id(by.at),
        experiment=wanted.document,
        label=wanted.experiment.label,
        model=wanted.experiment.model,
        created_at=by.at,
        created_by=by.who,
    )
    entry = by.entry("comparison.create", submission.id, label=submission.label, model=submission.model)
    stored, is_new = desk.registry.submit(submission, entry=entry, key=key, body_hash=sha256(canonical_json(body)))
    if stored.status is SubmissionStatus.QUEUED:
        desk.jobs.enqueue(stored.id)
    return stored, is_new


def check_wanted(desk: Desk, wanted: Wanted) -> None:
    """Raises InvalidValue, EndpointForbidden."""
    experiment = wanted.experiment
    check(experiment)
    for name in ("label", "model"):
        text = getattr(experiment, name)
        if len(text) > MOST_CHARACTERS or not is_one_line(text):
            raise InvalidValue.must_be(
                name, f"text of at most {MOST_CHARACTERS} characters, on one line, without control characters"
            )
    for name in ("baseline", "candidate"):
        _check_endpoint(desk, name, getattr(experiment, name))
    check_hosts(desk, experiment)
    if desk.services.is_same_server(experiment.baseline, experiment.candidate):
        raise InvalidValue.must_be("candidate", "the URL of another server than the baseline")


def _check_endpoint(desk: Desk, name: str, url: str) -> None:
    try:
        desk.check_endpoint(url)
    except (EndpointForbidden, InvalidValue) as exc:
        raise type(exc)(exc.message, hint=exc.hint, fields={name: exc.message}) from exc


def planned(desk: Desk, wanted: Wanted, *, caller: str) -> Planning:
    """What the items can prove. Raises PlanChanged where a frozen plan would not be what is run."""
    frozen = wanted.frozen.plan if wanted.frozen else None
    given = beliefs_of(frozen) if frozen else Given()
    hashed = frozen.pins.checkpoint_hash if frozen else ""
    found = desk.planner.planned(wanted.experiment, given, checkpoint_hash=hashed, caller=caller)
    if frozen:
        check_frozen(frozen, replace(found.plan, assumptions=frozen.assumptions))
    return found


def new_id(now: datetime) -> str:
    """Of a comparison."""
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def _check_power(found: Planning, *, accepted: bool) -> None:
    if found.unproven and not accepted:
        raise Underpowered(
            "These items cannot prove the plan's margins",
            hint="Ask more items, widen the margin, or send accept_underpowered: true",
            fields={"margin": " ".join(found.unproven), "accept_underpowered": "must be true for such a plan"},
        )
