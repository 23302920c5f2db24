"""A list of 10,000 comparisons in each of its orders: how long a page takes, turned over from the first one on.

    python benchmarks/lists.py [--db URL] [--comparisons 10000] [--times 60]

Fills an empty database, of its own unless another is named: rows as large as those of comparisons with plans of 20 kB,
half of all labels the same.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, create_engine, insert

if TYPE_CHECKING:
    from qualab.store import Store

sys.path.insert(0, str(Path(__file__).parents[1]))

from qualab.bootstrap import share
from qualab.model.names import ComparisonStatus, Verdict
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import ListOrder
from qualab.store import open_store, upgrade
from qualab.store.failures import locate
from qualab.store.tables import comparison

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
UNDER_WAY = 20
VERDICTS = [verdict for verdict in Verdict if verdict is not Verdict.NOT_TESTED]
PER_PAGE = 50


def fill(connection: Connection, n: int) -> None:
    """Rows as the store writes them, at once."""
    rng = random.Random(1)
    connection.execute(insert(comparison), [_comparison(number, rng) for number in range(n)])


def _comparison(number: int, rng: random.Random) -> dict[str, Any]:
    is_over = number >= UNDER_WAY
    return {
        "id": f"c-{number}",
        "plan_hash": "h" * 64,
        "status": ComparisonStatus.FINISHED if is_over else rng.choice(list(ComparisonStatus)[:5]),
        "label": f"branch {rng.randrange(900)}" if number % 2 else "nightly",
        "created_at": BEGAN + timedelta(seconds=number),
        "verdict": rng.choice(VERDICTS) if is_over else None,
        "duplicates": 0,
        "plan": '{"x":"' + "x" * 20_000 + '"}',
        "local": {},
        "baseline_url": "",
        "candidate_url": "",
        "model": rng.choice("ab") if number % 5 else "m",
        "suite": "release",
        "n_items": 10,
    }


def turned(store: Store, order: ListOrder, times: int) -> Iterator[float]:
    """Milliseconds of one page after the other."""
    cursor = None
    for _ in range(times):
        began = time.perf_counter()
        page = store.page(ComparisonFilter(limit=PER_PAGE), order=order, cursor=cursor)
        yield 1e3 * (time.perf_counter() - began)
        cursor = page.next_cursor


def measure(where: str, n: int, times: int) -> None:
    """Prints a line for each order."""
    upgrade(where, share("migrations"))
    engine = create_engine(locate(where).url)
    with engine.begin() as connection:
        fill(connection, n)
    engine.dispose()
    print(f"{n:,} comparisons; pages of {PER_PAGE}\n{'order':<12}{'p50 ms':>8}{'most':>8}")
    with open_store(where, migrations=share("migrations")) as store:
        for order in ListOrder:
            found = sorted(turned(store, order, times))
            print(f"{order:<12}{found[len(found) // 2]:>8.1f}{found[-1]:>8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", default="", help="an empty database")
    parser.add_argument("--comparisons", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qualab-lists-") as folder:
        measure(given.db or str(Path(folder) / "qualab.db"), given.comparisons, given.times)


if __name__ == "__main__":
    main()
