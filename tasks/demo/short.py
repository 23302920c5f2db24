"""Items of `demo_short`, drawn by a fixed seed when they are loaded: short questions that a small model may answer."""

from __future__ import annotations

import random
from typing import Any

import datasets

SEED = "short 1"
N_ITEMS = 240
NAMES = ("Mina", "Joon", "Ana", "Omar", "Lena", "Tariq", "Yuki", "Paul")
FRUITS = ("apples", "pears", "plums", "lemons", "figs", "melons")
THINGS = (
    *("lantern", "harbor map", "violin", "copper pot", "orchard bench", "candle", "ribbon", "walnut box"),
    *("bridge lamp", "kettle", "meadow rug", "brass bell"),
)


def documents(**_: object) -> dict[str, Any]:
    """Return lm-eval's data set: questions with their answers, no question twice."""
    rng, rows = random.Random(SEED), dict[str, int]()
    while len(rows) < N_ITEMS:
        question, answer = _drawn(rng, form=len(rows) % 4)
        rows.setdefault(question, answer)
    return {"test": datasets.Dataset.from_list([{"question": own, "answer": str(rows[own])} for own in rows])}


def _drawn(rng: random.Random, *, form: int) -> tuple[str, int]:
    if form == 0:
        (a, b), name, fruit = (rng.randint(1, 9), rng.randint(1, 9)), rng.choice(NAMES), rng.choice(FRUITS)
        return f"{name} has {a} {fruit} and gets {b} more. How many {fruit} does {name} have now? ({a} + {b})", a + b
    (a, b), (thing, other) = rng.sample(range(10, 1_000), 2), rng.sample(THINGS, 2)
    if form == 1:
        return f"The {thing} costs {a} won and the {other} costs {b} won. What does the {other} cost?", b
    if form == 2:
        return f"The code of the {thing} is {a}. What is the code?", a
    return f"Which number is larger, {a} or {b}?", max(a, b)
