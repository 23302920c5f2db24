"""One frozen Settings: command line over environment (QUALAB_*) over experiment file over default."""

from __future__ import annotations

import difflib
import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, SettingsConfigDict

from qualab.errors import InvalidValue, UnknownSetting, UsageError
from qualab.model.items import check_gen_kwargs
from qualab.model.names import ArmName, CacheState, Objective, Tier, Work
from qualab.model.plan import (
    AuditPlan,
    DecisionRule,
    DrafterCosts,
    NoisePlan,
    RequestPolicy,
    SpeedPlan,
    by_arm,
    digest_of,
)
from qualab.model.registry import address_of, urls_of

ENV_PREFIX = "QUALAB_"
STANDARD_WORKS = tuple(work for work in Work if work is not Work.OWN)
AUDITED_SUITES = frozenset({"release", "stress"})
NOT_SEQUENTIAL = {
    "looks": "Looks compare the arms while both are asked",
    "speed": "Arms are timed in turn while both are served",
    "bank": "A bank's sample is asked while the candidate is",
}
NEEDED_TO_RUN = ("baseline", "candidate", "model")
LONGEST_S = 86_400
SMALLEST_MARGIN, SMALLEST_ALPHA, MOST_POWER = 1e-6, 1e-9, 0.999999
"""Beyond them the arithmetic of power ends, and no number of items would do."""
_NAME = r"[a-zA-Z0-9][a-zA-Z0-9_.-]*"
_ASSIGNED = re.compile(r'("(?:\\.|[^"\\])*"|^|,)(?:\s*(\w+)\s*=)?')
"""A quoted text, or the beginning of a name=value."""


class _DuplicateKey(yaml.MarkedYAMLError): ...


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuse a key that is given twice, of which YAML itself takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _DuplicateKey(problem=f"'{key.value}' is given twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _as_tuple(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return (value,) if isinstance(value, Path | int | float) else value


def _joined(value: Any) -> Any:
    """Write a list of URLs, an arm's replicas, with commas."""
    is_list = isinstance(value, list | tuple) and all(isinstance(url, str) for url in value)
    return ", ".join(value) if is_list else value


def _gen_kwargs(value: str) -> Any:
    """Read lm-eval's "temperature=0.7,top_p=0.9", or JSON."""
    is_json = value.lstrip().startswith("{")
    pairs = _ASSIGNED.sub(lambda match: f"{match[1]}{match[2]}: " if match[2] else match[0], value)
    text = value if is_json else f"{{{pairs}}}"
    try:
        settings = yaml.load(text, Loader=_UniqueKeyLoader)
    except _DuplicateKey as exc:
        raise ValueError(exc.problem) from exc
    except yaml.YAMLError as exc:
        raise ValueError(f"'{value}' is neither JSON nor of the form name=value,name=value") from exc
    if wrong := [name for name, setting in settings.items() if setting is None and not is_json]:
        raise ValueError(f"'{wrong[0]}' is not of the form name=value")
    return settings


def parse_shares(text: str) -> dict[str, float]:
    """Read "0.05", "gsm8k=0.02" or both; a number without a name stands under "". Raises InvalidValue."""
    try:
        return {name: float(number) for name, number in _numbers(text, may_lack_name=True).items()}
    except ValueError as exc:
        raise InvalidValue(f"'{text}' is not of the form 0.05 or name=0.05", hint="As 0.05,gsm8k=0.02") from exc


def _numbers(value: str, *, may_lack_name: bool = False) -> dict[str, str]:
    """Read "gsm8k=0.01,kobest=0.03"."""
    numbers = {}
    for part in value.split(","):
        name, _, text = (side.strip() for side in part.rpartition("="))
        if not name and not may_lack_name:
            raise ValueError(f"'{part.strip()}' is not of the form name=number")
        numbers[name] = text
    return numbers


def _urls(value: str) -> dict[str, str]:
    """Read "k3=http://a:8000,k5=http://b:8000"."""
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    names = [name.strip() for name, *_ in pairs]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise ValueError(f"'{wrong[0]}' is not of the form NAME=URL")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"'{twice[0]}' is given twice")
    return {name.strip(): url.strip() for name, _, url in pairs}


