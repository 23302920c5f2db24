"""The description of the API holds: its examples fit, and what schemathesis makes of it breaks nothing."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from qualab.service.api.openapi import EXPERIMENT as SAMPLE
from tests.api.conftest import BASE_URL, Service, at_work, make_service

CHECKS = [not_a_server_error, checks.status_code_conformance, checks.content_type_conformance]
CHECKS += [checks.response_headers_conformance, checks.response_schema_conformance]


def with_a_finished_comparison() -> tuple[Service, str]:
    service = make_service()
    with at_work(service.context), service.client:
        comparison_id = service.finished()
    return make_service(bench=service.bench), comparison_id


SERVICE, FINISHED = with_a_finished_comparison()
DOCUMENT = SERVICE.app.openapi()


def test_every_route_says_what_it_does_names_its_problems_and_has_examples_that_fit() -> None:
    operations = [(path, *one) for path, methods in DOCUMENT["paths"].items() for one in methods.items()]
    for path, method, operation in operations:
        assert operation["summary"], (method, path)
        for content in operation.get("requestBody", {}).get("content", {}).values():
            jsonschema.validate(content["example"], {**content["schema"], "components": DOCUMENT["components"]})
        if path in ("/healthz", "/readyz"):
            assert operation["security"] == []
            continue
        assert {"401", "403", "422", "429", "503"} <= operation["responses"].keys(), (method, path)
        assert "security" not in operation
        if "{comparison_id}" in path:
            assert "404" in operation["responses"]
    SERVICE.context.read_document(SAMPLE)
    assert DOCUMENT["security"] == [{"HTTPBearer": []}]
    assert "HTTPValidationError" not in DOCUMENT["components"]["schemas"]


schema = schemathesis.openapi.from_asgi("/openapi.json", SERVICE.app, headers={"Host": "127.0.0.1"})
schema.config.generation.update(modes=list(schemathesis.GenerationMode))


@pytest.mark.slow
@schema.exclude(path_regex="/events$|^/metrics$").parametrize()
@settings(max_examples=8, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))
def test_nothing_breaks_the_service(case: Any) -> None:
    """Half of the requests go to a comparison that is there."""
    if "comparison_id" in (case.path_parameters or {}) and len(str(case.headers) + str(case.query)) % 2:
        case.path_parameters["comparison_id"] = FINISHED
    case.headers = {**(case.headers or {}), "Host": "127.0.0.1"}
    case.headers.pop("Authorization", None)
    if case.method == "DELETE":
        case.headers["If-Match"] = '"none"'  # so that it stays there
    answer = case.call(base_url=BASE_URL)
    case.validate_response(answer, checks=CHECKS)
