"""Pair two logs item by item. Texts and documents stay in the files until the pairs are stored."""

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
from typing import Any, TypeVar

from qualab.analysis.imported import ALLOWABLE
from qualab.errors import InvalidValue
from qualab.model.canonical import canonical_json
from qualab.model.items import Answer, Item, JsonObject, Prompt, Reply, Score, cluster_of
from qualab.model.logged import Log, LoggedRow, LoggedRun
from qualab.model.names import ArmName, MetricKind, RequestKind
from qualab.model.plan import FindingCode, Plan, TaskJoin

T = TypeVar("T")
NO_ROW = -1
"""Number of an item that its log has lost: no row has it."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One answered item of one arm, with the scores of all its filters."""

    row: int
    """Number of the log's row that holds its document and answers."""
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
    entries: list[Entry] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    """Metrics with a value that is neither a number nor a list of them, nor a pair of labels."""


@dataclass(slots=True, kw_only=True)
class ArmLog:
    """A log without its texts."""

    run: LoggedRun
    tasks: dict[str, TaskEntries] = field(default_factory=dict)


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
    task.has_more_answers |= row.has_more_answers
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
        generation=" ".join(dict.fromkeys(settings_text(prompt.gen_kwargs or {}) for prompt in row.prompts)),
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
    """Identify an item by its name, else by its document with keys in any order and empty ones left out.

    The hub's IFEval fills every item's kwargs up with empty keys; files of it do not.
    """
    document = json.dumps(_without_empty(row.doc), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return _digest(row.name or document, 16)


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_empty(part) for name, part in value.items() if part is not None}
    return list(map(_without_empty, value)) if isinstance(value, list) else value


def _digest(text: str, size: int = 8) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


class Kind(StrEnum):
    """Outcome of joining an item: a count of `TaskJoin`."""

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
        """Return the entry whose document stands for the item."""
        entry = self.baseline or self.candidate
        assert entry is not None
        return entry

    def of(self, arm: ArmName) -> Entry | None:
        return self.baseline if arm is ArmName.BASELINE else self.candidate


_SAME: tuple[Callable[[Entry], Hashable], ...] = (
    lambda entry: (entry.key, entry.prompt, entry.target, entry.repeat),
    lambda entry: (entry.key, entry.repeat),
    lambda entry: (entry.prompt, entry.target, entry.repeat) if entry.prompt else None,
    lambda entry: (entry.prompt, entry.repeat) if entry.prompt else None,
)
"""Ways to pair two entries, the surest first. The last counts only where one entry of each arm has it."""


def join(baseline: Sequence[Entry], candidate: Sequence[Entry]) -> list[Match]:
    """Pair two arms' entries of one task, in the baseline's order, what only the candidate has last.

    Numbers of documents count only among equals: under `--samples` lm-eval's may be others.
    """
    duplicated: set[int] = set()
    off, on = (_without_duplicates(entries, duplicated) for entries in (baseline, candidate))
    matches = []
    for same in _SAME:
        groups_off, groups_on = _grouped(off, same), _grouped(on, same)
        paired = set()
        for key, entries in groups_off.items():
            others = groups_on.get(key, [])
            if same is _SAME[-1] and len(entries) + len(others) > 2:
                continue
            for pair in zip(entries, others, strict=False):
                matches.append(Match(baseline=pair[0], candidate=pair[1], kind=_kind(*pair, duplicated)))
                paired |= {id(entry) for entry in pair}
        off, on = ([entry for entry in entries if id(entry) not in paired] for entries in (off, on))
    matches += [Match(baseline=entry, candidate=None, kind=Kind.ONLY_BASELINE) for entry in off]
    matches.sort(key=lambda match: match.content.row)
    return matches + [Match(baseline=None, candidate=entry, kind=Kind.ONLY_CANDIDATE) for entry in on]


