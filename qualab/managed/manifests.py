"""The pair as Kubernetes manifests or as a compose file: the same image, arguments and environment in both arms."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from typing import Any

import yaml

from qualab.errors import InvalidValue
from qualab.managed.pair import ServedPair
from qualab.model.names import ArmName

Manifest = dict[str, Any]

PINNED = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
COMMAND = ["vllm", "serve"]
PORT = 8000
PROBE_EVERY_S = 10
STOP_S = 60
HUB_CACHE = "/models"
CLAIM = "qualab-models"
SECRET = {"name": "qualab-pair", "key": "vllm-api-key", "optional": True}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
IS_HEALTHY = (
    "import http.client as h, sys; "
    f"c = h.HTTPConnection('127.0.0.1', {PORT}, timeout=5); c.request('GET', '/health'); "
    "sys.exit(c.getresponse().status != 200)"
)

KUBERNETES_NOTE = f"""\
# Written by `qualab pair render`: one arm of a pair that differs in --speculative-config alone.
# Needs a PersistentVolumeClaim {CLAIM} with the model files (mounted at the volume's path below, read only).
# Optional: a Secret {SECRET["name"]} whose key {SECRET["key"]} is the API key of both servers.
"""
COMPOSE_NOTE = """\
# Written by `qualab pair render`: two servers that differ in --speculative-config alone.
# Optional: VLLM_API_KEY in the environment is the API key of both.
"""


def render_kubernetes(pair: ServedPair) -> dict[str, str]:
    """Write a Deployment and a Service for each arm; text by file name. Raises InvalidValue."""
    _check_renderable(pair)
    return {f"{arm}.yaml": KUBERNETES_NOTE + _yaml(_kubernetes(pair, arm)) for arm in ArmName}


def render_compose(pair: ServedPair) -> dict[str, str]:
    """Write a compose file with a service for each arm; text by file name. Raises InvalidValue."""
    _check_renderable(pair)
    if pair.baseline.port == pair.candidate.port:
        raise InvalidValue(
            f"Both services would be on port {pair.baseline.port}", hint="Give baseline and candidate a port each"
        )
    services = {arm.value: _compose_service(pair, arm) for arm in ArmName}
    return {"compose.yaml": COMPOSE_NOTE + _yaml([{"name": "qualab-pair", "services": services}])}


class _Plain(yaml.SafeDumper):
    # writes a thing again where it stands again, and not a reference to the first
    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _yaml(documents: Iterable[Manifest]) -> str:
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110)


def _check_renderable(pair: ServedPair) -> None:
    if not PINNED.fullmatch(pair.image):
        name = pair.image.partition("@")[0] or "vllm/vllm-openai:TAG"
        raise InvalidValue(
            f"The image {pair.image} is not pinned by a digest" if pair.image else "No image is given",
            hint=f"`docker buildx imagetools inspect {name}` prints its digest; write image: NAME@sha256:DIGEST",
        )
    if any(name.startswith(".") for name in _checkpoints(pair)):
        raise InvalidValue("A container has no relative paths", hint="Give model and drafter as absolute paths")
    if len({name.startswith("/") for name in _checkpoints(pair)}) > 1:
        raise InvalidValue("Of model and drafter one is a path and one a name on the hub", hint="Give both alike")
    if _models_folder(pair) == "/":
        hint = "Put both into one folder"
        raise InvalidValue("Model and drafter have no folder around them that can be mounted", hint=hint)


def _checkpoints(pair: ServedPair) -> list[str]:
    # paths, or names on the hub
    drafter = pair.speculative_config.get("model")
    return [pair.model, *([drafter] if isinstance(drafter, str) else [])]


def _models_folder(pair: ServedPair) -> str:
    # around local checkpoints, or as the hub's cache
    if not pair.model.startswith("/"):
        return HUB_CACHE
    return os.path.commonpath([os.path.dirname(os.path.normpath(path)) for path in _checkpoints(pair)])


def _environment(pair: ServedPair) -> dict[str, str]:
    cache = {"HF_HOME": HUB_CACHE, "HF_MODULES_CACHE": "/tmp/hf-modules"} if not pair.model.startswith("/") else {}
    return {**OFFLINE, **cache, **pair.env}


def _gpu_count(pair: ServedPair) -> int:
    # as many as are listed, or as the parallelism needs
    if pair.baseline.gpus is not None:
        return len(pair.baseline.gpus)
    sizes = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
    return math.prod(int(pair.args.get(name, 1)) for name in sizes)


def _kubernetes(pair: ServedPair, arm: ArmName) -> list[Manifest]:
    def text(value: str) -> str:  # Kubernetes would put a variable's value for $(NAME)
        return value.replace("$(", "$$(")

    labels = {"app.kubernetes.io/name": "qualab-pair", "app.kubernetes.io/component": arm.value}
    metadata = {"name": f"qualab-{arm}", "labels": labels}
    health = {"path": "/health", "port": "http"}
    probe = {"httpGet": health, "periodSeconds": PROBE_EVERY_S, "timeoutSeconds": 5}
    gpus = _gpu_count(pair)
    container: Manifest = {
        "name": "vllm",
        "image": pair.image,
        "command": COMMAND,
        "args": [text(word) for word in pair.arguments(arm, host="0.0.0.0", port=PORT)],
        "env": [
            *({"name": name, "value": text(value)} for name, value in _environment(pair).items()),
            {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": SECRET}},
        ],
        "ports": [{"name": "http", "containerPort": PORT}],
        "startupProbe": {**probe, "failureThreshold": math.ceil(pair.ready_timeout / PROBE_EVERY_S)},
        "readinessProbe": probe,
        **({"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}),
        "volumeMounts": [
            {"name": "models", "mountPath": _models_folder(pair), "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named vllm would set VLLM_PORT, which vLLM reads
        "terminationGracePeriodSeconds": STOP_S,
        "containers": [container],
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": CLAIM, "readOnly": True}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    deployment = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    service = {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
    ]


def _compose_service(pair: ServedPair, arm: ArmName) -> Manifest:
    def text(value: str) -> str:  # Compose would put a variable's value for $NAME
        return value.replace("$", "$$")

    placement, folder = pair.placement(arm), text(_models_folder(pair))
    address = f"[{pair.host}]" if ":" in pair.host else pair.host
    service: Manifest = {
        "image": pair.image,
        "entrypoint": COMMAND,
        "command": [text(word) for word in pair.arguments(arm, host="0.0.0.0", port=PORT)],
        "environment": {
            **{name: text(value) for name, value in {**_environment(pair), **placement.env}.items()},
            "VLLM_API_KEY": "${VLLM_API_KEY:-}",
        },
        "ports": [f"{address}:{placement.port}:{PORT}"],
        "volumes": [
            {
                "type": "bind",
                "source": "${HF_HOME:-${HOME}/.cache/huggingface}" if not pair.model.startswith("/") else folder,
                "target": folder,
                "read_only": True,
            }
        ],
        "shm_size": "8gb",
        "stop_grace_period": f"{STOP_S}s",
        "restart": "no",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", IS_HEALTHY],
            "interval": f"{PROBE_EVERY_S}s",
            "timeout": "6s",
            "start_period": f"{math.ceil(pair.ready_timeout)}s",
        },
    }
    if count := _gpu_count(pair):
        which: Manifest = {"device_ids": list(placement.gpus)} if placement.gpus else {"count": count}
        device = {"driver": "nvidia", **which, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return service
