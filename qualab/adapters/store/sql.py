"""The store over a database: each method of the port one transaction."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import NamedTuple, Self, TypeVar

from sqlalchemy import Connection, Engine

from qualab.adapters.store import comparisons, records
from qualab.adapters.store.bulk import chunks
from qualab.adapters.store.engine import writing
from qualab.adapters.store.failures import translated
from qualab.adapters.store.location import Location
from qualab.adapters.store.phrases import Phrases
from qualab.adapters.store.texts import TextCodec
from qualab.adapters.store.training import DictionarySampler
from qualab.domain.claims import Claim, busy, is_gone, may_claim
from qualab.domain.comparison import Analysis, Comparison, Look
from qualab.domain.items import Answer, Item, Score, ScoreFlip
from qualab.domain.lookup import not_next
from qualab.domain.names import ArmName, ComparisonStatus
from qualab.domain.observations import Observation
from qualab.ports import ComparisonFilter

T = TypeVar("T")
_ARMS = len(ArmName)
_MOST_KNOWN = 64
"""Comparisons whose key and dictionaries stay in memory."""


class _Known(NamedTuple):
    """What never changes of a comparison."""

    key: int
    codec: TextCodec


class SqlStore:
    """`qualab.ports.Store` in SQLite or PostgreSQL. Threads may share it. Made by `open_store`."""

    def __init__(self, engine: Engine, location: Location) -> None:
        self.engine = engine
        self.location = location
        self._writer = writing(engine)
        self._phrases = Phrases()
        self._known: dict[str, _Known] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the store may be used again."""
        self.engine.dispose()

    def create(self, comparison: Comparison, items: Iterable[Item]) -> None:
        """Stores the plan and every item, or nothing. Raises StoreError where the id or an item is there already."""
        sampler = DictionarySampler(answers_an_item=_ARMS * comparison.plan.sampling.repeats)
        with self._writing() as connection:
            key = comparisons.insert_comparison(connection, comparison)
            records.add_items(connection, key, items, sampler)
            records.add_dictionaries(connection, key, sampler.train())

    def put_whole(
        self,
        comparison: Comparison,
        items: Iterable[Item],
        answers: Iterable[Answer],
        scores: Iterable[Score],
        analysis: Callable[[], Analysis],
        *,
        now: datetime,
    ) -> Analysis:
        """Stores a finished comparison in one transaction. Raises StoreError for what cannot be stored."""
        sampler = DictionarySampler(answers_an_item=_ARMS * comparison.plan.sampling.repeats)
        with self._writing() as connection:
            key = comparisons.insert_comparison(connection, comparison)
            records.add_items(connection, key, items, sampler)
            records.add_dictionaries(connection, key, sampler.train())
            codec, phrases = records.read_codec(connection, key), dict[str, int]()
            for chunk in chunks(answers):
                phrases |= self._phrases.ids(connection, _recurring(chunk) - phrases.keys())
                records.add_answers(connection, key, chunk, codec=codec, phrases=phrases)
            phrases |= records.replace_scores(connection, key, scores, self._phrases)
            found = analysis()
            comparisons.set_status(connection, key, ComparisonStatus.FINISHED, now=now, stop_reason=None)
            records.add_analysis(connection, key, found, now=now)
        self._phrases.keep(phrases)
        return found

    def get(self, comparison_id: str) -> Comparison:
        """By id or by an unambiguous beginning of one. Raises ComparisonNotFound."""
        with self._reading() as connection:
            return comparisons.get_comparison(connection, comparison_id)

    def list(self, wanted: ComparisonFilter) -> list[Comparison]:
        """Newest first."""
        with self._reading() as connection:
            return comparisons.list_comparisons(connection, wanted)

    def items(self, comparison_id: str, *, positions: Collection[int] | None = None) -> Iterator[Item]:
        """In order of position; all of them, or those at these positions."""
        known = self._comparison(comparison_id)
        return self._streamed(lambda connection: records.read_items(connection, known.key, positions))

    def claim(self, comparison_id: str, *, runner: str, now: datetime, stale_after_s: float) -> None:
        """Takes the right to run; a runner with a stale heartbeat, or whose process on this host is gone, loses it."""
        key = self._comparison(comparison_id).key
        may = partial(
            may_claim, runner=runner, now=now, stale_after_s=stale_after_s, host=socket.gethostname(), is_alive=is_alive
        )
        with self._writing() as connection:
            held = comparisons.read_claim(connection, key)
            if not may(held) or not comparisons.write_claim(connection, key, runner=runner, now=now, seen=held):
                raise busy(comparison_id, comparisons.read_claim(connection, key))

    def heartbeat(self, comparison_id: str, *, runner: str, now: datetime) -> None:
        """Raises ComparisonBusy when another runner has taken over, or had."""
        key = self._comparison(comparison_id).key
        with self._writing() as connection:
            if not comparisons.beat(connection, key, runner=runner, now=now):
                raise busy(comparison_id, comparisons.read_claim(connection, key))

    def release(self, comparison_id: str, *, runner: str) -> None:
        """Gives the right to run back; nothing happens where another runner has it."""
        key = self._comparison(comparison_id).key
        with self._writing() as connection:
            comparisons.drop_claim(connection, key, runner=runner)

    def runners(self, comparison_ids: Sequence[str], *, now: datetime, stale_after_s: float) -> dict[str, Claim]:
        """The claims of living runners, by the id of the comparison."""
        gone = partial(is_gone, now=now, stale_after_s=stale_after_s, host=socket.gethostname(), is_alive=is_alive)
        with self._reading() as connection:
            claims = comparisons.read_claims(connection, comparison_ids)
        return {id_: claim for id_, claim in claims.items() if not gone(claim)}

    def set_status(self, comparison_id: str, status: ComparisonStatus, *, now: datetime, stop_reason: str = "") -> None:
        """Keeps the times: RUNNING starts once, FINISHED ends; every other status takes a former verdict away."""
        key = self._comparison(comparison_id).key
        with self._writing() as connection:
            comparisons.set_status(connection, key, status, now=now, stop_reason=stop_reason)

    def add_answers(self, comparison_id: str, answers: Sequence[Answer]) -> int:
        """Commits new answers and returns how many were there already."""
        known = self._comparison(comparison_id)
        with self._writing() as connection:
            phrases = self._phrases.ids(connection, _recurring(answers))
            added = records.add_answers(connection, known.key, answers, codec=known.codec, phrases=phrases)
            duplicates = len(answers) - added
            if duplicates:
                comparisons.add_duplicates(connection, known.key, duplicates)
        self._phrases.keep(phrases)
        return duplicates

    def answered(self, comparison_id: str, *, run: int = 0) -> set[tuple[ArmName, int, int, int]]:
        """(arm, position, choice, repeat) of every stored answer of a run."""
        key = self._comparison(comparison_id).key
        with self._reading() as connection:
            return records.read_noise_places(connection, key, run) if run else records.read_places(connection, key)

    def answers(
        self, comparison_id: str, *, arm: ArmName, run: int = 0, positions: Collection[int] | None = None
    ) -> Iterator[Answer]:
        """In order of (position, choice, repeat). The noise floor's runs: the baseline alone, all positions."""
        known = self._comparison(comparison_id)
        if run:
            if arm is not ArmName.BASELINE:
                return iter(())
            return self._streamed(
                lambda connection: records.read_noise_answers(connection, known.key, run, known.codec)
            )
        return self._streamed(
            lambda connection: records.read_answers(connection, known.key, arm, known.codec, positions)
        )

    def drop_failures(self, comparison_id: str, *, from_position: int = 0) -> int:
        """Deletes answers that are failures of the endpoint and returns how many."""
        key = self._comparison(comparison_id).key
        with self._writing() as connection:
            return records.drop_failures(connection, key, from_position=from_position)

    def put_scores(self, comparison_id: str, scores: Iterable[Score]) -> None:
        """Replaces the comparison's scores."""
        key = self._comparison(comparison_id).key
        with self._writing() as connection:
            phrases = records.replace_scores(connection, key, scores, self._phrases)
        self._phrases.keep(phrases)

    def scores(self, comparison_id: str) -> Iterator[Score]:
        """In order of (arm, position, repeat, metric)."""
        key = self._comparison(comparison_id).key
        return self._streamed(lambda connection: records.read_scores(connection, key))

    def flips(self, comparison_id: str, *, metrics: Collection[str]) -> Iterator[ScoreFlip]:
        """Scores of these metrics that differ between the arms, in order of (position, repeat, metric)."""
        key = self._comparison(comparison_id).key
        return self._streamed(lambda connection: records.read_flips(connection, key, metrics))

    def add_look(self, comparison_id: str, look: Look, *, now: datetime) -> None:
        """Stores the next look. Raises StoreError where its number is not the one after the last."""
        key = self._comparison(comparison_id).key
        with self._writing() as connection:
            if (taken := records.count_looks(connection, key)) != look.number - 1:
                raise not_next(comparison_id, look.number, taken)
            records.add_look(connection, key, look, now=now)

    def looks(self, comparison_id: str) -> Sequence[Look]:
        """In order of their numbers."""
        key = self._comparison(comparison_id).key
        with self._reading() as connection:
            return records.read_looks(connection, key)

    def add_observation(self, comparison_id: str, observation: Observation) -> None:
        """Stores what was seen of an engine."""
        key = self._comparison(comparison_id).key
        with self._writing() as connection:
            records.add_observation(connection, key, observation)

    def observations(self, comparison_id: str) -> Sequence[Observation]:
        """In the order in which they were made."""
        key = self._comparison(comparison_id).key
        with self._reading() as connection:
            return records.read_observations(connection, key)

    def put_analysis(self, analysis: Analysis, *, now: datetime) -> None:
        """Adds an analysis. Under the comparison's own plan it marks it FINISHED and gives it the verdict."""
        key = self._comparison(analysis.comparison_id).key
        with self._writing() as connection:
            if comparisons.plan_hash_of(connection, key) == analysis.plan_hash:
                comparisons.set_status(connection, key, ComparisonStatus.FINISHED, now=now, stop_reason=None)
            records.add_analysis(connection, key, analysis, now=now)

    def analysis(self, comparison_id: str, *, plan_hash: str | None = None) -> Analysis | None:
        """The newest analysis under a plan, the comparison's own by default."""
        key = self._comparison(comparison_id).key
        with self._reading() as connection:
            return records.read_analysis(connection, key, plan_hash)

    def plan_hashes(self, comparison_id: str) -> Sequence[str]:
        """Of every analysis, each once, the oldest first."""
        key = self._comparison(comparison_id).key
        with self._reading() as connection:
            return records.read_plan_hashes(connection, key)

    def _comparison(self, comparison_id: str) -> _Known:
        known = self._known.get(comparison_id)
        if known is None:
            with self._reading() as connection:
                key = comparisons.key_of(connection, comparison_id)
                known = _Known(key, records.read_codec(connection, key))
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[comparison_id] = known
        return known

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with translated(self.location), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with translated(self.location), self._writer.begin() as connection:
            yield connection

    def _streamed(self, read: Callable[[Connection], Iterator[T]]) -> Iterator[T]:
        with self._reading() as connection:
            yield from read(connection)


def _recurring(answers: Sequence[Answer]) -> set[str]:
    """What answers say in few different words."""
    replies = [answer.reply for answer in answers]
    return {reply.finish_reason for reply in replies} | {reply.system_fingerprint for reply in replies}


def is_alive(process: int) -> bool:
    """Whether a process of this machine exists. Without a way to ask (Windows) it is taken to."""
    if os.name == "nt":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
