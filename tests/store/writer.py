"""Adds answers until it is killed, saying after each commit what is stored: python -m tests.store.writer URL WHAT."""

from __future__ import annotations

import sys

from qualab.store import open_store
from tests.store.conftest import MIGRATIONS
from tests.store.samples import BASELINE, CANDIDATE, make_answer, make_comparison, make_items

BATCH = 7


def text_of(number: int) -> str:
    return f"{number} 번째 답: the same in both arms, whatever happens in between"


def main(url: str, what: str) -> None:
    with open_store(url, migrations=MIGRATIONS) as store:
        if what == "create":
            print("creating", flush=True)
            store.create(make_comparison("killed"), make_items(200_000))
        stored = len(store.answered("c-1")) // 2
        for first in range(stored, 30_000, BATCH):
            numbers = range(first, first + BATCH)
            pairs = [(number, arm) for number in numbers for arm in (BASELINE, CANDIDATE)]
            store.add_answers("c-1", [make_answer(0, arm, text_of(number), repeat=number) for number, arm in pairs])
            print(first + BATCH, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
