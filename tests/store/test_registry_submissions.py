"""What every registry does with what it was asked to run, and when a comparison is deleted."""

from __future__ import annotations

from typing import Any

import pytest

from qualab.errors import (
    ComparisonBusy,
    ComparisonNotFound,
    ComparisonSignedOff,
    KeyReused,
    StoreError,
    VersionConflict,
)
from qualab.model.names import ComparisonStatus
from qualab.model.ports import ComparisonFilter, Registry, Store
from qualab.model.registry import SubmissionStatus
from tests.store.samples import (
    NOW,
    after,
    make_analysis,
    make_answer,
    make_comparison,
    make_entry,
    make_items,
    make_look,
    make_outcome,
    make_score,
    make_signoff,
    make_submission,
)

QUEUED, RUNNING, DONE = SubmissionStatus.QUEUED, SubmissionStatus.RUNNING, SubmissionStatus.DONE


def submit(registry: Registry, comparison_id: str = "c-1", **changes: Any) -> None:
    registry.submit(make_submission(comparison_id, **changes), entry=make_entry(subject=comparison_id))


def actions(registry: Registry) -> list[str]:
    return [entry.action for entry in registry.audit().entries]


def test_a_submission_comes_back_as_it_went_in(registry: Registry) -> None:
    submission = make_submission(error={"code": "x", "message": "이유"}, version=3)
    assert registry.submit(submission, entry=make_entry()) == (submission, True)
    assert registry.submission("c-1") == submission
    assert registry.submission("c") is None
    assert actions(registry) == ["comparison.create"]


def test_the_same_key_and_body_make_one_submission(registry: Registry) -> None:
    first = make_submission("c-1")
    assert registry.submit(first, entry=make_entry(), key="k", body_hash="b") == (first, True)
    changed = registry.set_submission("c-1", RUNNING)
    again = registry.submit(make_submission("c-2"), entry=make_entry(), key="k", body_hash="b")
    assert again == (changed, False)
    assert registry.submission("c-2") is None
    assert actions(registry) == ["comparison.create"]


@pytest.mark.parametrize(("body_hash", "created_by"), [("other", "ci"), ("b", "another token")])
def test_a_key_stands_for_one_request_of_one_token(registry: Registry, body_hash: str, created_by: str) -> None:
    registry.submit(make_submission("c-1"), entry=make_entry(), key="k", body_hash="b")
    with pytest.raises(KeyReused, match="'k'"):
        registry.submit(make_submission("c-2", created_by=created_by), entry=make_entry(), key="k", body_hash=body_hash)
    assert registry.submission("c-2") is None


def test_without_a_key_each_is_one_of_its_own(registry: Registry) -> None:
    for comparison_id in ("c-1", "c-2"):
        _, is_new = registry.submit(make_submission(comparison_id), entry=make_entry(), body_hash="b")
        assert is_new


def test_an_id_is_taken_once(store: Store, registry: Registry) -> None:
    submit(registry, "c-1")
    store.create(make_comparison("c-2"), [])
    for comparison_id in ("c-1", "c-2"):
        with pytest.raises(StoreError, match=f"{comparison_id} exists already"):
            submit(registry, comparison_id)
    assert actions(registry) == ["comparison.create"]


def test_what_json_cannot_say_is_refused(registry: Registry) -> None:
    with pytest.raises(StoreError, match="JSON"):
        submit(registry, experiment={"path": object()})
    assert registry.submission("c-1") is None
    assert actions(registry) == []


def test_submissions_by_status_oldest_first(registry: Registry) -> None:
    for number, status in enumerate((QUEUED, RUNNING, QUEUED, DONE)):
        submit(registry, f"c-{number}", created_at=after(-number), status=status)
    submit(registry, "c-4", created_at=after(-2))
    assert [one.id for one in registry.submissions(QUEUED)] == ["c-2", "c-4", "c-0"]
    assert [one.id for one in registry.submissions(RUNNING, DONE)] == ["c-3", "c-1"]
    assert list(registry.submissions()) == []


def test_every_change_is_a_new_version(registry: Registry) -> None:
    submit(registry)
    failed = registry.set_submission("c-1", SubmissionStatus.FAILED, error={"code": "usage"}, version=1)
    assert (failed.status, failed.error, failed.version) == (SubmissionStatus.FAILED, {"code": "usage"}, 2)
    queued = registry.set_submission("c-1", QUEUED, entry=make_entry("comparison.resume"))
    assert (queued.status, queued.error, queued.version) == (QUEUED, {}, 3)
    assert registry.submission("c-1") == queued
    assert actions(registry) == ["comparison.resume", "comparison.create"]


