"""The queue: what is asked for, who takes it, what happens when a worker is lost, and endpoints in use."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from qualab.errors import (
    ComparisonBusy,
    ComparisonNotFound,
    ComparisonSignedOff,
    InvalidValue,
    StoreError,
    VersionConflict,
)
from qualab.model.names import UNDER_WAY, AnswerStatus, ComparisonStatus
from qualab.model.plan import Group
from qualab.model.ports import ComparisonFilter
from qualab.store import Store
from tests.store import samples as make
from tests.store.samples import FULL, NOW, REQUEST, after, ask_for, failed, put

QUEUED, RUNNING, FAILED = ComparisonStatus.QUEUED, ComparisonStatus.RUNNING, ComparisonStatus.FAILED
CANCELLED, FINISHED = ComparisonStatus.CANCELLED, ComparisonStatus.FINISHED
ONE, OTHER = "one:1:a", "other:2:b"
SHARED = {"baseline_url": "http://gpu:8001/v1", "candidate_url": "http://gpu:8002/v1"}


def take(store: Store, runner: str = ONE, at: float = 0) -> str | None:
    return store.take(runner=runner, now=after(at), stale_after_s=60)


def status(store: Store, comparison_id: str = "c-1") -> ComparisonStatus:
    return store.summary(comparison_id).status


def actions(store: Store) -> list[str]:
    return [entry.action for entry in store.audit().entries]


def claim(store: Store, runner: str = ONE, comparison_id: str = "c-1", at: float = 0) -> bool:
    return store.claim(comparison_id, runner=runner, now=after(at), stale_after_s=60)


def test_a_living_runner_keeps_its_claim_and_is_named(store: Store) -> None:
    store.create(make.comparison(), [])
    assert claim(store)
    store.heartbeat("c-1", runner=ONE, now=after(50))
    with pytest.raises(ComparisonBusy) as caught:
        claim(store, OTHER, at=110)
    assert (ONE in str(caught.value), "since 2026-03-04 05:06:07 UTC" in str(caught.value)) == (True, True)
    assert caught.value.details == {"holder": ONE, "since": after(0)}
    store.release("c-1", runner=OTHER)
    assert store.runners(["c-1", "c-2"], now=after(110), stale_after_s=60)["c-1"].runner == ONE
    assert not claim(store, at=110), "it may claim again"
    assert claim(store, OTHER, at=171), "silent for too long"
    assert store.runners(["c-1"], now=after(232), stale_after_s=60) == {}
    with pytest.raises(ComparisonBusy, match=OTHER):
        store.heartbeat("c-1", runner=ONE, now=after(172))
    store.release("c-1", runner=OTHER)
    with pytest.raises(ComparisonBusy, match="taken over by another runner, which has ended"):
        store.heartbeat("c-1", runner=ONE, now=after(173))
    assert claim(store, at=173)


HOST = socket.gethostname()
HERE = f"{HOST}:{os.getpid()}:x"
DEAD = f"{HOST}:{2**22 + 1}:x"
"""No process has this number."""


def test_a_dead_process_of_this_host_is_not_waited_for(store: Store) -> None:
    odd = ("", "odd", ":::", f"{HOST}:²:x", f"{HOST}:-1:x", f"{HOST}:{2**200}:x")
    for number, runner in enumerate((DEAD, HERE, f"not-{DEAD}", *odd)):
        store.create(make.comparison(name := f"c-{number}", baseline_url=f"http://{number}", candidate_url=""), [])
        claim(store, runner, name)
        assert (store.runners([name], now=after(1), stale_after_s=60) == {}) is (runner == DEAD), runner
        if runner != DEAD:
            with pytest.raises(ComparisonBusy):
                claim(store, ONE, name, at=1)
        assert claim(store, ONE, name, at=1 if runner == DEAD else 61)


def test_what_a_dead_process_had_goes_first(store: Store) -> None:
    ask_for(store)
    assert take(store, DEAD) == "c-1"
    ask_for(store, "older", at=after(-9))
    assert [take(store, runner, 1) for runner in (OTHER, HERE, "third:1:a")] == ["c-1", "older", None]


def test_a_request_comes_back_as_it_went_in(store: Store) -> None:
    assert ask_for(store) == "c-1"
    assert (store.request("c-1"), actions(store)) == (REQUEST, ["comparison.create"])
    store.create(make.comparison("c-2"), [])
    assert store.request("c-2") is None
    with pytest.raises(ComparisonNotFound):
        store.request("c")
    for taken in ("c-1", "c-2"):
        with pytest.raises(StoreError, match=f"{taken} exists already"):
            ask_for(store, taken)
    with pytest.raises(StoreError, match="JSON"):
        ask_for(store, "c-3", request={"path": object()})
    assert actions(store) == ["comparison.create"]


def test_a_key_stands_for_one_request_of_one_token(store: Store) -> None:
    assert [ask_for(store, id_, key="k", body_hash="b") for id_ in ("c-1", "c-2")] == ["c-1", "c-1"]
    for changes in ({"body_hash": "other"}, {"body_hash": "b", "who": "another token"}):
        with pytest.raises(InvalidValue, match="'k'"):
            ask_for(store, "c-2", key="k", **changes)
    assert (store.counts(), actions(store)) == ({"queued": 1}, ["comparison.create"])
    assert [ask_for(store, id_, body_hash="b") for id_ in ("c-3", "c-4")] == ["c-3", "c-4"], "without a key"
    store.cancel("c-1", entry=make.entry(), version=1)
    store.delete("c-1", entry=make.entry(), stale_after_s=60)
    assert ask_for(store, "c-5", key="k", body_hash="other") == "c-5", "it went with its comparison"


def test_what_is_cancelled_and_queued_again_is_changed_as_it_was_read(store: Store) -> None:
    ask_for(store)
    store.create(make.comparison(), make.items(3))
    store.add_answers("c-1", [make.answer(0), *(failed(position, AnswerStatus.TIMEOUT) for position in (1, 2))])
    store.cancel("c-1", entry=make.entry("comparison.cancel"), version=1)
    for change in (store.cancel, lambda *a, **k: store.requeue(*a, drop_failures_from=None, **k)):
        with pytest.raises(VersionConflict, match="has changed"):
            change("c-1", entry=make.entry("again"), version=1)
        with pytest.raises(ComparisonNotFound):
            change("c", entry=make.entry("again"), version=1)
    put(store, "c-1", error={"code": "usage"}, stop_reason=FULL, takeovers=3)
    store.requeue("c-1", entry=make.entry("comparison.resume"), version=3, drop_failures_from=2)
    summary = store.summary("c-1")
    assert (summary.status, summary.error, summary.stop_reason, summary.version) == (QUEUED, {}, None, 4)
    assert store.answered("c-1") == {(make.answer(0).arm, position, 0, 0) for position in (0, 1)}
    assert actions(store) == ["comparison.resume", "comparison.cancel", "comparison.create"]


def test_the_oldest_is_taken_first_and_what_was_begun_before_what_is_new(store: Store) -> None:
    assert take(store) is None
    for number, at in enumerate((3, 1, 2, 4)):
        ask_for(store, f"c-{number}", at=after(at))
    put(store, "c-3", started_at=NOW)
    assert [take(store, f"w{number}:1:a", 5) for number in range(5)] == ["c-3", "c-1", "c-2", "c-0", None]
    assert store.counts() == {"running": 4}


def test_a_worker_keeps_what_it_took_until_it_ends(store: Store) -> None:
    ask_for(store)
    assert take(store) == "c-1"
    assert store.hold("c-1", runner=ONE, now=after(50))
    assert not store.hold("c-1", runner=OTHER, now=after(50))
    assert take(store, OTHER, 100) is None
    assert not claim(store, at=101), "it has it already"
    with pytest.raises(ComparisonBusy, match=ONE):
        claim(store, OTHER, at=101)
    store.fail("c-1", runner=OTHER, error={"code": "not-mine"})
    store.give_back("c-1", runner=OTHER)
    assert status(store) is RUNNING
    store.fail("c-1", runner=ONE, error={"code": "usage", "message": "이유"})
    store.release("c-1", runner=ONE)
    summary = store.summary("c-1")
    assert (summary.status, summary.error) == (FAILED, {"code": "usage", "message": "이유"})
    assert take(store, at=200) is None
    ask_for(store, "c-2")
    take(store)
    store.create(make.comparison("c-2"), [])
    store.set_status("c-2", ComparisonStatus.STOPPED, now=NOW, stop_reason=FULL)
    store.fail("c-2", runner=ONE, error={"code": "run-stopped"})
    summary = store.summary("c-2")
    assert (summary.status, summary.error) == (ComparisonStatus.STOPPED, {"code": "run-stopped"}), "it stays stopped"


def test_what_is_given_back_waits_until_it_is_released(store: Store) -> None:
    ask_for(store)
    take(store)
    store.give_back("c-1", runner=ONE)
    assert not store.hold("c-1", runner=ONE, now=NOW)
    store.set_status("c-1", ComparisonStatus.INTERRUPTED, now=NOW)
    assert (status(store), take(store, OTHER, 1)) == (QUEUED, None)
    store.release("c-1", runner=ONE)
    assert take(store, OTHER, 1) == "c-1"


def test_a_run_that_was_cancelled_changes_nothing_any_more(store: Store) -> None:
    ask_for(store)
    take(store)
    store.create(make.comparison(), [])
    store.cancel("c-1", entry=make.entry(), version=store.summary("c-1").version)
    assert not store.hold("c-1", runner=ONE, now=NOW)
    for late in (RUNNING, ComparisonStatus.ANSWERED, ComparisonStatus.INTERRUPTED, ComparisonStatus.STOPPED):
        store.set_status("c-1", late, now=NOW)
    store.fail("c-1", runner=ONE, error={"code": "usage"})
    assert (status(store), store.summary("c-1").error) == (CANCELLED, {})
    with pytest.raises(ComparisonBusy, match=ONE):
        store.delete("c-1", entry=make.entry(at=after(60)), stale_after_s=60)
    store.requeue("c-1", entry=make.entry(), version=store.summary("c-1").version, drop_failures_from=None)
    assert take(store, OTHER, 1) is None, "its worker has not let go"
    store.release("c-1", runner=ONE)
    assert take(store, OTHER, 1) == "c-1"


def test_a_command_takes_what_waits_out_of_the_queue(store: Store) -> None:
    ask_for(store)
    store.create(make.comparison(), [])
    assert claim(store, OTHER)
    assert (status(store), take(store)) == (ComparisonStatus.INTERRUPTED, None)
    store.release("c-1", runner=OTHER)
    assert take(store) is None


@pytest.mark.parametrize("stands", [RUNNING, ComparisonStatus.ANSWERED, ComparisonStatus.PLANNED])
def test_what_a_silent_worker_had_is_taken_over(store: Store, stands: ComparisonStatus) -> None:
    ask_for(store)
    ask_for(store, "older", at=after(-9))
    put(store, "c-1", status=stands, runner=ONE, claimed_at=NOW, heartbeat_at=NOW)
    put(store, "older", status=CANCELLED)
    assert take(store, OTHER, 60) is None
    assert [take(store, OTHER, at) for at in (61, 61)] == ["c-1", "c-1"], "what it left behind it takes again"
    with pytest.raises(ComparisonBusy, match=OTHER):
        store.heartbeat("c-1", runner=ONE, now=after(62))
    assert not store.hold("c-1", runner=ONE, now=after(62))
    store.release("c-1", runner=ONE)
    assert store.hold("c-1", runner=OTHER, now=after(62))


def lose(store: Store, times: int = 1) -> list[str | None]:
    """One worker after another takes it, and is lost."""
    return [store.take(runner=f"lost-{n}:1:a", now=after(n), stale_after_s=-1) for n in range(times)]


def test_what_loses_one_worker_after_another_fails(store: Store) -> None:
    ask_for(store)
    assert lose(store, 6) == ["c-1", "c-1", "c-1", "c-1", None, None]
    summary = store.summary("c-1")
    assert (summary.status, summary.error["code"]) == (FAILED, "workers-lost")
    assert "lost-3:1:a" in summary.error["message"]
    assert "/v1/comparisons/c-1/resume" in summary.error["hint"]
    assert store.runners(["c-1"], now=NOW, stale_after_s=60) == {}
    store.requeue("c-1", entry=make.entry(), version=summary.version, drop_failures_from=None)
    assert lose(store, 5) == ["c-1", "c-1", "c-1", "c-1", None], "counted anew"


def test_a_run_that_comes_further_is_taken_over_without_end(store: Store) -> None:
    ask_for(store)
    store.create(make.comparison(), make.items(10))
    for position in range(9):
        assert lose(store) == ["c-1"]
        store.add_answers("c-1", [make.answer(position, run=position % 2)])
    assert status(store) is RUNNING


@pytest.mark.parametrize(
    ("urls", "is_exclusive", "waits"),
    [
        (("http://gpu:8001", "http://else:1/v1"), False, True),
        (("http://else:1/v1", "http://gpu:8002/v1/"), False, True),
        (("http://gpu:8003/v1", "http://gpu:8004/v1"), False, False),
        (("http://gpu:8001/two/v1", "http://gpu:8002/two/v1"), False, False),
        (("http://gpu:8003/v1", "http://else:1/v1"), True, True),
        (("http://else:1/v1", "http://else:2/v1"), True, False),
    ],
)
def test_a_second_comparison_never_disturbs_an_endpoint_in_use(
    store: Store, urls: tuple[str, str], is_exclusive: bool, waits: bool
) -> None:
    store.create(make.comparison(**SHARED), [])
    claim(store)
    ask_for(store, "c-2", baseline_url=urls[0], candidate_url=urls[1], is_exclusive=is_exclusive)
    assert take(store, OTHER, 1) == (None if waits else "c-2")
    store.release("c-1", runner=ONE)
    if waits:
        assert take(store, OTHER, 1) == "c-2"
        with pytest.raises(ComparisonBusy, match=f"c-2 is being run on the same endpoints by {OTHER}"):
            claim(store, at=1)
    assert claim(store, at=62), "a silent runner keeps nobody off"


def test_a_command_is_refused_before_it_sends_anything(store: Store) -> None:
    ask_for(store, **SHARED)
    take(store)

    def check(url: str, runner: str = OTHER, at: float = 0) -> None:
        store.check_endpoints([url], runner=runner, now=after(at), stale_after_s=60)

    for used in ("http://gpu:8001/v1", "http://gpu:8002"):
        with pytest.raises(ComparisonBusy, match="c-1 is being run on the same endpoints"):
            check(used)
    check("http://gpu:8003/v1")
    check("http://gpu:8001/v1", runner=ONE)
    check("http://gpu:8001/v1", at=61)
    ask_for(store, "local", baseline_url="http://localhost:8001/v1", candidate_url="http://127.0.0.1:8002/v1")
    assert take(store, "third:1:a") == "local"
    with pytest.raises(ComparisonBusy, match="local is being run"):
        check("http://[::1]:8002/v1")


def test_hosts_are_held_until_they_are_freed_or_their_runner_is_gone(store: Store) -> None:
    for number in (1, 2):
        own = make.comparison(f"c-{number}", baseline_url=f"http://gpu:{number}/v1", candidate_url="")
        store.create(own, [])
    held = {"now": after(0), "stale_after_s": 60}
    assert claim(store)
    assert store.hold_hosts("c-1", runner=ONE, **held)
    assert not store.hold_hosts("c-1", runner=ONE, **held), "they are held already"
    with pytest.raises(ComparisonBusy, match="c-1 is being run"):
        claim(store, OTHER, "c-2")
    store.free_hosts("c-1", runner=ONE)
    assert claim(store, OTHER, "c-2")
    with pytest.raises(ComparisonBusy, match="c-2 is being run"):
        store.hold_hosts("c-1", runner=ONE, **held)
    store.release("c-2", runner=OTHER)
    assert store.hold_hosts("c-1", runner=ONE, **held)
    assert claim(store, OTHER, "c-1", at=61), "the one that held them was killed"
    assert claim(store, "third:1:a", "c-2", at=61)


def test_who_waits_for_an_endpoint_is_not_overtaken_on_it(store: Store) -> None:
    ask_for(store, **SHARED)
    take(store)
    free, used = "http://free:1/v1", SHARED["baseline_url"]
    ask_for(store, "waits", at=after(1), baseline_url=used, candidate_url=free)
    ask_for(store, "later", at=after(2), baseline_url=free, candidate_url="http://third:1/v1")
    ask_for(store, "elsewhere", at=after(3))
    assert take(store, OTHER, 4) == "elsewhere"
    store.release("c-1", runner=ONE)
    put(store, "c-1", status=FINISHED)
    assert [take(store, f"w{n}:1:a", 4) for n in range(2)] == ["waits", None]


def test_workers_come_and_go(store: Store) -> None:
    def living(at: float) -> list[str]:
        return list(store.workers(now=after(at), stale_after_s=30))

    store.see_worker(OTHER, now=NOW)
    store.see_worker(ONE, now=after(1))
    store.see_worker(OTHER, now=after(20))
    assert (living(31), living(32), living(51)) == ([OTHER, ONE], [OTHER], [])
    for runner in (HERE, DEAD):
        store.see_worker(runner, now=after(60))
    assert living(61) == [HERE]
    for _ in range(2):
        store.drop_worker(HERE)
    assert living(61) == []
    store.see_worker(HERE, now=NOW + timedelta(days=2))
    store.see_worker(OTHER, now=NOW + timedelta(days=2))
    assert store.workers(now=after(31), stale_after_s=1e9) == [OTHER, HERE], "the others were swept out"
    assert (store.now().tzinfo, abs(store.now() - datetime.now(UTC)) < timedelta(minutes=1)) == (UTC, True)


def fill(store: Store, comparison_id: str) -> None:
    store.create(make.comparison(comparison_id), make.items(3))
    store.add_answers(comparison_id, [make.answer(1), make.answer(2), make.answer(1, run=1)])
    store.put_scores(comparison_id, [make.score(1), make.score(2)])
    store.put_analysis(make.analysis(comparison_id), now=NOW)


def delete(store: Store, comparison_id: str = "c-1", at: float = 0, version: int | None = None) -> None:
    entry = make.entry("comparison.delete", at=after(at))
    store.delete(comparison_id, entry=entry, stale_after_s=60, version=version)


def test_what_is_deleted_is_gone_and_nothing_else(store: Store) -> None:
    for comparison_id in ("c-1", "c-2"):
        fill(store, comparison_id)
    delete(store)
    for look in (store.get, store.summary, store.looks, store.has_outcomes, store.answered, store.plan_hashes):
        with pytest.raises(ComparisonNotFound):
            look("c-1")
    assert actions(store) == ["comparison.delete"]
    assert len(list(store.items("c-2"))) == 3
    assert len(store.answered("c-2")) == len(list(store.scores("c-2"))) == 2
    store.create(make.comparison("c-1"), make.items(2))
    assert (len(list(store.items("c-1"))), store.answered("c-1"), store.analysis("c-1")) == (2, set(), None)
    with pytest.raises(ComparisonNotFound):
        delete(store, "c")


def test_what_has_changed_or_runs_or_was_signed_off_is_kept(store: Store) -> None:
    for comparison_id in ("c-1", "c-2"):
        fill(store, comparison_id)
    seen = store.summary("c-1").version
    store.set_status("c-1", ComparisonStatus.INTERRUPTED, now=NOW)
    with pytest.raises(VersionConflict, match="c-1 has changed"):
        delete(store, version=seen)
    for comparison_id, runner in (("c-1", ONE), ("c-2", OTHER)):
        put(store, comparison_id, baseline_url=f"http://{comparison_id}", candidate_url="")
        claim(store, runner, comparison_id)
        with pytest.raises(ComparisonBusy, match=runner):
            delete(store, comparison_id, at=60)
    store.sign_off(make.signoff(), entry=make.entry("comparison.sign_off"))
    with pytest.raises(ComparisonSignedOff, match="c-1"):
        delete(store, at=61)
    assert len(list(store.scores("c-1"))) == 2
    delete(store, "c-2", at=61, version=store.summary("c-2").version)
    for stands in UNDER_WAY:
        ask_for(store, "c-3")
        put(store, "c-3", status=stands)
        with pytest.raises(ComparisonBusy, match=f"c-3 is {stands.value}. Cancel it first"):
            delete(store, "c-3")
        store.cancel("c-3", entry=make.entry(), version=2)
        delete(store, "c-3")


def test_a_group_is_taken_cancelled_resumed_failed_and_listed_as_one(store: Store) -> None:
    names = ("a", "b-1", "c")
    urls = {name: f"http://gpu:800{number}/v1" for number, name in enumerate(names)}
    ask_for(store, "g-a", candidate_url=", ".join(urls.values()), request={"candidates": urls})
    assert ids_of(store, "g") == ["g-a"]
    ask_for(store, "busy", candidate_url=urls["c"])
    store.claim("busy", runner=OTHER, now=NOW, stale_after_s=60)
    assert take(store) is None  # one of its candidates is in use
    store.release("busy", runner=OTHER)
    store.cancel("busy", entry=make.entry(), version=store.summary("busy").version)
    assert take(store) == "g-a"
    plan = make.plan()
    first, *others = (
        make.comparison(
            f"g-{name}",
            plan=replace(plan, group=Group(id="g", name=name, names=names)),
            created_at=NOW,
            candidate_url=urls[name],
        )
        for name in names
    )
    store.create(first, [], more=others)
    ask_for(store, "g-z")  # of no group
    assert ids_of(store, "g") == ["g-a", "g-b-1", "g-c"]
    assert ids_of(store, "g-b") == []
    store.set_status("g-b-1", FINISHED, now=NOW)

    def states() -> list[ComparisonStatus]:
        return [status(store, f"g-{name}") for name in names]

    store.cancel("g-a", entry=make.entry(), version=store.summary("g-a").version)
    assert states() == [CANCELLED, FINISHED, CANCELLED]
    store.release("g-a", runner=ONE)
    store.requeue("g-a", entry=make.entry(), version=store.summary("g-a").version, drop_failures_from=None)
    assert states() == [QUEUED, FINISHED, ComparisonStatus.PLANNED]
    store.claim("busy", runner=OTHER, now=NOW, stale_after_s=60)
    assert take(store) == "g-z"
    store.release("g-z", runner=ONE)
    store.release("busy", runner=OTHER)
    store.cancel("g-z", entry=make.entry(), version=store.summary("g-z").version)
    assert take(store) == "g-a"
    store.fail("g-a", runner=ONE, error={"code": "broken-task"})
    assert states() == [FAILED, FINISHED, FAILED]
    assert store.summary("g-c").error == {"code": "broken-task"}


def ids_of(store: Store, group_id: str) -> list[str]:
    return sorted(own.id for own in store.page(ComparisonFilter(group=group_id)).entries)