def _named_texts(value: Any) -> Any:
    """Take names that YAML reads as numbers for texts."""
    return {str(name): url for name, url in value.items()} if isinstance(value, Mapping) else value


def _bounds(value: str) -> dict[str, tuple[str, str]]:
    """Read "reward=-1:1,score=0:100"."""
    bounds = {}
    for name, text in _numbers(value).items():
        low, colon, high = text.partition(":")
        if not colon:
            raise ValueError(f"'{name}={text}' is not of the form name=low:high")
        bounds[name] = (low.strip(), high.strip())
    return bounds


def _text(parse: Callable[[str], Any]) -> BeforeValidator:
    """Parse a text, as of a command line; values of a file or a request are parsed already."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _named(form: str, described: str) -> AfterValidator:
    """Refuse arms' names that are not of this form: they go into commands."""

    def checked(names: dict[ArmName, str]) -> dict[ArmName, str]:
        for arm, name in names.items():
            if not re.fullmatch(form, name):
                raise ValueError(f"'{name}' of the {arm} is not of the form {described}")
        return names

    return AfterValidator(checked)


def _image(value: str) -> str:
    if re.search(r"\s", value) or ("@" in value and not digest_of(value)):
        hint = "It ends with @sha256: and 64 lower-case hex digits"
        raise InvalidValue(f"image: {value} is not an image with a digest", hint=hint)
    return value


def _bounds_pair(pair: tuple[float, float]) -> tuple[float, float]:
    if not -math.inf < pair[0] < pair[1] < math.inf:
        raise PydanticCustomError("bounds", "must be two numbers, the lower first")
    return pair


Margin = Annotated[float, Field(ge=SMALLEST_MARGIN, lt=1)]
Urls = Annotated[str, BeforeValidator(_joined, json_schema_input_type=str | list[str])]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_as_tuple)]
Paths = Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_as_tuple)]
Margins = Annotated[dict[str, Margin], NoDecode, _text(_numbers)]
ScoreBounds = Annotated[
    dict[str, Annotated[tuple[float, float], AfterValidator(_bounds_pair)]], NoDecode, _text(_bounds)
]
GenKwargs = Annotated[dict[str, Any], NoDecode, _text(_gen_kwargs)]
Works = Annotated[tuple[Work, ...], NoDecode, BeforeValidator(_as_tuple)]
Counts = Annotated[
    tuple[Annotated[int, Field(ge=0, le=10_000_000)], ...], NoDecode, BeforeValidator(_as_tuple), Field(min_length=1)
]
Rates = Annotated[tuple[Annotated[float, Field(gt=0)], ...], NoDecode, BeforeValidator(_as_tuple)]
ByArm = Annotated[dict[ArmName, str], NoDecode, _text(by_arm)]
Pods = Annotated[ByArm, _named(rf"{_NAME}/{_NAME}(/{_NAME})?", "namespace/pod")]
Containers = Annotated[ByArm, _named(_NAME, "NAME")]
Candidates = Annotated[dict[str, Urls], NoDecode, BeforeValidator(_named_texts), _text(_urls)]
Costs = Annotated[DrafterCosts, NoDecode, _text(_numbers)]
Image = Annotated[str, AfterValidator(_image)]


