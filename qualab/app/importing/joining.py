"""The outer join of two arms' logs: which entries are of one item, and which of them make a pair."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count, islice

from qualab.app.importing.entries import NO_ROW, Entry
from qualab.domain.imported import FindingCode, TaskJoin


class Kind(Enum):
    """What came of one item."""

    PAIRED = auto()
    ONLY_BASELINE = auto()
    ONLY_CANDIDATE = auto()
    PROMPT = auto()
    TARGET = auto()
    DUPLICATED = auto()
    LOST = auto()


ALLOWABLE = {
    Kind.PROMPT: FindingCode.PROMPTS,
    Kind.TARGET: FindingCode.TARGETS,
    Kind.DUPLICATED: FindingCode.DUPLICATES,
    Kind.LOST: FindingCode.ROWS,
}
"""What makes a pair all the same where a user allows it."""


@dataclass(slots=True, kw_only=True)
class Match:
    """An item (or one repeat of it) as both arms have it."""

    baseline: Entry | None
    candidate: Entry | None
    kind: Kind

    @property
    def content(self) -> Entry:
        """The entry whose document stands for the item."""
        entry = self.baseline or self.candidate
        assert entry is not None
        return entry


def join(baseline: Sequence[Entry], candidate: Sequence[Entry]) -> list[Match]:
    """Pairs two arms' entries of one task, in the baseline's order, what only the candidate has last.

    By everything first, then by document, then by prompts and right answer, then by prompts where only one item of each
    arm has them. Numbers of documents count only among equals: under `--samples` lm-eval's may be others.
    """
    off, off_twice = _without_duplicates(baseline)
    on, on_twice = _without_duplicates(candidate)
    twice = off_twice | on_twice
    pairs: list[tuple[Entry, Entry]] = []
    for same in (_exactly, _by_document, _by_prompt_and_target, _by_prompt):
        found = list(_matched(off, on, same, alone=same is _by_prompt))
        pairs += found
        taken = {id(entry) for pair in found for entry in pair}
        off, on = ([entry for entry in side if id(entry) not in taken] for side in (off, on))
    matches = [Match(baseline=one, candidate=other, kind=_kind(one, other, twice)) for one, other in pairs]
    matches += [Match(baseline=one, candidate=None, kind=Kind.ONLY_BASELINE) for one in off]
    matches.sort(key=lambda match: match.content.row)
    return matches + [Match(baseline=None, candidate=one, kind=Kind.ONLY_CANDIDATE) for one in on]


def lost(matches: Sequence[Match], n_evaluated: int) -> Iterator[Match]:
    """Stands for the items that a log's own values count, and that neither log has."""
    known = [match.content for match in matches if match.content.repeat == 0]
    numbers = {entry.doc_id for entry in known}
    unused = (number for number in count() if number not in numbers)
    for number in islice(unused, max(0, n_evaluated - len(known))):
        entry = Entry(
            row=NO_ROW,
            key=f"lost {number}".encode(),
            prompt=b"",
            target=b"",
            doc_id=number,
            repeat=0,
            cluster="",
            generation="",
            is_answered=False,
            filters=(),
            scores={},
        )
        yield Match(baseline=entry, candidate=None, kind=Kind.LOST)


def counted(task: str, matches: Iterable[Match]) -> TaskJoin:
    """For a person."""
    kinds = Counter(match.kind for match in matches)
    return TaskJoin(
        task=task,
        paired=kinds[Kind.PAIRED],
        only_baseline=kinds[Kind.ONLY_BASELINE],
        only_candidate=kinds[Kind.ONLY_CANDIDATE],
        prompt_differs=kinds[Kind.PROMPT],
        target_differs=kinds[Kind.TARGET],
        duplicated=kinds[Kind.DUPLICATED],
        lost=kinds[Kind.LOST],
    )


def _without_duplicates(entries: Sequence[Entry]) -> tuple[list[Entry], set[int]]:
    """The first of each document and number, and which of them come more than once (by identity).

    A data set may hold a document twice, under two numbers: both stay.
    """
    first: dict[Hashable, Entry] = {}
    twice = set()
    for entry in entries:
        known = first.setdefault((entry.key, entry.doc_id, entry.repeat), entry)
        if known is not entry:
            twice.add(id(known))
    return list(first.values()), twice


def _exactly(entry: Entry) -> Hashable:
    return entry.key, entry.prompt, entry.target, entry.repeat


def _by_document(entry: Entry) -> Hashable:
    return entry.key, entry.repeat


def _by_prompt_and_target(entry: Entry) -> Hashable | None:
    return (entry.prompt, entry.target, entry.repeat) if entry.prompt else None


def _by_prompt(entry: Entry) -> Hashable | None:
    return (entry.prompt, entry.repeat) if entry.prompt else None


def _matched(
    baseline: Sequence[Entry], candidate: Sequence[Entry], same: Callable[[Entry], Hashable | None], *, alone: bool
) -> Iterator[tuple[Entry, Entry]]:
    """Entries that are the same; of several, in the order of their numbers, or none where they have to be alone."""
    off, on = _grouped(baseline, same), _grouped(candidate, same)
    for key, entries in off.items():
        if key in on and not (alone and len(entries) + len(on[key]) > 2):
            yield from zip(sorted(entries, key=_among_equals), sorted(on[key], key=_among_equals), strict=False)


def _grouped(entries: Iterable[Entry], same: Callable[[Entry], Hashable | None]) -> dict[Hashable, list[Entry]]:
    groups: defaultdict[Hashable, list[Entry]] = defaultdict(list)
    for entry in entries:
        if (key := same(entry)) is not None:
            groups[key].append(entry)
    return groups


def _among_equals(entry: Entry) -> tuple[int, int]:
    return -1 if entry.doc_id is None else entry.doc_id, entry.row


def _kind(one: Entry, other: Entry, twice: set[int]) -> Kind:
    if id(one) in twice or id(other) in twice:
        return Kind.DUPLICATED
    if one.prompt and other.prompt and one.prompt != other.prompt:
        return Kind.PROMPT
    return Kind.TARGET if one.target != other.target else Kind.PAIRED
