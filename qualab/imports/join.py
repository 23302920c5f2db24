"""One arm's log in short: what is needed to pair and to score it. Texts and documents stay in the files."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import blake2b
from itertools import count, islice
from numbers import Real
from typing import Any

import orjson

from qualab.errors import InvalidValue
from qualab.model.canonical import canonical_json
from qualab.model.items import Item, JsonObject, Score, cluster_of
from qualab.model.logged import CutLine, LoggedRow, LoggedRun
from qualab.model.names import ArmName, MetricKind, RequestKind
from qualab.model.plan import FindingCode, Plan, TaskJoin
from qualab.model.ports import LogSource

NO_ROW = -1
"""Of an item that its log has lost."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One answered item of one arm, with the scores of all its filters."""

    row: int
    """The number of the log's row that holds its document and answers."""
    key: bytes
    """Equal for the same document."""
    prompt: bytes
    """Equal for the same prompts; empty where the log does not tell."""
    target: bytes
    doc_id: int | None
    repeat: int
    cluster: str
    generation: str
    """Generation settings of its requests, as canonical JSON; empty where the log does not have them."""
    is_answered: bool
    """Its scores count; without an answer they are those of nothing."""
    filters: tuple[str, ...]
    scores: dict[str, Any]
    """By "metric,filter": a number, or a list of JSON values."""


@dataclass(slots=True, kw_only=True)
class TaskEntries:
    """One task's entries in the log's order."""

    cluster: tuple[str, ...]
    """Fields of a document that the items of one cluster share."""
    kind: RequestKind
    is_chat: bool
    has_more_answers: bool = False
    """The scores of some row come from more than its texts."""
    entries: list[Entry] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    """Metrics with a value that is neither a number nor a list of them, nor a pair of labels."""
    known: dict[int, list[Entry]] = field(default_factory=dict)
    """By document, number and repeat."""

    def add(self, row: LoggedRow, number: int) -> None:
        """Takes a row to the entry that its other filters have made, or makes one."""
        self.has_more_answers = self.has_more_answers or row.has_more_answers
        key, scores = key_of(row), self._scores(row)
        same = self.known.setdefault(hash((key, row.doc_id, row.repeat)), [])
        for entry in same:
            if row.filter not in entry.filters:
                entry.filters = _FILTERS.setdefault((*entry.filters, row.filter), (*entry.filters, row.filter))
                entry.scores.update(scores)
                return
        same.append(self._entry(row, number, key, scores))
        self.entries.append(same[-1])

    def _entry(self, row: LoggedRow, number: int, key: bytes, scores: dict[str, Any]) -> Entry:
        return Entry(
            row=number,
            key=key,
            prompt=_prompts(row),
            target=_digest(row.target.encode("utf-8", "surrogatepass")),
            doc_id=row.doc_id,
            repeat=row.repeat,
            cluster=row.cluster or self._cluster(row.doc),
            generation=" ".join(dict.fromkeys(settings_text(one.gen_kwargs or {}) for one in row.prompts)),
            is_answered=all(reply.status.is_answer for reply in row.replies),
            filters=_FILTERS.setdefault((row.filter,), (row.filter,)),
            scores=scores,
        )

    def _cluster(self, doc: Mapping[str, Any]) -> str:
        return sys.intern(cluster_of(doc, self.cluster)) if all(name in doc for name in self.cluster) else ""

    def _scores(self, row: LoggedRow) -> dict[str, Any]:
        found = {}
        for metric, raw in row.scores.items():
            value = score_value(raw)
            if value is None:
                self.left_out.add(metric)
            elif not (isinstance(value, float) and math.isnan(value)):
                found[sys.intern(f"{metric},{row.filter}")] = value
        return found


_FILTERS: dict[tuple[str, ...], tuple[str, ...]] = {}
"""Each combination of filters once."""