class Settings(BaseSettings):
    """Declare every setting once: the command line, experiment files, the environment and REST read it from here.

    A field with a description is an option of the commands that take it; the description is its help. Names are
    lm-eval's where it has them; fractions, not percent; seconds.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, populate_by_name=True)

    baseline: Urls = Field("", description="URL of the endpoint with the drafter off, or of its replicas, with commas.")
    candidate: Urls = Field("", description="URL of the endpoint with the drafter on, or of its replicas, with commas.")
    candidates: Candidates = Field({}, description="Several in place of one, as k3=URL,k5=URL: each has its verdict.")
    model: str = Field("", description="Model name as both endpoints serve it.")
    tasks: Names = Field(("release",), description="Tasks, groups or suites, separated by commas.")
    num_fewshot: int | None = Field(None, ge=0, description="Few-shot examples.")
    limit: float | None = Field(None, gt=0, description="Items per task, or a share below 1. Never signed off.")
    include_path: Paths = Field((), description="Folders with more task YAMLs.")
    gen_kwargs: GenKwargs = Field({}, description="As temperature=0.7,top_p=0.9.")
    allow_extra: bool = Field(False, description="Send generation settings that are unknown or that an engine ignores.")
    apply_chat_template: bool | None = Field(None, description="Ask over chat completions. Default: as the suite says.")
    system_instruction: str = Field("", description="System prompt.")
    seed: int = Field(1234, description="Seed of few-shot draws, item order and sampling.")
    repeats: int = Field(1, ge=1, description="Answers per item (needs a temperature).")
    looks: int | None = Field(None, ge=2, le=10, description="Looks (2 to 10) at which the run may stop early.")
    sequential: bool = Field(False, description="Ask one arm after the other, on one device. Never signed off.")
    noise_floor_runs: int | None = Field(None, ge=1, le=9, description="Further runs of the baseline alone (1 to 9).")
    noise_floor_concurrency: int | None = Field(None, ge=1, description="Requests in flight in those runs.")
    bank: str = Field("", description="Banked baseline whose answers stand in (`qualab baseline`).")
    bank_sample: int | None = Field(
        None, ge=1, description="Its items asked again. Default: 100, or 4 x concurrency where that is more."
    )
    bank_signoff: bool = Field(False, description="Let a verdict from a banked baseline be signed off.")
    audit: bool | None = Field(
        None,
        description="Hold answers against the model's own token probabilities. Default: in release, stress.",
    )
    audit_tau: float = Field(1.0, gt=0, le=50)
    audit_max_foreign_share: float = Field(0.001, ge=1e-6, lt=1)
    audit_calibration_margin: float = Field(0.01, gt=0, lt=1)
    audit_tokens: int = Field(100_000, ge=1, description="Greedy tokens of both arms that the audit scores at most.")
    audit_items: int = Field(200, ge=0, description="Items that the audit asks again at temperature 1; 0 asks none.")
    audit_max_tokens: int = Field(256, ge=1, le=100_000)
    speed: bool = Field(False, description="Time both arms afterwards (`qualab speed`), which nothing else may use.")
    speed_works: Works = Field(STANDARD_WORKS, description="Kinds of work, as copy,prose,code,json,korean.")
    speed_prompts: Path | None = Field(None, description="File with prompts of your own, one a line or JSONL.")
    speed_prompt_tokens: Counts = Field((256,), description="Lengths of prompts, as 256,2048.")
    speed_concurrency: Counts = Field((1, 8), description="Requests under way at once, as 1,8,32; 0 leaves these out.")
    speed_rates: Rates = Field((), description="Poisson arrivals a second, as 0.5,2.")
    speed_output_tokens: int = Field(128, ge=2, le=100_000, description="Longest answer.")
    speed_requests: int = Field(8, ge=1, description="Requests of a repeat; no fewer than twice the concurrency.")
    speed_warmup: int = Field(3, ge=3, le=50)
    speed_repeats: int = Field(5, ge=2, le=100, description="Fewest repeats.")
    speed_max_repeats: int = Field(15, ge=2, le=100, description="Most repeats, where a ratio's interval stays wide.")
    speed_precision: float = Field(0.05, gt=0, lt=1, description="Half-width of a ratio's interval that is enough.")
    speed_cache: CacheState = Field(CacheState.COLD, description="Prompts that the prefix cache knows, or not.")
    speed_budget: float = Field(1800.0, gt=0, le=LONGEST_S, description="Longest time of it all, seconds.")
    speed_target_ttft: float | None = Field(None, gt=0, description="Goodput: longest time to the first token, s.")
    speed_target_gap: float | None = Field(None, gt=0, description="Goodput: longest mean time between tokens, s.")
    margin: Margin = Field(0.02, description="Largest difference that counts as equal, a fraction: 0.02 is 2 pp.")
    margins: Margins = Field({}, description="Other margins by benchmark, task or metric, as gsm8k=0.01,kobest=0.03.")
    score_bounds: ScoreBounds = Field({}, description="Bounds of scores where not 0 and 1, as reward=-1:1.")
    objective: Objective = Field(
        Objective.EQUIVALENCE, description="What to prove: no change or no loss beyond the margin."
    )
    policy_file: Path | None = Field(None, description="File with metrics' tiers: critical, supporting, advisory.")
    critical: Names = ()
    supporting: Names = ()
    advisory: Names = ()
    strict: bool = Field(False, description="Call a loss REGRESSION inside the margin too, for a lossless drafter.")
    alpha: float = Field(0.05, ge=SMALLEST_ALPHA, lt=0.5, description="Level of each one-sided test.")
    power: float = Field(0.8, gt=0, le=MOST_POWER, description="Chance of proving the margin to aim at; 0.8 is usual.")
    concurrency: int = Field(8, ge=1, description="Requests in flight in each arm.")
    timeout: float = Field(300.0, gt=0, le=LONGEST_S, description="Deadline of one attempt, seconds.")
    max_attempts: int = Field(5, ge=1, description="Attempts per request.")
    max_wait: float = Field(600.0, ge=0, le=LONGEST_S, description="Longest wait at a server's request, seconds.")
    max_failed_share: float = Field(0.1, gt=0, le=1, description="Share of missing answers that stops an arm.")
    max_missing_share: float | None = Field(
        None, ge=0, lt=1, description="Share of unanswered pairs that is INVALID. Default: a quarter of the margin."
    )
    missing_lost: float | None = Field(
        None, ge=0, lt=1, description="Share of unanswered pairs taken as lost. Default: all."
    )
    expected_missing: float = Field(0.0, ge=0, lt=1, description="Expected share of missing answers, as 0.005.")
    min_accepted_share: float = Field(
        0.0, ge=0, lt=1, description="Draft tokens' accepted share below which a task is INVALID."
    )
    allow_unobserved: bool = Field(False, description="Let a verdict stand where nothing shows that the drafter ran.")
    image: Image = Field("", description="Image that both arms run, as NAME@sha256:DIGEST.")
    revision: str = Field("", description="Commit of the checkpoint that both arms serve.")
    checkpoint: str | None = Field(None, description="The checkpoint's folder on this machine: its hash pins it.")
    pods: Pods = Field({}, description="Pods that kubectl verifies, as baseline=NS/POD,candidate=NS/POD.")
    containers: Containers = Field({}, description="Containers that docker verifies, as baseline=NAME,candidate=NAME.")
    drafter_costs: Costs | None = Field(
        None, description="As draft=0.2,overhead=0.05 model steps: shows where drafting pays."
    )
    tokenizer: str = Field("", description="tokenizer.json or its folder, where the server cannot tokenize.")
    label: str = Field("", description="A name to find the comparison by.")
    api_key_file: Path | None = Field(None, description="File with the API key (or QUALAB_API_KEY).")
    baseline_api_key_file: Path | None = None
    candidate_api_key_file: Path | None = None
    output_path: Path | None = Field(None, description="Also export lm-eval files into this folder.")
    scoring_timeout: float = Field(30.0, gt=0)
    data_dir: Path | None = Field(None, description="Folder with the data sets as JSONL (QUALAB_DATA_DIR).")
    db: str = Field("", description="SQLite file or database URL (QUALAB_DB).")
    # keys come from the environment alone: a file that holds one may be committed by accident
    api_key: SecretStr | None = Field(None, validation_alias=AliasChoices("QUALAB_API_KEY", "OPENAI_API_KEY"))
    baseline_api_key: SecretStr | None = Field(None, validation_alias="QUALAB_BASELINE_API_KEY")
    candidate_api_key: SecretStr | None = Field(None, validation_alias="QUALAB_CANDIDATE_API_KEY")

    @property
    def pairs(self) -> dict[str, Settings]:
        """Settings of each candidate's own comparison by its name; "" names the only one."""
        alone = {"": self.candidate} if not self.candidates else self.candidates
        return {name: self.model_copy(update={"candidate": url, "candidates": {}}) for name, url in alone.items()}

    @property
    def policy(self) -> RequestPolicy:
        return RequestPolicy(
            concurrency=self.concurrency,
            timeout_s=self.timeout,
            max_attempts=self.max_attempts,
            max_wait_s=self.max_wait,
            max_failed_share=self.max_failed_share,
        )

    @property
    def rule(self) -> DecisionRule:
        return DecisionRule(**{part.name: getattr(self, part.name) for part in fields(DecisionRule)})

    @property
    def noise_plan(self) -> NoisePlan | None:
        if self.noise_floor_runs is None:
            return None
        return NoisePlan(runs=self.noise_floor_runs, concurrency=self.noise_floor_concurrency or self.concurrency)

    def audit_plan(self, suite: str) -> AuditPlan | None:
        """Return the audit's plan; None where it is switched off, or not asked for in a suite without it.

        A size or limit that is no default asks for it too.
        """
        sizes = {name: own.default for name, own in type(self).model_fields.items() if name.startswith("audit_")}
        is_sized = any(getattr(self, name) != default for name, default in sizes.items())
        if not (suite in AUDITED_SUITES or is_sized if self.audit is None else self.audit):
            return None
        return AuditPlan(
            tau=self.audit_tau,
            max_foreign_share=self.audit_max_foreign_share,
            calibration_margin=self.audit_calibration_margin,
            greedy_tokens=self.audit_tokens,
            sampled_items=self.audit_items,
            sampled_max_tokens=self.audit_max_tokens,
        )

    @property
    def speed_plan(self) -> SpeedPlan:
        """Return what `qualab speed` measures. Raises UsageError for a prompts file that cannot be read."""
        try:
            digest = hashlib.sha256(self.speed_prompts.read_bytes()).hexdigest() if self.speed_prompts else ""
        except OSError as exc:
            hint = "Give --speed-prompts a text file with a prompt a line, or JSONL"
            raise UsageError(f"Cannot read {self.speed_prompts}: {exc.strerror}", hint=hint) from exc
        if Work.OWN in self.speed_works and not digest:
            hint = "Give --speed-prompts FILE: a prompt a line, or JSONL"
            raise UsageError("Prompts of your own (own) are to be timed, and none are given", hint=hint)
        concurrency = tuple(number for number in self.speed_concurrency if number)
        if not (self.speed_works or digest) or not (concurrency or self.speed_rates):
            raise UsageError("Nothing is to be timed", hint="Name kinds of work (works), and concurrency or rates")
        parts = [part.name for part in fields(SpeedPlan) if part.name != "prompts_hash"]
        given: dict[str, Any] = {part: getattr(self, f"speed_{part.removesuffix('_s')}") for part in parts}
        works = dict.fromkeys((*self.speed_works, *([Work.OWN] if digest else ())))
        most = max(self.speed_repeats, self.speed_max_repeats)
        given |= {"works": tuple(works), "concurrency": concurrency, "max_repeats": most, "prompts_hash": digest}
        return SpeedPlan(**given)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_gen_kwargs(self.gen_kwargs, allow_extra=self.allow_extra)
        temperature = self.gen_kwargs.get("temperature") or 0
        try:
            is_sampled = float(temperature) > 0
        except (TypeError, ValueError) as exc:
            fields = {"gen_kwargs": "its temperature must be a number"}
            message = f"temperature {temperature!r} is not a number"
            raise InvalidValue(message, hint="Change --gen-kwargs", fields=fields) from exc
        for name, what_it_does in NOT_SEQUENTIAL.items():
            if self.sequential and getattr(self, name):
                raise InvalidValue(
                    f"{what_it_does}, and --sequential asks one after the other",
                    hint=f"Leave out {name}, or serve both arms at once",
                    fields={name: "may not be given with sequential"},
                )
        if (self.bank_sample or self.bank_signoff) and not self.bank:
            name = "bank_sample" if self.bank_sample else "bank_signoff"
            hint = "Name the bank with --bank NAME, or leave it out"
            raise InvalidValue(f"{name} is given without a bank", hint=hint, fields={name: "needs bank"})
        if self.repeats > 1 and not is_sampled:
            raise InvalidValue(
                f"repeats {self.repeats} at temperature 0 would ask the same thing again",
                hint="Set a temperature, as --gen-kwargs temperature=0.7, or leave --repeats at 1",
                fields={"repeats": "must be 1 at temperature 0"},
            )
        for arm in self.pods.keys() & self.containers.keys():
            raise InvalidValue(f"The {arm} has a pod and a container", hint="Name the one that serves its URL")
        if self.candidates:
            _check_candidates(self)
        for arm in self.pods.keys() | self.containers.keys():
            if len(urls_of(getattr(self, arm))) > 1:
                hint = "Leave it out: an image of replicas is declared (image: NAME@sha256:DIGEST), not verified"
                raise InvalidValue(f"The {arm} has several replicas, and one pod or container", hint=hint)
        return self

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: Any, env_settings: Any, *_: Any, **__: Any
    ) -> tuple[Any, ...]:
        """Order command line, environment, file: `load` puts the first and the last into one init mapping."""
        given = init_settings.init_kwargs
        command_line = InitSettingsSource(settings_cls, given.get("command_line", {}))
        file = InitSettingsSource(settings_cls, given.get("file", {}))
        return (command_line, env_settings, file) if given.get("environment", True) else (command_line, file)


