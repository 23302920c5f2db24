"""A comparison's plan, which is frozen and hashed: pins, tasks and metrics, sampling, policy, decision rule."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import ClassVar, TypeVar

from qualab.errors import InvalidValue
from qualab.model.names import Api, ArmName, MetricKind, Objective, RequestKind
from qualab.model.reason import Reason

T = TypeVar("T")
DECLARED = "declared"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}(?![0-9a-f])|sha512:[0-9a-f]{128}(?![0-9a-f])")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})(?:/|$)")


class PinPart(StrEnum):
    IMAGE = "image"
    REVISION = "revision"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What a plan says that both arms run. Empty is not said."""

    image: str = ""
    """As "store/name@sha256:...". A name with a tag alone may be another image tomorrow."""
    revision: str = ""
    """The checkpoint's commit. A branch or a tag may move."""
    checkpoint_hash: str = ""

    def fixed(self, part: PinPart) -> str:
        """The digest, commit or hash that the plan names; empty where it names none, or something that may move."""
        if part is PinPart.IMAGE:
            return digest_of(self.image)
        if part is PinPart.REVISION:
            return commit_of(self.revision)
        return self.checkpoint_hash

    @property
    def unpinned(self) -> tuple[Reason, ...]:
        """What may be something else tomorrow; empty where everything is pinned."""
        found = []
        if not self.fixed(PinPart.IMAGE):
            found.append(Reason("image-floats", {"image": self.image}) if self.image else Reason("no-image"))
        if not self.fixed(PinPart.REVISION) and not self.checkpoint_hash:
            floats = Reason("revision-floats", {"revision": self.revision})
            found.append(floats if self.revision else Reason("no-revision"))
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinFound:
    """One part of one arm, as it was found."""

    arm: ArmName
    part: PinPart
    values: tuple[str, ...]
    """Every name under which it is known (an image has its index's digest and its own), the most telling first."""
    source: str
    """Who said so, as "kubectl"; "declared" where only the plan does."""

    @property
    def is_verified(self) -> bool:
        return self.source != DECLARED

    def is_other_than(self, other: PinFound) -> bool:
        """Whether the two share no name."""
        return set(self.values).isdisjoint(other.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    """Whether a comparison can be repeated with the same servers, and who says so."""

    is_pinned: bool
    unpinned: tuple[Reason, ...]
    found: tuple[PinFound, ...]


def digest_of(image: str) -> str:
    """The digest that an image's reference ends with; empty where it has none."""
    found = DIGEST.search(image)
    return found[0] if found and image.endswith(found[0]) else ""


def commit_of(revision: str) -> str:
    """A whole commit; empty for everything that may move, an abbreviated commit too."""
    return revision if COMMIT.fullmatch(revision) else ""


def snapshot_of(path: str) -> str:
    """The commit in the path of a Hugging Face snapshot; empty for other paths."""
    found = _SNAPSHOT.search(path)
    return found[1] if found else ""


def arms_text(by_arm: Mapping[ArmName, str]) -> str:
    """As "baseline=a,candidate=b"."""
    return ",".join(f"{arm}={name}" for arm, name in by_arm.items())


def by_arm(text: str) -> dict[ArmName, str]:
    """`arms_text` read back. Raises ValueError for another form, or another arm."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    arms = set(ArmName)
    if wrong := [name for name, equals, value in pairs if name.strip() not in arms or not equals or not value.strip()]:
        raise ValueError(f"'{wrong[0]}' is not of the form baseline=NAME,candidate=NAME")
    return {ArmName(name.strip()): value.strip() for name, _, value in pairs}


class FindingCode(StrEnum):
    """What two runs may differ in; the names that `--allow` takes."""

    TASK_VERSION = "task-version"
    TASK_CONFIG = "task-config"
    DATASET = "dataset"
    FEWSHOT = "fewshot"
    CHAT_TEMPLATE = "chat-template"
    SYSTEM_INSTRUCTION = "system-instruction"
    GENERATION = "generation-settings"
    FORMAT = "format"
    PROMPTS = "prompts"
    TARGETS = "targets"
    DUPLICATES = "duplicates"
    ROWS = "rows"
    HARNESS = "harness-version"
    MODEL = "model"
    SEED = "seed"
    LIMIT = "limit"
    TASKS = "tasks"
    VALUES = "reported-values"
    ASSUMED = "assumed"
    RUNS = "runs"
    SAME_RUN = "same-run"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFinding:
    """Something that a person has to know of two runs."""

    code: FindingCode
    what: Reason
    stops: bool = False
    is_allowed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskJoin:
    """One task's outer join, in answers (items times repeats)."""

    task: str
    paired: int
    only_baseline: int
    only_candidate: int
    prompt_differs: int
    """The same document, asked otherwise: no pair, unless that is allowed."""
    target_differs: int
    duplicated: int
    """Logged more than once in one arm: no pair either, unless that is allowed: then the first counts."""
    lost: int = 0
    """Counted by a log's own values, and in neither log: missing in both arms, unless that is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Where an imported comparison comes from, and what was found on the way."""

    baseline: str
    """Format and run, as "lm-eval 0.4.13, results_2026-01-02T03-04-05.json"."""
    candidate: str
    joins: tuple[TaskJoin, ...]
    findings: tuple[ImportFinding, ...]
    baseline_model: str = ""
    candidate_model: str = ""
    allowed: tuple[FindingCode, ...] = ()
    """Items that were taken for pairs all the same: those whose prompts or right answers differ, or that come twice."""
    plan_hash: str = ""
    """Of the plan of the run that these files were exported from; empty where they were not exported by qualab."""
    is_rule_changed: bool = False
    """The margin, or what else decides, is not that run's any more."""
    tasks_with_more_answers: tuple[str, ...] = ()
    """Tasks whose scores come from more than the stored texts: the same text may well have another score."""
    is_of_store: bool = False
    leaves_unasked: bool = False
    """What only one of two runs asked is no item of this comparison, and not missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One row of a report: a metric of a task, or of a group of tasks."""

    task: str
    name: str
    """lm-eval's metric name, as "exact_match"."""
    filter: str
    """lm-eval's filter name, as "strict-match" or "none"."""
    kind: MetricKind
    is_primary: bool
    exercises_drafter: bool
    """False where the scores come from log-likelihoods: no token is drafted there."""
    higher_is_better: bool = True
    members: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """lm-eval's key within a task's results, as "exact_match,strict-match"."""
        return f"{self.name},{self.filter}"

    @property
    def id(self) -> str:
        """Unique within a plan, as "gsm8k/exact_match,strict-match"."""
        return f"{self.task}/{self.key}"


def deciding_metrics(metrics: Sequence[MetricSpec]) -> dict[str, MetricSpec]:
    """Map each task to the metric whose change makes an item a gain or a loss.

    Its own first primary metric, else that of a group's primary metric, else its first.
    """
    primaries = [spec for spec in metrics if spec.is_primary]
    of_groups = (
        spec for group in primaries for spec in metrics if spec.task in group.members and spec.key == group.key
    )
    found: dict[str, MetricSpec] = {}
    for spec in (*primaries, *of_groups, *metrics):
        if not spec.members:
            found.setdefault(spec.task, spec)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One task of a plan, with everything that decides its prompts and scores."""

    name: str
    benchmark: str
    """The benchmark that the task belongs to, as "kobest" for "kobest_boolq"."""
    kind: RequestKind
    version: str
    config_hash: str
    """SHA-256 of the task's resolved YAML."""
    data_hash: str
    """SHA-256 of the documents that are asked, in their order."""
    dataset: str
    """Hub name and configuration, as "skt/kobest_v1:boolq"."""
    revision: str
    """The hub commit that the documents were read at, or "local" where they came from a data directory."""
    num_fewshot: int
    n_items: int
    n_available: int
    cluster_field: str = ""
    """Document field that items of one cluster share; empty where items are independent."""
    n_choices: int | None = None
    """Choices that every item offers, where the task declares them; None otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """What is asked of a model, the same in both arms."""

    model: str
    api: Api
    """Route of generations; log-likelihoods always go to completions."""
    gen_kwargs: dict[str, object] = field(default_factory=dict)
    """Overrides of the tasks' own generation settings, in lm-eval's names."""
    allow_extra: bool = False
    seed: int = 1234
    """Seed of few-shot draws, item order and sampling (repeat r samples with seed + r)."""
    repeats: int = 1
    system_instruction: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPolicy:
    """How requests are sent, the same in both arms."""

    concurrency: int = 8
    """Requests in flight in each arm."""
    timeout_s: float = 300.0
    """Deadline of one attempt, from the moment it is sent."""
    max_attempts: int = 5
    backoff_s: float = 0.5
    """First pause between attempts; doubles, with full jitter, up to `max_backoff_s`."""
    max_backoff_s: float = 30.0
    max_wait_s: float = 600.0
    """Longest time that one request waits because its server asks for it (429, 503 with Retry-After); no attempts."""
    max_failed_share: float = 0.1
    """An arm with a larger share of missing answers stops the run."""


OTHERS_CAP = 0.05
"""Share of the pairs without an answer above which a metric that is no primary makes a comparison INVALID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRule:
    """What will be concluded from which evidence."""

    margin: float = 0.02
    """Largest difference that still counts as equal, a fraction."""
    margins: dict[str, float] = field(default_factory=dict)
    """Margins of their own, by benchmark, task (or group) or metric id; the narrower name wins."""
    score_bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Lowest and highest possible score, by the same names; 0 and 1 elsewhere. Differences are shares of the range."""
    objective: Objective = Objective.EQUIVALENCE
    power: float = 0.8
    """Chance of proving the margin without a true difference that is aimed at: sizes come from it, verdicts not."""
    alpha: float = 0.05
    """Level of each one-sided test; intervals are at 1 - 2 alpha."""
    max_missing_share: float | None = None
    """A comparison with a larger share of pairs without an answer is INVALID. None: a quarter of a primary metric's
    margin, 5 % for other metrics."""
    missing_lost: float | None = None
    """Share of the pairs without an answer that the worst case takes as lost; None takes all."""
    min_accepted_share: float = 0.0
    """A comparison whose candidate accepts a smaller share of the draft tokens in some task is INVALID."""
    allow_unobserved: bool = False
    """Whether a verdict may stand where nothing tells that the drafter ran."""
    strict: bool = False
    """Whether a loss that the adjusted p shows is a REGRESSION inside the margin too, and a gain an IMPROVEMENT."""

    def missing_cap(self, *, is_primary: bool) -> float:
        """Return the share of pairs without an answer above which a comparison is INVALID."""
        if self.max_missing_share is not None:
            return self.max_missing_share
        return self.margin / 4.0 if is_primary else OTHERS_CAP


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRule(DecisionRule):
    """The plan's rule for one metric: with its own margin, and which way is better."""

    higher_is_better: bool = True

    @property
    def sides(self) -> tuple[bool, bool]:
        """Whether the tests against −margin, and against +margin, have to reject."""
        if self.objective is Objective.EQUIVALENCE:
            return True, True
        return self.higher_is_better, not self.higher_is_better

    def larger(self, lower: float, upper: float) -> float:
        """The larger value of those sides of the margin that the objective takes."""
        return max(value for value, is_taken in zip((lower, upper), self.sides, strict=True) if is_taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What was taken as true when the plan was made. Primary metrics by id; a fraction each."""

    discordance: dict[str, float]
    """Share of items right in exactly one arm."""
    design_effect: dict[str, float]
    """Variance over that of independent items."""
    noise: dict[str, float]
    """Part of the discordance that two runs of the same arm have too: what repeats divide. Empty without repeats."""
    joint_power: float | None
    """Chance that every primary metric is proven if there is no true difference; None where it is unknown."""
    missing: float = 0.0
    """Share of each arm's answers that was expected to be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPlan:
    """Looks after equal shares of every task's items, at each of which the run may stop.

    Levels are spent in the O'Brien-Fleming type of Lan & DeMets (1983): the rule's alpha for each one-sided test at the
    margin, `harm_alpha` for a loss.
    """

    n_looks: int
    """2 to 10, the last at the end."""
    harm_alpha: float = 0.025
    """One-sided level of "the candidate is worse", shared equally by the primary metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisePlan:
    """Further runs of the baseline, after the arms: all items that generate, the same bodies, an order of their own."""

    runs: int
    concurrency: int
    """Requests in flight; another number than the arms' shows what the load of a server does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterCosts:
    """What a round of drafting costs beyond a step of the model alone, both in such steps. They decide nothing."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # a setting, too

    draft: float
    """α: drafting its tokens."""
    overhead: float = 0.0
    """β: verifying several tokens instead of one, and choosing among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A comparison's plan. Its canonical JSON is hashed and stored before the first request."""

    suite: str
    requested: tuple[str, ...]
    tasks: tuple[TaskSpec, ...]
    metrics: tuple[MetricSpec, ...]
    sampling: SamplingPlan
    policy: RequestPolicy
    rule: DecisionRule
    limit: float | None
    """lm-eval's --limit: items a task, or a fraction below 1; None asks all."""
    num_fewshot: int | None
    harness_version: str
    assumptions: Assumptions | None = None
    """Only where `qualab plan` made the plan."""
    looks: LookPlan | None = None
    noise_floor: NoisePlan | None = None
    pins: Pins = field(default_factory=Pins)
    drafter_costs: DrafterCosts | None = None
    imported: Imported | None = None
    """None where qualab asked the endpoints itself: the plan was made before the data."""
    sequential: bool = False
    """Whether the candidate is asked after the baseline, for a device that holds one of them, and not along with it."""
    schema: int = 2

    @property
    def primaries(self) -> tuple[MetricSpec, ...]:
        return tuple(metric for metric in self.metrics if metric.is_primary)

    def members_of(self, metric: MetricSpec) -> list[MetricSpec]:
        """The metrics that a row pools: itself, or a group's members that have it."""
        if metric.kind is not MetricKind.GROUP_MEAN:
            return [metric]
        return [other for other in self.metrics if other.task in metric.members and other.key == metric.key]

    def benchmarks_of(self, metric: MetricSpec) -> set[str]:
        """The benchmark of a metric's task; of a group those of its members."""
        names = set(metric.members) or {metric.task}
        return {task.benchmark for task in self.tasks if task.name in names}

    def named(self, metric: MetricSpec, values: Mapping[str, T]) -> T | None:
        """What is given for a metric by name: its id before its task, that before its benchmark; None if nothing."""
        benchmarks = self.benchmarks_of(metric)
        names = (metric.id, metric.task, *(benchmarks if len(benchmarks) == 1 else ()))
        return next((values[name] for name in names if name in values), None)

    def rule_for(self, metric: MetricSpec) -> MetricRule:
        """The rule with this metric's own margin."""
        values = {one.name: getattr(self.rule, one.name) for one in fields(self.rule)}
        margin = self.named(metric, self.rule.margins)
        own = {"margin": self.rule.margin if margin is None else margin, "margins": {}}
        return MetricRule(**{**values, **own}, higher_is_better=metric.higher_is_better)

    def score_bounds_of(self, metric: MetricSpec) -> tuple[float, float]:
        """The lowest and the highest score that the metric can have."""
        return self.named(metric, self.rule.score_bounds) or (0.0, 1.0)

    @property
    def margin_names(self) -> tuple[str, ...]:
        """Everything that a margin or bounds of scores can be given for."""
        benchmarks = (benchmark for metric in self.metrics for benchmark in sorted(self.benchmarks_of(metric)))
        return tuple(dict.fromkeys((*benchmarks, *(m.task for m in self.metrics), *(m.id for m in self.metrics))))


def check_names(values: Mapping[str, object], plan: Plan, *, what: str) -> None:
    """Raises InvalidValue for a name that is no benchmark, task or metric of the plan, with the nearest that is."""
    for name in values:
        if name not in plan.margin_names:
            near = difflib.get_close_matches(name, plan.margin_names, n=1, cutoff=0.4)
            hint = f"Did you mean {near[0]}?" if near else f"It has: {', '.join(plan.margin_names)}"
            said = f"the plan has no benchmark, task or metric named {name}"
            raise InvalidValue(f"{what}: {said}", hint=hint, fields={what: f"{said}. {hint}"})