@dataclass(slots=True, kw_only=True)
class ArmLog:
    """A whole log in short."""

    run: LoggedRun
    tasks: dict[str, TaskEntries] = field(default_factory=dict)
    cut: list[CutLine] = field(default_factory=list)
    n_rows: int = 0

    def n_evaluated(self, task: str) -> int:
        """Items that the run's own values are of, as far as they tell; 0 otherwise."""
        return (self.run.tasks[task].n_evaluated or 0) if task in self.run.tasks else 0

    def has_lost(self, task: str) -> bool:
        """Whether rows are lost that the run's own values count."""
        return sum(entry.repeat == 0 for entry in self.tasks[task].entries) < self.n_evaluated(task)


def read_arm(source: LogSource, cluster_fields: Callable[[str], tuple[str, ...]]) -> ArmLog:
    """Reads a log once. `cluster_fields` says what a task's items are clustered by."""
    arm = ArmLog(run=source.run)
    for number, row in enumerate(source.rows()):
        arm.n_rows = number + 1
        if isinstance(row, CutLine):
            arm.cut.append(row)
            continue
        if row.task not in arm.tasks:
            arm.tasks[row.task] = _task_of(row, cluster_fields(row.task))
        arm.tasks[row.task].add(row, number)
    for task in arm.tasks.values():
        task.known.clear()
    return arm


def _task_of(row: LoggedRow, cluster: tuple[str, ...]) -> TaskEntries:
    is_scored_text = any(reply.loglikelihood is not None for reply in row.replies)
    return TaskEntries(
        cluster=cluster,
        kind=RequestKind.LOGLIKELIHOOD if is_scored_text else RequestKind.GENERATION,
        is_chat=any(prompt.is_chat for prompt in row.prompts),
    )


def settings_text(settings: JsonObject) -> str:
    """One spelling of settings that are the same: 0 and 0.0, one stop text and a list of it; empty for none."""
    return sys.intern(canonical_json({name: _plain(value) for name, value in settings.items()})) if settings else ""


