"""Scores as they were stored, where answers were expected, and the samples made from both."""

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
from qualab.model.items import Item, Place, Score
from qualab.model.names import ArmName, MetricKind, MissingPolicy
from qualab.model.plan import MetricSpec, Plan
from qualab.model.reason import Reason
from qualab.stats.checks import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Random streams by name from one seed: adding a metric moves no other's."""

    seed: int

    @classmethod
    def of(cls, plan_hash: str) -> Streams:
        return cls(seed=int(sha256(f"analysis of {plan_hash}")[:12], 16))

    def rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, int(sha256(name)[:12], 16)])


Column = dict[Place, Any]
"""One metric's scores in one arm, as the harness gave them."""


@dataclass(slots=True)
class Scores:
    """Scores by task, metric and arm, and the hash of what was read."""

    columns: dict[tuple[str, str, ArmName], Column] = field(default_factory=dict)
    again: tuple[Scores, ...] = ()
    """Further runs of the baseline that are in the test; empty where it answered once."""
    answered: dict[ArmName, set[Place]] = field(default_factory=lambda: {arm: set() for arm in ArmName})
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, score: Score, task: str) -> None:
        value, place = raw_value(score), (score.position, score.repeat)
        self.columns.setdefault((task, score.metric, score.arm), {})[place] = value
        self.answered[score.arm].add(place)
        self.digest.update(f"{task}\0{score.metric}\0{score.arm.value}\0{place}\0{value!r}\n".encode())

    def column(self, task: str, metric: str, arm: ArmName) -> Column:
        return self.columns.get((task, metric, arm), {})

    def of_baseline(self, task: str, metric: str) -> list[Column]:
        """Return the baseline's scores run by run."""
        return [own.column(task, metric, ArmName.BASELINE) for own in (self, *self.again)]

    def n_changed(self, places: Set[Place]) -> int:
        """Count the items at these places with another score in any metric."""
        changed: set[int] = set()
        for (task, metric, arm), own in self.columns.items():
            if arm is ArmName.BASELINE:
                other = self.column(task, metric, ArmName.CANDIDATE)
                changed |= {key[0] for key in own.keys() & other.keys() & places if own[key] != other[key]}
        return len(changed)


