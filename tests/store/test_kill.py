"""kill -9 at any moment: what was committed is there, once, and nothing is there by halves."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from qualab.model.ports import ComparisonFilter
from qualab.store import open_store
from tests.store.conftest import MIGRATIONS
from tests.store.samples import BASELINE, CANDIDATE, make_comparison, make_items
from tests.store.writer import BATCH, text_of

ROOT = Path(__file__).parents[2]


def start(url: str, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.store.writer", url, what]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def kill_after(child: subprocess.Popen[str], lines: int, seconds: float) -> list[str]:
    """Kills a program some time after its first lines; returns all that it said."""
    assert child.stdout is not None
    said = [child.stdout.readline().strip() for _ in range(lines)]
    time.sleep(seconds)
    child.kill()
    return said + child.communicate(timeout=60)[0].split()


def test_a_killed_writer_loses_nothing_and_doubles_nothing(url: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        store.create(make_comparison(), make_items(1))
    reported = 0
    for lines in (1, 2, 3):
        said = kill_after(start(url, "add"), lines, 0.02 * lines)
        assert int(said[-1]) > reported
        reported = int(said[-1])
        with open_store(url, migrations=MIGRATIONS) as store:
            stored = len(store.answered("c-1")) // 2
            assert reported <= stored <= reported + BATCH
            assert stored % BATCH == 0
            for arm in (BASELINE, CANDIDATE):
                answers = list(store.answers("c-1", arm=arm))
                assert [answer.repeat for answer in answers] == list(range(stored))
                assert [answer.reply.text for answer in answers] == [text_of(number) for number in range(stored)]
            assert store.get("c-1").duplicates == 0


def test_a_creation_that_is_killed_leaves_nothing(url: str) -> None:
    assert kill_after(start(url, "create"), 1, 0.3) == ["creating"]
    with open_store(url, migrations=MIGRATIONS) as store:
        assert store.list(ComparisonFilter()) == []
        store.create(make_comparison("killed"), make_items(3))
        assert len(list(store.items("killed"))) == 3
