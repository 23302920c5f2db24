"""Random numbers of an analysis: one stream a purpose, all from the plan's hash."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qualab.analysis.scoring import raw_value
from qualab.model.canonical import canonical_json, sha256
from qualab.model.comparison import ArmSummary, PairSummary
from qualab.model.items import Item, Score
from qualab.model.names import ArmName, MetricKind, MissingPolicy
from qualab.model.plan import MetricSpec, Plan
from qualab.model.reason import Reason
from qualab.stats.checks import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Random streams by name, all from one seed: adding a metric moves no other's."""

    seed: int

    @classmethod
    def of(cls, plan_hash: str) -> Streams:
        return cls(seed=int(sha256(f"analysis of {plan_hash}")[:12], 16))

    def rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, int(sha256(name)[:12], 16)])


Key = tuple[int, int]
"""Position and repeat."""

Column = dict[Key, Any]
"""One metric's scores in one arm, as the harness gave them."""


@dataclass(slots=True)
class Scores:
    """All scores of a comparison, by task and metric, and the hash of what was read."""

    columns: dict[tuple[str, str, ArmName], Column] = field(default_factory=dict)
    answered: dict[ArmName, set[Key]] = field(default_factory=lambda: {arm: set() for arm in ArmName})
    """Where an arm has any score."""
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, score: Score, task: str) -> None:
        value, place, key = raw_value(score), (score.position, score.repeat), (task, score.metric, score.arm)
        if key not in self.columns:
            self.columns[key] = {}
        self.columns[key][place] = value
        self.answered[score.arm].add(place)
        self.digest.update(f"{task}\0{score.metric}\0{score.arm.value}\0{place}\0{value!r}\n".encode())

    def column(self, task: str, metric: str, arm: ArmName) -> Column:
        return self.columns.get((task, metric, arm), {})

    def n_changed(self, places: Set[Key]) -> int:
        """Items at these places with another score in the candidate, in whatever metric."""
        changed: set[int] = set()
        for (task, metric, arm), own in self.columns.items():
            if arm is ArmName.BASELINE:
                other = self.column(task, metric, ArmName.CANDIDATE)
                changed |= {key[0] for key in own.keys() & other.keys() & places if own[key] != other[key]}
        return len(changed)


def read_scores(stored: Iterable[Score], items: Sequence[Item]) -> Scores:
    """The stored scores by task and metric. `items` by position."""
    scores = Scores()
    for score in stored:
        scores.add(score, items[score.position].task)
    return scores


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """One task's expected answers, in the order of its documents: the random order of asking leaves no trace."""

    keys: list[Key]
    numbers: IntArray
    """Unique within the comparison."""
    units: IntArray
    """What stands and falls together: the cluster, else the item with its repeats. Unique within the comparison."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """All expected answers."""

    tasks: dict[str, Places]
    n_units: int

    @property
    def n_answers(self) -> int:
        return sum(len(places.keys) for places in self.tasks.values())


def layout_of(plan: Plan, items: Sequence[Item], *, left_out: Set[Key] = frozenset()) -> Layout:
    """Where the plan expects answers, from the items' clusters; without those that are left out."""
    by_task: dict[str, list[Item]] = {task.name: [] for task in plan.tasks}
    for item in items:
        by_task.setdefault(item.task, []).append(item)
    repeats, known, start = plan.sampling.repeats, dict[tuple[str, ...], int](), 0
    tasks: dict[str, Places] = {}
    for task, own in by_task.items():
        own.sort(key=lambda item: item.doc_id)
        codes = [known.setdefault(_unit(item), len(known)) for item in own]
        keys = [(item.position, repeat) for item in own for repeat in range(repeats)]
        kept = np.array([key not in left_out for key in keys], dtype=np.bool_)
        tasks[task] = Places(
            keys=[key for key in keys if key not in left_out],
            numbers=np.arange(start, start + len(own) * repeats, dtype=np.int64)[kept],
            units=np.repeat(np.array(codes, dtype=np.int64), repeats)[kept],
        )
        start += len(own) * repeats
    return Layout(tasks=tasks, n_units=len(known))


def _unit(item: Item) -> tuple[str, ...]:
    return (item.task, "cluster", item.cluster) if item.cluster else (item.task, "item", str(item.doc_id))


def scores_hash(scores: Scores, layout: Layout) -> Any:
    """SHA-256 of the scores as they were read and of where answers were expected; more may be added to it."""
    digest = scores.digest.copy()
    for task, places in layout.tasks.items():
        digest.update(f"{task}\0{places.keys}\0{places.units.tolist()}\n".encode())
    return digest


