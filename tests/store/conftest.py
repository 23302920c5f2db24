from __future__ import annotations

from collections.abc import Iterator

import pytest

from qualab.store import Store
from tests.fresh_store import opened


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A new store on each kind of database."""
    with opened(url) as store:
        yield store
