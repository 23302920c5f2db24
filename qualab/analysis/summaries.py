"""How the arms answered, before any scoring: statuses, lengths, and whether the two texts of a pair agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any, NamedTuple

from qualab.analysis.drafter import DraftedAnswers
from qualab.analysis.endings import LeakCount, LeakTrace, ThoughtCount, leaks_in
from qualab.model.comparison import ArmSummary, PairSummary
from qualab.model.items import Answer, Item, Place
from qualab.model.names import AnswerStatus, ArmName, LeakKind, RequestKind


@dataclass(slots=True)
class _ArmCount:
    statuses: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    fingerprints: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    generations: int = 0
    truncated: int = 0
    latencies: list[float] = field(default_factory=list)

    def add(self, answer: Answer, text: LeakTrace | None) -> None:
        reply = answer.reply
        self.statuses[reply.status.value] += 1
        self.totals["retries"] += reply.attempts - 1
        self.totals["prompt_tokens"] += reply.prompt_tokens or 0
        self.totals["completion_tokens"] += reply.completion_tokens or 0
        self.finish_reasons[reply.finish_reason] += 1
        self.fingerprints[reply.system_fingerprint] += 1
        if reply.status.is_answer:
            self.models[reply.model] += 1
            self.latencies.append(reply.latency_s)
            if text is not None:
                self.generations += 1
                self.truncated += LeakKind.LENGTH_LIMIT in text.leaks
                self.totals["empty_answers"] += not text.text.strip()
                self.totals["stop_string_answers"] += LeakKind.STOP_STRING in text.leaks

    def summary(self, arm: ArmName) -> ArmSummary:
        totals = ("retries", "prompt_tokens", "completion_tokens", "empty_answers", "stop_string_answers")
        names = ("statuses", "finish_reasons", "fingerprints", "models")
        fields: dict[str, Any] = {name: self.totals[name] for name in totals}
        fields |= {name: {key: n for key, n in sorted(getattr(self, name).items()) if key} for name in names}
        ordered = sorted(self.latencies)
        p50, p99 = (ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None for q in (0.5, 0.99))
        return ArmSummary(
            arm=arm,
            n_requests=self.statuses.total(),
            n_answers=len(ordered),
            truncated_share=self.truncated / self.generations if self.generations else None,
            latency_p50_s=p50,
            latency_p99_s=p99,
            **fields,
        )


class Unanswered:
    """Collects which answers an arm lacks, by (position, repeat), and why."""

    def __init__(self) -> None:
        self._reasons: defaultdict[Place, dict[ArmName, set[tuple[AnswerStatus, int, str, str]]]]
        self._reasons = defaultdict(lambda: {arm: set() for arm in ArmName})

    def add(self, answer: Answer) -> None:
        reply = answer.reply
        if not reply.status.is_answer:
            reason = (reply.status, answer.choice, reply.finish_reason, reply.error)
            self._reasons[answer.position, answer.repeat][answer.arm].add(reason)

    @property
    def same_in_both(self) -> frozenset[Place]:
        """Answers that both arms lack for the same reason, where asking again does not help."""
        return frozenset(
            key
            for key, arms in self._reasons.items()
            if arms[ArmName.BASELINE] == arms[ArmName.CANDIDATE]
            and not any(status.is_failure for status, *_ in arms[ArmName.BASELINE])
        )

    @property
    def by_status(self) -> dict[AnswerStatus, dict[ArmName, set[int]]]:
        """Positions of the items that an arm lacks, in whole or in part."""
        places: dict[AnswerStatus, dict[ArmName, set[int]]] = {}
        for (position, _), arms in self._reasons.items():
            for arm, reasons in arms.items():
                for status, *_ in reasons:
                    places.setdefault(status, {arm: set() for arm in ArmName})[arm].add(position)
        return {status: places[status] for status in AnswerStatus if status in places}


class _Trace(NamedTuple):
    """An answer's part that is compared with the other arm's. A tuple: there is one an answer."""

    request_hash: bytes
    prompt_tokens: int | None
    finish_reason: str
    text: LeakTrace | None
    """None where there is no generated text."""


class Summary:
    """Counts both arms' answers as they go by, in any order. `items` by position."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items
        self._arms = {arm: _ArmCount() for arm in ArmName}
        self._pairs = Counter[str]()
        self._waiting: dict[tuple[int, int, int], _Trace] = {}
        self._is_same: dict[Place, bool] = {}
        self.drafted = DraftedAnswers()
        self.thoughts = ThoughtCount()
        self.unanswered = Unanswered()
        self.leaks = LeakCount()
        self._hashes = 0
        for item in items:
            self._add_hash(repr((item.position, item.task, item.doc_id, item.cluster)).encode())

    def add(self, answer: Answer) -> None:
        item = self._items[answer.position]
        self._add_hash(_content(answer))
        self.unanswered.add(answer)
        text = None
        if item.kind is RequestKind.GENERATION:
            self.drafted.add(answer, item.task)
            self.thoughts.add(answer)
            if answer.reply.status.is_answer:
                text = LeakTrace(answer.reply.text or "", leaks_in(answer.reply, item))
        self._arms[answer.arm].add(answer, text)
        trace = _Trace(answer.request_hash, answer.reply.prompt_tokens, answer.reply.finish_reason, text)
        place = (answer.position, answer.choice, answer.repeat)
        other = self._waiting.pop(place, None)
        if other is None:
            self._waiting[place] = trace
            return
        self._pairs["request_hashes_differ"] += trace.request_hash != other.request_hash
        if trace.prompt_tokens is not None and other.prompt_tokens is not None:
            self._pairs["prompt_tokens_differ"] += trace.prompt_tokens != other.prompt_tokens
        is_same = False
        if text is not None and other.text is not None:
            self._pairs["n_pairs"] += 1
            self._pairs["same_text"] += text.text == other.text.text
            self._pairs["finish_reasons_differ"] += trace.finish_reason != other.finish_reason
            baseline, candidate = (text, other.text) if answer.arm is ArmName.BASELINE else (other.text, text)
            self.leaks.add(answer.position, baseline, candidate)
            is_same = answer.reply.text is not None and text.text == other.text.text
        key = (answer.position, answer.repeat)
        self._is_same[key] = is_same and self._is_same.get(key, True)

    @property
    def same_texts(self) -> set[Place]:
        return {key for key, is_same in self._is_same.items() if is_same}

    @property
    def arms(self) -> tuple[ArmSummary, ...]:
        return tuple(self._arms[arm].summary(arm) for arm in ArmName)

    @property
    def pairs(self) -> PairSummary:
        return PairSummary(**{count.name: self._pairs[count.name] for count in fields(PairSummary)})

    @property
    def data_hash(self) -> str:
        """Sum of the SHA-256 of items and answers, whatever their order."""
        return f"{self._hashes:064x}"

    def _add_hash(self, content: bytes) -> None:
        self._hashes = (self._hashes + int.from_bytes(sha256(content).digest())) % 2**256


_CONTENT = ("text", "loglikelihood", "is_greedy", "finish_reason", "system_fingerprint", "error")


def _content(answer: Answer) -> bytes:
    reply = answer.reply
    place = (answer.arm.value, answer.position, answer.choice, answer.repeat, answer.request_hash, reply.status.value)
    said = tuple(getattr(reply, name) for name in _CONTENT)
    counts = (reply.prompt_tokens, reply.completion_tokens, reply.reasoning_characters, reply.attempts)
    seen = (reply.latency_s, reply.sent_at.timestamp(), reply.system_fingerprint)
    drafted = reply.drafted and (reply.drafted.draft_tokens, reply.drafted.accepted_tokens, reply.drafted.rounds)
    more = [(name, text) for name in ("model", "reasoning") if (text := getattr(reply, name))]
    return repr((place, said, counts, seen, drafted, *more)).encode(errors="surrogatepass")