def input_hash(
    scores: Scores, layout: Layout, arms: Sequence[ArmSummary], pairs: PairSummary, *, more: Sequence[object] = ()
) -> str:
    """SHA-256 of what the answers came to: scores, clusters, statuses, pairs, and `more` that is computed from answers.

    Engines, pins and tokens are left out, so that a resumed run's hash is that of an uninterrupted one.
    """
    digest = scores_hash(scores, layout)
    for value in more:
        if value is not None:
            digest.update(canonical_json(value).encode())
    for arm in arms:
        digest.update(canonical_json(arm.statuses).encode())
    digest.update(canonical_json(pairs).encode())
    return str(digest.hexdigest())


ROUNDING = 1e-9
"""What a score may lie outside of its range, in shares of it."""
Label = Any
"""A class as the harness spells it; None where the answer is missing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeanSample:
    """Scores whose mean is the metric, in shares of its range: 0 is the lowest possible score, 1 the highest.

    NaN is a missing score.
    """

    number: IntArray
    """Which answer each score belongs to."""
    unit: IntArray
    baseline: FloatArray
    candidate: FloatArray

    @property
    def n_items(self) -> int:
        return self.baseline.size

    @property
    def differences(self) -> FloatArray:
        return self.candidate - self.baseline

    @property
    def identity(self) -> Hashable:
        """Equal for two metrics with the same scores on the same items."""
        return self.number.tobytes(), self.baseline.tobytes(), self.candidate.tobytes()

    def under(self, policy: MissingPolicy, *, right: float, n_lost: int | None = None) -> MeanSample:
        """Without a missing score. `right` is the score of a right answer, 1 − `right` that of a wrong one.

        With `n_lost` a worst case takes that many of the answers without a pair, those that change most, and leaves the
        others unchanged.
        """
        if policy is MissingPolicy.COMPLETE:
            kept = ~(np.isnan(self.baseline) | np.isnan(self.candidate))
            return MeanSample(
                number=self.number[kept],
                unit=self.unit[kept],
                baseline=self.baseline[kept],
                candidate=self.candidate[kept],
            )
        off, on = (right if is_right else 1.0 - right for is_right in _FILLED_AS_RIGHT[policy])
        baseline = np.where(np.isnan(self.baseline), off, self.baseline)
        candidate = np.where(np.isnan(self.candidate), on, self.candidate)
        if n_lost is not None and policy is not MissingPolicy.WRONG:
            is_same = ~np.isin(self.number, self._most_changed(candidate - baseline, n_lost))
            baseline = np.where(np.isnan(self.baseline) & is_same, np.nan_to_num(self.candidate), baseline)
            candidate = np.where(np.isnan(self.candidate) & is_same, np.nan_to_num(self.baseline), candidate)
        return MeanSample(number=self.number, unit=self.unit, baseline=baseline, candidate=candidate)

    def _most_changed(self, differences: FloatArray, n_lost: int) -> IntArray:
        """The answers without a pair whose scores a worst case changes most; in order of place where they tie."""
        is_missing = np.isnan(self.baseline) | np.isnan(self.candidate)
        numbers, codes = np.unique(self.number[is_missing], return_inverse=True)
        changes = np.bincount(codes, weights=np.abs(differences[is_missing]), minlength=numbers.size)
        return np.asarray(numbers[np.argsort(-changes, kind="stable")[:n_lost]], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskLabels:
    """One task's right labels and those that the arms gave."""

    number: IntArray
    unit: IntArray
    truth: list[Label]
    """The most frequent one where neither arm has the item: the harness tells it with a score only."""
    baseline: list[Label]
    candidate: list[Label]

    @property
    def identity(self) -> Hashable:
        return self.number.tobytes(), tuple(self.truth), tuple(self.baseline), tuple(self.candidate)

    def complete(self) -> TaskLabels:
        kept = [
            place
            for place, answers in enumerate(zip(self.baseline, self.candidate, strict=True))
            if None not in answers
        ]
        return TaskLabels(
            number=self.number[kept],
            unit=self.unit[kept],
            truth=[self.truth[place] for place in kept],
            baseline=[self.baseline[place] for place in kept],
            candidate=[self.candidate[place] for place in kept],
        )

    def filled(self, *, off_is_right: bool, on_is_right: bool, lost: Set[int] | None = None) -> TaskLabels:
        """With an answer for each missing one. `lost`: the only places (None: all) where it is another than the other
        arm's."""
        wrong = _wrong_labels({*self.truth, *self.baseline, *self.candidate} - {None})

        def fill(answers: Sequence[Label], others: Sequence[Label], *, is_right: bool) -> list[Label]:
            filled = []
            for place, (given, other, truth) in enumerate(zip(answers, others, self.truth, strict=True)):
                assumed = truth if is_right else wrong[truth]
                if lost is not None and place not in lost:
                    assumed = truth if other is None else other
                filled.append(assumed if given is None else given)
            return filled

        return TaskLabels(
            number=self.number,
            unit=self.unit,
            truth=self.truth,
            baseline=fill(self.baseline, self.candidate, is_right=off_is_right),
            candidate=fill(self.candidate, self.baseline, is_right=on_is_right),
        )

    def changed_places(self, *, off_is_right: bool, on_is_right: bool) -> list[int]:
        """Where filling in a missing answer makes one arm right and the other wrong."""
        filled = self.filled(off_is_right=off_is_right, on_is_right=on_is_right)
        answers = zip(self.baseline, self.candidate, filled.baseline, filled.candidate, self.truth, strict=True)
        return [
            place
            for place, (off, on, filled_off, filled_on, truth) in enumerate(answers)
            if None in (off, on) and (filled_off == truth) != (filled_on == truth)
        ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelSample:
    """Labels whose macro-F1, weighted by the tasks' sizes, is the metric."""

    tasks: tuple[TaskLabels, ...]

    @property
    def n_items(self) -> int:
        return sum(len(task.truth) for task in self.tasks)

    @property
    def identity(self) -> Hashable:
        return tuple(task.identity for task in self.tasks)

    def under(self, policy: MissingPolicy, *, right: float, n_lost: int | None = None) -> LabelSample:
        """Without a missing label; `right` is of no concern to labels. `n_lost` as for means."""
        del right
        if policy is MissingPolicy.COMPLETE:
            return LabelSample(tasks=tuple(task for task in map(TaskLabels.complete, self.tasks) if task.truth))
        off, on = _FILLED_AS_RIGHT[policy]
        left, found = n_lost, []
        for task in self.tasks:
            lost = None
            if left is not None and policy is not MissingPolicy.WRONG:
                lost = set(task.changed_places(off_is_right=off, on_is_right=on)[:left])
                left -= len(lost)
            found.append(task.filled(off_is_right=off, on_is_right=on, lost=lost))
        return LabelSample(tasks=tuple(task for task in found if task.truth))


Sample = MeanSample | LabelSample

_FILLED_AS_RIGHT: Mapping[MissingPolicy, tuple[bool, bool]] = {
    MissingPolicy.WRONG: (False, False),
    MissingPolicy.AGAINST_CANDIDATE: (True, False),
    MissingPolicy.AGAINST_BASELINE: (False, True),
}
"""Whether a missing answer of the baseline, and of the candidate, counts as right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untestable:
    """Why a metric has no sample."""

    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingCount:
    """A metric's answers without a score."""

    baseline: int
    candidate: int
    either: int


def members_of(spec: MetricSpec, plan: Plan) -> list[MetricSpec]:
    """The metrics that a row pools: itself, or a group's members that have it."""
    return plan.members_of(spec)


def missing_of(members: Sequence[MetricSpec], scores: Scores, layout: Layout) -> MissingCount:
    """Answers without a score, over all members."""
    off = on = either = 0
    for member in members:
        baseline, candidate = (scores.column(member.task, member.key, arm) for arm in ArmName)
        places = layout.tasks.get(member.task)
        asked = set(places.keys) if places else set()
        off += len(asked - baseline.keys())
        on += len(asked - candidate.keys())
        either += len(asked - (baseline.keys() & candidate.keys()))
    return MissingCount(baseline=off, candidate=on, either=either)


def sample_of(members: Sequence[MetricSpec], scores: Scores, layout: Layout, plan: Plan) -> Sample | Untestable:
    """A metric's sample, chosen by the kinds of what it pools."""
    kinds = {member.kind for member in members}
    if not members:
        return Untestable(reason=Reason("untested.no-member"))
    if MetricKind.OTHER in kinds:
        return Untestable(reason=Reason("untested.undeclared"))
    if MetricKind.GROUP_MEAN in kinds or len(kinds) > 1:
        return Untestable(reason=Reason("untested.mixed"))
    parts = [_Both.of(member, scores, layout, plan.score_bounds_of(member)) for member in members]
    if kinds == {MetricKind.MACRO_F1}:
        return _labels(parts)
    return _lists(parts) if kinds == {MetricKind.LIST_MEAN} else _numbers(parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Both:
    """One task's scores of one metric in both arms, None where missing."""

    places: Places
    baseline: list[Any]
    candidate: list[Any]
    bounds: tuple[float, float]

    @classmethod
    def of(cls, member: MetricSpec, scores: Scores, layout: Layout, bounds: tuple[float, float]) -> _Both:
        places = layout.tasks[member.task]
        off, on = (_in_order(scores.column(member.task, member.key, arm), places.keys) for arm in ArmName)
        return cls(places=places, baseline=off, candidate=on, bounds=bounds)

    def values(self) -> Iterable[Any]:
        return (value for arm in (self.baseline, self.candidate) for value in arm if value is not None)


def _in_order(column: Column, keys: Sequence[Key]) -> list[Any]:
    return [column.get(key) for key in keys]


def _numbers(parts: Sequence[_Both]) -> Sample | Untestable:
    types = {kind for part in parts for arm in (part.baseline, part.candidate) for kind in set(map(type, arm))}
    if not all(issubclass(kind, (int, float)) for kind in types - {type(None)}):
        return Untestable(reason=Reason("untested.no-number"))
    sample = MeanSample(
        number=np.concatenate([part.places.numbers for part in parts]),
        unit=np.concatenate([part.places.units for part in parts]),
        baseline=np.concatenate([np.array(part.baseline, dtype=np.float64) for part in parts]),
        candidate=np.concatenate([np.array(part.candidate, dtype=np.float64) for part in parts]),
    )
    return _in_shares(sample, _bounds_of_answers(parts))


def _lists(parts: Sequence[_Both]) -> Sample | Untestable:
    """Every entry of every list is a score; those of one list share its unit."""
    if not all(isinstance(value, (list, tuple)) for part in parts for value in part.values()):
        return Untestable(reason=Reason("untested.no-list"))
    longest = max((len(value) for part in parts for value in part.values()), default=1)
    lengths: list[int] = []
    baseline: list[float] = []
    candidate: list[float] = []
    for part in parts:
        for off, on in zip(part.baseline, part.candidate, strict=True):
            if off is not None and on is not None and len(off) != len(on):
                return Untestable(reason=Reason("untested.lengths"))
            known = off if off is not None else on
            length = longest if known is None else len(known)
            lengths.append(length)
            baseline += [np.nan] * length if off is None else off
            candidate += [np.nan] * length if on is None else on
    sample = MeanSample(
        number=np.repeat(np.concatenate([part.places.numbers for part in parts]), lengths),
        unit=np.repeat(np.concatenate([part.places.units for part in parts]), lengths),
        baseline=np.array(baseline, dtype=np.float64),
        candidate=np.array(candidate, dtype=np.float64),
    )
    return _in_shares(sample, np.repeat(_bounds_of_answers(parts), lengths, axis=0))


def _bounds_of_answers(parts: Sequence[_Both]) -> FloatArray:
    """The lowest and the highest possible score of each answer."""
    return np.concatenate([np.tile(part.bounds, (len(part.baseline), 1)) for part in parts]).astype(np.float64)


def _in_shares(sample: MeanSample, bounds: FloatArray) -> Sample | Untestable:
    """The scores in shares of their range, if all lie in it."""
    low, high = bounds.T
    arms = [(scores - low) / (high - low) for scores in (sample.baseline, sample.candidate)]
    for scores, shares in zip((sample.baseline, sample.candidate), arms, strict=True):
        if (outside := np.flatnonzero(np.abs(shares - 0.5) > 0.5 + ROUNDING)).size:
            first = outside[0]
            values = {"score": scores[first], "low": low[first], "high": high[first]}
            return Untestable(reason=Reason("untested.bounds", {name: float(one) for name, one in values.items()}))
    baseline, candidate = (np.clip(shares, 0.0, 1.0) for shares in arms)
    return replace(sample, baseline=baseline, candidate=candidate)


def _labels(parts: Sequence[_Both]) -> Sample | Untestable:
    if not all(isinstance(value, (list, tuple)) and len(value) == 2 for part in parts for value in part.values()):
        return Untestable(reason=Reason("untested.no-labels"))
    return LabelSample(tasks=tuple(_task_labels(part) for part in parts))


def _task_labels(part: _Both) -> TaskLabels:
    known = [off or on for off, on in zip(part.baseline, part.candidate, strict=True)]
    counts = Counter(pair[0] for pair in known if pair)
    usual = max(counts, key=lambda label: (counts[label], repr(label)), default="")
    return TaskLabels(
        number=part.places.numbers,
        unit=part.places.units,
        truth=[pair[0] if pair else usual for pair in known],
        baseline=[pair[1] if pair else None for pair in part.baseline],
        candidate=[pair[1] if pair else None for pair in part.candidate],
    )


def _wrong_labels(labels: set[Label]) -> dict[Label, Label]:
    """For each right label a wrong one among those that occur: a label of its own would be a class of its own."""
    ordered = sorted(labels, key=repr)
    return dict(zip(ordered, [*ordered[1:], ordered[0] if len(ordered) > 1 else "(none)"], strict=True))
