"""The digests of the image that a pod or a container runs.

An image of several platforms has two digests, its index's and its own, and which one a runtime tells is its choice:
whatever names the image is collected. Sources: Kubernetes' core/v1 `ContainerStatus`, Docker's `container inspect` and
`image inspect`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qualab.adapters.pins.commands import ask_json
from qualab.domain.pins import DIGEST
from qualab.errors import PinUnreadable

REQUEST_TIMEOUT = "15s"


async def pod_digests(pod: str) -> tuple[str, ...]:
    """Of "namespace/pod" or "namespace/pod/container". Raises PinUnreadable."""
    namespace, name, *wanted = pod.split("/")
    about = f"Pod {namespace}/{name}"
    command = ("kubectl", "get", "pod", name, "--namespace", namespace, "--output", "json")
    answer = await ask_json((*command, f"--request-timeout={REQUEST_TIMEOUT}"), about=about)
    status = _one(_list(answer, "status", "containerStatuses"), wanted[0] if wanted else "", about=about)
    spec = next((one for one in _list(answer, "spec", "containers") if one.get("name") == status.get("name")), {})
    return _digests([status.get("imageID"), status.get("image"), spec.get("image")], about=about)


async def docker_digests(container: str) -> tuple[str, ...]:
    """Of a container by name or id. Raises PinUnreadable."""
    about = f"Container {container}"
    found = _first(await ask_json(("docker", "container", "inspect", container), about=about))
    image_id = str(found.get("Image") or "")
    if not image_id:
        raise PinUnreadable(f"{about} cannot be looked into: docker names no image of it")
    image = _first(await ask_json(("docker", "image", "inspect", image_id), about=f"{about}'s image"))
    pulled_as = image.get("RepoDigests") or []
    started_as = (found.get("Config") or {}).get("Image")
    own = image_id if ":" in image_id else f"sha256:{image_id}"
    return _digests([*pulled_as, started_as, own], about=about)


def _one(statuses: Sequence[Mapping[str, Any]], wanted: str, *, about: str) -> Mapping[str, Any]:
    """The wanted container, or the only one."""
    names = [str(one.get("name")) for one in statuses]
    if wanted in names:
        return statuses[names.index(wanted)]
    if len(statuses) == 1 and not wanted:
        return statuses[0]
    if not statuses:
        raise PinUnreadable(f"{about} has no container yet", hint="Wait until it is running")
    raise PinUnreadable(
        f"{about} has {'no container ' + wanted if wanted else 'several containers'}: {', '.join(names)}",
        hint="Name one of them as namespace/pod/container",
    )


def _digests(texts: Iterable[object], *, about: str) -> tuple[str, ...]:
    found = [digest for text in texts if isinstance(text, str) for digest in DIGEST.findall(text)]
    if not found:
        raise PinUnreadable(f"{about} names no image digest yet", hint="Wait until it is running")
    return tuple(dict.fromkeys(found))


def _list(answer: object, part: str, name: str) -> list[Mapping[str, Any]]:
    inner = answer.get(part) if isinstance(answer, dict) else None
    entries = inner.get(name) if isinstance(inner, dict) else None
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


def _first(answer: object) -> Mapping[str, Any]:
    first = answer[0] if isinstance(answer, list) and answer else answer
    return first if isinstance(first, dict) else {}
