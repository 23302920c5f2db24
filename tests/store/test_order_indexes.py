"""Lists in any order are read along indexes: comparisons, whose rows hold whole plans, are not gone through."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, event

from qualab.model.ports import ComparisonFilter
from qualab.model.registry import ORDERS
from qualab.store import open_store
from tests.store.conftest import MIGRATIONS
from tests.store.samples import after, make_comparison

INDEXES = {"created": "created_at", "label": "label", "model": "model", "status": "status", "verdict": "verdict"}


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_is_an_index(sqlite_url: str, name: str) -> None:
    with open_store(sqlite_url, migrations=MIGRATIONS) as store:
        for number in range(3):
            store.create(make_comparison(f"c-{number}", created_at=after(number)), [])
        said: list[tuple[str, Any]] = []
        event.listen(Engine, "before_cursor_execute", note := lambda *a: said.append((a[2], a[3])))
        try:
            page = store.registry.page(ComparisonFilter(limit=1), order=ORDERS[name])
            store.registry.page(ComparisonFilter(limit=1), order=ORDERS[name], cursor=page.next_cursor)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        steps = [
            str(row[-1])
            for statement, parameters in said
            if statement.startswith("SELECT")
            for row in store._sessions.engine.raw_connection().execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    of_places = [
        one for one in steps if "comparison " in f"{one} " and "PRIMARY KEY" not in one and "signoff" not in one
    ]
    assert of_places
    wanted = f"USING COVERING INDEX comparison_{INDEXES[name.removeprefix('-')]}"
    assert [one for one in of_places if wanted not in one] == []