_CANDIDATE_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}", re.ASCII | re.IGNORECASE)


def _check_candidates(settings: Settings) -> None:
    """Raise InvalidValue where they are not several servers with names, to be asked at once."""

    def refuse(message: str, hint: str) -> InvalidValue:
        return InvalidValue(message, hint=hint, fields={"candidates": f"{message}. {hint}"})

    candidates, known = settings.candidates, {address_of(url): "the baseline" for url in urls_of(settings.baseline)}
    if settings.candidate:
        raise refuse("candidate and candidates are given", "Name every candidate in candidates, or give one candidate")
    if settings.sequential:
        raise refuse("Candidates are asked at once, and --sequential asks one arm after the other", "Leave one out")
    if len(candidates) == 1:
        raise refuse(f"candidates holds {next(iter(candidates))} alone", "Give a single URL as candidate")
    if ArmName.CANDIDATE in {**settings.pods, **settings.containers}:
        raise refuse("A pod or container of the candidate is given, and there are several", "Name the baseline's alone")
    for name, url in candidates.items():
        if not _CANDIDATE_NAME.fullmatch(name):
            raise refuse(f"'{name}' does not name a candidate", "Use letters, digits, _ . and -, at most 40, as k3=URL")
        if not url:
            raise refuse(f"Candidate {name} has no URL", "Give it one, as k3=URL")
        for address in map(address_of, urls_of(url)):
            if other := known.get(address):
                raise refuse(f"Candidate {name} has the URL of {other}", "Give each server once")
            known[address] = f"candidate {name}"


