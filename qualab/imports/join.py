"""Two logs in short, paired item by item. Texts and documents stay in the files until what is paired is stored."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b, sha256
from itertools import count, islice
from numbers import Real
from typing import Any

import orjson

from qualab.analysis.imported import ALLOWABLE
from qualab.errors import InvalidValue
from qualab.model.canonical import canonical_json
from qualab.model.items import Answer, Item, JsonObject, Prompt, Reply, Score, cluster_of
from qualab.model.logged import Log, LoggedRow, LoggedRun
from qualab.model.names import ArmName, MetricKind, RequestKind
from qualab.model.plan import FindingCode, Plan, TaskJoin

NO_ROW = -1
"""Of an item that its log has lost: no row has this number."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One answered item of one arm, with the scores of all its filters."""

    row: int
    """The number of the log's row that holds its document and answers."""
    key: bytes
    """Equal for the same document."""
    prompt: bytes = b""
    """Equal for the same prompts; empty where the log does not tell."""
    target: bytes = b""
    doc_id: int | None
    repeat: int = 0
    cluster: str = ""
    generation: str = ""
    """Generation settings of its requests, as canonical JSON; empty where the log does not have them."""
    is_answered: bool = False
    """Its scores count; without an answer they are those of nothing."""
    filters: tuple[str, ...] = ()
    scores: dict[str, Any] = field(default_factory=dict)
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


@dataclass(slots=True, kw_only=True)
class ArmLog:
    """A whole log in short."""

    run: LoggedRun
    tasks: dict[str, TaskEntries] = field(default_factory=dict)

    def n_evaluated(self, task: str) -> int:
        """Count the items behind the run's own values, as far as they tell; 0 otherwise."""
        return self.run.task(task).n_evaluated or 0

    def has_lost(self, task: str) -> bool:
        """Whether rows are lost that the run's own values count."""
        return sum(entry.repeat == 0 for entry in self.tasks[task].entries) < self.n_evaluated(task)


def read_arm(log: Log, cluster_fields: Callable[[str], tuple[str, ...]]) -> ArmLog:
    """Read a log once. `cluster_fields` says what a task's items are clustered by."""
    arm = ArmLog(run=log.run)
    known: defaultdict[Hashable, list[Entry]] = defaultdict(list)
    for number, row in enumerate(log.rows()):
        task = arm.tasks.get(row.task)
        if task is None:
            is_scored_text = any(reply.loglikelihood is not None for reply in row.replies)
            task = arm.tasks[row.task] = TaskEntries(
                cluster=cluster_fields(row.task),
                kind=RequestKind.LOGLIKELIHOOD if is_scored_text else RequestKind.GENERATION,
                is_chat=any(prompt.is_chat for prompt in row.prompts),
            )
        _add(task, row, number, known)
    return arm


def _add(task: TaskEntries, row: LoggedRow, number: int, known: Mapping[Hashable, list[Entry]]) -> None:
    """Add a row to the entry of its other filters, or make one."""
    task.has_more_answers = task.has_more_answers or row.has_more_answers
    scores = {}
    for metric, raw in row.scores.items():
        value = score_value(raw)
        if value is None:
            task.left_out.add(metric)
        elif not (isinstance(value, float) and math.isnan(value)):
            scores[sys.intern(f"{metric},{row.filter}")] = value
    key = _key(row)
    same = known[row.task, key, row.doc_id, row.repeat]
    for entry in same:
        if row.filter not in entry.filters:
            entry.filters += (row.filter,)
            entry.scores.update(scores)
            return
    cluster = row.cluster
    if not cluster and all(name in row.doc for name in task.cluster):
        cluster = sys.intern(cluster_of(row.doc, task.cluster))
    prompts = [part for prompt in row.prompts for part in (prompt.text, prompt.continuation)]
    entry = Entry(
        row=number,
        key=key,
        prompt=_digest("\0".join(prompts)) if prompts else b"",
        target=_digest(row.target),
        doc_id=row.doc_id,
        repeat=row.repeat,
        cluster=cluster,
        generation=" ".join(dict.fromkeys(settings_text(one.gen_kwargs or {}) for one in row.prompts)),
        is_answered=all(reply.status.is_answer for reply in row.replies),
        filters=(row.filter,),
        scores=scores,
    )
    same.append(entry)
    task.entries.append(entry)


def settings_text(settings: JsonObject) -> str:
    """Spell equal settings alike: 0 and 0.0, one stop text and a list of it; empty for none."""

    def plain(value: object) -> object:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return [value] if isinstance(value, str) else value

    return sys.intern(canonical_json({name: plain(value) for name, value in settings.items()})) if settings else ""


def score_value(raw: Any) -> Any:
    """Read a score as a float, or a tuple of JSON values. None where it is neither."""
    if isinstance(raw, Real):
        return float(raw)
    if isinstance(raw, list | tuple) and (len(raw) == 2 or all(isinstance(part, Real) for part in raw)):
        return tuple(raw) if all(part is None or isinstance(part, Real | str) for part in raw) else None
    return None