def _without_duplicates(entries: Sequence[Entry], duplicated: set[int]) -> list[Entry]:
    """Keep the first of each document and number; add those that come again (by identity) to `duplicated`.

    A data set may hold a document twice, under two numbers: both stay.
    """
    first: dict[Hashable, Entry] = {}
    for entry in entries:
        known = first.setdefault((entry.key, entry.doc_id, entry.repeat), entry)
        if known is not entry:
            duplicated.add(id(known))
    return list(first.values())


def _grouped(entries: Iterable[Entry], same: Callable[[Entry], Hashable]) -> dict[Hashable, list[Entry]]:
    groups: defaultdict[Hashable, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: (-1 if entry.doc_id is None else entry.doc_id, entry.row)):
        if (key := same(entry)) is not None:
            groups[key].append(entry)
    return groups


def _kind(baseline: Entry, candidate: Entry, duplicated: set[int]) -> Kind:
    if {id(baseline), id(candidate)} & duplicated:
        return Kind.DUPLICATED
    if baseline.prompt and candidate.prompt and baseline.prompt != candidate.prompt:
        return Kind.PROMPT
    return Kind.TARGET if baseline.target != candidate.target else Kind.PAIRED


def lost(matches: Sequence[Match], n_evaluated: int) -> Iterator[Match]:
    """Make a match for each item that a log's own values count, and that neither log has."""
    known = [match.content for match in matches if match.content.repeat == 0]
    numbers = {entry.doc_id for entry in known}
    unused = (number for number in count() if number not in numbers)
    for number in islice(unused, max(0, n_evaluated - len(known))):
        entry = Entry(row=NO_ROW, key=f"lost {number}".encode(), doc_id=number)
        yield Match(baseline=entry, candidate=None, kind=Kind.LOST)


def counted(task: str, matches: Iterable[Match]) -> TaskJoin:
    """Count a task's items by how they were joined."""
    kinds = Counter(match.kind for match in matches)
    return TaskJoin(task=task, **{kind.value: kinds[kind] for kind in Kind})


ItemMatches = Sequence[tuple[Item, Mapping[int, Match]]]
"""Items without document and prompts, each with its matches by repeat, the first repeat first."""


def placed(plan: Plan, joined: Mapping[str, Sequence[Match]]) -> ItemMatches:
    """Put every item in its position: task by task, in the order of the baseline's log.

    Repeats of one document are one item; a document that the data set has twice is two.
    """
    items: list[tuple[Item, Mapping[int, Match]]] = []
    for task in plan.tasks:
        by_item: list[dict[int, Match]] = []
        known: defaultdict[bytes, list[dict[int, Match]]] = defaultdict(list)
        for match in joined.get(task.name, ()):
            entry = match.content
            repeats = next((repeats for repeats in known[entry.key] if entry.repeat not in repeats), None)
            if repeats is None:
                repeats = {}
                by_item.append(repeats)
                known[entry.key].append(repeats)
            repeats[entry.repeat] = match
        by_item = [dict(sorted(repeats.items())) for repeats in by_item]
        firsts = [_first(repeats) for repeats in by_item]
        numbers = [entry.doc_id for entry in firsts if entry.doc_id is not None]
        if len(set(numbers)) < len(by_item):  # the log does not number its documents, or not uniquely
            numbers = list(range(len(by_item)))
        empty = Item(position=0, task=task.name, doc_id=0, kind=task.kind, doc={}, target="", prompts=())
        for repeats, entry, doc_id in zip(by_item, firsts, numbers, strict=True):
            item = replace(empty, position=len(items), doc_id=doc_id, cluster=entry.cluster)
            items.append((item, repeats))
    return items


def _first(repeats: Mapping[int, Match]) -> Entry:
    return next(iter(repeats.values())).content