def lacking(settings: Settings, needed: tuple[str, ...]) -> list[str]:
    """List the settings that are needed and empty; several candidates stand for one."""
    return [name for name in needed if not getattr(settings, name) and (name != "candidate" or not settings.candidates)]


def check_given(settings: Settings) -> None:
    """Raises InvalidValue for the first setting that is needed and empty."""
    for name in lacking(settings, NEEDED_TO_RUN):
        raise InvalidValue(
            f"No {name} is given",
            hint=f"Give --{name}, set QUALAB_{name.upper()}, or write it into an experiment file (`qualab init`)",
        )


BOUNDS = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "above {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "below {lt:g}",
}
"""Kinds of pydantic's errors -> the bound that a number must keep."""
PLAN_FORMAT = "qualab_plan"
"""The key that makes a file a frozen plan; its experiment stands under "experiment"."""
PLACE_FIELDS = (
    *("baseline", "candidate", "candidates", "data_dir", "include_path", "tokenizer", "label", "output_path", "db"),
    *("checkpoint", "pods", "containers", "policy_file"),
    *("api_key_file", "baseline_api_key_file", "candidate_api_key_file", "scoring_timeout", "speed_prompts"),
)
"""Where things are and go: what may differ between runs of one plan."""
KEY_FIELDS = ("api_key", "baseline_api_key", "candidate_api_key")
FIELDS = tuple(name for name in Settings.model_fields if name not in KEY_FIELDS)
DESCRIBED = tuple(name for name, field in Settings.model_fields.items() if field.description)
"""Settings that a command line can set."""
OPTIONS = tuple(name for name in DESCRIBED if not name.startswith("speed_"))
SPEED_OPTIONS = tuple(name for name in DESCRIBED if name.startswith("speed_"))
"""Those of `qualab speed` alone."""
RULE_FIELDS = ("margin", "margins", "score_bounds", "objective", "strict", "alpha", "max_missing_share", "missing_lost")
"""Settings by which stored scores can be judged again."""
PLAN_FIELDS = tuple(name for name in FIELDS if name not in PLACE_FIELDS)
"""Settings that a plan is made from: another value is another plan."""


