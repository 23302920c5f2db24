"""How the arms answered, before any scoring: statuses, lengths, and whether the two texts of a pair agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from qualab.domain.comparison import ArmSummary, PairSummary
from qualab.domain.items import Answer, Item
from qualab.domain.names import AnswerStatus, ArmName, RequestKind
from qualab.ports import Store


@dataclass(slots=True)
class _ArmCount:
    statuses: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    fingerprints: Counter[str] = field(default_factory=Counter)
    generations: int = 0
    truncated: int = 0
    empty: int = 0
    with_stop_string: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    latencies: list[float] = field(default_factory=list)

    def add(self, answer: Answer, item: Item) -> None:
        reply = answer.reply
        self.statuses[reply.status.value] += 1
        self.retries += reply.attempts - 1
        self.prompt_tokens += reply.prompt_tokens or 0
        self.completion_tokens += reply.completion_tokens or 0
        if reply.finish_reason:
            self.finish_reasons[reply.finish_reason] += 1
        if reply.system_fingerprint:
            self.fingerprints[reply.system_fingerprint] += 1
        if reply.status.is_answer:
            self.latencies.append(reply.latency_s)
            if item.kind is RequestKind.GENERATION:
                self._add_text(reply.text or "", item, is_truncated=reply.status is AnswerStatus.TRUNCATED)

    def _add_text(self, text: str, item: Item, *, is_truncated: bool) -> None:
        self.generations += 1
        self.truncated += is_truncated
        self.empty += not text.strip()
        stops = item.requests[0].payload.get("stop") or []
        self.with_stop_string += any(stop in text for stop in stops)

    def summary(self, arm: ArmName) -> ArmSummary:
        ordered = sorted(self.latencies)
        return ArmSummary(
            arm=arm,
            n_requests=self.statuses.total(),
            n_answers=len(ordered),
            statuses=dict(sorted(self.statuses.items())),
            finish_reasons=dict(sorted(self.finish_reasons.items())),
            truncated_share=self.truncated / self.generations if self.generations else None,
            empty_answers=self.empty,
            stop_string_answers=self.with_stop_string,
            retries=self.retries,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            latency_p50_s=_quantile(ordered, 0.5),
            latency_p99_s=_quantile(ordered, 0.99),
            fingerprints=dict(sorted(self.fingerprints.items())),
        )


@dataclass(slots=True)
class _PairCount:
    n_pairs: int = 0
    same_text: int = 0
    finish_reasons_differ: int = 0
    prompt_tokens_differ: int = 0
    request_hashes_differ: int = 0

    def add(self, baseline: Answer, candidate: Answer, *, is_generation: bool) -> None:
        self.request_hashes_differ += baseline.request_hash != candidate.request_hash
        off, on = baseline.reply, candidate.reply
        if off.prompt_tokens is not None and on.prompt_tokens is not None:
            self.prompt_tokens_differ += off.prompt_tokens != on.prompt_tokens
        if is_generation and off.status.is_answer and on.status.is_answer:
            self.n_pairs += 1
            self.same_text += off.text == on.text
            self.finish_reasons_differ += off.finish_reason != on.finish_reason

    def summary(self) -> PairSummary:
        return PairSummary(
            n_pairs=self.n_pairs,
            same_text=self.same_text,
            finish_reasons_differ=self.finish_reasons_differ,
            prompt_tokens_differ=self.prompt_tokens_differ,
            request_hashes_differ=self.request_hashes_differ,
        )


def summarise(
    store: Store, comparison_id: str, items: Sequence[Item]
) -> tuple[tuple[ArmSummary, ArmSummary], PairSummary]:
    """One pass over both arms' answers. `items` by position."""
    counts = {arm: _ArmCount() for arm in ArmName}
    pairs = _PairCount()
    streams = [_counted(store.answers(comparison_id, arm=arm), counts[arm], items) for arm in ArmName]
    for baseline, candidate in _joined(*streams):
        item = items[baseline.position]
        pairs.add(baseline, candidate, is_generation=item.kind is RequestKind.GENERATION)
    baseline_summary, candidate_summary = (counts[arm].summary(arm) for arm in ArmName)
    return (baseline_summary, candidate_summary), pairs.summary()


def _counted(answers: Iterable[Answer], count: _ArmCount, items: Sequence[Item]) -> Iterator[Answer]:
    for answer in answers:
        count.add(answer, items[answer.position])
        yield answer


def _joined(left: Iterator[Answer], right: Iterator[Answer]) -> Iterator[tuple[Answer, Answer]]:
    """Answers of the same request in both streams, each ordered by (position, choice, repeat); drains both."""
    a, b = next(left, None), next(right, None)
    while a is not None or b is not None:
        if b is None or (a is not None and _place(a) < _place(b)):
            a = next(left, None)
        elif a is None or _place(b) < _place(a):
            b = next(right, None)
        else:
            yield a, b
            a, b = next(left, None), next(right, None)


def _place(answer: Answer) -> tuple[int, int, int]:
    return answer.position, answer.choice, answer.repeat


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
