"""A pair of vLLM servers from one YAML file: the same model and flags, the candidate with a drafter added."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from qualab.errors import InvalidValue, QualabError, UnknownSetting, UsageError
from qualab.model.names import ArmName
from qualab.settings import read_document

HINT = "`qualab pair init` writes an example"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
PLACING = (
    VISIBLE_GPUS,
    "NVIDIA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "VLLM_CPU_OMP_THREADS_BIND",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "VLLM_HOST_IP",
    "VLLM_PORT",
    "MASTER_PORT",
)
"""Variables that say where a process runs or which ports it takes for itself, and change nothing that it computes."""
SECRET = re.compile(r"(API_?KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)

_DRAFTER = "it would be in both arms: speculation belongs under speculative_config, which the candidate alone gets"
_OF_THE_PAIR = "it is a key at the top of the file"
REFUSED_ARGS = {
    **dict.fromkeys(("model", "revision", "served-model-name", "host"), _OF_THE_PAIR),
    "port": "ports belong under baseline and candidate",
    **dict.fromkeys(("speculative-config", "spec-method", "spec-model", "spec-tokens", "sc"), _DRAFTER),
    "config": "a second file could hold anything: write its flags under args",
    "api-key": "keys do not belong in a file: set VLLM_API_KEY in the environment",
    "hf-token": "keys do not belong in a file: set HF_TOKEN in the environment",
    "uds": "the pair is reached over HTTP ports",
    **dict.fromkeys(("ssl-keyfile", "ssl-certfile"), "the pair speaks plain HTTP"),
}
"""Flags that may not stand under args, and why. vLLM takes any beginning of a flag for the flag."""


def _text(value: object) -> object:
    # true and false are left to be refused
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _ids(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text)]
Ids = Annotated[tuple[Text, ...], BeforeValidator(_ids)]
UserPath = Annotated[Path, AfterValidator(Path.expanduser)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Placement(_Strict):
    """Where one arm's process runs: all that the arms may differ in beside the drafter."""

    port: int = Field(ge=1, le=65_535, strict=True)
    gpus: Ids | None = None
    """Device ids as CUDA_VISIBLE_DEVICES takes them; none for an empty tuple, all for None."""
    env: dict[str, Text] = Field(default_factory=dict)


