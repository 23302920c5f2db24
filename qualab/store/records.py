"""What belongs to a comparison: items, answers, scores, analyses. Each function takes a connection and its key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

import zstandard
from pydantic import TypeAdapter
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.exc import IntegrityError

from qualab.errors import StoreError
from qualab.model.canonical import canonical_json
from qualab.model.comparison import Look
from qualab.model.engine import EngineSeen, FirstTokensSeen, Observation, ObservationKind, PinsSeen, Segment
from qualab.model.items import Answer, Item, ItemHead, Score, ScoreFlip
from qualab.model.names import ArmName
from qualab.model.wording import storable_text
from qualab.store import codes
from qualab.store.bulk import CHUNK, COPIED, chunks, copy_rows, insert_rows
from qualab.store.known import Known
from qualab.store.payloads import pack_item, unpack_item
from qualab.store.phrases import Phrases
from qualab.store.rows import answer_of, answer_row, score_of, score_row
from qualab.store.tables import answer, dictionary, item, look, noise_answer, observation, phrase, score
from qualab.store.texts import SHARED, TextCodec
from qualab.store.times import to_us
from qualab.store.training import DictionarySampler

_FAILURES = [code for status, code in codes.ANSWER_STATUS.of.items() if status.is_failure]
_ANSWERS = [code for status, code in codes.ANSWER_STATUS.of.items() if status.is_answer]
_PLACE = (answer.c.arm, answer.c.position, answer.c.choice, answer.c.repeat)
_NOISE_PLACE = (noise_answer.c.position, noise_answer.c.choice, noise_answer.c.repeat)
_BASELINE = codes.ARM.of[ArmName.BASELINE]
_SMALLEST_TO_SHARE = 16
"""Characters from which looking for the same beginning in the other arm pays."""
_DENSE = 4
"""Positions for each that is wanted, up to which it is quicker to read all of them."""
_TWINS_BETWEEN = select(answer.c.position, answer.c.choice, answer.c.repeat, answer.c.text).where(
    answer.c.comparison_key == bindparam("key"),
    answer.c.arm == bindparam("arm"),
    answer.c.position.between(bindparam("first"), bindparam("last")),
    answer.c.status.in_(_ANSWERS),
    answer.c.text.is_not(None),
    func.substr(answer.c.text, 1, 1) != SHARED,
)
_twin = answer.alias("twin")


def _twins_text(table: Table, arm: int) -> ColumnElement[bytes]:
    """The text that a row's text is packed upon, of an arm in the same place; NULL where it stands by itself.

    A subquery and no join: looked up by the whole key even where PostgreSQL has no statistics of the table yet.
    """
    same = (_twin.c[name] == table.c[name] for name in ("comparison_key", "position", "choice", "repeat"))
    text = select(_twin.c.text).where(*same, _twin.c.arm == arm).scalar_subquery()
    return case((func.substr(table.c.text, 1, 1) == SHARED, text))


def add_items(connection: Connection, key: int, items: Iterable[Item], sampler: DictionarySampler) -> None:
    """Stores items chunk by chunk. Raises StoreError where a position or an item comes twice."""
    compressor = zstandard.ZstdCompressor()
    for chunk in chunks(items):
        for value in chunk:
            sampler.see(value)
        try:
            copy_rows(connection, item, (_item_row(key, value, compressor) for value in chunk))
        except IntegrityError as exc:
            raise StoreError("two items have the same position, or the same task and document") from exc


def add_dictionaries(connection: Connection, key: int, dictionaries: dict[int, bytes]) -> None:
    """Stores them compressed: their content is text."""
    packed = [(key, script, zstandard.compress(data, 19)) for script, data in dictionaries.items()]
    insert_rows(connection, dictionary, packed)


def read_items(connection: Connection, key: int, positions: Collection[int] | None = None) -> Iterator[Item]:
    """In order of position; all of them, or those at these positions."""
    c = item.c
    query = select(c.position, c.task, c.doc_id, c.kind, c.payload).where(c.comparison_key == key).order_by(c.position)
    decompressor = zstandard.ZstdDecompressor()
    for row in _rows(connection, query, c.position, positions):
        position, task, doc_id, kind, payload = tuple(row)
        rest = unpack_item(payload, decompressor)
        yield Item(position=position, task=task, doc_id=doc_id, kind=codes.KIND.name[kind], **rest)


def read_heads(connection: Connection, key: int, positions: Collection[int]) -> Iterator[ItemHead]:
    """In order of position."""
    c = item.c
    query = select(c.position, c.task, c.doc_id, c.kind).where(c.comparison_key == key).order_by(c.position)
    for row in _rows(connection, query, c.position, positions):
        position, task, doc_id, kind = tuple(row)
        yield ItemHead(position=position, task=task, doc_id=doc_id, kind=codes.KIND.name[kind])


def add_answers(connection: Connection, known: Known, answers: Sequence[Answer], *, phrases: dict[str, int]) -> int:
    """Stores the answers that are new and returns how many were. Raises StoreError for an item that is not there."""
    key, packer = known.key, known.codec.packer
    if not all(value.position in known.positions for value in answers):
        raise _impossible()
    added = 0
    in_order = sorted(answers, key=_place_of)  # fills pages; of two for one place, the first stays the first
    for (run, arm), of_arm in groupby(in_order, key=attrgetter("run", "arm")):
        if run < 0 or (run and arm is not ArmName.BASELINE):
            raise _impossible()
        lender = _BASELINE if run else 1 - codes.ARM.of[arm]
        for chunk in chunks(of_arm):
            twins = _read_twins(connection, key, lender, chunk)
            rows = [answer_row(key, value, phrases, packer, twins.get(_place_of(value)[2:])) for value in chunk]
            added += _insert_answers(connection, noise_answer if run else answer, rows)
    return added


def read_noise_places(connection: Connection, key: int, run: int) -> set[tuple[ArmName, int, int, int]]:
    """The same as `read_places`, of a run of the noise floor."""
    query = select(*_NOISE_PLACE).where(noise_answer.c.comparison_key == key, noise_answer.c.run == run)
    return {(ArmName.BASELINE, *tuple(row)) for row in connection.execute(query)}


def read_places(connection: Connection, key: int) -> set[tuple[ArmName, int, int, int]]:
    """(arm, position, choice, repeat) of every answer."""
    query = select(*_PLACE).where(answer.c.comparison_key == key)
    name = codes.ARM.name
    return {(name[arm], position, choice, repeat) for arm, position, choice, repeat in connection.execute(query)}


def count_answers(connection: Connection, key: int, *, is_unanswered: bool = False) -> dict[ArmName, int]:
    """How many requests of each arm came back, or came back without an answer."""
    query = select(answer.c.arm, func.count()).where(answer.c.comparison_key == key).group_by(answer.c.arm)
    if is_unanswered:
        query = query.where(answer.c.status.not_in(_ANSWERS))
    return dict.fromkeys(ArmName, 0) | {codes.ARM.name[arm]: n for arm, n in connection.execute(query)}


def read_answers(
    connection: Connection, key: int, arm: ArmName, codec: TextCodec, positions: Collection[int] | None = None
) -> Iterator[Answer]:
    """In order of (position, choice, repeat); all of them, or those at these positions."""
    code = codes.ARM.of[arm]
    query = (
        select(*list(answer.c)[1:], _twins_text(answer, 1 - code))
        .where(answer.c.comparison_key == key, answer.c.arm == code)
        .order_by(*_PLACE)
    )
    phrases = _AllPhrases(connection)
    unpacker = codec.unpacker
    for row in _rows(connection, query, answer.c.position, positions):
        yield answer_of(row, phrases, unpacker)


def read_noise_answers(connection: Connection, key: int, run: int, codec: TextCodec) -> Iterator[Answer]:
    """The same as `read_answers`, of a run of the noise floor."""
    query = (
        select(*list(noise_answer.c)[1:], _twins_text(noise_answer, _BASELINE))
        .where(noise_answer.c.comparison_key == key, noise_answer.c.run == run)
        .order_by(*_NOISE_PLACE)
    )
    phrases = _AllPhrases(connection)
    unpacker = codec.unpacker
    for row in _stream(connection, query):
        yield answer_of(row, phrases, unpacker, is_noise=True)


def drop_failures(connection: Connection, key: int, *, from_position: int) -> int:
    """Deletes the answers that are failures of an endpoint and returns how many."""
    failed = delete(answer).where(
        answer.c.comparison_key == key, answer.c.position >= from_position, answer.c.status.in_(_FAILURES)
    )
    noise = delete(noise_answer).where(noise_answer.c.comparison_key == key, noise_answer.c.status.in_(_FAILURES))
    return connection.execute(failed).rowcount + connection.execute(noise).rowcount


def replace_scores(connection: Connection, known: Known, scores: Iterable[Score], phrases: Phrases) -> dict[str, int]:
    """Stores scores in place of the former ones and returns the ids of their metrics. Raises StoreError for twins."""
    key = known.key
    connection.execute(delete(score).where(score.c.comparison_key == key))
    metrics: dict[str, int] = {}
    for chunk in chunks(scores, COPIED):
        new = {value.metric for value in chunk} - metrics.keys()
        metrics |= phrases.ids(connection, new)
        if not all(value.position in known.positions for value in chunk):
            raise _impossible_score()
        try:
            copy_rows(connection, score, (score_row(key, value, metrics) for value in chunk))
        except IntegrityError as exc:
            raise _impossible_score() from exc
    return metrics


def read_scores(connection: Connection, key: int, positions: Collection[int] | None = None) -> Iterator[Score]:
    """In order of (arm, position, repeat, metric); all of them, or those at these positions."""
    c = score.c
    query = (
        select(c.arm, c.position, c.repeat, phrase.c.text, c.value, c.detail)
        .join(phrase, phrase.c.id == c.metric)
        .where(c.comparison_key == key)
        .order_by(c.arm, c.position, c.repeat, phrase.c.text)
    )
    if positions is not None:
        query = query.where(c.arm.in_(list(codes.ARM.name)))  # the key's beginning
    return map(score_of, _rows(connection, query, c.position, positions))


def read_flips(connection: Connection, key: int, metrics: Collection[str]) -> Iterator[ScoreFlip]:
    """In order of (position, repeat, metric)."""
    off, on = score.alias("off"), score.alias("on_")
    same = and_(*(on.c[name] == off.c[name] for name in ("comparison_key", "position", "repeat", "metric")))
    query = (
        select(off.c.position, off.c.repeat, phrase.c.text, off.c.value, on.c.value)
        .join(on, same)
        .join(phrase, phrase.c.id == off.c.metric)
        .where(
            off.c.comparison_key == key,
            off.c.arm == codes.ARM.of[ArmName.BASELINE],
            on.c.arm == 1 - off.c.arm,  # no constant, so that the whole key is looked up
            off.c.value != on.c.value,
            phrase.c.text.in_([metric.encode() for metric in metrics]),
        )
        .order_by(off.c.position, off.c.repeat, phrase.c.text)
    )
    for row in _stream(connection, query):
        position, repeat, metric, before, after = tuple(row)
        yield ScoreFlip(position=position, repeat=repeat, metric=metric.decode(), baseline=before, candidate=after)


def add_look(connection: Connection, key: int, value: Look, *, now: datetime) -> None:
    """Stores a look. Two that claim the same number are refused by the key."""
    row = {"comparison_key": key, "number": value.number, "created_at": to_us(now), "body": canonical_json(value)}
    connection.execute(insert(look), row)


def count_looks(connection: Connection, key: int) -> int:
    """Looks taken so far."""
    return connection.scalar(select(func.count()).where(look.c.comparison_key == key)) or 0


def read_looks_of(connection: Connection, keys: Sequence[int]) -> dict[int, list[Look]]:
    """By key of those comparisons that have any, in order of their numbers."""
    query = select(look.c.comparison_key, look.c.body).where(look.c.comparison_key.in_(keys)).order_by(look.c.number)
    found: dict[int, list[Look]] = {}
    for key, body in connection.execute(query):
        found.setdefault(key, []).append(_look_adapter().validate_json(body))
    return found


def read_looks(connection: Connection, key: int) -> list[Look]:
    """In order of their numbers."""
    return read_looks_of(connection, [key]).get(key, [])


def add_observation(connection: Connection, key: int, value: Observation) -> None:
    """Stores what was seen of an engine, after whatever was seen before."""
    c = observation.c
    last = connection.scalar(select(func.max(c.number)).where(c.comparison_key == key)) or 0
    body = zstandard.compress(canonical_json(value).encode())
    row = {"comparison_key": key, "number": last + 1, "kind": codes.OBSERVATION.of[value.kind], "body": body}
    connection.execute(insert(observation), row)


def read_observations(connection: Connection, key: int) -> list[Observation]:
    """In the order in which they were made."""
    c = observation.c
    rows = connection.execute(select(c.kind, c.body).where(c.comparison_key == key).order_by(c.number))
    return [
        _observations(codes.OBSERVATION.name[kind]).validate_json(zstandard.decompress(body)) for kind, body in rows
    ]


def _read_twins(
    connection: Connection, key: int, lender: int, answers: list[Answer]
) -> dict[tuple[int, int, int], bytes]:
    """An arm's texts by (position, choice, repeat), as far as they are packed by themselves.

    A row that lends its text stays as it is: only failures are ever deleted, and they lend none.
    """
    positions = sorted({value.position for value in answers if len(value.reply.text or "") >= _SMALLEST_TO_SHARE})
    if not positions:
        return {}
    wanted = {"key": key, "arm": lender, "first": positions[0], "last": positions[-1]}
    if positions[-1] - positions[0] < _DENSE * len(positions):
        query = _TWINS_BETWEEN
    else:
        query = _TWINS_BETWEEN.where(answer.c.position.in_(positions))
    return {(row[0], row[1], row[2]): row[3] for row in connection.execute(query, wanted)}


def _insert_answers(connection: Connection, table: Table, rows: list[tuple[Any, ...]]) -> int:
    try:
        return insert_rows(connection, table, rows, skip_known=True)
    except IntegrityError as exc:
        raise _impossible() from exc


def _impossible() -> StoreError:
    return StoreError("an answer is impossible, or belongs to an item that its comparison does not have")


def _impossible_score() -> StoreError:
    return StoreError("a score comes twice, or belongs to an item that its comparison does not have")


def _place_of(value: Answer) -> tuple[int, ArmName, int, int, int]:
    return (value.run, value.arm, value.position, value.choice, value.repeat)


class _AllPhrases(dict[int, str]):
    """Phrases by id, read when they are first asked for."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def __missing__(self, key: int) -> str:
        raw: bytes = self._connection.execute(select(phrase.c.text).where(phrase.c.id == key)).scalar_one()
        return self.setdefault(key, raw.decode())


