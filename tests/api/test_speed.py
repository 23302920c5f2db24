"""Speed, limits and advice of a comparison over the service."""

from __future__ import annotations

import re

from tests.api.conftest import Service, check_problem
from tests.app.payoffs import observe

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
        assert re.search(f'<strong class="gain">[^<]*{gain}', page)
    assert working.client.get(f"{path}/report").content.startswith(b"%PDF")
