"""The context of the service's use cases; reading and checking a request for a comparison."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from qualab.endpoints.allowing import AllowedEndpoints, allowed_opening
from qualab.endpoints.replicas import opening
from qualab.errors import InvalidValue, PathForbidden, UnknownSetting
from qualab.model.items import JsonObject
from qualab.model.names import ArmName
from qualab.run.prepare import FrozenPlan, Services, from_document, to_document
from qualab.service.access import ReferencedSecrets, lies_in
from qualab.service.planner import Planner
from qualab.service.settings import ServiceSettings
from qualab.service.webhooks import WebhookSender
from qualab.settings import (
    FIELDS,
    KEY_FIELDS,
    NEEDED_TO_RUN,
    PLAN_FIELDS,
    PLAN_FORMAT,
    RULE_FIELDS,
    Settings,
    lacking,
    load,
    spread,
)

if TYPE_CHECKING:
    from qualab.store import Store


ACCEPT, EXCLUSIVE, WEBHOOK = "accept_underpowered", "exclusive", "webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """A request for a comparison, read and allowed."""

    document: JsonObject
    """The request as it is stored; reading it again gives the same."""
    experiment: Settings
    keys: Mapping[ArmName, str]
    frozen: FrozenPlan | None
    accept_underpowered: bool
    is_exclusive: bool
    """True where no other comparison may use its hosts meanwhile."""
    webhook: str
    """URL to tell of the end; empty where nobody is told."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """Hold what every use case of the service needs."""

    services: Services
    settings: ServiceSettings
    allowed: AllowedEndpoints
    secrets: ReferencedSecrets
    planner: Planner
    webhooks: WebhookSender

    @property
    def store(self) -> Store:
        return self.services.store

    def workers(self) -> int:
        services = self.services
        return len(self.store.workers(now=services.clock.now(), stale_after_s=services.heartbeat.stale_after_s))

    def read_document(self, body: JsonObject, *, needed: tuple[str, ...] = NEEDED_TO_RUN) -> ComparisonRequest:
        """Read an experiment's settings, or a plan file's content with the places beside it.

        Raises UnknownSetting, InvalidValue, UsageError, PlanChanged, PathForbidden, SecretForbidden.
        """
        document = {name: value for name, value in spread(body).items() if value is not None}
        frozen, content = None, document
        if PLAN_FORMAT in document:
            frozen = _plan_in(document, self.settings)
            beside = {name: value for name, value in document.items() if name not in PLAN_PARTS}
            content, document = {**frozen.settings, **beside}, to_document(frozen, {}) | beside
        _check_known(content, (*FIELDS, *KEY_FIELDS, ACCEPT, EXCLUSIVE, WEBHOOK))
        marks = {name: content.get(name, False) for name in (ACCEPT, EXCLUSIVE)}
        for name, value in marks.items():
            if not isinstance(value, bool):
                raise InvalidValue.must_be(name, "true or false")
        if not isinstance(webhook := content.get(WEBHOOK, ""), str):
            raise InvalidValue.must_be(WEBHOOK, "a URL")
        keys = _keys(content, self.secrets)
        content = {name: content[name] for name in content if name not in (*KEY_FIELDS, *marks, WEBHOOK)}
        _check_places(content, self.settings)
        own = {"data_dir": str(self.settings.data_dir)} if self.settings.data_dir else {}
        experiment = _loaded(own | content)
        if frozen:
            planned = load(content=frozen.settings, environment=False)
            changed = [name for name in PLAN_FIELDS if getattr(experiment, name) != getattr(planned, name)]
            if changed:
                raise InvalidValue(
                    f"{changed[0]} would change the frozen plan",
                    hint="Leave it out, or make another plan",
                    fields=dict.fromkeys(changed, "may not stand beside a plan"),
                )
        missing = dict.fromkeys(lacking(experiment, needed), "is needed")
        if missing:
            raise InvalidValue(f"{' and '.join(missing)} must be given", hint="Add what is missing", fields=missing)
        return ComparisonRequest(
            document=document,
            experiment=experiment,
            keys=keys,
            frozen=frozen,
            accept_underpowered=marks[ACCEPT],
            is_exclusive=marks[EXCLUSIVE]
            or experiment.speed,  # timing would wait for others in the end, and they for it
            webhook=webhook,
        )


PLAN_PARTS = (PLAN_FORMAT, "hash", "frozen_at", "figures", "experiment", "plan")
KEY_FILES = tuple(f"{name}_file" for name in KEY_FIELDS)
NEVER = ("db", "output_path", "policy_file", "scoring_timeout", "speed_prompts", *KEY_FILES)
"""Settings of the operator, which no request may name."""
PATHS = ("data_dir", "include_path", "tokenizer", "checkpoint")
VERIFIED = ("pods", "containers")
MOST_WRONG = 20
LONGEST_NAME = 60
M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], document: JsonObject) -> M:
    """Validate a body. Raises InvalidValue, which names every field that is wrong."""
    try:
        return model.model_validate(document)
    except ValidationError as exc:
        fields = {".".join(map(str, error["loc"]))[:LONGEST_NAME]: str(error["msg"]) for error in exc.errors()}
        raise InvalidValue("The body has invalid fields", hint="Change what `errors` names", fields=fields) from None


def context_of(services: Services, settings: ServiceSettings) -> Context:
    """Make the context. Endpoints are opened through the allow list from here on."""
    allowed = AllowedEndpoints(settings.endpoints)
    secrets = ReferencedSecrets(env=settings.secret_env, folder=settings.secret_dir)
    return Context(
        services=replace(services, open_endpoint=opening(allowed_opening(allowed)), heartbeat=settings.heartbeat),
        settings=settings,
        allowed=allowed,
        secrets=secrets,
        webhooks=WebhookSender(settings),
        planner=Planner(services.harness, timeout_s=settings.planning_timeout_s, max_tasks=settings.max_tasks),
    )


def read_rule(changes: JsonObject) -> Mapping[str, Any]:
    """Read the parts of a decision rule that an analysis may change. Raises UnknownSetting, InvalidValue."""
    _check_known(changes, RULE_FIELDS)
    settings = _loaded(changes)
    return {name: getattr(settings, name) for name in changes if changes[name] is not None}


def _plan_in(document: JsonObject, settings: ServiceSettings) -> FrozenPlan:
    """Read a plan, without paths of the machine that made it."""
    frozen = from_document(document, where="The plan")
    own = {str(name): value for name, value in frozen.settings.items() if value is not None}
    for name in (*NEVER, *VERIFIED, *PATHS):
        if name in own and _problem(name, own[name], settings):
            del own[name]
    return replace(frozen, settings=own)


def _check_known(content: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raises UnknownSetting with every unknown key, and the right one that is nearest to each."""
    fields = {}
    for name in [name for name in content if name not in known][:MOST_WRONG]:
        near = difflib.get_close_matches(name[:100].replace("-", "_"), known, n=1, cutoff=0.5)
        fields[name[:LONGEST_NAME]] = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}"
    if fields:
        name, hint = next(iter(fields.items()))
        fields = {name: f"is not a setting. {hint}" for name, hint in fields.items()}
        raise UnknownSetting(f"Unknown setting {name}", hint=hint, fields=fields)


