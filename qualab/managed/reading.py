"""A YAML file whose errors name the line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from qualab.errors import InvalidValue, QualabError, UnknownSetting, UsageError
from qualab.model.names import ArmName
from qualab.model.pair import VISIBLE_GPUS, Placement, ServedPair

Place = Sequence[str | int]
"""The keys that lead to a value: ("baseline", "port")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file that holds a mapping."""

    path: Path
    root: yaml.MappingNode
    content: dict[str, Any]

    def error(
        self, place: Place, message: str, *, hint: str = "", kind: type[QualabError] = InvalidValue
    ) -> QualabError:
        """An error about the value at a place, or about the nearest value around it that there is."""
        return kind(f"{self.path}, line {self._line(place)}: {message}", hint=hint)

    def _line(self, place: Place) -> int:
        node: yaml.Node = self.root
        line = node.start_mark.line
        for key in place:
            found = next(((k, v) for k, v in _entries(node) if k.value == str(key)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line, found[1]
        return line + 1


def _entries(node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        yield from ((key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode))


def read_document(path: Path, *, hint: str) -> Document:
    """Raises UsageError for what cannot be read, is not YAML, says a thing twice or holds no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except OSError as exc:
        raise UsageError(f"Cannot read {path}: {exc.strerror}", hint=hint) from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        mark = getattr(exc, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UsageError(f"{place} is not YAML: {getattr(exc, 'problem', None) or exc}", hint=hint) from exc
    if not isinstance(root, yaml.MappingNode) or not isinstance(content, dict):
        raise UsageError(f"{path} holds no settings", hint=hint)
    _check_said_once(path, root)
    return Document(path=path, root=root, content=content)


def _check_said_once(path: Path, node: yaml.Node) -> None:
    """YAML itself would silently take the last."""
    seen: set[str] = set()
    for key, value in _entries(node):
        if key.value in seen:
            raise InvalidValue(f"{path}, line {key.start_mark.line + 1}: {key.value} is given twice")
        seen.add(key.value)
        _check_said_once(path, value)


HINT = "`qualab pair init` writes an example"
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

_DRAFTER = "it would be in both arms: speculation stands under speculative_config, which the candidate alone gets"
_OF_THE_PAIR = "it has a place of its own at the top of the file"
_OF_AN_ARM = "ports stand under baseline and candidate"
REFUSED_ARGS = {
    "model": _OF_THE_PAIR,
    "revision": _OF_THE_PAIR,
    "served-model-name": _OF_THE_PAIR,
    "host": _OF_THE_PAIR,
    "port": _OF_AN_ARM,
    "speculative-config": _DRAFTER,
    "spec-method": _DRAFTER,
    "spec-model": _DRAFTER,
    "spec-tokens": _DRAFTER,
    "sc": _DRAFTER,
    "config": "a second file could hold anything: write its flags under args",
    "api-key": "keys never stand in a file: set VLLM_API_KEY in the environment",
    "hf-token": "keys never stand in a file: set HF_TOKEN in the environment",
    "uds": "the pair is reached over HTTP ports",
    "ssl-keyfile": "the pair speaks plain HTTP",
    "ssl-certfile": "the pair speaks plain HTTP",
}
"""Flags that may not stand under args, and why. vLLM takes any beginning of a flag for the flag."""


def _text(value: object) -> object:
    """A number as the text that it was written as; true and false are left to be refused."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _ids(value: object) -> object:
    if isinstance(value, str):
        return [one.strip() for one in value.split(",") if one.strip()]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text)]
Ids = Annotated[tuple[Text, ...], BeforeValidator(_ids)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class _Placement(_Strict):
    port: int = Field(ge=1, le=65_535, strict=True)
    gpus: Ids | None = None
    env: dict[str, Text] = Field(default_factory=dict)


class _File(_Strict):
    model: str = Field(min_length=1)
    revision: Text = ""
    served_model_name: str = ""
    image: str = ""
    speculative_config: dict[str, Any] = Field(min_length=1)
    args: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, Text] = Field(default_factory=dict)
    baseline: _Placement
    candidate: _Placement
    command: tuple[str, ...] = Field(("vllm", "serve"), min_length=1)
    host: str = "127.0.0.1"
    log_dir: Path = Path("pair-logs")
    ready_timeout: float = Field(900.0, gt=0)


def read_pair(path: Path) -> ServedPair:
    """Raises UsageError, UnknownSetting or InvalidValue: one sentence with the file's line."""
    document = read_document(path, hint=HINT)
    try:
        file = _File.model_validate({key: value for key, value in document.content.items() if value is not None})
    except ValidationError as exc:
        raise _refused(document, exc) from exc
    placements = {arm: _placement(document, arm, getattr(file, arm.value)) for arm in ArmName}
    _check_same_size(document, placements)
    _check_env(document, ("env",), file.env)
    return ServedPair(
        model=str(Path(file.model).expanduser()) if file.model.startswith("~") else file.model,
        revision=file.revision,
        served_model_name=file.served_model_name or file.model,
        image=file.image,
        speculative_config=file.speculative_config,
        args=_args(document, file.args),
        env=file.env,
        baseline=placements[ArmName.BASELINE],
        candidate=placements[ArmName.CANDIDATE],
        command=file.command,
        host=file.host,
        log_dir=file.log_dir.expanduser(),
        ready_timeout_s=file.ready_timeout,
    )


def _refused(document: Document, invalid: ValidationError) -> QualabError:
    """The first thing that is wrong; an unknown name before what may be missing because of it."""
    errors = sorted(invalid.errors(), key=lambda error: error["type"] != "extra_forbidden")
    place, kind = errors[0]["loc"], errors[0]["type"]
    name = ".".join(map(str, place))
    if kind == "extra_forbidden":
        return _unknown(document, tuple(map(str, place)))
    if kind == "missing":
        return document.error(place, f"{name} is missing", hint=HINT)
    return document.error(place, f"{name}: {errors[0]['msg']}", hint=f"Given: {errors[0].get('input')!r}")


def _unknown(document: Document, place: tuple[str, ...]) -> QualabError:
    *outer, name = place
    known = list(_Placement.model_fields if outer else _File.model_fields)
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.6)
    hint = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(known)}"
    message = f"unknown key {name}"
    if outer and not near:
        message = f"{outer[0]} may not have {name}: the arms differ in speculative_config alone"
        hint = f"What is for both arms stands at the top (args, env); here: {', '.join(known)}"
    return document.error(place, message, hint=hint, kind=UnknownSetting)


