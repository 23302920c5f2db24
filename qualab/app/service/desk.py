"""What the service's use cases are given, and what a request for a comparison is read into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from qualab.app.experiment import Experiment
from qualab.app.frozen import FrozenPlan
from qualab.app.service.planning import Planner
from qualab.app.services import Services
from qualab.domain.access import AuditEntry
from qualab.domain.items import JsonObject
from qualab.domain.names import ArmName
from qualab.ports import Jobs, Registry, Secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request for a comparison, read and allowed."""

    document: JsonObject
    """What is kept of it: reading that again gives the same."""
    experiment: Experiment
    keys: Mapping[ArmName, str]
    """References; an arm without a key is left out."""
    settings: JsonObject
    """Everything that makes the plan, as a plan file keeps it."""
    frozen: FrozenPlan | None
    accept_underpowered: bool
    is_exclusive: bool = False
    """Whether nothing else may be asked of its hosts meanwhile."""


ReadDocument = Callable[[JsonObject], Wanted]
"""Raises UnknownSetting, InvalidValue, UsageError, PlanChanged, PathForbidden, SecretForbidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The ports of the service, joined by `service_bootstrap`."""

    services: Services
    registry: Registry
    jobs: Jobs
    read_document: ReadDocument
    read_plan: ReadDocument
    """The same without endpoints or a model: for plans that are only computed."""
    read_rule: Callable[[JsonObject], Mapping[str, Any]]
    """Parts of a decision rule, as settings. Raises UnknownSetting, InvalidValue."""
    check_endpoint: Callable[[str], None]
    """Raises EndpointForbidden for a URL that may not be called."""
    secrets: Secrets
    planner: Planner
    host_concurrency: int = 64
    """Requests in flight at one host, of all comparisons of all workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class By:
    """Who asks for a change, and when: for the record."""

    who: str
    at: datetime
    details: dict[str, str] = field(default_factory=dict)

    @property
    def caller(self) -> str:
        """Tells this caller from others."""
        return self.details.get("token", self.who)

    def entry(self, action: str, subject: str, **details: str) -> AuditEntry:
        """The record of a change."""
        return AuditEntry(at=self.at, who=self.who, action=action, subject=subject, details=self.details | details)