def scores(items: ItemMatches, allowed: Sequence[FindingCode]) -> Iterator[Score]:
    """Make scores in order of arm, position, repeat and metric. Unpaired answers have none, in either arm."""
    for arm in ArmName:
        for item, repeats in items:
            for repeat, match in repeats.items():
                is_compared = match.kind not in ALLOWABLE or ALLOWABLE[match.kind] in allowed
                entry = match.of(arm)
                if entry is None or not entry.is_answered or not is_compared:
                    continue
                for metric in sorted(entry.scores):
                    value, detail = _split(entry.scores[metric])
                    position = item.position
                    yield Score(arm=arm, position=position, repeat=repeat, metric=metric, value=value, detail=detail)


def _split(value: Any) -> tuple[float, tuple[Any, ...] | None]:
    """Reduce a list to its mean and a pair to whether it agrees, as a run's own scores are kept."""
    if isinstance(value, float):
        return value, None
    is_pair = len(value) == 2 and not all(isinstance(part, bool) for part in value)
    if all(isinstance(part, bool | int | float) for part in value) and not is_pair:
        return (sum(value) / len(value) if value else 0.0), value
    return float(value[0] == value[1]), value


def check_score_bounds(scored: Iterable[Score], items: ItemMatches, plan: Plan) -> None:
    """Raise InvalidValue for a score that its metric cannot have, where a verdict would rest on it."""
    specs = (spec for primary in plan.primaries for spec in plan.members_of(primary))
    bounds = {
        (spec.task, spec.key): (spec.id, *plan.score_bounds_of(spec))
        for spec in specs
        if spec.kind in (MetricKind.BINARY_MEAN, MetricKind.MEAN, MetricKind.LIST_MEAN)
    }
    for score in scored:
        item, _ = items[score.position]
        if (item.task, score.metric) not in bounds:
            continue
        metric, low, high = bounds[item.task, score.metric]
        values = (score.value,) if score.detail is None else score.detail
        for value in (value for value in values if not low <= value <= high):
            raise InvalidValue(
                f"{metric}: item {item.doc_id} has the score {value:g} in the {score.arm}, outside {low:g} to {high:g}",
                hint=f"Divide percent by 100, or say what its scores are bounded by: --score-bounds {item.task}=0:100",
                fields={"score_bounds": f"{metric} has a score of {value:g}"},
            )


def whole_items(logs: Mapping[ArmName, Log], items: ItemMatches) -> Iterator[Item]:
    """Read the items again, with their documents and prompts: the baseline's, else the candidate's."""
    for arm, log in logs.items():
        needed = {}
        for item, repeats in items:
            first = next(iter(repeats.values()))
            if first.of(arm) is first.content:
                needed[first.content.row] = item
        for item, row in _rows(log, needed):
            prompts = row.prompts or tuple(Prompt(text="") for _ in row.replies)
            yield replace(item, doc=row.doc, target=row.target, prompts=prompts)
    lost_items = (item for item, repeats in items if _first(repeats).row == NO_ROW)
    yield from (replace(item, prompts=(Prompt(text=""),)) for item in lost_items)


def answers(logs: Mapping[ArmName, Log], items: ItemMatches, *, now: datetime) -> Iterator[Answer]:
    """Read every answer of both arms. One without a date was given `now`."""
    for arm, log in logs.items():
        needed = {
            entry.row: (item.position, repeat)
            for item, repeats in items
            for repeat, match in repeats.items()
            if (entry := match.of(arm)) is not None
        }
        sent_at = log.run.date or now
        for (position, repeat), row in _rows(log, needed):
            for choice, logged in enumerate(row.replies):
                # no log has the request: a hash of its place is the same in both arms, and prompts are compared above
                request = sha256(f"{row.task}\0{position}\0{choice}".encode()).digest()[:16]
                reply = Reply(**logged._asdict(), attempts=1, latency_s=0.0, sent_at=sent_at, system_fingerprint="")
                yield Answer(
                    arm=arm, position=position, choice=choice, repeat=repeat, request_hash=request, reply=reply
                )


def _rows(log: Log, needed: Mapping[int, T]) -> Iterator[tuple[T, LoggedRow]]:
    for number, row in enumerate(log.rows()) if needed else ():
        if number in needed:
            yield needed[number], row
