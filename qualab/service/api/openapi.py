"""The description of the API: request bodies from the settings, and the problems of each route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter

from qualab import __version__
from qualab.service.api.answers import MEDIA_TYPE, Problem
from qualab.service.context import ACCEPT, EXCLUSIVE, WEBHOOK
from qualab.service.requests import PlanRequest
from qualab.settings import FIELDS, GROUPS, KEY_FIELDS, RULE_FIELDS, Settings

EXPERIMENT: dict[str, Any] = {
    "baseline": "http://127.0.0.1:8000/v1",
    "candidate": "http://127.0.0.1:8001/v1",
    "model": "my-model",
    "tasks": "release",
    "margin": 0.02,
    "audit": {"tokens": 50_000, "tau": 1.0},
    "label": "nightly",
    "api_key": "env:QUALAB_KEY_VLLM",
}
PLAN_REQUEST: dict[str, Any] = {
    "model": "my-model",
    "tasks": "release",
    "margin": 0.02,
    "expected_missing": 0.001,
    "assume": {"discordance": 0.05},
}
MARKS = {
    ACCEPT: "Accepts a plan that cannot prove its margins",
    EXCLUSIVE: "Keeps its hosts to itself: no other comparison runs there",
}
ALWAYS = (401, 403, 421, 422, 429, 503)
BODY = (400, 413, 415)
"""Problems of a route that reads a body."""
ETAG = {
    "ETag": {
        "description": "Send it in If-None-Match, or in If-Match to change what was read",
        "schema": {"type": "string"},
    }
}
LOCATION = {"Location": {"description": "The URL of what was made", "schema": {"type": "string"}}}
RETRY_AFTER = {"Retry-After": {"description": "Seconds until the next try", "schema": {"type": "integer"}}}
REFERENCE = "#/components/schemas/"
Responses = dict[int | str, dict[str, Any]]
BODIES: dict[str, Any] = {"Problem": Problem}
"""Models that no route declares to FastAPI, by their names."""


def problems(*statuses: int) -> Responses:
    """Describe the problems of a route, beside those of every route."""
    content = {MEDIA_TYPE: {"schema": {"$ref": f"{REFERENCE}Problem"}}}
    waits = {429: {"headers": RETRY_AFTER}, 503: {"headers": RETRY_AFTER}}
    return {status: {"content": content, **waits.get(status, {})} for status in {*ALWAYS, *statuses}}


def answers(model: Any, text: str, *statuses: int, status: int = 200) -> dict[str, Any]:
    """Describe the answer of a route that changes something, as arguments of its decorator."""
    described = {status: {"description": text, "headers": ETAG if status == 200 else ETAG | LOCATION}}
    return {"status_code": status, "response_model": model, "responses": problems(*statuses) | described}


def shows(model: Any, *statuses: int) -> dict[str, Any]:
    """Describe the answer of a route that shows something, which a client may have already."""
    described: Responses = {200: {"headers": ETAG}, 304: {"headers": ETAG}}
    return {"response_model": model, "responses": problems(*statuses) | described}


def body(model: str | type[BaseModel], example: Mapping[str, Any], *, required: bool = True) -> dict[str, Any]:
    """Describe a request's body by its model, or the name of its schema."""
    name = model if isinstance(model, str) else model.__name__
    if not isinstance(model, str):
        BODIES[name] = model
    content = {"application/json": {"schema": {"$ref": f"{REFERENCE}{name}"}, "example": dict(example)}}
    return {"openapi_extra": {"requestBody": {"required": required, "content": content}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the app."""
    if app.openapi_schema is None:
        document = get_openapi(
            title="qualab",
            version=__version__,
            summary="Does turning a drafter on change what a served model answers?",
            routes=app.routes,
        )
        bearer = {"type": "http", "scheme": "bearer", "description": "A token of `qualab token create`"}
        document["components"]["securitySchemes"] = {"HTTPBearer": bearer}
        document["security"] = [{"HTTPBearer": []}]
        schemas = request_schemas()
        for name, model in BODIES.items():
            schemas[name] = TypeAdapter(model).json_schema(ref_template=f"{REFERENCE}{{model}}")
        for name, schema in schemas.items():
            document["components"]["schemas"] |= schema.pop("$defs", {}) | {name: schema}
        app.openapi_schema = document
    return app.openapi_schema


def request_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas of bodies that are made of settings: Experiment, PlanRequest and Rule."""
    settings = Settings.model_json_schema(ref_template=f"{REFERENCE}{{model}}")
    schemas: dict[str, Any] = settings["properties"]
    for name, one in schemas.items():
        if one.get("type") in ("array", "object") or "anyOf" in one or "$ref" in one:
            schemas[name] = {"anyOf": [one, {"type": "string"}]}  # as text too, as on a command line
    keys = {name: {"type": "string", "pattern": "^(env|file):.+", "description": "A reference"} for name in KEY_FIELDS}
    for group, names in GROUPS.items():
        parts = {key: schemas[name] for key, name in names.items()}
        nested = {"type": "object", "properties": parts, "additionalProperties": False}
        schemas[group] = {"anyOf": [schemas[group], nested]} if group in schemas else nested
    experiment = {name: schemas[name] for name in (*FIELDS, *GROUPS) if name in schemas} | keys
    experiment |= {name: {"type": "boolean", "description": text} for name, text in MARKS.items()}
    told = "Told of the end, where the operator allows its host"
    experiment[WEBHOOK] = {"type": "string", "format": "uri", "description": told}
    beside = PlanRequest.model_json_schema(ref_template=f"{REFERENCE}{{model}}")
    return {
        "Experiment": {
            "description": "As experiment.yaml; or the content of a plan file, with baseline and candidate beside it.",
            "type": "object",
            "properties": experiment,
            "$defs": settings.get("$defs", {}),
        },
        "PlanRequest": {
            "type": "object",
            "properties": experiment | beside["properties"],
            "$defs": beside.get("$defs", {}),
        },
        "Rule": {
            "description": "What is to differ from the comparison's plan.",
            "type": "object",
            "properties": {name: schemas[name] for name in RULE_FIELDS},
            "additionalProperties": False,
        },
    }
