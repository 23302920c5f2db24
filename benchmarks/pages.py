"""Web pages of a comparison of 50,000 items: how long one takes, from the request to its last byte.

    python benchmarks/pages.py [--items 50000] [--times 60]

Makes a SQLite database, starts `qualab serve` as a process, and asks one page after the other. The time
counts whatever the service does, and the connection; not what a browser does with it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.made_up import SHAPES
from benchmarks.verdicts import serve
from qualab.bootstrap import share
from qualab.store import open_store, upgrade
from tests.web.made import publish

ID = "20260301-214000-5ca1ab1e"


def fill(url: str, n_items: int) -> int:
    """One finished comparison of about so many items; returns how many."""
    upgrade(url, share("migrations"))
    with open_store(url, migrations=share("migrations")) as store:
        scale = n_items / sum(shape.n_items for shape in SHAPES.values())
        made = publish(store, ID, scale=scale, label="large", missing=0.002, loss=0.003)
    return sum(task.n_items for task in made.plan.tasks)


class NextLink(HTMLParser):
    """Finds where a page leads on to."""

    href = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a" and found.get("rel") == "next":
            self.href = found["href"] or ""


def get(address: str, path: str) -> tuple[float, str]:
    """Seconds, and the page."""
    began = time.perf_counter()
    with urllib.request.urlopen(address + path) as answer:
        text = answer.read().decode()
    return time.perf_counter() - began, text


def paged(address: str, path: str, times: int) -> Iterator[float]:
    """Page after page, from the first one again behind the last."""
    wanted = path
    for _ in range(times):
        seconds, text = get(address, wanted)
        yield seconds
        link = NextLink()
        link.feed(text)
        wanted = link.href or path


def items_of(n_items: int) -> Callable[[], str]:
    rng = random.Random(1)
    return lambda: f"/comparisons/{ID}/items/{rng.randrange(n_items)}"


def measured(name: str, found: list[float]) -> str:
    ordered = sorted(1e3 * one for one in found)
    p50, p99 = (ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return f"{name:<36}{len(ordered):>6}{p50:>10.1f}{p99:>10.1f}{ordered[-1]:>10.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--times", type=int, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qualab-pages-") as folder:
        url = str(Path(folder) / "qualab.db")
        began = time.perf_counter()
        n_items = fill(url, given.items)
        print(f"{n_items:,} items stored in {time.perf_counter() - began:.0f} s")
        process, address = serve(url)
        drain = Popen(["cat"], stdin=process.stderr, stdout=DEVNULL)
        try:
            report(address, n_items, given.times)
        finally:
            process.terminate()
            with suppress(TimeoutExpired):
                process.wait(20.0)
            drain.terminate()


def report(address: str, n_items: int, times: int) -> None:
    print(f"{'page':<36}{'times':>6}{'p50 ms':>10}{'p99 ms':>10}{'most':>10}")
    base, item = f"/comparisons/{ID}/items", items_of(n_items)
    get(address, base)
    for name, path in (
        ("items", base),
        ("items, flipped", f"{base}?show=flipped"),
        ("items, missing", f"{base}?show=missing"),
        ("items, different text", f"{base}?show=different"),
        ("items, a task", f"{base}?task=ifeval"),
        ("items, a task, losses, length", f"{base}?task=ifeval&show=losses&min_length=20"),
        ("items, long answers (none)", f"{base}?min_length=100000"),
    ):
        print(measured(name, list(paged(address, path, times))), flush=True)
    print(measured("one item", [get(address, item())[0] for _ in range(times)]), flush=True)
    few = max(3, times // 10)
    print(measured("all comparisons", [get(address, "/")[0] for _ in range(times)]), flush=True)
    print(measured("the comparison", [get(address, f"/comparisons/{ID}")[0] for _ in range(few)]), flush=True)


if __name__ == "__main__":
    main()
