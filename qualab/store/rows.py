"""Answers, scores and items as the rows of their tables, and back. A row's order is that of its table's columns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from qualab.errors import StoreError
from qualab.model.items import Answer, Drafted, Reply, Score
from qualab.model.names import ArmName
from qualab.store import codes
from qualab.store.payloads import to_json
from qualab.store.texts import Packer, Unpacker
from qualab.store.times import from_us, to_us


def answer_row(
    key: int, answer: Answer, phrases: Mapping[str, int], packer: Packer, twin: bytes | None
) -> tuple[Any, ...]:
    """One row of `answer`, or of `noise_answer` for a later run. `twin`: another packed text for the same place."""
    reply = answer.reply
    if reply.loglikelihood is not None and math.isnan(reply.loglikelihood):
        raise StoreError(f"an answer at position {answer.position} has the log-likelihood NaN")
    return (
        key,
        answer.run or codes.ARM.of[answer.arm],
        answer.position,
        answer.choice,
        answer.repeat,
        codes.ANSWER_STATUS.of[reply.status],
        reply.attempts,
        phrases[reply.finish_reason],
        phrases[origin_phrase(reply)],
        reply.prompt_tokens,
        reply.completion_tokens,
        reply.reasoning_characters,
        to_us(reply.sent_at),
        round(reply.latency_s * 1e6),
        reply.loglikelihood,
        reply.is_greedy,
        answer.request_hash,
        None if reply.text is None else packer.pack(reply.text, twin),
        packer.pack(reply.error) if reply.error else None,
        _drafted_text(reply.drafted),
        packer.pack(reply.reasoning) if reply.reasoning else None,
    )


MODEL_FOLLOWS = "\x1f"


def origin_phrase(reply: Reply) -> str:
    """Where an answer comes from, one of few: the engine's fingerprint, then the model where the answer says one."""
    has_mark = bool(reply.model) or MODEL_FOLLOWS in reply.system_fingerprint
    return f"{reply.system_fingerprint}{MODEL_FOLLOWS}{reply.model}" if has_mark else reply.system_fingerprint


def _origin(phrase: str) -> tuple[str, str]:
    """Fingerprint and model."""
    fingerprint, mark, model = phrase.rpartition(MODEL_FOLLOWS)
    return (fingerprint, model) if mark else (phrase, "")


def _drafted_text(drafted: Drafted | None) -> str | None:
    """Draft tokens, accepted tokens, and rounds by accepted tokens, as "12,7,1,0,3"; ",7" tells accepted ones alone."""
    if drafted is None:
        return None
    drafts = "" if drafted.draft_tokens is None else drafted.draft_tokens
    return ",".join(map(str, (drafts, drafted.accepted_tokens, *drafted.rounds)))


def _drafted_of(text: str | None) -> Drafted | None:
    if text is None:
        return None
    drafts, *counts = text.split(",")
    accepted_tokens, *rounds = map(int, counts)
    return Drafted(draft_tokens=int(drafts) if drafts else None, accepted_tokens=accepted_tokens, rounds=tuple(rounds))


def answer_of(row: Row[Any], phrases: Mapping[int, str], unpacker: Unpacker, *, is_noise: bool = False) -> Answer:
    """An answer from a row of `answer` (or `noise_answer`) without its comparison, and the text of its twin."""
    columns: tuple[Any, ...] = tuple(row)
    whose, position, choice, repeat = columns[:4]
    return Answer(
        arm=ArmName.BASELINE if is_noise else codes.ARM.name[whose],
        run=whose if is_noise else 0,
        position=position,
        choice=choice,
        repeat=repeat,
        request_hash=columns[15],
        reply=_reply_of(columns[4:15], columns[16:], phrases, unpacker),
    )


def _reply_of(row: tuple[Any, ...], packed: tuple[Any, ...], phrases: Mapping[int, str], unpacker: Unpacker) -> Reply:
    status, attempts, finish_reason, fingerprint, prompt_tokens, completion_tokens, *rest = row
    reasoning_characters, sent_at, latency_us, loglikelihood, is_greedy = rest
    text, error, drafted, reasoning, twin = packed
    system_fingerprint, model = _origin(phrases[fingerprint])
    return Reply(
        status=codes.ANSWER_STATUS.name[status],
        text=None if text is None else unpacker.unpack(text, twin),
        loglikelihood=loglikelihood,
        is_greedy=is_greedy,
        finish_reason=phrases[finish_reason],
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        attempts=attempts,
        latency_s=latency_us / 1e6,
        sent_at=from_us(sent_at),
        system_fingerprint=system_fingerprint,
        error=unpacker.unpack(error) if error else "",
        reasoning_characters=reasoning_characters,
        drafted=_drafted_of(drafted),
        model=model,
        reasoning=unpacker.unpack(reasoning) if reasoning else "",
    )


def score_row(key: int, score: Score, phrases: Mapping[str, int]) -> tuple[Any, ...]:
    """One row of `score`."""
    if math.isnan(score.value):
        raise StoreError(f"the score {score.metric} at position {score.position} is NaN, which is no score")
    detail = None if score.detail is None else to_json(score.detail, of=f"the score {score.metric}")
    metric = phrases[score.metric]
    return (key, codes.ARM.of[score.arm], score.position, score.repeat, metric, float(score.value), detail)


def score_of(row: Row[Any]) -> Score:
    """A score from arm, position, repeat, the metric's text, value and detail."""
    arm, position, repeat, metric, value, detail = tuple(row)
    return Score(
        arm=codes.ARM.name[arm],
        position=position,
        repeat=repeat,
        metric=metric.decode(),
        value=value,
        detail=None if detail is None else tuple(json.loads(detail)),
    )
