from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from qualab.endpoints.client import MAX_RETRY_AFTER_S, pause_s
from qualab.endpoints.replies import retry_after_s
from qualab.endpoints.transport import Failure, Timing
from qualab.model.plan import RequestPolicy

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("3", 3.0),
        ("0.5", 0.5),
        ("Sun, 01 Mar 2026 12:01:30 GMT", 90.0),
        ("Sun, 01 Mar 2026 13:01:30 +0100", 90.0),
        ("Sun, 01 Mar 2026 11:59:00 GMT", 0.0),
        ("-5", None),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("Sun, 99 Mar 2026 99:99:99 GMT", None),
    ],
)
def test_seconds_and_http_dates(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, now=NOW) == seconds


def test_a_long_pause_is_capped() -> None:
    failure = Failure("busy", retry_after_s=86_400.0)
    timing = Timing(now=lambda: NOW, rng=random.Random(1))
    policy = RequestPolicy(backoff_s=1.0)
    assert MAX_RETRY_AFTER_S <= pause_s(failure, attempt=1, policy=policy, timing=timing) <= MAX_RETRY_AFTER_S + 1


def test_many_attempts_stay_within_the_longest_backoff() -> None:
    failure = Failure("late")
    timing = Timing(now=lambda: NOW, rng=random.Random(1))
    assert pause_s(failure, attempt=5_000, policy=RequestPolicy(), timing=timing) <= RequestPolicy().max_backoff_s
