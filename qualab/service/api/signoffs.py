"""/v1/comparisons/{id}/signoffs and /verification: accepted verdicts, and whether they are still what is stored."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from qualab.errors import InvalidValue
from qualab.model.comparison import SignOff
from qualab.run.sign import sign_off
from qualab.run.verify import Verification, verify
from qualab.service.api import samples
from qualab.service.api.answers import REVALIDATE, answer, encoded
from qualab.service.api.docs import body, example, problems, shows
from qualab.service.api.shapes import SignOffList
from qualab.service.api.state import ADMINISTER, READ, Admin, Body, TheDesk, by, slowly
from qualab.service.reading import comparison_of

router = APIRouter(prefix="/v1/comparisons/{comparison_id}", tags=["sign-off"])
FIELDS = ("signed_by", "note", "override")
SCHEMA = {
    "title": "SignOffRequest",
    "type": "object",
    "properties": {name: {"type": "string"} for name in FIELDS},
    "required": ["signed_by"],
    "additionalProperties": False,
}


@router.post(
    "/signoffs",
    status_code=201,
    response_model=SignOff,
    responses=problems(400, 404, 409, 413, 415) | example(samples.SIGNOFF, status=201, text="Signed off"),
    openapi_extra=body(SCHEMA, {"signed_by": "Kim Minji", "note": "release 12"}),
)
def create(request: Request, desk: TheDesk, caller: Admin, comparison_id: str, document: Body) -> Response:
    """Accept the verdict. Refused where something stands in the way, unless `override` gives a reason."""
    said = {name: _text(name, document.get(name, "")) for name in FIELDS}
    if unknown := sorted(set(document) - set(FIELDS)):
        raise InvalidValue(
            "The body holds what is unknown here",
            hint=f"Known: {', '.join(FIELDS)}",
            fields={name[:60]: "is unknown here" for name in unknown},
        )
    made = by(request, caller)
    found, store = comparison_of(desk, comparison_id), desk.services.store
    signed = sign_off(store, desk.registry, found.id, who=made.who, at=made.at, details=made.details, **said)
    return Response(encoded(signed), 201, headers=REVALIDATE, media_type="application/json")


@router.get("/signoffs", dependencies=READ, **shows(SignOffList, samples.SIGNOFFS, 404, 409))
def signoffs(request: Request, desk: TheDesk, comparison_id: str) -> Response:
    """Who accepted which verdict, the oldest first."""
    found = comparison_of(desk, comparison_id)
    return answer(request, SignOffList(entries=tuple(desk.registry.signoffs(found.id))))


@router.post(
    "/verification",
    response_model=Verification,
    dependencies=ADMINISTER,
    responses=problems(404, 409) | example(samples.VERIFICATION, text="What was looked at"),
)
async def verification(request: Request, desk: TheDesk, comparison_id: str) -> Response:
    """Make hashes, scores and the analysis again from what is stored, and tell whether anything was altered."""
    job = partial(verify, desk.services, desk.registry, comparison_of(desk, comparison_id).id)
    found = await slowly(request, job)
    return Response(encoded(found), headers=REVALIDATE, media_type="application/json")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"{name} is no text", hint="Send a string", fields={name: "must be a string"})
    return value