def read_scores(stored: Iterable[Score], items: Sequence[Item]) -> Scores:
    """Read stored scores. `items` by position."""
    scores = Scores()
    for score in stored:
        scores.add(score, items[score.position].task)
    return scores


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """One task's expected answers, in document order: the random order of asking leaves no trace."""

    keys: list[Place]
    numbers: IntArray
    """Unique within the comparison."""
    units: IntArray
    """Name of the group that stands and falls together: the cluster, else the item with its repeats. Unique."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    tasks: dict[str, Places]
    n_units: int


def layout_of(plan: Plan, items: Sequence[Item], *, left_out: Set[Place] = frozenset()) -> Layout:
    """Lay out where the plan expects answers."""
    by_task: dict[str, list[Item]] = {task.name: [] for task in plan.tasks}
    for item in items:
        by_task.setdefault(item.task, []).append(item)
    repeats, known, start = plan.sampling.repeats, dict[tuple[str, ...], int](), 0
    tasks: dict[str, Places] = {}
    for task, own in by_task.items():
        own.sort(key=lambda item: item.doc_id)
        units = [("cluster", item.cluster) if item.cluster else ("item", str(item.doc_id)) for item in own]
        codes = [known.setdefault((task, *unit), len(known)) for unit in units]
        keys = [(item.position, repeat) for item in own for repeat in range(repeats)]
        kept = np.array([key not in left_out for key in keys], dtype=np.bool_)
        tasks[task] = Places(
            keys=[key for key in keys if key not in left_out],
            numbers=np.arange(start, start + len(own) * repeats, dtype=np.int64)[kept],
            units=np.repeat(np.array(codes, dtype=np.int64), repeats)[kept],
        )
        start += len(own) * repeats
    return Layout(tasks=tasks, n_units=len(known))


def scores_hash(scores: Scores, layout: Layout) -> Any:
    """Return a SHA-256 of scores and layout, to which more may be added."""
    digest = scores.digest.copy()
    for task, places in layout.tasks.items():
        digest.update(f"{task}\0{places.keys}\0{places.units.tolist()}\n".encode())
    return digest


def input_hash(
    scores: Scores, layout: Layout, arms: Sequence[ArmSummary], pairs: PairSummary, *, more: Sequence[object] = ()
) -> str:
    """Hash what the answers came to: scores, clusters, statuses, pairs, and `more` computed from answers.

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
"""Largest excess over its range that a score may have, as a share of the range."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeanSample:
    """Scores whose mean is the metric, in shares of its range (0 to 1). NaN is missing."""

    number: IntArray
    """Which answer each score belongs to."""
    unit: IntArray
    baseline: FloatArray
    candidate: FloatArray
    n_runs: int = 1
    """Answers of the baseline whose mean `baseline` is."""

    @property
    def n_items(self) -> int:
        return self.baseline.size

    @property
    def is_missing(self) -> BoolArray:
        return np.asarray(np.isnan(self.baseline) | np.isnan(self.candidate))

    @property
    def differences(self) -> FloatArray:
        return self.candidate - self.baseline

    @property
    def identity(self) -> Hashable:
        """Equal for two metrics with the same scores on the same items."""
        return self.number.tobytes(), self.baseline.tobytes(), self.candidate.tobytes()

    def under(self, policy: MissingPolicy, *, right: float, n_lost: int | None = None) -> MeanSample:
        """Fill or drop missing scores. `right` scores a right answer, 1 − `right` a wrong one.

        With `n_lost` a worst case changes only so many of the answers without a pair, those that change most.
        """
        if policy is MissingPolicy.COMPLETE:
            kept, names = ~self.is_missing, ("number", "unit", "baseline", "candidate")
            return replace(self, **{name: getattr(self, name)[kept] for name in names})
        off, on = (right if is_right else 1.0 - right for is_right in _FILLED_AS_RIGHT[policy])
        baseline = np.where(np.isnan(self.baseline), off, self.baseline)
        candidate = np.where(np.isnan(self.candidate), on, self.candidate)
        if n_lost is not None and policy is not MissingPolicy.WRONG:
            numbers, codes = np.unique(self.number[self.is_missing], return_inverse=True)
            weights = np.abs((candidate - baseline)[self.is_missing])
            changes = np.bincount(codes, weights=weights, minlength=numbers.size)
            # those that change most are lost, ties in order of place
            is_same = ~np.isin(self.number, numbers[np.argsort(-changes, kind="stable")[:n_lost]])
            baseline = np.where(np.isnan(self.baseline) & is_same, np.nan_to_num(self.candidate), baseline)
            candidate = np.where(np.isnan(self.candidate) & is_same, np.nan_to_num(self.baseline), candidate)
        return replace(self, baseline=baseline, candidate=candidate)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskLabels:
    """One task's right labels and those of both arms, as codes from 0 on."""

    number: IntArray
    unit: IntArray
    truth: IntArray
    """The most frequent one where neither arm has the item: the harness tells it with a score only."""
    baseline: IntArray
    """-1 where the answer is missing."""
    candidate: IntArray
    n_labels: int

    @property
    def identity(self) -> Hashable:
        return tuple(values.tobytes() for values in (self.number, self.truth, self.baseline, self.candidate))

    @property
    def is_missing(self) -> BoolArray:
        return np.asarray((self.baseline < 0) | (self.candidate < 0))

    def complete(self) -> TaskLabels:
        kept, names = ~self.is_missing, ("number", "unit", "truth", "baseline", "candidate")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})

    def filled(self, *, off_is_right: bool, on_is_right: bool, lost: IntArray | None = None) -> TaskLabels:
        """Fill each missing label; outside of `lost` (None: everywhere) with the other arm's."""
        # one of those that occur: a label of its own would be a class of its own
        wrong = (self.truth + 1) % max(2, self.n_labels)
        is_lost = np.ones(self.truth.size, np.bool_) if lost is None else np.isin(np.arange(self.truth.size), lost)

        def fill(labels: IntArray, others: IntArray, *, is_right: bool) -> IntArray:
            same = np.where(others < 0, self.truth, others)
            return np.where(labels < 0, np.where(is_lost, self.truth if is_right else wrong, same), labels)

        baseline = fill(self.baseline, self.candidate, is_right=off_is_right)
        return replace(self, baseline=baseline, candidate=fill(self.candidate, self.baseline, is_right=on_is_right))

    def changed_places(self, *, off_is_right: bool, on_is_right: bool) -> IntArray:
        """Find where filling in makes one arm right and the other wrong."""
        filled = self.filled(off_is_right=off_is_right, on_is_right=on_is_right)
        is_changed = (filled.baseline == self.truth) != (filled.candidate == self.truth)
        return np.flatnonzero(self.is_missing & is_changed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelSample:
    """Labels whose macro-F1, weighted by the tasks' sizes, is the metric."""

    tasks: tuple[TaskLabels, ...]

    @property
    def n_items(self) -> int:
        return sum(task.truth.size for task in self.tasks)

    @property
    def identity(self) -> Hashable:
        return tuple(task.identity for task in self.tasks)

    def under(self, policy: MissingPolicy, *, right: float, n_lost: int | None = None) -> LabelSample:
        """Fill or drop missing labels; `right` is unused, `n_lost` as for means."""
        del right
        if policy is MissingPolicy.COMPLETE:
            return LabelSample(tasks=tuple(task for task in map(TaskLabels.complete, self.tasks) if task.truth.size))
        off, on = _FILLED_AS_RIGHT[policy]
        left, filled = n_lost, []
        for task in self.tasks:
            lost = None
            if left is not None and policy is not MissingPolicy.WRONG:
                lost = task.changed_places(off_is_right=off, on_is_right=on)[:left]
                left -= lost.size
            filled.append(task.filled(off_is_right=off, on_is_right=on, lost=lost))
        return LabelSample(tasks=tuple(task for task in filled if task.truth.size))


Sample = MeanSample | LabelSample

_FILLED_AS_RIGHT: Mapping[MissingPolicy, tuple[bool, bool]] = {
    MissingPolicy.WRONG: (False, False),
    MissingPolicy.AGAINST_CANDIDATE: (True, False),
    MissingPolicy.AGAINST_BASELINE: (False, True),
}
"""Tells whether a missing answer of the baseline, and of the candidate, counts as right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingCount:
    baseline: int
    candidate: int
    either: int


def missing_of(members: Sequence[MetricSpec], scores: Scores, layout: Layout) -> MissingCount:
    """Count answers without a score, over all members."""
    off, on = set[Hashable](), set[Hashable]()
    for member in members:
        places = layout.tasks.get(member.task)
        candidate = [scores.column(member.task, member.key, ArmName.CANDIDATE)]
        for missing, columns in zip((off, on), (baselines_of(member, scores), candidate), strict=True):
            keys = places.keys if places else ()
            missing |= {(member.task, key) for key in keys if not all(key in column for column in columns)}
    return MissingCount(baseline=len(off), candidate=len(on), either=len(off | on))


def baselines_of(metric: MetricSpec, scores: Scores) -> list[Column]:
    """Return the baseline's scores of each run that this metric's test takes: macro-F1 takes the first alone."""
    columns = scores.of_baseline(metric.task, metric.key)
    is_repeated = metric.kind is not MetricKind.MACRO_F1 and all(columns)
    return columns if is_repeated else columns[:1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _TaskScores:
    places: Places
    baseline: list[Any]
    """Means over the baseline's answers, where it has several."""
    candidate: list[Any]
    n_runs: int
    bounds: tuple[float, float]

    def values(self) -> Iterable[Any]:
        return (value for arm in (self.baseline, self.candidate) for value in arm if value is not None)


def sample_of(members: Sequence[MetricSpec], scores: Scores, layout: Layout, plan: Plan) -> Sample | Reason:
    """Make a metric's sample from the metrics that its row pools, or say why it has none."""
    kinds = {member.kind for member in members}
    if not members:
        return Reason("untested.no-member")
    if MetricKind.OTHER in kinds:
        return Reason("untested.undeclared")
    if MetricKind.GROUP_MEAN in kinds or len(kinds) > 1:
        return Reason("untested.mixed")
    parts = []
    for member in members:
        places = layout.tasks[member.task]
        runs, bounds = baselines_of(member, scores), plan.score_bounds_of(member)
        baseline = [_mean([column.get(key) for column in runs]) for key in places.keys]
        column = scores.column(member.task, member.key, ArmName.CANDIDATE)
        candidate = [column.get(key) for key in places.keys]
        part = _TaskScores(places=places, baseline=baseline, candidate=candidate, n_runs=len(runs), bounds=bounds)
        parts.append(part)
    make = {MetricKind.MACRO_F1: _labels, MetricKind.LIST_MEAN: _lists}.get(members[0].kind, _numbers)
    return make(parts)


def _mean(values: list[Any]) -> Any:
    """Return one item's mean over the baseline's answers, entry by entry of a list; None where one is missing."""
    if len(values) == 1 or any(value is None for value in values):
        return values[0] if len(values) == 1 else None
    if not isinstance(values[0], (list, tuple)):
        return sum(values) / len(values)
    if len({len(value) for value in values}) > 1:
        return None
    return [sum(entries) / len(entries) for entries in zip(*values, strict=True)]


def _numbers(parts: Sequence[_TaskScores]) -> Sample | Reason:
    types = {kind for part in parts for kind in set(map(type, part.values()))}
    if not all(issubclass(kind, (int, float)) for kind in types):
        return Reason("untested.no-number")
    baseline, candidate = (
        np.concatenate([np.array(getattr(part, arm.value), dtype=np.float64) for part in parts]) for arm in ArmName
    )
    return _in_shares(parts, baseline, candidate, 1)


def _lists(parts: Sequence[_TaskScores]) -> Sample | Reason:
    """Every entry of a list is a score; those of one list share its unit."""
    if not all(isinstance(value, (list, tuple)) for part in parts for value in part.values()):
        return Reason("untested.no-list")
    longest = max((len(value) for part in parts for value in part.values()), default=1)
    lengths: list[int] = []
    baseline: list[float] = []
    candidate: list[float] = []
    for part in parts:
        for off, on in zip(part.baseline, part.candidate, strict=True):
            if off is not None and on is not None and len(off) != len(on):
                return Reason("untested.lengths")
            known = off if off is not None else on
            length = longest if known is None else len(known)
            lengths.append(length)
            baseline += [np.nan] * length if off is None else off
            candidate += [np.nan] * length if on is None else on
    return _in_shares(parts, np.array(baseline, dtype=np.float64), np.array(candidate, dtype=np.float64), lengths)


def _in_shares(
    parts: Sequence[_TaskScores], baseline: FloatArray, candidate: FloatArray, lengths: int | list[int]
) -> Sample | Reason:
    """`lengths`: scores of each answer."""
    ranges = np.concatenate([np.tile(part.bounds, (len(part.baseline), 1)) for part in parts]).astype(np.float64)
    low, high = np.repeat(ranges, lengths, axis=0).T
    arms = []
    for scores in (baseline, candidate):
        shares = (scores - low) / (high - low)
        if (outside := np.flatnonzero(np.abs(shares - 0.5) > 0.5 + ROUNDING)).size:
            first = outside[0]
            values = {"score": scores[first], "low": low[first], "high": high[first]}
            return Reason("untested.bounds", {name: float(value) for name, value in values.items()})
        arms.append(np.clip(shares, 0.0, 1.0))
    return MeanSample(
        number=np.repeat(np.concatenate([part.places.numbers for part in parts]), lengths),
        unit=np.repeat(np.concatenate([part.places.units for part in parts]), lengths),
        baseline=arms[0],
        candidate=arms[1],
        n_runs=min(part.n_runs for part in parts),
    )


def _labels(parts: Sequence[_TaskScores]) -> Sample | Reason:
    if not all(isinstance(value, (list, tuple)) and len(value) == 2 for part in parts for value in part.values()):
        return Reason("untested.no-labels")
    tasks = []
    for part in parts:
        known = [off or on for off, on in zip(part.baseline, part.candidate, strict=True)]
        counts = Counter(pair[0] for pair in known if pair)
        usual = max(counts, key=lambda label: (counts[label], repr(label)), default="")
        truth = [pair[0] if pair else usual for pair in known]
        answers = [[pair[1] if pair else None for pair in arm] for arm in (part.baseline, part.candidate)]
        labels = sorted({*truth, *answers[0], *answers[1]} - {None}, key=repr)
        codes = {None: -1} | {label: code for code, label in enumerate(labels)}
        arrays = (np.array([codes[label] for label in column], dtype=np.int64) for column in (truth, *answers))
        places, names = part.places, ("truth", "baseline", "candidate")
        coded = dict(zip(names, arrays, strict=True))
        tasks.append(TaskLabels(number=places.numbers, unit=places.units, n_labels=len(labels), **coded))
    return LabelSample(tasks=tuple(tasks))
