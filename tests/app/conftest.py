"""What all tests of comparisons share."""

from __future__ import annotations

import pytest

from qualab.run import preflight


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads an engine's counters once, where a real one is given time to count."""
    monkeypatch.setattr(preflight, "COUNTER_PAUSES_S", (0.0,))
