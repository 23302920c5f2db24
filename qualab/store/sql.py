"""The store over a database: each method of the port one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Self

from sqlalchemy import Connection, Engine

from qualab.model.comparison import Analysis, Comparison, Look, SealedAnalysis
from qualab.model.engine import Observation
from qualab.model.items import Answer, Item, ItemHead, Outcome, Score, ScoreFlip
from qualab.model.names import ArmName, ComparisonStatus
from qualab.model.ports import ComparisonFilter
from qualab.model.registry import Claim, busy, not_next
from qualab.store import analyses, comparisons, records
from qualab.store.bulk import chunks
from qualab.store.known import Known, find
from qualab.store.location import Location
from qualab.store.outcomes import drop_outcomes, replace_outcomes
from qualab.store.rows import origin_phrase
from qualab.store.runners import lives, may_take
from qualab.store.sessions import Sessions
from qualab.store.training import DictionarySampler

if TYPE_CHECKING:
    from qualab.store.registry import SqlRegistry


_ARMS = len(ArmName)


class SqlStore:
    """`qualab.model.ports.Store` in SQLite or PostgreSQL. Threads may share it. Made by `open_store`."""

    def __init__(self, engine: Engine, location: Location) -> None:
        self.engine = engine
        self.location = location
        self._sessions = Sessions(engine, location)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the store may be used again."""
        self.engine.dispose()

    @cached_property
    def registry(self) -> SqlRegistry:
        """What the service keeps in the same database."""
        from qualab.store.registry import SqlRegistry  # noqa: PLC0415  most commands do without it

        return SqlRegistry(self._sessions)

    def create(self, comparison: Comparison, items: Iterable[Item]) -> None:
        """Stores the plan and every item, or nothing. Raises StoreError where the id or an item is there already."""
        with self._sessions.writing() as connection:
            self._insert(connection, comparison, items)

    def _insert(self, connection: Connection, comparison: Comparison, items: Iterable[Item]) -> int:
        sampler = DictionarySampler(answers_an_item=_ARMS * comparison.plan.sampling.repeats)
        key = comparisons.insert_comparison(connection, comparison)
        records.add_items(connection, key, items, sampler)
        records.add_dictionaries(connection, key, sampler.train())
        return key

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
        known_phrases = self._sessions.phrases
        with self._sessions.writing() as connection:
            key, phrases = self._insert(connection, comparison, items), dict[str, int]()
            known = self._sessions.known(connection, find(connection, comparison.id))
            for chunk in chunks(answers):
                phrases |= known_phrases.ids(connection, _recurring(chunk) - phrases.keys())
                records.add_answers(connection, known, chunk, phrases=phrases)
            phrases |= records.replace_scores(connection, known, scores, known_phrases)
            found = analysis()
            comparisons.set_status(connection, key, ComparisonStatus.FINISHED, now=now, stop_reason=None)
            analyses.add_analysis(connection, key, found, now=now)
        known_phrases.keep(phrases)
        return found

    def get(self, comparison_id: str) -> Comparison:
        """By id or by an unambiguous beginning of one. Raises ComparisonNotFound."""
        with self._sessions.reading() as connection:
            return comparisons.get_comparison(connection, comparison_id)

    def list(self, wanted: ComparisonFilter) -> list[Comparison]:
        """Newest first."""
        with self._sessions.reading() as connection:
            return comparisons.list_comparisons(connection, wanted)

    def items(self, comparison_id: str, *, positions: Collection[int] | None = None) -> Iterator[Item]:
        """In order of position; all of them, or those at these positions."""
        return self._sessions.streamed(
            comparison_id, lambda connection, known: records.read_items(connection, known.key, positions)
        )

    def heads(self, comparison_id: str, *, positions: Collection[int]) -> Iterator[ItemHead]:
        """In order of position, without what items hold."""
        return self._sessions.streamed(
            comparison_id, lambda connection, known: records.read_heads(connection, known.key, positions)
        )

    def claim(self, comparison_id: str, *, runner: str, now: datetime, stale_after_s: float) -> None:
        """Takes the right to run; a runner with a stale heartbeat, or whose process on this host is gone, loses it."""
        with self._sessions.writing_to(comparison_id) as (connection, (key, *_)):
            held = comparisons.read_claim(connection, key)
            if not may_take(held, runner=runner, now=now, stale_after_s=stale_after_s) or not comparisons.write_claim(
                connection, key, runner=runner, now=now, seen=held
            ):
                raise busy(comparison_id, comparisons.read_claim(connection, key))

    def heartbeat(self, comparison_id: str, *, runner: str, now: datetime) -> None:
        """Raises ComparisonBusy when another runner has taken over, or had."""
        with self._sessions.writing_to(comparison_id) as (connection, (key, *_)):
            if not comparisons.beat(connection, key, runner=runner, now=now):
                raise busy(comparison_id, comparisons.read_claim(connection, key))

    def release(self, comparison_id: str, *, runner: str) -> None:
        """Gives the right to run back; nothing happens where another runner has it."""
        with self._sessions.writing_to(comparison_id) as (connection, (key, *_)):
            comparisons.drop_claim(connection, key, runner=runner)

    def runners(self, comparison_ids: Sequence[str], *, now: datetime, stale_after_s: float) -> dict[str, Claim]:
        """The claims of living runners, by the id of the comparison."""
        with self._sessions.reading() as connection:
            claims = comparisons.read_claims(connection, comparison_ids)
        return {id_: claim for id_, claim in claims.items() if lives(claim, now=now, stale_after_s=stale_after_s)}

    def set_status(self, comparison_id: str, status: ComparisonStatus, *, now: datetime, stop_reason: str = "") -> None:
        """Keeps the times: RUNNING starts once, FINISHED ends; every other status takes a former verdict away."""
        with self._sessions.writing_to(comparison_id) as (connection, (key, *_)):
            comparisons.set_status(connection, key, status, now=now, stop_reason=stop_reason)

    def add_answers(self, comparison_id: str, answers: Sequence[Answer]) -> int:
        """Commits new answers and returns how many were there already."""
        with self._sessions.writing_to(comparison_id) as (connection, found):
            known = self._sessions.known(connection, found)
            phrases = self._sessions.phrases.ids(connection, _recurring(answers))
            added = records.add_answers(connection, known, answers, phrases=phrases)
            duplicates = len(answers) - added
            if duplicates:
                comparisons.add_duplicates(connection, known.key, duplicates)
        self._sessions.phrases.keep(phrases)
        return duplicates

    def answered(self, comparison_id: str, *, run: int = 0) -> set[tuple[ArmName, int, int, int]]:
        """(arm, position, choice, repeat) of every stored answer of a run."""
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return records.read_noise_places(connection, key, run) if run else records.read_places(connection, key)

    def n_answered(self, comparison_id: str) -> Mapping[ArmName, int]:
        """How many requests of each arm came back, the noise floor's not counted."""
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return records.count_answers(connection, key)

    def n_unanswered(self, comparison_id: str) -> Mapping[ArmName, int]:
        """How many of these came back without an answer."""
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return records.count_answers(connection, key, is_unanswered=True)

    def answers(
        self, comparison_id: str, *, arm: ArmName, run: int = 0, positions: Collection[int] | None = None
    ) -> Iterator[Answer]:
        """In order of (position, choice, repeat). The noise floor's runs: the baseline alone, all positions."""

        def read(connection: Connection, known: Known) -> Iterator[Answer]:
            if run:
                return records.read_noise_answers(connection, known.key, run, known.codec)
            return records.read_answers(connection, known.key, arm, known.codec, positions)

        if run and arm is not ArmName.BASELINE:
            return iter(())
        return self._sessions.streamed(comparison_id, read)

    def drop_failures(self, comparison_id: str, *, from_position: int = 0) -> int:
        """Deletes answers that are failures of the endpoint and returns how many."""
        with self._sessions.writing_to(comparison_id) as (connection, (key, *_)):
            return records.drop_failures(connection, key, from_position=from_position)

    def put_scores(self, comparison_id: str, scores: Iterable[Score]) -> None:
        """Replaces the comparison's scores; outcomes that came of the former ones go."""
        made = list(scores)  # scoring may take minutes, in which others want to write
        with self._sessions.writing_to(comparison_id) as (connection, found):
            known = self._sessions.known(connection, found)
            phrases = records.replace_scores(connection, known, made, self._sessions.phrases)
            drop_outcomes(connection, known.key)
        self._sessions.phrases.keep(phrases)

    def scores(self, comparison_id: str) -> Iterator[Score]:
        """In order of (arm, position, repeat, metric)."""
        return self._sessions.streamed(
            comparison_id, lambda connection, known: records.read_scores(connection, known.key)
        )

    def put_outcomes(self, comparison_id: str, outcomes: Iterable[Outcome]) -> None:
        """Replaces the comparison's outcomes."""
        made = list(outcomes)
        with self._sessions.writing_to(comparison_id) as (connection, found):
            known = self._sessions.known(connection, found)
            phrases = replace_outcomes(connection, known, made, self._sessions.phrases)
        self._sessions.phrases.keep(phrases)

    def flips(self, comparison_id: str, *, metrics: Collection[str]) -> Iterator[ScoreFlip]:
        """Scores of these metrics that differ between the arms, in order of (position, repeat, metric)."""
        return self._sessions.streamed(
            comparison_id, lambda connection, known: records.read_flips(connection, known.key, metrics)
        )

    def add_look(self, comparison_id: str, look: Look, *, now: datetime) -> None:
        """Stores the next look. Raises StoreError where its number is not the one after the last."""
        with self._sessions.writing_to(comparison_id) as (connection, (key, *_)):
            if (taken := records.count_looks(connection, key)) != look.number - 1:
                raise not_next(comparison_id, look.number, taken)
            records.add_look(connection, key, look, now=now)

    def looks(self, comparison_id: str) -> Sequence[Look]:
        """In order of their numbers."""
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return records.read_looks(connection, key)

    def add_observation(self, comparison_id: str, observation: Observation) -> None:
        """Stores what was seen of an engine."""
        with self._sessions.writing_to(comparison_id) as (connection, (key, *_)):
            records.add_observation(connection, key, observation)

    def observations(self, comparison_id: str) -> Sequence[Observation]:
        """In the order in which they were made."""
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return records.read_observations(connection, key)

    def put_analysis(self, analysis: Analysis, *, now: datetime) -> None:
        """Adds an analysis. Under the comparison's own plan it marks it FINISHED and gives it the verdict."""
        with self._sessions.writing_to(analysis.comparison_id) as (connection, (key, *_)):
            if comparisons.plan_hash_of(connection, key) == analysis.plan_hash:
                comparisons.set_status(connection, key, ComparisonStatus.FINISHED, now=now, stop_reason=None)
            analyses.add_analysis(connection, key, analysis, now=now)

    def analysis(self, comparison_id: str, *, plan_hash: str | None = None) -> Analysis | None:
        """The newest analysis under a plan, the comparison's own by default."""
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return analyses.read_analysis(connection, key, plan_hash)

    def plan_text(self, comparison_id: str) -> str:
        """The plan's canonical JSON as it was stored."""
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return comparisons.plan_text_of(connection, key)

    def seals(self, comparison_id: str) -> Sequence[SealedAnalysis]:
        """Every stored analysis with its seal, the oldest first."""
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return analyses.read_seals(connection, key)

    def plan_hashes(self, comparison_id: str) -> Sequence[str]:
        """Of every analysis, each once, the oldest first."""
        with self._sessions.reading_of(comparison_id) as (connection, (key, *_)):
            return analyses.read_plan_hashes(connection, key)


def _recurring(answers: Sequence[Answer]) -> set[str]:
    """What answers say in few different words."""
    replies = [answer.reply for answer in answers]
    return {reply.finish_reason for reply in replies} | {origin_phrase(reply) for reply in replies}