def _keys(content: Mapping[str, Any], secrets: ReferencedSecrets) -> dict[ArmName, str]:
    """Return references by arm: its own before the common one. Raises SecretForbidden, without repeating a value."""
    for name in KEY_FIELDS:
        if content.get(name) is not None:
            secrets.check(content[name], field=name)
    common = content.get("api_key")
    own = {arm: content.get(f"{arm.value}_api_key") or common for arm in ArmName}
    return {arm: reference for arm, reference in own.items() if reference}


def _check_places(content: Mapping[str, Any], settings: ServiceSettings) -> None:
    wrong = {name: problem for name in content if (problem := _problem(name, content[name], settings))}
    if wrong:
        name, problem = next(iter(wrong.items()))
        raise PathForbidden(f"{name} {problem}", hint="Leave it out, or ask the service's operator", fields=wrong)
    names = content.get("tasks")
    for name in names.split(",") if isinstance(names, str) else names if isinstance(names, list) else ():
        if isinstance(name, str) and (name.strip().endswith((".yaml", ".yml")) or "/" in name):
            raise PathForbidden(
                "tasks may not name files of the service's machine",
                hint="Name a task, a group or a suite",
                fields={"tasks": "must be names of tasks, groups or suites"},
            )


def _problem(name: str, value: Any, settings: ServiceSettings) -> str:
    """Say why a request may not name this on the service's machine; empty where it may."""
    if not value:
        return ""
    if name in KEY_FILES:
        return f'may not be sent: send {name.removesuffix("_file")}: "file:/path"'
    if name in NEVER:
        return "is the service's own, and may not be sent"
    if name in VERIFIED and not settings.may_verify_pins:
        return "may not be sent: the service does not look at pods and containers"
    paths = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    folders = [*settings.allowed_paths, *([settings.data_dir] if settings.data_dir else [])]
    if name in PATHS and not all(lies_in(str(path).strip(), folders) for path in paths):
        return "names a path of the service's machine that requests may not name"
    return ""


def _loaded(content: Mapping[str, Any]) -> Settings:
    """Load settings without the environment, which is the operator's and not the caller's."""
    try:
        return load(content=content, environment=False)
    except InvalidValue as exc:
        fields = exc.details.get("fields")
        wrong = fields if isinstance(fields, dict) else {}
        message = "; ".join(f"{name}: {allowed}" for name, allowed in wrong.items())
        raise InvalidValue(message or exc.message, hint="Change what is named", fields=wrong) from None
