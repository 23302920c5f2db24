"""Adds answers until it is killed, saying after each commit what is stored: python -m tests.store.writer URL WHAT."""

from __future__ import annotations

import sys

from tests.fresh_store import opened
from tests.store import samples as make
from tests.store.samples import BASELINE, CANDIDATE

BATCH = 7


def text_of(number: int) -> str:
    return f"{number} 번째 답: the same in both arms, whatever happens in between"


def main(url: str, what: str) -> None:
    with opened(url) as store:
        if what == "create":
            print("creating", flush=True)
            store.create(make.comparison("killed"), make.items(200_000))
        stored = len(store.answered("c-1")) // 2
        for first in range(stored, 30_000, BATCH):
            numbers = range(first, first + BATCH)
            pairs = [(number, arm) for number in numbers for arm in (BASELINE, CANDIDATE)]
            store.add_answers("c-1", [make.answer(0, arm, text_of(number), repeat=number) for number, arm in pairs])
            print(first + BATCH, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
