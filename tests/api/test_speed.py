"""Speed, limits and advice of a comparison over the service."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from qualab.endpoints.client import HttpEndpoint
from qualab.endpoints.replicas import opening
from qualab.endpoints.urls import same_server
from qualab.model.ports import Clock
from qualab.model.registry import Heartbeat
from qualab.run.prepare import Services
from tests.api.conftest import EXPERIMENT, Make, Service, at_work, check_problem
from tests.app.fakes import Bench
from tests.app.payoffs import observe
from tests.streaming_server import StreamingServer, Streams

PARTS = ("speed", "limits", "advice")


def test_what_was_not_measured_is_not_found_and_what_was_is_read_and_shown(working: Service) -> None:
    comparison_id = working.finished()
    path = f"/v1/comparisons/{comparison_id}"
    for part in PARTS:
        (error,) = check_problem(working.client.get(f"{path}/{part}"), 404, "not-measured")["errors"]
        assert f"qualab {'limits' if part == 'limits' else 'speed'} {comparison_id}" in error["allowed"]
    assert 'id="speed"' not in working.client.get(f"/comparisons/{comparison_id}").text
    with working.store as store:
        observe(store, comparison_id)
    speed, limits, advice = (working.client.get(f"{path}/{part}").json() for part in PARTS)
    assert [(own["work"], round(own["ratio"]["value"], 1)) for own in speed["works"]] == [("copy", 2.2), ("prose", 0.9)]
    assert limits["capacity"]["candidate_tokens"] == 1_354_786
    assert [own["verified"] for own in limits["limits"]["arms"]] == [12_000, 8_192]
    routes = [(own["work"], own["max_prompt_tokens"], own["max_concurrency"], own["turn"]) for own in advice["routes"]]
    assert routes == [
        ("copy", 2_048, 8, "on"),
        ("prose", 2_048, 8, "off"),
        (None, 8_192, None, "not_proven"),
        (None, None, None, "off"),
    ]
    assert advice["routes"][2]["evidence"] == [{"code": "advice.not-timed", "values": {}, "text": "not timed"}]
    for language, gain in (("en", "faster on copying"), ("ko", "배 빠름")):
        page = working.client.get(f"/comparisons/{comparison_id}?lang={language}").text
        assert [part for part in (*PARTS, "capacity") if f'<section id="{part}">' not in page] == []
        assert re.search(f'<p class="box-gain">.*{gain}', page)
    assert working.client.get(f"{path}/report").content.startswith(b"%PDF")


@dataclass
class HttpBench(Bench):
    """With the real client."""

    @property
    def services(self) -> Services:
        return replace(super().services, open_endpoint=opening(HttpEndpoint), clock=Clock(), is_same_server=same_server)


def test_a_request_with_a_speed_part_is_timed_by_the_worker(make: Make) -> None:
    own = {"works": ["copy"], "concurrency": [2], "prompt_tokens": 40, "output_tokens": 8, "requests": 4}
    own |= {"repeats": 2, "max_repeats": 2}
    slow, fast = Streams(tokens_per_s=200.0), Streams(tokens_per_s=600.0, drafts=True)
    with StreamingServer(slow) as off, StreamingServer(fast) as on:
        bench = HttpBench(heartbeat=Heartbeat(every_s=0.04, stale_after_s=30.0))
        service = make(bench=bench)
        with at_work(service.context):
            arms = {"baseline": off.url, "candidate": on.url, "model": "scripted", "allow_unobserved": True}
            comparison_id = service.finished(**arms, speed=own)
        speed = service.client.get(f"/v1/comparisons/{comparison_id}/speed").json()
    assert [(cell["cell"]["work"], cell["ratio"]["n_repeats"]) for cell in speed["cells"]] == [("copy", 2)]
    wrong = service.client.post("/v1/comparisons", json={**EXPERIMENT, "speed": {"wroks": ["copy"]}})
    check_problem(wrong, 422, wrong.json()["code"])
