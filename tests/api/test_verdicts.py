from __future__ import annotations

from qualab.service.api.verdicts import FRESH_S, KEPT, VerdictCache
from tests.api.conftest import Service


def test_a_final_verdict_asks_no_database_again(working: Service) -> None:
    comparison_id = working.finished()
    path = f"/v1/comparisons/{comparison_id}/verdict"
    first = working.client.get(path)
    asked: list[str] = []
    working.registry.about = asked.append  # type: ignore[method-assign, assignment]
    assert working.client.get(path).content == first.content
    assert asked == []


def test_what_is_not_final_is_not_kept(idle: Service) -> None:
    comparison_id = idle.create()
    idle.client.get(f"/v1/comparisons/{comparison_id}/verdict")
    assert idle.app.state.qualab.verdicts.get(comparison_id) is None


def test_a_verdict_is_kept_for_a_while_and_not_too_many() -> None:
    seconds = [0.0]
    cache = VerdictCache(monotonic_s=lambda: seconds[0])
    for number in range(KEPT + 1):
        cache.put(str(number), b"{}", '"e"')
    assert cache.get("0") is None
    assert cache.get("1") == (b"{}", '"e"')
    seconds[0] = FRESH_S
    assert cache.get("1") is None
    cache.put("1", b"{}", '"e"')
    cache.drop("1")
    assert cache.get("1") is None