class ServedPair(_Strict):
    """A pair of vLLM servers, described once; the fields are the file's keys."""

    model: str = Field(min_length=1)
    """A checkpoint's folder, or its name on the hub."""
    revision: Text = ""
    served_model_name: str = ""
    """Never empty from `read_pair`."""
    image: str = ""
    speculative_config: dict[str, Any] = Field(min_length=1)
    args: dict[str, Any] = Field(default_factory=dict)
    """vLLM's flags for both arms, by name with dashes. True is a flag without a value, False its --no- form."""
    env: dict[str, Text] = Field(default_factory=dict)
    baseline: Placement
    candidate: Placement
    command: tuple[str, ...] = Field(("vllm", "serve"), min_length=1)
    host: str = "127.0.0.1"
    log_dir: UserPath = Path("pair-logs")
    ready_timeout: float = Field(900.0, gt=0)
    """Seconds."""

    def placement(self, arm: ArmName) -> Placement:
        return self.baseline if arm is ArmName.BASELINE else self.candidate

    def reached_at(self, arm: ArmName) -> tuple[str, int]:
        """Return host and port for a client on this machine."""
        return ("127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host), self.placement(arm).port

    def url(self, arm: ArmName) -> str:
        """Return the API root for a client on this machine."""
        host, port = self.reached_at(arm)
        return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"

    def arguments(self, arm: ArmName, *, host: str, port: int) -> list[str]:
        """List what follows the command: the candidate's are the baseline's and the drafter's configuration."""
        named = {"served-model-name": self.served_model_name, "revision": self.revision}
        flags = {**{name: value for name, value in named.items() if value}, **self.args}
        if arm is ArmName.CANDIDATE:
            flags["speculative-config"] = self.speculative_config
        words = [self.model, "--host", host, "--port", str(port)]
        return words + [word for name, value in flags.items() for word in _words(name, value)]

    def variables(self, arm: ArmName) -> dict[str, str]:
        """Return what is added to the environment of an arm's process."""
        placement = self.placement(arm)
        gpus = {} if placement.gpus is None else {VISIBLE_GPUS: ",".join(placement.gpus)}
        return {**self.env, **gpus, **placement.env}

    @property
    def is_floating(self) -> bool:
        """Tell whether the model is a hub name without a revision, which may change tomorrow."""
        return not self.revision and not self.model.startswith(("/", "."))

    @property
    def shares_a_device(self) -> bool:
        """Tell whether both arms may be on one device, whose memory each measures while it starts."""
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


def read_pair(path: Path) -> ServedPair:
    """Read a pair file. Raises UsageError, UnknownSetting or InvalidValue with the file's line."""
    try:
        content = read_document(path)
    except UsageError as exc:
        exc.hint = HINT
        raise
    try:
        pair = ServedPair.model_validate({key: value for key, value in content.items() if value is not None})
    except ValidationError as exc:
        raise _refused(path, exc) from exc
    baseline, candidate = (_placement(path, arm, pair.placement(arm)) for arm in ArmName)
    if (baseline.gpus is None, len(baseline.gpus or ())) != (candidate.gpus is None, len(candidate.gpus or ())):
        hint = "Give both as many, or neither any"
        raise _error(path, ("candidate", "gpus"), "the arms have different numbers of GPUs", hint=hint)
    _check_env(path, ("env",), pair.env)
    return pair.model_copy(
        update={
            "model": str(Path(pair.model).expanduser()) if pair.model.startswith("~") else pair.model,
            "served_model_name": pair.served_model_name or pair.model,
            "args": _args(path, pair.args),
            "baseline": baseline,
            "candidate": candidate,
        }
    )


def _error(
    path: Path, keys: Sequence[str | int], message: str, *, hint: str = "", kind: type[QualabError] = InvalidValue
) -> QualabError:
    """Name the line of the value that these keys lead to, or of the nearest value around it."""
    node: Any = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    line = node.start_mark.line
    for key in keys:
        entries = node.value if isinstance(node, yaml.MappingNode) else ()
        entry = next((entry for entry in entries if entry[0].value == str(key)), None)
        if entry is None:
            break
        line, node = entry[0].start_mark.line, entry[1]
    return kind(f"{path}, line {line + 1}: {message}", hint=hint)


def _refused(path: Path, invalid: ValidationError) -> QualabError:
    """Name the first error; an unknown name before what may be missing because of it."""
    first = min(invalid.errors(), key=lambda error: error["type"] != "extra_forbidden")
    keys = first["loc"]
    *outer, name = map(str, keys)
    if first["type"] == "missing":
        return _error(path, keys, f"{'.'.join([*outer, name])} is missing", hint=HINT)
    if first["type"] != "extra_forbidden":
        hint = f"Given: {first.get('input')!r}"
        return _error(path, keys, f"{'.'.join([*outer, name])}: {first['msg']}", hint=hint)
    known = list(Placement.model_fields if outer else ServedPair.model_fields)
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.6)
    hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(known)}"
    message = f"unknown key {name}"
    if outer and not near:
        message = f"{outer[0]} must not have {name}: the arms differ in speculative_config alone"
        hint = f"Settings for both arms belong at the top (args, env); here: {', '.join(known)}"
    return _error(path, keys, message, hint=hint, kind=UnknownSetting)


def _placement(path: Path, arm: ArmName, given: Placement) -> Placement:
    _check_env(path, (arm.value, "env"), given.env)
    for name in given.env:
        if name not in PLACING:
            hint = f"Put it under env at the top, for both. Here: {', '.join(PLACING)}"
            raise _error(path, (arm.value, "env", name), f"{name} must not differ between the arms", hint=hint)
    if VISIBLE_GPUS not in given.env:
        return given
    if given.gpus is not None:
        raise _error(path, (arm.value, "gpus"), f"gpus and {VISIBLE_GPUS} say the same thing", hint="Keep one")
    env = dict(given.env)
    return Placement(port=given.port, gpus=_ids(env.pop(VISIBLE_GPUS)), env=env)  # type: ignore[arg-type]


def _check_env(path: Path, keys: tuple[str, ...], env: Mapping[str, str]) -> None:
    for name in env:
        if SECRET.search(name):
            hint = "Set it in the environment, which both servers get"
            raise _error(path, (*keys, name), f"{name} must not be in a file", hint=hint)


def _args(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    args: dict[str, Any] = {}
    for key, value in given.items():
        name = key.lstrip("-").replace("_", "-")
        flag, keys = name.partition(".")[0].removeprefix("no-"), ("args", key)
        reasons = [reason for refused, reason in REFUSED_ARGS.items() if refused.startswith(flag)]
        if reasons:
            why = reasons[0] if flag else "it is not a name"
            raise _error(path, keys, f"args must not have {key}: {why}")
        if name in args:
            raise _error(path, keys, f"{key} is given twice, with dashes and with underscores")
        if value is None:
            raise _error(path, keys, f"{key} has no value", hint="A flag without a value is written `true`")
        args[name] = value
    return args
