"""The description of the API: request bodies, problems of each route, and an example of every answer, made from its
schema."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from qualab import __version__
from qualab.service.api.answers import MEDIA_TYPE, TYPE, Problem
from qualab.settings import FIELDS, KEY_FIELDS, RULE_FIELDS, Settings

ID = "20260102-030405-0a1b2c3d"
HASH = "9f2d1c5e7a3b4f60815d2c7e9a4b6f3012d5c8e7f1a9b3c4d6e8f0a2b4c6d8e0"
AT = "2026-01-02T03:04:05Z"
EXPERIMENT: dict[str, Any] = {
    "baseline": "http://127.0.0.1:8000/v1",
    "candidate": "http://127.0.0.1:8001/v1",
    "model": "my-model",
    "tasks": "release",
    "margin": 0.02,
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
EVENT = f'id: 3b1f0c2d4e5a6978\nevent: progress\ndata: {{"id":"{ID}","status":"running","phase":"asking"}}\n\n'
EXAMPLES: Mapping[str, Any] = {
    "id": ID,
    "comparison_id": ID,
    "model": "my-model",
    "label": "nightly",
    "suite": "release",
    "task": "gsm8k",
    "status": "finished",
    "signed_by": "Kim Minji",
    "created_by": "ci",
    "who": "ci",
    "action": "comparison.create",
    "subject": ID,
    "text": "4",
    "target": "4",
    "route": "completions",
    "experiment": EXPERIMENT,
}
"""Examples by the name of the property."""
MEANINGS: Mapping[int, tuple[str, str]] = {
    400: ("malformed-body", "The body is not a JSON object"),
    401: ("unauthenticated", "No token, or none that is valid"),
    403: ("forbidden", "The token's scope does not allow it"),
    404: ("comparison-not-found", "There is no such comparison or item"),
    409: ("wrong-state", "The comparison's status does not allow it"),
    412: ("version-conflict", "It has changed since it was read"),
    413: ("request-too-large", "The body is too large"),
    415: ("unsupported-media-type", "The body is not application/json"),
    421: ("misdirected", "The Host header names another machine"),
    422: ("invalid-value", "The request has an invalid value: `errors` names each field and what is allowed"),
    429: ("too-many-requests", "Too many requests; Retry-After says when to ask again"),
    503: ("store", "Not available now; Retry-After says when to ask again"),
}
ALWAYS = (401, 403, 421, 422, 429, 503)
HEADERS = {
    "Retry-After": {"description": "Seconds until the next try", "schema": {"type": "integer"}},
    "ETag": {
        "description": "Send it in If-None-Match, or in If-Match to change what was read",
        "schema": {"type": "string"},
    },
    "Location": {"description": "Where it is", "schema": {"type": "string"}},
}
REFERENCE = "#/components/schemas/"
Responses = dict[int | str, dict[str, Any]]


def problems(*statuses: int) -> Responses:
    """Describe the problems of a route, beside those of every route."""
    return {status: _problem(status) for status in sorted({*ALWAYS, *statuses})}


def _problem(status: int) -> dict[str, Any]:
    code, meaning = MEANINGS[status]
    shown = {
        "type": f"{TYPE}{code}",
        "title": code.replace("-", " ").capitalize(),
        "status": status,
        "code": code,
        "detail": meaning,
        "hint": "What to do about it",
        "errors": [{"field": "margin", "allowed": "must be a fraction between 0 and 1"}] if status == 422 else [],
        "request_id": "5f0c1d2e3b4a5968",
    }
    described: dict[str, Any] = {
        "description": meaning,
        "content": {MEDIA_TYPE: {"schema": {"$ref": f"{REFERENCE}Problem"}, "example": shown}},
    }
    if status in (429, 503):
        described["headers"] = {"Retry-After": HEADERS["Retry-After"]}
    return described


def answers(model: Any, text: str, *statuses: int, status: int = 200, headers: tuple[str, ...] = ()) -> dict[str, Any]:
    """Describe the answer of a route that changes something, as arguments of its decorator."""
    described = {status: {"description": text, "headers": {name: HEADERS[name] for name in headers}}}
    return {"status_code": status, "response_model": model, "responses": problems(*statuses) | described}


def shows(model: Any, *statuses: int) -> dict[str, Any]:
    """Describe the answer of a route that shows something, which a client may have already."""
    etag = {"ETag": HEADERS["ETag"]}
    described: Responses = {
        200: {"description": "Found", "headers": etag},
        304: {"description": "The client has it", "headers": etag},
    }
    return {"response_model": model, "responses": problems(*statuses) | described}


def body(schema: Mapping[str, Any], shown: Mapping[str, Any], *, required: bool = True) -> dict[str, Any]:
    """Describe a request's body."""
    content = {"application/json": {"schema": dict(schema), "example": dict(shown)}}
    return {"openapi_extra": {"requestBody": {"required": required, "content": content}}}


