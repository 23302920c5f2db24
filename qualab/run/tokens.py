"""Finds the first differing token of texts that differ, after a run.

Stored texts are tokenized again, which may give other tokens than were generated. Nothing reads the engines' counters
any more by then, and it is bounded in pairs, requests at once and time. Whatever the tokenizer does, the run goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import zip_longest
from typing import TYPE_CHECKING

from qualab.analysis.noise import generated_texts
from qualab.errors import QualabError
from qualab.model.comparison import Comparison
from qualab.model.engine import FirstTokens, FirstTokensSeen, PairKind, TokenizedBy, TokensLack, last_seen
from qualab.model.items import Item
from qualab.model.names import ArmName, RequestKind
from qualab.run.ask import kept_alive
from qualab.run.prepare import Run, token_ids
from qualab.stats.noise import first_difference

if TYPE_CHECKING:
    from qualab.store import Store

MOST_PAIRS = 200
"""A task's, of the arms and of the noise floor each."""
CHUNK = 50
CONCURRENCY = 8
"""At most, and not above the plan's."""
TIMEOUT_S, LIMIT_S = 10.0, 30.0
"""For one text, and for all."""

Place = tuple[PairKind, int, int]
"""Whose answers, the item's position and the repeat."""
Places = dict[Place, int | None]
"""The first differing token; None where none differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    place: Place
    task: str
    texts: tuple[str, str]


async def count_tokens(run: Run) -> None:
    """Tokenize texts that differ, and store where they begin to, unless that is stored already.

    Raises what the store raises, and nothing of what the tokenizer does.
    """
    comparison, store = run.comparison, run.services.store
    if not any(task.kind is RequestKind.GENERATION for task in run.plan.tasks):
        return
    with kept_alive(run):
        pairs = await asyncio.to_thread(differing_pairs, store, comparison, run.items)
        by = TokenizedBy.BASELINE if ArmName.BASELINE in run.endpoints else TokenizedBy.CANDIDATE
        by = TokenizedBy.NAMED if comparison.local.get("tokenizer") else by
        earlier = last_seen(store.observations(run.id), FirstTokensSeen)
        known: Places = {}
        if earlier and earlier.by is by:
            known = {(kind, *key): token for kind in PairKind for key, token in earlier.places(kind).items()}
        selected = chosen(pairs, seed=run.plan.sampling.seed)
        places = {pair.place: known[pair.place] for pair in selected if pair.place in known}
        missing = [pair for pair in selected if pair.place not in known]
        new, lack = await _ask_tokens(run, missing) if missing else ({}, None)
        tasks = tuple(_tasks(comparison, pairs, places | new))
        seen = FirstTokensSeen(seen_at=run.services.clock.now(), by=by, tasks=tasks, lack=lack)
        if earlier is None or replace(seen, seen_at=earlier.seen_at) != earlier:
            await asyncio.to_thread(store.add_observation, run.id, seen)


def differing_pairs(store: Store, comparison: Comparison, items: Sequence[Item]) -> list[Pair]:
    """Find texts that differ between the arms, and between the baseline and the noise floor's first run.

    With a noise floor both are of the answers that all three have. `items` by position.
    """
    baseline, candidate = (generated_texts(store, comparison.id, items, arm)[0] for arm in ArmName)
    others = {PairKind.ARMS: candidate}
    if comparison.plan.noise_floor:
        others[PairKind.NOISE] = generated_texts(store, comparison.id, items, ArmName.BASELINE, run=1)[0]
    shared = sorted(baseline.keys() & set.intersection(*(set(texts) for texts in others.values())))
    return [
        Pair(place=(kind, *key), task=items[key[0]].task, texts=(baseline[key], texts[key]))
        for kind, texts in others.items()
        for key in shared
        if baseline[key] != texts[key]
    ]


def chosen(pairs: Sequence[Pair], *, seed: int) -> list[Pair]:
    """Choose the pairs that are tokenized, tasks taking turns.

    The smallest hashes of seed and place are a random part, the same in a resumed run and for the noise floor.
    """

    def rank(pair: Pair) -> str:
        _, position, repeat = pair.place
        return sha256(f"{seed}:tokens:{position}:{repeat}".encode()).hexdigest()

    groups: dict[tuple[str, PairKind], list[Pair]] = {}
    for pair in sorted(pairs, key=rank):
        groups.setdefault((pair.task, pair.place[0]), []).append(pair)
    rounds = zip_longest(*(group[:MOST_PAIRS] for group in groups.values()))
    return [pair for row in rounds for pair in row if pair is not None]


async def _ask_tokens(run: Run, pairs: Sequence[Pair]) -> tuple[Places, TokensLack | None]:
    run.services.progress.phase(f"Tokenizing {len(pairs):,} pairs of texts that differ")
    services, name = run.services, run.comparison.local.get("tokenizer", "")
    arm = ArmName.BASELINE if ArmName.BASELINE in run.endpoints else ArmName.CANDIDATE
    concurrency = min(CONCURRENCY, run.plan.policy.concurrency)
    policy = replace(run.plan.policy, concurrency=concurrency, max_attempts=1, max_wait_s=0.0, timeout_s=TIMEOUT_S)
    places: Places = {}
    try:
        async with (
            asyncio.timeout(LIMIT_S),
            services.open_endpoint(run.endpoints[arm].url, policy=policy, key=services.keys.get(arm)) as endpoint,
        ):
            named = services.named_tokenizer(name) if name else None
            for start in range(0, len(pairs), CHUNK):
                chunk = pairs[start : start + CHUNK]
                texts = [text for pair in chunk for text in pair.texts]
                tokens = await token_ids(texts, endpoint=endpoint, model=run.plan.sampling.model, named=named)
                places |= {pair.place: first_difference(*(tokens[text] for text in pair.texts)) for pair in chunk}
    except TimeoutError:
        return places, TokensLack.TIME
    except QualabError:
        return places, TokensLack.FAILED
    return places, None


def _tasks(comparison: Comparison, pairs: Sequence[Pair], places: Mapping[Place, int | None]) -> Iterator[FirstTokens]:
    for task in comparison.plan.tasks:
        for kind in (PairKind.ARMS, PairKind.NOISE) if comparison.plan.noise_floor else (PairKind.ARMS,):
            own = [pair.place for pair in pairs if pair.task == task.name and pair.place[0] is kind]
            known = tuple((*place[1:], places[place]) for place in own if place in places)
            if task.kind is RequestKind.GENERATION:
                yield FirstTokens(task=task.name, pairs=kind, n_differ=len(own), places=known)
