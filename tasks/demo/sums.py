"""Items of `demo_sums`, drawn by a fixed seed when they are loaded: short sums, so that a minute proves a margin."""

from __future__ import annotations

import random
from typing import Any

import datasets

SEED = "sums 1"
N_ITEMS = 1_000
NAMES = ("Mina", "Joon", "Ana", "Omar", "Lena", "Tariq", "Yuki", "Paul")
THINGS = ("apples", "stamps", "marbles", "coins", "shells", "pencils", "cards", "buttons")


def documents(**_: object) -> dict[str, Any]:
    """Return lm-eval's data set: questions with their answers, no question twice."""
    rng, rows = random.Random(SEED), dict[str, int]()
    while len(rows) < N_ITEMS:
        question, answer = _drawn(rng, form=len(rows) % 4)
        rows.setdefault(question, answer)
    return {"test": datasets.Dataset.from_list([{"question": own, "answer": str(rows[own])} for own in rows])}


def _drawn(rng: random.Random, *, form: int) -> tuple[str, int]:
    a, b = rng.randint(2, 60), rng.randint(2, 39)
    if form == 0:
        return f"What is {a} + {b}?", a + b
    if form == 1:
        return f"What is {a + b} - {b}?", a
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    if form == 2:
        return f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?", a + b
    return f"{name} had {a + b} {thing} and gave away {b}. How many {thing} does {name} have now?", a