def _item_row(key: int, value: Item, compressor: zstandard.ZstdCompressor) -> tuple[Any, ...]:
    kind = codes.KIND.of[value.kind]
    return (key, value.position, value.doc_id, kind, storable_text(value.task), pack_item(value, compressor))


def _rows(
    connection: Connection, query: Select[Any], column: Column[Any], positions: Collection[int] | None
) -> Iterable[Row[Any]]:
    """All rows as they come, or the few at some positions."""
    if positions is None:
        return _stream(connection, query)
    return connection.execute(query.where(column.in_(list(positions))))


def _stream(connection: Connection, query: Select[Any]) -> Iterator[Row[Any]]:
    """Rows as they come, a chunk in memory at a time."""
    return chain.from_iterable(connection.execution_options(yield_per=CHUNK).execute(query).partitions())


_OBSERVED: dict[ObservationKind, type[Observation]] = {
    ObservationKind.ENGINE: EngineSeen,
    ObservationKind.SEGMENT: Segment,
    ObservationKind.PINS: PinsSeen,
    ObservationKind.FIRST_TOKENS: FirstTokensSeen,
}


@cache
def _observations(kind: ObservationKind) -> TypeAdapter[Observation]:
    return TypeAdapter(_OBSERVED[kind])


@cache
def _look_adapter() -> TypeAdapter[Look]:
    return TypeAdapter(Look)
