"""Two servers from one description: the same model and flags, the candidate with a drafter added and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qualab.model.names import ArmName

EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one arm's process runs: all that the arms may differ in beside the drafter."""

    port: int
    gpus: tuple[str, ...] | None = None
    """Device ids as CUDA_VISIBLE_DEVICES takes them; none for an empty tuple, all for None."""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """What the process's environment says about its place."""
        gpus = {} if self.gpus is None else {VISIBLE_GPUS: ",".join(self.gpus)}
        return {**gpus, **self.env}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPair:
    """A pair of vLLM servers, described once."""

    model: str
    """A checkpoint's folder, or its name on the hub."""
    revision: str = ""
    served_model_name: str
    image: str = ""
    speculative_config: Mapping[str, Any]
    args: Mapping[str, Any] = field(default_factory=dict)
    """vLLM's flags for both arms, by name with dashes. True is a flag without a value, False its --no- form."""
    env: Mapping[str, str] = field(default_factory=dict)
    baseline: Placement
    candidate: Placement
    command: tuple[str, ...]
    host: str
    log_dir: Path
    ready_timeout_s: float

    def placement(self, arm: ArmName) -> Placement:
        return self.baseline if arm is ArmName.BASELINE else self.candidate

    def reached_at(self, arm: ArmName) -> tuple[str, int]:
        """Host and port that a client on this machine connects to."""
        return ("127.0.0.1" if self.host in EVERY_ADDRESS else self.host), self.placement(arm).port

    def url(self, arm: ArmName) -> str:
        """The API root, for a client on this machine."""
        host, port = self.reached_at(arm)
        return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"

    def arguments(self, arm: ArmName, *, host: str, port: int) -> tuple[str, ...]:
        """What follows the command. The candidate's begin with the baseline's and add the drafter's configuration."""
        named = {"served-model-name": self.served_model_name, "revision": self.revision}
        words = [self.model, "--host", host, "--port", str(port)]
        words += [word for name, value in named.items() if value for word in _words(name, value)]
        words += [word for name, value in self.args.items() for word in _words(name, value)]
        if arm is ArmName.CANDIDATE:
            words += _words("speculative-config", self.speculative_config)
        return tuple(words)

    def variables(self, arm: ArmName) -> dict[str, str]:
        """What is added to the environment of an arm's process."""
        return {**self.env, **self.placement(arm).variables}

    @property
    def is_floating(self) -> bool:
        """Whether the model is a name on the hub without a revision, which may lead to another one tomorrow."""
        return not self.revision and not self.model.startswith(("/", "."))

    @property
    def shares_a_device(self) -> bool:
        """Whether both arms may be on one device, where each has to find its memory free while it starts."""
        baseline, candidate = self.baseline.gpus, self.candidate.gpus
        return baseline is None or candidate is None or not set(baseline).isdisjoint(candidate)


def _words(name: str, value: object) -> list[str]:
    match value:
        case True:
            return [f"--{name}"]
        case False:
            return [f"--no-{name}"]
        case list() | tuple():
            return [f"--{name}", *map(str, value)]
        case Mapping():
            return [f"--{name}", json.dumps(dict(value), ensure_ascii=False)]
        case _:
            return [f"--{name}", str(value)]