def _key(row: LoggedRow) -> bytes:
    """What makes it the same item: its name, else its document, in whatever order its keys are, empty ones left out.

    The hub's IFEval fills every item's kwargs up with empty keys; files of it do not.
    """
    if row.name:
        return _digest(row.name, 16)
    plain = _without_empty(row.doc)
    try:
        return _digest(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS), 16)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        return _digest(json.dumps(plain, sort_keys=True), 16)


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_empty(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_empty(one) for one in value]
    return value


def _digest(content: str | bytes, size: int = 8) -> bytes:
    content = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return blake2b(content, digest_size=size).digest()


class Kind(StrEnum):
    """What came of one item: the names of `TaskJoin`."""

    PAIRED = "paired"
    ONLY_BASELINE = "only_baseline"
    ONLY_CANDIDATE = "only_candidate"
    PROMPT = "prompt_differs"
    TARGET = "target_differs"
    DUPLICATED = "duplicated"
    LOST = "lost"


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

    def of(self, arm: ArmName) -> Entry | None:
        """One arm's entry."""
        return self.baseline if arm is ArmName.BASELINE else self.candidate


_SAME: tuple[Callable[[Entry], Hashable], ...] = (
    lambda entry: (entry.key, entry.prompt, entry.target, entry.repeat),
    lambda entry: (entry.key, entry.repeat),
    lambda entry: (entry.prompt, entry.target, entry.repeat) if entry.prompt else None,
    lambda entry: (entry.prompt, entry.repeat) if entry.prompt else None,
)
"""What makes two entries a pair, the surest first. The last counts only where one entry of each arm has it."""


def join(baseline: Sequence[Entry], candidate: Sequence[Entry]) -> list[Match]:
    """Pair two arms' entries of one task, in the baseline's order, what only the candidate has last.

    Numbers of documents count only among equals: under `--samples` lm-eval's may be others.
    """
    off, off_twice = _without_duplicates(baseline)
    on, on_twice = _without_duplicates(candidate)
    twice = off_twice | on_twice
    matches = []
    for same in _SAME:
        groups_off, groups_on = _grouped(off, same), _grouped(on, same)
        taken = set()
        for key, entries in groups_off.items():
            others = groups_on.get(key, [])
            if same is _SAME[-1] and len(entries) + len(others) > 2:
                continue
            for one, other in zip(entries, others, strict=False):
                matches.append(Match(baseline=one, candidate=other, kind=_kind(one, other, twice)))
                taken |= {id(one), id(other)}
        off, on = ([entry for entry in side if id(entry) not in taken] for side in (off, on))
    matches += [Match(baseline=one, candidate=None, kind=Kind.ONLY_BASELINE) for one in off]
    matches.sort(key=lambda match: match.content.row)
    return matches + [Match(baseline=None, candidate=one, kind=Kind.ONLY_CANDIDATE) for one in on]


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


def _grouped(entries: Iterable[Entry], same: Callable[[Entry], Hashable]) -> dict[Hashable, list[Entry]]:
    """Entries by what makes them the same, each group by the number of its documents."""
    groups: defaultdict[Hashable, list[Entry]] = defaultdict(list)
    for entry in entries:
        if (key := same(entry)) is not None:
            groups[key].append(entry)
    for group in groups.values():
        group.sort(key=lambda entry: (-1 if entry.doc_id is None else entry.doc_id, entry.row))
    return groups


def _kind(one: Entry, other: Entry, twice: set[int]) -> Kind:
    if id(one) in twice or id(other) in twice:
        return Kind.DUPLICATED
    if one.prompt and other.prompt and one.prompt != other.prompt:
        return Kind.PROMPT
    return Kind.TARGET if one.target != other.target else Kind.PAIRED


def lost(matches: Sequence[Match], n_evaluated: int) -> Iterator[Match]:
    """Make a match for each item that a log's own values count, and that neither log has."""
    known = [match.content for match in matches if match.content.repeat == 0]
    numbers = {entry.doc_id for entry in known}
    unused = (number for number in count() if number not in numbers)
    for number in islice(unused, max(0, n_evaluated - len(known))):
        entry = Entry(row=NO_ROW, key=f"lost {number}".encode(), doc_id=number)
        yield Match(baseline=entry, candidate=None, kind=Kind.LOST)


def counted(task: str, matches: Iterable[Match]) -> TaskJoin:
    """Count what came of a task's items."""
    kinds = Counter(match.kind for match in matches)
    return TaskJoin(task=task, **{kind.value: kinds[kind] for kind in Kind})


@dataclass(slots=True, kw_only=True)
class Place:
    """One item as an analysis needs it, without document and prompts; and a match for each of its repeats."""

    item: Item
    matches: dict[int, Match]
    """By repeat."""

    @property
    def first(self) -> Match:
        return self.matches[min(self.matches)]


