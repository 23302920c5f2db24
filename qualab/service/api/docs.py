"""The description of the API: what bodies hold, an example of everything, and the problems of each route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from qualab import __version__
from qualab.service.api.parts import of_status
from qualab.service.api.problems import MEDIA_TYPE, TYPE
from qualab.service.api.shapes import Problem
from qualab.settings import FIELDS, KEY_FIELDS, RULE_FIELDS, Settings

DETAILS: Mapping[int, tuple[str, str, str]] = {
    400: ("malformed-body", "The body is not JSON: unexpected end of data at line 1, column 2", "Send a JSON object"),
    401: ("unauthenticated", "A bearer token is needed", "Send Authorization: Bearer TOKEN"),
    403: (
        "forbidden",
        "This needs the scope run; the token has read",
        "Create one: qualab token create NAME --scope run",
    ),
    404: (
        "comparison-not-found",
        "There is no comparison '20260102-030405-0a1b2c3d'",
        "`qualab list` shows what there is",
    ),
    409: (
        "wrong-state",
        "Comparison 20260102-030405-0a1b2c3d is done: there is nothing to cancel",
        "Only what is queued or running can be cancelled",
    ),
    412: ("version-conflict", "Comparison 20260102-030405-0a1b2c3d has changed since it was read", "Read it again"),
    413: ("request-too-large", "The body is larger than 2097152 bytes", "Send less"),
    415: (
        "unsupported-media-type",
        "The body's type is text/plain, and must be application/json",
        "Send Content-Type: application/json",
    ),
    421: ("misdirected", "The Host header names another machine", "Use this machine's own name"),
    422: ("invalid-value", "margin must be a fraction between 0 and 1", "Change margin"),
    429: ("too-many-requests", "More than 100 requests a second", "Ask less often"),
    503: ("store", "The database cannot be used now", "Try again in a moment"),
}
MEANINGS = {
    400: "The body is no JSON object",
    401: "No token, or none that is valid",
    403: "The token's scope does not allow it",
    404: "There is no such thing",
    409: "It does not fit where the comparison stands",
    412: "It has changed since it was read",
    413: "The body is too large",
    415: "The body is not application/json",
    421: "The Host header names another machine",
    422: "Something in the request is not allowed: `errors` names each field and what is",
    429: "Too many requests; Retry-After says when to ask again",
    503: "Not now; Retry-After says when to ask again",
}
ALWAYS = (401, 403, 421, 422, 429, 503)
PATH = {"schema": {"$ref": "#/components/schemas/Problem"}}
HEADERS = {
    "Retry-After": {"description": "Seconds until the next try", "schema": {"type": "integer"}},
    "ETag": {
        "description": "Send it in If-None-Match, or in If-Match to change what was read",
        "schema": {"type": "string"},
    },
}


Responses = dict[int | str, dict[str, Any]]


def problems(*statuses: int) -> Responses:
    """The problems of a route, beside those of every route."""
    return {status: _problem(status) for status in sorted({*ALWAYS, *statuses})}


def example(
    value: Any, *, status: int = 200, text: str = "As asked for", **more: Any
) -> dict[int | str, dict[str, Any]]:
    """The description of a good answer."""
    return {status: {"description": text, "content": {"application/json": {"example": value}}, **more}}


def tagged_example(value: Any, *, status: int = 200, text: str = "As asked for") -> Responses:
    """Of a good answer with an ETag, and of none because the client has it."""
    etag = {"ETag": HEADERS["ETag"]}
    return {
        **example(value, status=status, text=text, headers=etag),
        304: {"description": "The client has it", "headers": etag},
    }


def shows(model: Any, shown: Any, *statuses: int) -> dict[str, Any]:
    """Of a route that shows something: arguments of its decorator."""
    return {"response_model": model, "responses": problems(*statuses) | tagged_example(shown)}


def _wrong(status: int) -> dict[str, str]:
    return {"margin": "must be a fraction between 0 and 1"} if status == 422 else of_status(status)


def _problem(status: int) -> dict[str, Any]:
    code, detail, hint = DETAILS[status]
    shown = {
        "type": f"{TYPE}{code}",
        "title": code.replace("-", " ").capitalize(),
        "status": status,
        "code": code,
        "detail": detail,
        "hint": hint,
        "errors": [{"field": field, "allowed": allowed} for field, allowed in _wrong(status).items()],
        "request_id": "5f0c1d2e3b4a5968",
    }
    found: dict[str, Any] = {"description": MEANINGS[status], "content": {MEDIA_TYPE: {**PATH, "example": shown}}}
    if status in (429, 503):
        found["headers"] = {"Retry-After": HEADERS["Retry-After"]}
    return found


@cache
def experiment_schema() -> dict[str, Any]:
    """The settings of an experiment file as JSON Schema; keys as references, and what the service adds."""
    schema = Settings.model_json_schema(mode="validation")
    properties = {name: _or_text(schema["properties"][name]) for name in FIELDS if name in schema["properties"]}
    keys = {name: {"type": "string", "pattern": "^(env|file):.+", "description": "A reference"} for name in KEY_FIELDS}
    marks = {
        "accept_underpowered": {"type": "boolean", "description": "Accepts a plan that cannot prove its margins"},
        "exclusive": {"type": "boolean", "description": "Keeps its hosts to itself: no other comparison runs there"},
    }
    return {
        "title": "Experiment",
        "description": "As experiment.yaml; or the content of a plan file, with baseline and candidate beside it.",
        "type": "object",
        "properties": _inlined({**properties, **keys, **marks}, schema.get("$defs", {})),
    }


def _or_text(schema: dict[str, Any]) -> dict[str, Any]:
    """Lists and mappings may be given as text too, as on a command line."""
    is_whole = schema.get("type") in ("array", "object") or "anyOf" in schema or "$ref" in schema
    return {"anyOf": [schema, {"type": "string"}]} if is_whole else schema


def _inlined(value: Any, definitions: Mapping[str, Any], *, without: Sequence[str] = ("env_names",)) -> Any:
    """Replace references, which would lead to nowhere from here; what stands beside one wins over it."""
    if isinstance(value, dict):
        if "$ref" in value:
            value = {**definitions[value["$ref"].rpartition("/")[2]], **value}
        kept = {name: one for name, one in value.items() if name not in ("$ref", *without)}
        return {name: _inlined(one, definitions, without=without) for name, one in kept.items()}
    return [_inlined(one, definitions, without=without) for one in value] if isinstance(value, list) else value


@cache
def plans_schema() -> dict[str, Any]:
    """An experiment's settings, and what is taken as true."""
    shares = {"oneOf": [{"type": "number"}, {"type": "object", "additionalProperties": {"type": "number"}}]}
    assume = {
        "type": "object",
        "properties": {**dict.fromkeys(("discordance", "design_effect", "noise"), shares), "rate": {"type": "number"}},
        "additionalProperties": False,
    }
    experiment = experiment_schema()
    pilot = {"type": "string", "description": "A comparison that has run: what is not assumed comes from it"}
    return experiment | {
        "title": "PlanRequest",
        "properties": {**experiment["properties"], "assume": assume, "pilot": pilot},
    }