def load(
    *,
    file: Path | None = None,
    content: Mapping[str, Any] | None = None,
    command_line: Mapping[str, Any] | None = None,
    environment: bool = True,
) -> Settings:
    """Load settings; `content` stands for a file that is read already.

    Raises UnknownSetting, UsageError, InvalidValue (`fields` in its details says what is wrong with each setting,
    without its value).
    """
    from_file = read_experiment(file) if file else checked_experiment(content or {}, where="experiment")
    given = {name: value for name, value in (command_line or {}).items() if value is not None}
    if policy := given.get("policy_file") or from_file.get("policy_file"):
        from_file = {**from_file, **read_policy(Path(policy))}
    sources: dict[str, Any] = {"command_line": given, "file": from_file, "environment": environment}
    try:
        return Settings(**sources)
    except ValidationError as exc:
        first, *_ = wrong = exc.errors()
        name, message = _name(first), _message(first)
        option = name.partition(".")[0]
        hint = f"Given: {'(not shown)' if 'key' in name else repr(first.get('input'))}"
        if (is_range := message.startswith("must be")) and option in DESCRIBED:
            hint = f"--{option.replace('_', '-')}: {Settings.model_fields[option].description}"
        # fields do not repeat what was given, which own messages quote
        own = {
            _name(error): re.sub(r"'[^']*'", "it", _message(error)) for error in wrong if error["type"] == "value_error"
        }
        details = {_name(error): _message(error) for error in wrong} | own
        raise InvalidValue(f"{name}{'' if is_range else ':'} {message}", hint=hint, fields=details) from exc