def place(plan: Plan, joined: Mapping[str, Sequence[Match]]) -> list[Place]:
    """Put every item in its position: task by task, in the order of the baseline's log.

    Repeats of one document are one item; a document that the data set has twice is two.
    """
    places: list[Place] = []
    for task in plan.tasks:
        own: list[dict[int, Match]] = []
        known: defaultdict[bytes, list[dict[int, Match]]] = defaultdict(list)
        for match in joined.get(task.name, ()):
            entry = match.content
            matches = next((one for one in known[entry.key] if entry.repeat not in one), None)
            if matches is None:
                matches = {}
                own.append(matches)
                known[entry.key].append(matches)
            matches[entry.repeat] = match
        firsts = [matches[min(matches)].content for matches in own]
        numbers = [entry.doc_id for entry in firsts if entry.doc_id is not None]
        if len(set(numbers)) < len(own):  # the log does not number its documents, or not uniquely
            numbers = list(range(len(own)))
        for matches, entry, doc_id in zip(own, firsts, numbers, strict=True):
            item = Item(
                position=len(places),
                task=task.name,
                doc_id=doc_id,
                kind=task.kind,
                doc={},
                target="",
                prompts=(),
                cluster=entry.cluster,
            )
            places.append(Place(item=item, matches=matches))
    return places


def scores(places: Sequence[Place], allowed: Sequence[FindingCode]) -> Iterator[Score]:
    """Make scores in order of arm, position, repeat and metric. What is no pair has none, in either arm."""
    for arm in ArmName:
        for place in places:
            for repeat, match in sorted(place.matches.items()):
                is_compared = match.kind not in ALLOWABLE or ALLOWABLE[match.kind] in allowed
                entry = match.of(arm)
                if entry is None or not entry.is_answered or not is_compared:
                    continue
                for metric in sorted(entry.scores):
                    value, detail = _split(entry.scores[metric])
                    position = place.item.position
                    yield Score(arm=arm, position=position, repeat=repeat, metric=metric, value=value, detail=detail)


def _split(value: Any) -> tuple[float, tuple[Any, ...] | None]:
    """As a run's own scores are kept: of a list its mean, of a pair whether they agree."""
    if isinstance(value, float):
        return value, None
    is_pair = len(value) == 2 and not all(isinstance(part, bool) for part in value)
    if all(isinstance(part, bool | int | float) for part in value) and not is_pair:
        return (sum(value) / len(value) if value else 0.0), value
    return float(value[0] == value[1]), value


def check_score_bounds(scored: Iterable[Score], places: Sequence[Place], plan: Plan) -> None:
    """Raise InvalidValue for a score that its metric cannot have, where a verdict would rest on it."""
    specs = (spec for primary in plan.primaries for spec in plan.members_of(primary))
    bounds = {
        (spec.task, spec.key): (spec.id, *plan.score_bounds_of(spec))
        for spec in specs
        if spec.kind in (MetricKind.BINARY_MEAN, MetricKind.MEAN, MetricKind.LIST_MEAN)
    }
    for score in scored:
        item = places[score.position].item
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


def whole_items(logs: Mapping[ArmName, Log], places: Sequence[Place]) -> Iterator[Item]:
    """Read the items again, with their documents and prompts: the baseline's, else the candidate's."""
    for arm, log in logs.items():
        needed = {place.first.content.row: place.item for place in places if place.first.of(arm) is place.first.content}
        for number, row in _rows(log, needed):
            prompts = row.prompts or tuple(Prompt(text="") for _ in row.replies)
            yield replace(needed[number], doc=row.doc, target=row.target, prompts=prompts)
    for place in places:
        if place.first.kind is Kind.LOST:
            yield replace(place.item, prompts=(Prompt(text=""),))


def answers(logs: Mapping[ArmName, Log], places: Sequence[Place], *, now: datetime) -> Iterator[Answer]:
    """Read every answer of both arms. One without a date was given `now`."""
    for arm, log in logs.items():
        needed = {
            entry.row: (place.item.position, repeat)
            for place in places
            for repeat, match in place.matches.items()
            if (entry := match.of(arm)) is not None
        }
        sent_at = log.run.date or now
        for number, row in _rows(log, needed):
            position, repeat = needed[number]
            for choice, logged in enumerate(row.replies):
                # no log has the request: a hash of its place is the same in both arms, and prompts are compared above
                request = sha256(f"{row.task}\0{position}\0{choice}".encode()).digest()[:16]
                reply = Reply(**logged._asdict(), attempts=1, latency_s=0.0, sent_at=sent_at, system_fingerprint="")
                yield Answer(
                    arm=arm, position=position, choice=choice, repeat=repeat, request_hash=request, reply=reply
                )


def _rows(log: Log, needed: Mapping[int, object]) -> Iterator[tuple[int, LoggedRow]]:
    for number, row in enumerate(log.rows()) if needed else ():
        if number in needed:
            yield number, row