def test_a_stale_version_changes_nothing(registry: Registry) -> None:
    submit(registry)
    registry.set_submission("c-1", RUNNING, version=1)
    with pytest.raises(VersionConflict, match="at version 2, not 1") as caught:
        registry.set_submission("c-1", DONE, version=1, entry=make_entry("comparison.cancel"))
    assert caught.value.details == {"stored": 2}
    found = registry.submission("c-1")
    assert found is not None
    assert (found.status, found.version) == (RUNNING, 2)
    assert actions(registry) == ["comparison.create"]


def take_over(registry: Registry) -> int:
    """Runs it, and loses its worker."""
    running = registry.set_submission("c-1", RUNNING)
    queued = registry.take_over("c-1", version=running.version)
    assert (queued.status, queued.version) == (QUEUED, running.version + 1)
    assert registry.submission("c-1") == queued
    return queued.takeovers


def test_takeovers_are_counted_while_there_is_no_other_answer(store: Store, registry: Registry) -> None:
    submit(registry)
    assert [take_over(registry) for _ in range(2)] == [1, 2]
    store.create(make_comparison("c-1"), make_items(3))
    assert take_over(registry) == 3
    for answer in (make_answer(1), make_answer(2), make_answer(1, run=1)):
        store.add_answers("c-1", [answer])
        assert [take_over(registry) for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("status", [DONE, SubmissionStatus.FAILED, SubmissionStatus.CANCELLED])
def test_what_has_ended_is_counted_anew(registry: Registry, status: SubmissionStatus) -> None:
    submit(registry)
    assert [take_over(registry) for _ in range(2)] == [1, 2]
    assert registry.set_submission("c-1", QUEUED).takeovers == 2
    assert registry.set_submission("c-1", status).takeovers == 0
    assert take_over(registry) == 1


def test_who_comes_late_takes_nothing_over(registry: Registry) -> None:
    submit(registry)
    registry.set_submission("c-1", RUNNING)
    with pytest.raises(VersionConflict):
        registry.take_over("c-1", version=1)
    with pytest.raises(ComparisonNotFound):
        registry.take_over("c-2", version=1)
    found = registry.submission("c-1")
    assert found is not None
    assert (found.status, found.version, found.takeovers) == (RUNNING, 2, 0)


def test_only_a_submission_changes(store: Store, registry: Registry) -> None:
    store.create(make_comparison(), [])
    with pytest.raises(ComparisonNotFound):
        registry.set_submission("c-1", DONE)


def fill(store: Store, registry: Registry, comparison_id: str) -> None:
    store.create(make_comparison(comparison_id), make_items(3))
    store.add_answers(comparison_id, [make_answer(1), make_answer(2), make_answer(1, run=1)])
    store.put_scores(comparison_id, [make_score(1), make_score(2)])
    store.add_look(comparison_id, make_look(), now=NOW)
    store.put_analysis(make_analysis(comparison_id), now=NOW)
    store.put_outcomes(comparison_id, [make_outcome(0)])


def test_what_is_deleted_is_gone_and_nothing_else(store: Store, registry: Registry) -> None:
    submit(registry, "c-1", status=DONE)
    for comparison_id in ("c-1", "c-2"):
        fill(store, registry, comparison_id)
    registry.delete("c-1", entry=make_entry("comparison.delete"), stale_after_s=60)
    assert registry.submission("c-1") is None
    assert [one.id for one in registry.page(ComparisonFilter()).entries] == ["c-2"]
    for look in (store.get, registry.summary, store.looks, registry.has_outcomes, store.answered, store.plan_hashes):
        with pytest.raises(ComparisonNotFound):
            look("c-1")
    assert actions(registry) == ["comparison.delete", "comparison.create"]
    assert len(list(store.items("c-2"))) == 3
    assert len(store.answered("c-2")) == len(list(store.scores("c-2"))) == 2
    assert registry.has_outcomes("c-2")


def test_an_id_that_was_deleted_may_come_again(store: Store, registry: Registry) -> None:
    fill(store, registry, "c-1")
    registry.delete("c-1", entry=make_entry(), stale_after_s=60)
    store.create(make_comparison("c-2"), [])
    store.create(make_comparison("c-1"), make_items(2))
    assert len(list(store.items("c-1"))) == 2
    assert (store.answered("c-1"), store.looks("c-1"), store.analysis("c-1")) == (set(), store.looks("c-2"), None)
    fill(store, registry, "c-3")
    assert {answer.reply.text for answer in store.answers("c-3", arm=make_answer(0).arm)} == {"18"}
    assert store.answered("c-2") == set()


def test_a_submission_without_a_comparison_is_deleted(registry: Registry) -> None:
    submit(registry, status=SubmissionStatus.FAILED)
    registry.delete("c-1", entry=make_entry(), stale_after_s=60)
    assert registry.submission("c-1") is None
    submit(registry)


def test_what_has_changed_since_it_was_seen_is_kept(store: Store, registry: Registry) -> None:
    submit(registry, "c-1", status=DONE)
    seen = registry.about("c-1")
    registry.set_submission("c-1", SubmissionStatus.FAILED)
    with pytest.raises(VersionConflict, match="c-1 has changed"):
        registry.delete("c-1", entry=make_entry("comparison.delete"), stale_after_s=60, seen=seen)
    assert actions(registry) == ["comparison.create"]
    registry.delete("c-1", entry=make_entry("comparison.delete"), stale_after_s=60, seen=registry.about("c-1"))
    assert registry.submission("c-1") is None


def test_a_comparison_of_a_command_line_is_deleted_as_it_was_seen(store: Store, registry: Registry) -> None:
    fill(store, registry, "c-1")
    seen = registry.about("c-1")
    store.set_status("c-1", ComparisonStatus.INTERRUPTED, now=NOW)
    with pytest.raises(VersionConflict, match="c-1 has changed"):
        registry.delete("c-1", entry=make_entry("comparison.delete"), stale_after_s=60, seen=seen)
    assert len(list(store.scores("c-1"))) == 2
    registry.delete("c-1", entry=make_entry("comparison.delete"), stale_after_s=60, seen=registry.about("c-1"))
    with pytest.raises(ComparisonNotFound):
        store.get("c-1")


def test_a_key_goes_with_its_submission(registry: Registry) -> None:
    submission = make_submission("c-1", status=SubmissionStatus.CANCELLED)
    registry.submit(submission, entry=make_entry(), key="k", body_hash="b")
    registry.delete("c-1", entry=make_entry(), stale_after_s=60)
    assert registry.submit(make_submission("c-2"), entry=make_entry(), key="k", body_hash="other")[1]


def test_what_a_worker_has_not_let_go_of_is_not_deleted(registry: Registry) -> None:
    """It was cancelled before it had a comparison: its worker would store one afterwards."""
    submit(registry, status=SubmissionStatus.CANCELLED)
    hosts = {"h": 1}
    registry.lease_hosts("c-1", hosts, runner="w", limit=1, is_exclusive=False, now=NOW, stale_after_s=60)
    with pytest.raises(ComparisonBusy, match="still held by the worker w"):
        registry.delete("c-1", entry=make_entry(at=after(60)), stale_after_s=60)
    registry.release_hosts("c-1", runner="w")
    registry.delete("c-1", entry=make_entry(at=after(60)), stale_after_s=60)
    assert registry.submission("c-1") is None


def test_an_unknown_id_is_not_deleted(store: Store, registry: Registry) -> None:
    store.create(make_comparison("c-10"), [])
    with pytest.raises(ComparisonNotFound):
        registry.delete("c-1", entry=make_entry(), stale_after_s=60)
    assert actions(registry) == []


def test_what_was_signed_off_is_kept(store: Store, registry: Registry) -> None:
    fill(store, registry, "c-1")
    registry.sign_off(make_signoff(), entry=make_entry("comparison.sign_off"))
    with pytest.raises(ComparisonSignedOff, match="c-1"):
        registry.delete("c-1", entry=make_entry("comparison.delete"), stale_after_s=60)
    assert len(list(store.scores("c-1"))) == 2
    assert actions(registry) == ["comparison.sign_off"]


def test_what_runs_is_not_deleted_until_its_runner_is_silent(store: Store, registry: Registry) -> None:
    fill(store, registry, "c-1")
    store.claim("c-1", runner="elsewhere:1:x", now=NOW, stale_after_s=60)
    with pytest.raises(ComparisonBusy, match="elsewhere:1:x"):
        registry.delete("c-1", entry=make_entry(at=after(60)), stale_after_s=60)
    registry.delete("c-1", entry=make_entry(at=after(61)), stale_after_s=60)
    with pytest.raises(ComparisonNotFound):
        store.get("c-1")


@pytest.mark.parametrize("status", [QUEUED, RUNNING])
def test_what_waits_or_runs_is_cancelled_before_it_is_deleted(registry: Registry, status: SubmissionStatus) -> None:
    submit(registry)
    registry.set_submission("c-1", status)
    with pytest.raises(ComparisonBusy, match=f"c-1 is {status.value}. Cancel it first"):
        registry.delete("c-1", entry=make_entry(), stale_after_s=60)
    registry.set_submission("c-1", SubmissionStatus.CANCELLED)
    registry.delete("c-1", entry=make_entry(), stale_after_s=60)
