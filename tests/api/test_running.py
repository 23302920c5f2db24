"""What a worker does with a submission."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from qualab.model.names import ArmName, ComparisonStatus
from qualab.model.registry import SubmissionStatus
from qualab.service.worker import NullProgress, carry_out
from tests.api.conftest import Service, make_bench, make_service
from tests.inline_jobs import InlineJobs


def run(service: Service, comparison_id: str) -> SubmissionStatus:
    asyncio.run(carry_out(service.context, comparison_id, progress=NullProgress()))
    found = service.registry.submission(comparison_id)
    assert found is not None
    return found.status


def test_what_was_cancelled_or_deleted_is_not_run(idle: Service) -> None:
    comparison_id = idle.create()
    idle.registry.set_submission(comparison_id, SubmissionStatus.CANCELLED)
    assert run(idle, comparison_id) is SubmissionStatus.CANCELLED
    asyncio.run(carry_out(idle.context, "nothing", progress=NullProgress()))
    assert idle.bench.baseline.bodies == []


def test_a_comparison_was_created_when_it_was_asked_for(idle: Service) -> None:
    comparison_id = idle.create()
    asked_at = idle.registry.summary(comparison_id).created_at
    idle.bench.clock.instant += timedelta(seconds=60)
    assert run(idle, comparison_id) is SubmissionStatus.DONE
    found = idle.registry.summary(comparison_id)
    assert found.created_at == asked_at
    assert found.started_at is not None
    assert (found.started_at - asked_at).total_seconds() == 60


def test_what_has_run_is_not_run_again(idle: Service) -> None:
    comparison_id = idle.create()
    assert run(idle, comparison_id) is SubmissionStatus.DONE
    idle.registry.set_submission(comparison_id, SubmissionStatus.QUEUED)
    assert run(idle, comparison_id) is SubmissionStatus.DONE
    assert len(idle.bench.baseline.bodies) == 10


def test_what_another_worker_has_is_left_to_it(idle: Service) -> None:
    comparison_id = idle.create()
    asyncio.run(carry_out(idle.context, comparison_id, progress=NullProgress()))
    store, now = idle.context.services.store, idle.bench.clock.now()
    store.set_status(comparison_id, ComparisonStatus.INTERRUPTED, now=now)
    idle.registry.set_submission(comparison_id, SubmissionStatus.RUNNING)
    store.claim(comparison_id, runner="elsewhere:1:b", now=now, stale_after_s=30.0)
    assert run(idle, comparison_id) is SubmissionStatus.RUNNING
    assert store.get(comparison_id).status is ComparisonStatus.INTERRUPTED


def test_a_service_that_is_stopped_goes_on_where_it_was() -> None:
    bench, jobs = make_bench(), InlineJobs()
    bench.baseline.delay_s = bench.candidate.delay_s = 0.05
    service = make_service(bench=bench, jobs=jobs)
    jobs.begin(service.context)
    with service.client:
        comparison_id = service.create(concurrency=1)
        while len(bench.candidate.bodies) < 3:
            time.sleep(0.01)
    jobs.close()
    assert bench.store.get(comparison_id).status is ComparisonStatus.INTERRUPTED
    stored = bench.store.n_answered(comparison_id)[ArmName.CANDIDATE]
    assert 0 < stored < 10
    bench.baseline.delay_s = bench.candidate.delay_s = 0.0
    asked = len(bench.candidate.bodies)
    assert [one.id for one in service.registry.submissions(SubmissionStatus.QUEUED)] == [comparison_id]
    assert run(service, comparison_id) is SubmissionStatus.DONE
    assert len(bench.candidate.bodies) == asked + 10 - stored
