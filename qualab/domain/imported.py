"""How two logs were joined to one comparison: part of its plan, which was made after the data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    CUT = "cut-file"
    VALUES = "reported-values"
    ASSUMED = "assumed"
    RUNS = "runs"
    SAME_RUN = "same-run"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFinding:
    """Something that a person has to know of two runs."""

    code: FindingCode
    what: str
    stops: bool = False
    """It makes the comparison meaningless, unless it is allowed."""
    is_allowed: bool = False
    """It would have stopped the import, and was allowed."""


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
    """Likewise with another right answer."""
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
    """As the log names it; empty where it does not."""
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
    """Both are runs of this store, of comparisons of their own."""
    leaves_unasked: bool = False
    """What only one of two runs asked is no item of this comparison, and not missing."""

    @property
    def is_of_drafter(self) -> bool:
        """Whether the logs tell that the candidate has a drafter and the baseline has none."""
        return bool(self.plan_hash)