def _name(error: Any) -> str:
    return ".".join(str(part) for part in error["loc"] if not str(part).endswith("DrafterCosts"))


def _message(error: Any) -> str:
    if bound := BOUNDS.get(error["type"]):
        return "must be " + bound.format(**error["ctx"])
    return str(error["msg"]).removeprefix("Value error, ").rstrip(".")


def read_document(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises UsageError naming the line."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except OSError as exc:
        raise UsageError(f"Cannot read {path}: {exc.strerror}", hint="`qualab init` writes an example") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        mark = getattr(exc, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        problem = getattr(exc, "problem", None) or str(exc)
        message = f"{place}: {problem}" if isinstance(exc, _DuplicateKey) else f"{place} is not YAML: {problem}"
        raise UsageError(message, hint="`qualab init` writes an example") from exc
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no settings", hint="`qualab init` writes an example")
    return {str(key): value for key, value in content.items()}


TIERS = tuple(Tier)


def read_policy(path: Path) -> dict[str, Any]:
    """Read a policy file: tiers of metrics, and the widest `margin`. Raises UsageError, UnknownSetting."""
    content = read_document(path)
    if odd := [name for name in content if name not in (*TIERS, "margin")]:
        hint = f"Known: {', '.join((*TIERS, 'margin'))}"
        raise UnknownSetting(f"{path}: unknown key {odd[0]}", hint=hint)
    if not content.get("critical"):
        raise UsageError(f"{path} names no critical metric", hint="Critical metrics decide: name one at least")
    return content


def read_experiment(path: Path) -> dict[str, Any]:
    """Read an experiment file's settings, or a plan file's. Raises UsageError, UnknownSetting."""
    content = read_document(path)
    return checked_experiment(content.get("experiment") or {} if PLAN_FORMAT in content else content, where=str(path))


OF_A_PAIR = ("served_model_name", "speculative_config", "args", "env")
"""Names that tell a file of `qualab pair init` from one of `qualab init`."""
GROUPS = {
    "pins": {name: name for name in ("image", "revision", "checkpoint")},
    "noise_floor": {"runs": "noise_floor_runs", "concurrency": "noise_floor_concurrency"},
    "policy": {name.value: name.value for name in Tier},
    "audit": {
        **{name: f"audit_{name}" for name in ("tau", "max_foreign_share", "calibration_margin", "max_tokens")},
        **{"tokens": "audit_tokens", "items": "audit_items"},
    },
    "speed": {name.removeprefix("speed_"): name for name in FIELDS if name.startswith("speed_")},
}
"""Mappings that a file may hold in place of their settings: key -> setting."""
IMPLIED: Mapping[str, Mapping[str, object]] = {
    "noise_floor": {"noise_floor_runs": 1},
    "audit": {"audit": True},
    "speed": {"speed": True},
}
"""Settings that such a mapping implies even where it is empty."""


def spread(content: Mapping[str, Any]) -> dict[str, Any]:
    """Put the settings of `GROUPS` beside the others, which win. Raises InvalidValue."""
    settings = dict(content)
    for group, names in GROUPS.items():
        if group in FIELDS and not isinstance(settings.get(group), Mapping):
            continue
        if (values := settings.pop(group, None)) is None:
            continue
        if not isinstance(values, Mapping):
            raise InvalidValue.must_be(group, f"a mapping of {', '.join(names)}")
        for odd in values.keys() - names.keys():
            raise InvalidValue.must_be(f"{group}.{odd}", f"one of {', '.join(names)}")
        settings = {**IMPLIED.get(group, {})} | {names[key]: value for key, value in values.items()} | settings
    return settings


def checked_experiment(content: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Check settings, and leave out empty ones. Raises UnknownSetting naming the nearest key."""
    content = spread(content)
    for key in map(str, content):
        if key in FIELDS:
            continue
        if key in KEY_FIELDS:
            hint = f"Set {ENV_PREFIX}{key.upper()}, or {key}_file to a path"
            raise UnknownSetting(f"{where}: {key} may not stand in a file", hint=hint)
        if key in OF_A_PAIR:
            raise UnknownSetting(f"{where} is a pair file", hint=f"Give it as --managed {where}")
        near = difflib.get_close_matches(key.replace("-", "_"), FIELDS, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(FIELDS)}"
        raise UnknownSetting(f"{where}: unknown setting {key}", hint=hint, fields={key: f"is not a setting. {hint}"})
    return {str(key): value for key, value in content.items() if value is not None}


def keys_of(settings: Settings, *, managed: bool = False) -> dict[ArmName, str | None]:
    """Read each arm's key: its own before the common one, the environment before a file. Raises UsageError.

    A managed pair has the key that vLLM takes from the environment.
    """
    if managed and (vllm_key := os.environ.get("VLLM_API_KEY")):
        return dict.fromkeys(ArmName, vllm_key)
    common = _key(settings.api_key, settings.api_key_file)
    own = {arm: [getattr(settings, f"{arm}_api_key{part}") for part in ("", "_file")] for arm in ArmName}
    return {arm: _key(*parts) or common for arm, parts in own.items()}


def _key(value: SecretStr | None, path: Path | None) -> str | None:
    given = value.get_secret_value().strip() if value else ""
    return given or (read_secret(path, "key") if path else "") or None


def read_secret(path: Path, kind: str) -> str:
    """Read a file that holds one key or token and nothing else. Raises UsageError."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        hint = f"It holds one {kind} and nothing else"
        raise UsageError(f"Cannot read the {kind} file {path}: {reason}", hint=hint) from exc