@cache
def experiment_schema() -> dict[str, Any]:
    """Return the schema of an experiment: its settings, keys as references, and what the service adds."""
    keys = {name: {"type": "string", "pattern": "^(env|file):.+", "description": "A reference"} for name in KEY_FIELDS}
    marks = {
        "accept_underpowered": {"type": "boolean", "description": "Accepts a plan that cannot prove its margins"},
        "exclusive": {"type": "boolean", "description": "Keeps its hosts to itself: no other comparison runs there"},
    }
    return {
        "title": "Experiment",
        "description": "As experiment.yaml; or the content of a plan file, with baseline and candidate beside it.",
        "type": "object",
        "properties": {**_settings(FIELDS), **keys, **marks},
    }


@cache
def plans_schema() -> dict[str, Any]:
    """Return the schema of a plan request: an experiment's settings and assumptions."""
    shares = {"oneOf": [{"type": "number"}, {"type": "object", "additionalProperties": {"type": "number"}}]}
    assume = {
        "type": "object",
        "properties": {**dict.fromkeys(("discordance", "design_effect", "noise"), shares), "rate": {"type": "number"}},
        "additionalProperties": False,
    }
    experiment = experiment_schema()
    pilot = {"type": "string", "description": "A comparison that has run: what is not assumed comes from it"}
    properties = {**experiment["properties"], "assume": assume, "pilot": pilot}
    return experiment | {"title": "PlanRequest", "properties": properties}


@cache
def rule_schema() -> dict[str, Any]:
    """Return the schema of the parts of a decision rule that another analysis may change."""
    return {
        "title": "Rule",
        "description": "What is to differ from the comparison's plan.",
        "type": "object",
        "properties": _settings(RULE_FIELDS),
        "additionalProperties": False,
    }


def _settings(names: tuple[str, ...]) -> dict[str, Any]:
    """Schemas of settings; lists and mappings may be given as text too, as on a command line."""
    schema = Settings.model_json_schema(mode="validation")
    found = {}
    for name in names:
        if (one := schema["properties"].get(name)) is not None:
            is_whole = one.get("type") in ("array", "object") or "anyOf" in one or "$ref" in one
            found[name] = _inlined({"anyOf": [one, {"type": "string"}]} if is_whole else one, schema.get("$defs", {}))
    return found


def _inlined(value: Any, definitions: Mapping[str, Any]) -> Any:
    """Replace references, which would lead nowhere from here."""
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {name: _inlined(one, definitions) for name, one in value.items() if name != "env_names"}
    return [_inlined(one, definitions) for one in value] if isinstance(value, list) else value


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the app, with an example of every answer."""
    if app.openapi_schema is None:
        document = get_openapi(
            title="qualab",
            version=__version__,
            summary="Does turning a drafter on change what a served model answers?",
            routes=app.routes,
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        problem = TypeAdapter(Problem).json_schema(ref_template=f"{REFERENCE}{{model}}")
        schemas.update(problem.pop("$defs", {}))
        schemas["Problem"] = problem
        for name in ("HTTPValidationError", "ValidationError"):  # errors are problems here
            schemas.pop(name, None)
        for methods in document["paths"].values():
            for operation in methods.values():
                for described in operation["responses"].values():
                    content = described.get("content", {}).get("application/json", {})
                    if content.get("schema") and "example" not in content:
                        content["example"] = _example(content["schema"], schemas)
        app.openapi_schema = document
    return app.openapi_schema


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "") -> Any:
    """The smallest value that shows every property."""
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].removeprefix(REFERENCE)], schemas, name)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        named = [one for one in options if EXAMPLES.get(name) in _resolved(one, schemas).get("enum", ())]
        return _example((named or options)[0], schemas, name)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return EXAMPLES[name] if EXAMPLES.get(name) in schema["enum"] else schema["enum"][0]
    match schema.get("type"):
        case "object" if "properties" in schema:
            return {key: _example(one, schemas, key) for key, one in schema["properties"].items()}
        case "object":
            return EXAMPLES.get(name, {}) if name == "experiment" else {}
        case "array":
            items = schema.get("prefixItems") or [schema["items"]] * max(1, schema.get("minItems", 1))
            return [_example(one, schemas, name) for one in items]
        case "string":
            if schema.get("format") == "date-time":
                return AT
            if name.endswith("hash"):
                return HASH
            return EXAMPLES.get(name, "")
        case "integer":
            return 1
        case "number":
            return 0.5
        case "boolean":
            return True
    return None


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schemas[schema["$ref"].removeprefix(REFERENCE)] if "$ref" in schema else schema
    return found