def _placement(document: Document, arm: ArmName, given: _Placement) -> Placement:
    _check_env(document, (arm.value, "env"), given.env)
    for name in given.env:
        if name not in PLACING:
            raise document.error(
                (arm.value, "env", name),
                f"{name} may not differ between the arms",
                hint=f"Put it under env at the top, for both. Here: {', '.join(PLACING)}",
            )
    env = dict(given.env)
    visible = env.pop(VISIBLE_GPUS, None)
    if visible is not None and given.gpus is not None:
        raise document.error((arm.value, "gpus"), f"gpus and {VISIBLE_GPUS} say the same thing", hint="Keep one")
    gpus = given.gpus if visible is None else tuple(one.strip() for one in visible.split(",") if one.strip())
    return Placement(port=given.port, gpus=gpus, env=env)


def _check_same_size(document: Document, placements: Mapping[ArmName, Placement]) -> None:
    sizes = {None if one.gpus is None else len(one.gpus) for one in placements.values()}
    if len(sizes) > 1:
        raise document.error(
            (ArmName.CANDIDATE.value, "gpus"),
            "the arms have different numbers of GPUs",
            hint="Give both as many, or neither any",
        )


def _check_env(document: Document, place: tuple[str, ...], env: Mapping[str, str]) -> None:
    for name in env:
        if SECRET.search(name):
            raise document.error(
                (*place, name),
                f"{name} may not stand in a file",
                hint="Set it in the environment: both servers are given that",
            )


def _args(document: Document, given: Mapping[str, Any]) -> dict[str, Any]:
    args: dict[str, Any] = {}
    for written, value in given.items():
        name = written.lstrip("-").replace("_", "-")
        if reason := next(_reasons_against(name), None):
            raise document.error(("args", written), f"args may not have {written}: {reason}")
        if name in args:
            raise document.error(("args", written), f"{name} is given twice, with dashes and with underscores")
        if value is None:
            raise document.error(
                ("args", written), f"{written} has no value", hint="A flag without a value is written `true`"
            )
        args[name] = value
    return args


def _reasons_against(name: str) -> Iterator[str]:
    flag = name.partition(".")[0].removeprefix("no-")
    if not flag:
        yield "it is no name"
    yield from (reason for refused, reason in REFUSED_ARGS.items() if refused.startswith(flag))