RULE_SCHEMA: dict[str, Any] = {
    "title": "Rule",
    "description": "What is to be another than in the comparison's plan.",
    "type": "object",
    "properties": {
        name: _inlined(experiment_schema()["properties"][name], {}, without=("default",)) for name in RULE_FIELDS
    },
    "additionalProperties": False,
}


def body(schema: Mapping[str, Any], shown: Mapping[str, Any], *, required: bool = True) -> dict[str, Any]:
    """The description of a request's body."""
    content = {"application/json": {"schema": dict(schema), "example": dict(shown)}}
    return {"requestBody": {"required": required, "content": content}}


def describe(app: FastAPI, routers: Sequence[APIRouter]) -> dict[str, Any]:
    """The OpenAPI document of an app that is made of these."""
    if app.openapi_schema is None:
        found = get_openapi(
            title="qualab",
            version=__version__,
            summary="Does turning a drafter on change what a served model answers?",
            routes=app.routes,
        )
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        made = TypeAdapter(Problem).json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(made.pop("$defs", {}))
        schemas["Problem"] = made
        for name in ("HTTPValidationError", "ValidationError"):  # errors are problems here
            schemas.pop(name, None)
        _show_whole(found, routers)
        app.openapi_schema = found
    return app.openapi_schema


def _show_whole(found: dict[str, Any], routers: Sequence[APIRouter]) -> None:
    """Examples as they are: FastAPI leaves out what is null in them."""
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute):
            for method, (status, answer) in product(route.methods or (), route.responses.items()):
                shown = found["paths"][route.path_format][method.lower()]["responses"][str(status)]
                for media_type, content in answer.get("content", {}).items():
                    if "example" in content:
                        shown["content"][media_type]["example"] = content["example"]
