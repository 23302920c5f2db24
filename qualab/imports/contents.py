"""The second reading of the logs: documents, prompts and answers, a row in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import sha256

from qualab.imports.join import Kind, Place, entry_of
from qualab.model.items import Answer, Item, Prompt, Reply
from qualab.model.logged import LoggedReply, LoggedRow
from qualab.model.names import ArmName
from qualab.model.ports import LogSource

Sources = Mapping[ArmName, LogSource]


def whole_items(sources: Sources, places: Sequence[Place], light: Sequence[Item]) -> Iterator[Item]:
    """Items with their documents and prompts: the baseline's, else the candidate's."""
    for arm in ArmName:
        wanted = {
            entry.row: item
            for place, item in zip(places, light, strict=True)
            if place.first.kind is not Kind.LOST
            and (entry := entry_of(place.first, arm)) is not None
            and (arm is ArmName.BASELINE or place.first.baseline is None)
        }
        for number, row in _rows(sources[arm], wanted):
            yield _whole(wanted[number], row)
    for place, item in zip(places, light, strict=True):
        if place.first.kind is Kind.LOST:
            yield replace(item, prompts=(Prompt(text=""),))


def answers(sources: Sources, places: Sequence[Place], *, now: datetime) -> Iterator[Answer]:
    """Every answer of both arms."""
    for arm in ArmName:
        wanted = {
            entry.row: (place.position, repeat)
            for place in places
            for repeat, match in place.matches.items()
            if match.kind is not Kind.LOST and (entry := entry_of(match, arm)) is not None
        }
        sent_at = sources[arm].run.date or now
        for number, row in _rows(sources[arm], wanted):
            position, repeat = wanted[number]
            for choice, reply in enumerate(row.replies):
                yield Answer(
                    arm=arm,
                    position=position,
                    choice=choice,
                    repeat=repeat,
                    request_hash=_place_hash(row.task, position, choice),
                    reply=_reply(reply, sent_at),
                )


def _rows(source: LogSource, wanted: Mapping[int, object]) -> Iterator[tuple[int, LoggedRow]]:
    if wanted:
        for number, row in enumerate(source.rows()):
            if number in wanted and isinstance(row, LoggedRow):
                yield number, row


def _whole(light: Item, row: LoggedRow) -> Item:
    return Item(
        position=light.position,
        task=light.task,
        doc_id=light.doc_id,
        kind=light.kind,
        doc=row.doc,
        target=row.target,
        prompts=row.prompts or tuple(Prompt(text="") for _ in row.replies),
        cluster=light.cluster,
    )


def _place_hash(task: str, position: int, choice: int) -> bytes:
    """Stands for the request, which no log has: the same in both arms. Differing prompts are found by the join."""
    return sha256(f"{task}\0{position}\0{choice}".encode()).digest()[:16]


def _reply(logged: LoggedReply, sent_at: datetime) -> Reply:
    return Reply(
        status=logged.status,
        text=logged.text,
        loglikelihood=logged.loglikelihood,
        is_greedy=logged.is_greedy,
        finish_reason=logged.finish_reason,
        prompt_tokens=logged.prompt_tokens,
        completion_tokens=logged.completion_tokens,
        attempts=1,
        latency_s=0.0,
        sent_at=sent_at,
        system_fingerprint="",
        error=logged.error,
    )
