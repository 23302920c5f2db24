"""A stored request as a command that sends the same bytes again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from qualab.app.viewing.words import Wording
from qualab.domain.canonical import encode_body
from qualab.domain.comparison import Comparison
from qualab.domain.items import Item
from qualab.domain.names import Api

ROUTES = {Api.COMPLETIONS: "completions", Api.CHAT: "chat/completions"}
KEY = '-H "Authorization: Bearer $API_KEY"'
"""The shell puts the key in: none is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What asks one arm once more."""

    title: str
    text: str


def commands(comparison: Comparison, item: Item, words: Wording) -> Iterator[Command]:
    """Both arms' commands for every request of an item, in the order of its choices and repeats."""
    sampling = comparison.plan.sampling
    for request in item.requests:
        for repeat in range(sampling.repeats):
            body = encode_body(request.payload, seed=sampling.seed + repeat).decode()
            parts = (("choice", request.choice, len(item.requests)), ("repeat", repeat, sampling.repeats))
            place = "".join(f" · {words(name)} {number}" for name, number, n in parts if n > 1)
            for title, url in (("baseline", comparison.baseline_url), ("candidate", comparison.candidate_url)):
                route = f"{url.rstrip('/')}/{ROUTES[request.api]}"
                yield Command(title=words(title) + place, text=command(route, body))


def command(url: str, body: str) -> str:
    """A line for a POSIX shell."""
    head = f"curl -sS {shlex.quote(url)} -H 'Content-Type: application/json' {KEY}"
    return f"{head} --data-raw {shlex.quote(body)}"
