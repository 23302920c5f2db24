"""A comparison's plan, which is frozen and hashed: pins, tasks and metrics, sampling, policy, decision rule."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, ClassVar, TypeVar

from pydantic import Field

from qualab.errors import InvalidValue
from qualab.model.names import Api, ArmName, CacheState, MetricKind, Objective, RequestKind, Tier, Work
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
    """The image and checkpoint that both arms run; empty where the plan does not say."""

    image: str = ""
    """For example "store/name@sha256:...". A name with a tag alone may be another image tomorrow."""
    revision: str = ""
    checkpoint_hash: str = ""

    def fixed(self, part: PinPart) -> str:
        """The digest, commit or hash; empty where the plan names none, or one that may move."""
        if part is PinPart.IMAGE:
            return digest_of(self.image)
        if part is PinPart.REVISION:
            return commit_of(self.revision)
        return self.checkpoint_hash

    @property
    def unpinned(self) -> tuple[Reason, ...]:
        """Parts that may be something else tomorrow."""
        reasons = []
        if not self.fixed(PinPart.IMAGE):
            reasons.append(Reason("image-floats", {"image": self.image}) if self.image else Reason("no-image"))
        if not self.fixed(PinPart.REVISION) and not self.checkpoint_hash:
            floats = Reason("revision-floats", {"revision": self.revision})
            reasons.append(floats if self.revision else Reason("no-revision"))
        return tuple(reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinFound:
    arm: ArmName
    part: PinPart
    values: tuple[str, ...]
    """Every name under which it is known (an image has its index's digest and its own), the most telling first."""
    source: str

    @property
    def is_verified(self) -> bool:
        return self.source != DECLARED

    def is_other_than(self, other: PinFound) -> bool:
        return set(self.values).isdisjoint(other.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    is_pinned: bool
    unpinned: tuple[Reason, ...]
    found: tuple[PinFound, ...]


def digest_of(image: str) -> str:
    """Return the digest that an image's reference ends with, or an empty string."""
    match = DIGEST.search(image)
    return match[0] if match and image.endswith(match[0]) else ""


def commit_of(revision: str) -> str:
    """Return a whole commit; an empty string for everything that may move, an abbreviated commit too."""
    return revision if COMMIT.fullmatch(revision) else ""


def snapshot_of(path: str) -> str:
    """Return the commit in the path of a Hugging Face snapshot, or an empty string."""
    match = _SNAPSHOT.search(path)
    return match[1] if match else ""


def arms_text(by_arm: Mapping[ArmName, str]) -> str:
    """Write "baseline=a,candidate=b"."""
    return ",".join(f"{arm}={name}" for arm, name in by_arm.items())


def by_arm(text: str) -> dict[ArmName, str]:
    """Read `arms_text` back. Raises ValueError."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    arms = set(ArmName)
    if wrong := [name for name, equals, value in pairs if name.strip() not in arms or not equals or not value.strip()]:
        raise ValueError(f"'{wrong[0]}' is not of the form baseline=NAME,candidate=NAME")
    return {ArmName(name.strip()): value.strip() for name, _, value in pairs}


class FindingCode(StrEnum):
    """Differences between two logs; the names that `--allow` takes."""

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
    target_differs: int
    duplicated: int
    """Logged more than once in one arm: no pair either, unless that is allowed: then the first counts."""
    lost: int = 0
    """Counted by a log's own values, and in neither log: missing in both arms, unless that is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    baseline: str
    """Format and run, as "lm-eval 0.4.13, results_2026-01-02T03-04-05.json"."""
    candidate: str
    joins: tuple[TaskJoin, ...]
    findings: tuple[ImportFinding, ...]
    baseline_model: str = ""
    candidate_model: str = ""
    allowed: tuple[FindingCode, ...] = ()
    plan_hash: str = ""
    is_rule_changed: bool = False
    tasks_with_more_answers: tuple[str, ...] = ()
    """Tasks whose scores come from more than the stored texts: the same text may well have another score."""
    is_of_store: bool = False
    leaves_unasked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    task: str
    name: str
    filter: str
    kind: MetricKind
    is_primary: bool
    exercises_drafter: bool
    higher_is_better: bool = True
    members: tuple[str, ...] = ()
    tier: Annotated[Tier | None, Field(exclude_if=lambda tier: tier is None)] = None
    """None where no policy was given: primaries decide, and a loss of any other metric is a REGRESSION too."""

    @property
    def key(self) -> str:
        """lm-eval's key, as "exact_match,strict-match"."""
        return f"{self.name},{self.filter}"

    @property
    def id(self) -> str:
        """For example "gsm8k/exact_match,strict-match"."""
        return f"{self.task}/{self.key}"


def deciding_metrics(metrics: Sequence[MetricSpec]) -> dict[str, MetricSpec]:
    """Map each task to the metric whose change makes an item a gain or a loss.

    Its own first primary metric, else that of a group's primary metric, else its first.
    """
    primaries = [spec for spec in metrics if spec.is_primary]
    of_groups = (
        spec for group in primaries for spec in metrics if spec.task in group.members and spec.key == group.key
    )
    deciding: dict[str, MetricSpec] = {}
    for spec in (*primaries, *of_groups, *metrics):
        if not spec.members:
            deciding.setdefault(spec.task, spec)
    return deciding


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    name: str
    benchmark: str
    kind: RequestKind
    version: str
    config_hash: str
    data_hash: str
    dataset: str
    revision: str
    """The hub commit that the documents were read at, or "local" where they came from a data directory."""
    num_fewshot: int
    n_items: int
    n_available: int
    cluster_field: str = ""
    n_choices: int | None = None
    prompt_tokens: Annotated[int | None, Field(exclude_if=lambda tokens: tokens is None)] = None
    """About how long its prompts are, where it asks for a context that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    model: str
    api: Api
    """Route of generations; log-likelihoods always go to completions."""
    gen_kwargs: dict[str, object] = field(default_factory=dict)
    allow_extra: bool = False
    seed: int = 1234
    """Seed of few-shot draws, item order and sampling (repeat r samples with seed + r)."""
    repeats: int = 1
    system_instruction: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPolicy:
    concurrency: int = 8
    timeout_s: float = 300.0
    max_attempts: int = 5
    backoff_s: float = 0.5
    """First pause between attempts; doubles, with full jitter, up to `max_backoff_s`."""
    max_backoff_s: float = 30.0
    max_wait_s: float = 600.0
    """Longest time that one request waits because its server asks for it (429, 503 with Retry-After); no attempts."""
    max_failed_share: float = 0.1


OTHERS_CAP = 0.05
"""Share of the pairs without an answer above which a metric that is no primary makes a comparison INVALID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRule:
    margin: float = 0.02
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
    """True where a verdict may stand although nothing tells that the drafter ran."""
    strict: bool = False
    """True where a loss that the adjusted p shows is a REGRESSION inside the margin too, and a gain an IMPROVEMENT."""

    def missing_cap(self, *, is_primary: bool) -> float:
        """Share of pairs without an answer above which a comparison is INVALID."""
        if self.max_missing_share is not None:
            return self.max_missing_share
        return self.margin / 4.0 if is_primary else OTHERS_CAP


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRule(DecisionRule):
    higher_is_better: bool = True

    @property
    def sides(self) -> tuple[bool, bool]:
        """Tell whether the tests against −margin and +margin have to reject."""
        if self.objective is Objective.EQUIVALENCE:
            return True, True
        return self.higher_is_better, not self.higher_is_better

    def larger(self, lower: float, upper: float) -> float:
        """Larger value over the sides of the margin that the objective takes."""
        return max(value for value, is_taken in zip((lower, upper), self.sides, strict=True) if is_taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Assumptions of the power calculation: fractions, by the ids of primary metrics."""

    discordance: dict[str, float]
    design_effect: dict[str, float]
    noise: dict[str, float]
    """Part of the discordance that two runs of the same arm have too: what repeats divide. Empty without repeats."""
    joint_power: float | None
    missing: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPlan:
    """Looks after equal shares of every task's items, at each of which the run may stop.

    Levels are spent in the O'Brien-Fleming type of Lan & DeMets (1983): the rule's alpha for each one-sided test at the
    margin, `harm_alpha` for a loss.
    """

    n_looks: int
    harm_alpha: float = 0.025
    """One-sided level of "the candidate is worse", shared equally by the primary metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisePlan:
    """Further runs of the baseline, after the arms: all generating items, in an order of their own."""

    runs: int
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BankNoise:
    """How much two runs of the banked baseline differ: what a later sample may differ, too."""

    n_texts: int
    n_texts_differ: int
    n_scores: int
    """Scores of the tasks' deciding metrics."""
    n_scores_differ: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BankPlan:
    """A banked baseline whose answers stand in for this comparison's."""

    name: str
    comparison_id: str
    plan_hash: str
    """Plan hash of the comparison that was banked."""
    noise: BankNoise
    sample: int
    """Items that the baseline is asked again, to see whether it still answers so."""
    signoff: bool = False
    """True where a verdict from it may be signed off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """How much of the answers is held against the model's own probabilities, and what counts as foreign."""

    tau: float = 1.0
    """Nats below the model's choice from which a greedy token is foreign."""
    max_foreign_share: float = 0.001
    """Share of foreign tokens that CLEAN excludes."""
    calibration_margin: float = 0.01
    """Difference of the arms' excess of top choices that CLEAN excludes."""
    greedy_tokens: int = 100_000
    """Budget of both arms' greedy tokens together."""
    sampled_items: int = 200
    sampled_max_tokens: int = 256


NO_TASKS = ("none",)
"""What a comparison names that asks no task: one of speed, or of limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPlan:
    """What is timed: every kind of work at every length under every load, in both arms."""

    works: tuple[Work, ...]
    prompt_tokens: tuple[int, ...] = (256,)
    concurrency: tuple[int, ...] = (1, 8)
    """Closed loops: this many requests under way at any time."""
    rates: tuple[float, ...] = ()
    """Open loops: Poisson arrivals, requests a second."""
    output_tokens: int = 128
    requests: int = 8
    """Requests of a repeat; no fewer than twice the concurrency."""
    # when to stop is no part of what is timed: plans that differ in it go on with each other's repeats
    warmup: int = field(default=3, compare=False)
    """Fewest unmeasured repeats; more follow until they are stable."""
    repeats: int = field(default=5, compare=False)
    max_repeats: int = field(default=15, compare=False)
    precision: float = field(default=0.05, compare=False)
    """Half-width of a ratio's interval, as a share of it, at which no more repeats are made."""
    cache: CacheState = CacheState.COLD
    budget_s: float = field(default=1800.0, compare=False)
    target_ttft_s: float | None = None
    target_gap_s: float | None = None
    """Longest time to the first token and mean time between tokens of a request that counts into goodput."""
    prompts_hash: str = ""
    """SHA-256 of the user's prompts file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterCosts:
    """Cost of a drafting round beyond a step of the model alone, in such steps. Decides nothing."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # a setting, too

    draft: Annotated[float, Field(ge=0)]
    overhead: Annotated[float, Field(ge=0)] = 0.0
    """β: verifying several tokens instead of one, and choosing among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Candidates that are compared with one baseline in one run, each in a comparison of its own."""

    id: str
    name: str
    """This comparison's candidate."""
    names: tuple[str, ...]
    """All of them: the family over which p-values of changes are adjusted."""

    @property
    def ids(self) -> list[str]:
        return [f"{self.id}-{name}" for name in self.names]


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
    looks: LookPlan | None = None
    noise_floor: NoisePlan | None = None
    audit: AuditPlan | None = None
    pins: Pins = field(default_factory=Pins)
    drafter_costs: DrafterCosts | None = None
    imported: Imported | None = None
    """None where qualab asked the endpoints itself: the plan was made before the data."""
    sequential: bool = False
    """True where the candidate is asked after the baseline, on a device that holds one of them."""
    bank: BankPlan | None = None
    speed: Annotated[SpeedPlan | None, Field(exclude_if=lambda speed: speed is None)] = None
    group: Annotated[Group | None, Field(exclude_if=lambda group: group is None)] = None
    """None for one candidate, whose plan then does not mention it."""
    schema: int = 2

    @property
    def n_candidates(self) -> int:
        """Comparisons of the family that this one belongs to."""
        return len(self.group.names) if self.group else 1

    @property
    def n_baseline_runs(self) -> int:
        """Answers of the baseline in each test: further runs count where they are asked at the arms' concurrency."""
        floor = self.noise_floor
        return 1 + floor.runs if floor and floor.concurrency == self.policy.concurrency else 1

    @property
    def primaries(self) -> tuple[MetricSpec, ...]:
        return tuple(metric for metric in self.metrics if metric.is_primary)

    def members_of(self, metric: MetricSpec) -> list[MetricSpec]:
        """The metric itself, or those that a group pools."""
        if metric.kind is not MetricKind.GROUP_MEAN:
            return [metric]
        return [other for other in self.metrics if other.task in metric.members and other.key == metric.key]

    def benchmarks_of(self, metric: MetricSpec) -> set[str]:
        names = set(metric.members) or {metric.task}
        return {task.benchmark for task in self.tasks if task.name in names}

    def named(self, metric: MetricSpec, values: Mapping[str, T]) -> T | None:
        """Look a metric up by its id, else its task, else its benchmark; None where no name is given."""
        benchmarks = self.benchmarks_of(metric)
        names = (metric.id, metric.task, *(benchmarks if len(benchmarks) == 1 else ()))
        return next((values[name] for name in names if name in values), None)

    def rule_for(self, metric: MetricSpec) -> MetricRule:
        values = {own.name: getattr(self.rule, own.name) for own in fields(self.rule)}
        margin = self.named(metric, self.rule.margins)
        own = {"margin": self.rule.margin if margin is None else margin, "margins": {}}
        return MetricRule(**{**values, **own}, higher_is_better=metric.higher_is_better)

    def score_bounds_of(self, metric: MetricSpec) -> tuple[float, float]:
        return self.named(metric, self.rule.score_bounds) or (0.0, 1.0)

    @property
    def margin_names(self) -> tuple[str, ...]:
        """Names that a margin or score bounds can be given for."""
        benchmarks = (benchmark for metric in self.metrics for benchmark in sorted(self.benchmarks_of(metric)))
        return tuple(dict.fromkeys((*benchmarks, *(m.task for m in self.metrics), *(m.id for m in self.metrics))))


def check_names(values: Mapping[str, object], plan: Plan, *, what: str) -> None:
    """Raise InvalidValue for a name that is no benchmark, task or metric of the plan, with the nearest that is."""
    for name in values:
        if name not in plan.margin_names:
            near = difflib.get_close_matches(name, plan.margin_names, n=1, cutoff=0.4)
            hint = f"Did you mean {near[0]}?" if near else f"It has: {', '.join(plan.margin_names)}"
            problem = f"the plan has no benchmark, task or metric named {name}"
            raise InvalidValue(f"{what}: {problem}", hint=hint, fields={what: f"{problem}. {hint}"})
