"""What every store does about who may run a comparison."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from qualab.errors import ComparisonBusy
from qualab.store import Store
from tests.store.samples import after, make_comparison

HOST = socket.gethostname()
HERE = f"{HOST}:{os.getpid()}:a1"
ELSEWHERE = "other-host:1:b2"


@pytest.fixture(autouse=True)
def _comparison(store: Store) -> None:
    store.create(make_comparison(), [])


@pytest.fixture(scope="session")
def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        return child.pid


def create(store: Store, comparison_id: str) -> None:
    """One of endpoints of its own."""
    urls = {f"{arm}_url": f"http://{comparison_id}:{port}/v1" for port, arm in enumerate(("baseline", "candidate"), 1)}
    store.create(make_comparison(comparison_id, **urls), [])


def claim(store: Store, runner: str, seconds: float) -> None:
    store.claim("c-1", runner=runner, now=after(seconds), stale_after_s=60)


def test_a_living_runner_keeps_its_claim_and_is_named(store: Store) -> None:
    claim(store, HERE, 0)
    with pytest.raises(ComparisonBusy) as caught:
        claim(store, ELSEWHERE, 60)
    assert HERE in str(caught.value)
    assert "since 2026-03-04 05:06:07 UTC" in str(caught.value)
    assert caught.value.details == {"holder": HERE, "since": after(0)}


def test_a_claim_without_a_heartbeat_for_too_long_is_free(store: Store) -> None:
    claim(store, ELSEWHERE, 0)
    with pytest.raises(ComparisonBusy):
        claim(store, HERE, 60)
    claim(store, HERE, 60.001)
    with pytest.raises(ComparisonBusy, match=HERE):
        store.heartbeat("c-1", runner=ELSEWHERE, now=after(61))


def test_heartbeats_keep_a_claim(store: Store) -> None:
    claim(store, ELSEWHERE, 0)
    store.heartbeat("c-1", runner=ELSEWHERE, now=after(50))
    with pytest.raises(ComparisonBusy, match="05:06:07"):
        claim(store, HERE, 100)
    claim(store, HERE, 111)


def test_a_runner_of_this_host_whose_process_is_gone_loses_its_claim_at_once(store: Store, ended_process: int) -> None:
    claim(store, f"{HOST}:{ended_process}:x", 0)
    claim(store, HERE, 0.001)


def test_a_process_id_means_nothing_on_another_host(store: Store, ended_process: int) -> None:
    claim(store, f"not-{HOST}:{ended_process}:x", 0)
    with pytest.raises(ComparisonBusy):
        claim(store, HERE, 1)


def test_a_living_process_of_this_host_that_is_silent_for_too_long_loses_its_claim(store: Store) -> None:
    claim(store, HERE, 0)
    claim(store, ELSEWHERE, 61)


@pytest.mark.parametrize("runner", ["", "odd", ":::", f"{HOST}:not-a-number:x", f"{HOST}:-1:x"])
def test_a_runner_of_another_form_is_judged_by_its_heartbeat(store: Store, runner: str) -> None:
    claim(store, runner, 0)
    with pytest.raises(ComparisonBusy):
        claim(store, HERE, 1)
    claim(store, HERE, 61)


def test_a_runner_may_claim_again(store: Store) -> None:
    claim(store, ELSEWHERE, 0)
    claim(store, ELSEWHERE, 50)
    with pytest.raises(ComparisonBusy):
        claim(store, HERE, 70)


def test_a_released_comparison_is_free(store: Store) -> None:
    claim(store, ELSEWHERE, 0)
    store.release("c-1", runner=ELSEWHERE)
    claim(store, HERE, 1)


def test_only_the_holder_releases(store: Store) -> None:
    claim(store, ELSEWHERE, 0)
    store.release("c-1", runner=HERE)
    with pytest.raises(ComparisonBusy):
        claim(store, HERE, 1)


def test_a_heartbeat_without_a_claim_is_refused(store: Store) -> None:
    with pytest.raises(ComparisonBusy, match="taken over"):
        store.heartbeat("c-1", runner=HERE, now=after(0))
    claim(store, ELSEWHERE, 0)
    store.release("c-1", runner=ELSEWHERE)
    with pytest.raises(ComparisonBusy):
        store.heartbeat("c-1", runner=ELSEWHERE, now=after(1))


def test_each_comparison_has_its_own_claim(store: Store) -> None:
    create(store, "c-2")
    claim(store, ELSEWHERE, 0)
    store.claim("c-2", runner=HERE, now=after(0), stale_after_s=60)
    store.release("c-2", runner=HERE)
    with pytest.raises(ComparisonBusy):
        claim(store, HERE, 1)


def test_living_runners_are_told_by_comparison_and_nothing_is_claimed(store: Store, ended_process: int) -> None:
    runners = {"c-2": HERE, "c-3": f"{HOST}:{ended_process}:x", "c-4": ""}
    for id_, runner in runners.items():
        create(store, id_)
        store.claim(id_, runner=runner, now=after(0), stale_after_s=60)
    ids = ["c-1", *runners]
    alive = store.runners(ids, now=after(60), stale_after_s=60)
    assert {id_: (claim.runner, claim.since) for id_, claim in alive.items()} == {
        "c-2": (HERE, after(0)),
        "c-4": ("", after(0)),
    }
    assert store.runners(ids, now=after(60.001), stale_after_s=60) == {}
    assert store.runners(["c-1", "c-3"], now=after(1), stale_after_s=60) == {}
    store.heartbeat("c-2", runner=HERE, now=after(50))
    assert set(store.runners(ids, now=after(100), stale_after_s=60)) == {"c-2"}
    claim(store, ELSEWHERE, 100)