def _plain(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return [value] if isinstance(value, str) else value


def score_value(raw: Any) -> Any:
    """A score as it is kept: a float, or a tuple of JSON values. None where it is neither."""
    if isinstance(raw, Real):
        return float(raw)
    if isinstance(raw, (list, tuple)) and (len(raw) == 2 or all(isinstance(part, Real) for part in raw)):
        return tuple(raw) if all(part is None or isinstance(part, (Real, str)) for part in raw) else None
    return None


def key_of(row: LoggedRow) -> bytes:
    """What makes it the same item: its name, else its document, in whatever order its keys are, empty ones left out.

    The hub's IFEval fills every item's kwargs up with empty keys; files of it do not.
    """
    if row.name:
        return blake2b(row.name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    plain = _without_empty(row.doc)
    try:
        text = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        text = json.dumps(plain, sort_keys=True).encode()
    return blake2b(text, digest_size=16).digest()


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_empty(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_empty(one) for one in value]
    return value


def _prompts(row: LoggedRow) -> bytes:
    if not row.prompts:
        return _digest(row.prompt_hash.encode()) if row.prompt_hash else b""
    parts = (part for prompt in row.prompts for part in (prompt.text, prompt.continuation))
    return _digest("\0".join(parts).encode("utf-8", "surrogatepass"))


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=8).digest()


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


@dataclass(slots=True, kw_only=True)
class Place:
    """One item, with a match for each of its repeats."""

    position: int
    task: str
    doc_id: int = 0
    matches: dict[int, Match] = field(default_factory=dict)
    """By repeat."""

    @property
    def first(self) -> Match:
        return self.matches[min(self.matches)]


def place(plan: Plan, joined: Mapping[str, Sequence[Match]]) -> list[Place]:
    """Every item in order of position: task by task, as they stand in the baseline's log."""
    places: list[Place] = []
    for task in plan.tasks:
        own = list(_items(task.name, joined.get(task.name, ()), len(places)))
        for item, doc_id in zip(own, _doc_ids(own), strict=True):
            item.doc_id = doc_id
        places += own
    return places


def _items(task: str, matches: Iterable[Match], start: int) -> Iterator[Place]:
    """Repeats of one document are one item; a document that the data set has twice is two."""
    found: dict[bytes, list[Place]] = {}
    for match in matches:
        entry = match.content
        same = found.setdefault(entry.key, [])
        item = next((one for one in same if entry.repeat not in one.matches), None)
        if item is None:
            item = Place(position=start, task=task)
            start += 1
            same.append(item)
        item.matches[entry.repeat] = match
    yield from sorted((item for same in found.values() for item in same), key=lambda item: item.position)


def _doc_ids(items: Sequence[Place]) -> list[int]:
    """As the logs number the documents, or by position where they do not do so uniquely."""
    logged = [item.first.content.doc_id for item in items]
    known = [number for number in logged if number is not None]
    return known if len(set(known)) == len(items) else list(range(len(items)))


def light_items(plan: Plan, places: Iterable[Place]) -> list[Item]:
    """Items as an analysis needs them: without documents and prompts."""
    kinds = {task.name: task.kind for task in plan.tasks}
    return [
        Item(
            position=one.position,
            task=one.task,
            doc_id=one.doc_id,
            kind=kinds[one.task],
            doc={},
            target="",
            prompts=(),
            cluster=one.first.content.cluster,
        )
        for one in places
    ]


def scores(places: Sequence[Place], allowed: Sequence[FindingCode]) -> Iterator[Score]:
    """In order of arm, position, repeat and metric. What is no pair has none, in either arm."""
    for arm in ArmName:
        for item in places:
            for repeat, match in sorted(item.matches.items()):
                entry = entry_of(match, arm)
                if entry is not None and entry.is_answered and counts(match.kind, allowed):
                    yield from _scores(entry, arm, item.position, repeat)


def counts(kind: Kind, allowed: Sequence[FindingCode]) -> bool:
    """Whether a match's scores are compared: the two are of one question."""
    return kind not in ALLOWABLE or ALLOWABLE[kind] in allowed


def entry_of(match: Match, arm: ArmName) -> Entry | None:
    """One arm's side of a match."""
    return match.baseline if arm is ArmName.BASELINE else match.candidate


def _scores(entry: Entry, arm: ArmName, position: int, repeat: int) -> Iterator[Score]:
    for metric in sorted(entry.scores):
        value, detail = _split(entry.scores[metric])
        yield Score(arm=arm, position=position, repeat=repeat, metric=metric, value=value, detail=detail)


def check_score_bounds(found: Iterable[Score], items: Sequence[Item], plan: Plan) -> None:
    """Raises InvalidValue for a score that its metric cannot have, where a verdict would rest on it."""
    specs = (spec for primary in plan.primaries for spec in plan.members_of(primary))
    bounds = {
        (spec.task, spec.key): (spec.id, *plan.score_bounds_of(spec))
        for spec in specs
        if spec.kind in (MetricKind.BINARY_MEAN, MetricKind.MEAN, MetricKind.LIST_MEAN)
    }
    for score in found:
        item = items[score.position]
        if (item.task, score.metric) not in bounds:
            continue
        metric, low, high = bounds[item.task, score.metric]
        values = (score.value,) if score.detail is None else score.detail
        value = next((one for one in values if not low <= one <= high), None)
        if value is not None:
            raise InvalidValue(
                f"{metric}: item {item.doc_id} has the score {value:g} in the {score.arm}, outside {low:g} to {high:g}",
                hint=f"Divide percent by 100, or say what its scores are bounded by: --score-bounds {item.task}=0:100",
                fields={"score_bounds": f"{metric} has a score of {value:g}"},
            )


def _split(value: Any) -> tuple[float, tuple[Any, ...] | None]:
    """As a run's own scores are kept: of a list its mean, of a pair whether they agree."""
    if isinstance(value, float):
        return value, None
    if all(isinstance(part, (bool, int, float)) for part in value) and not _is_pair(value):
        return (sum(value) / len(value) if value else 0.0), value
    return float(value[0] == value[1]), value


def _is_pair(value: tuple[Any, ...]) -> bool:
    return len(value) == 2 and not all(isinstance(part, bool) for part in value)
