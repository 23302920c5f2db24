"""Reads what the arms really run: image digests from kubectl and docker, hashes and commits of local folders."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from qualab.errors import InvalidValue, PinUnreadable
from qualab.model.plan import DIGEST, commit_of, snapshot_of

TIMEOUT_S = 20.0
SHOWN = 200
"""Characters of a command's own words."""


async def ask_json(command: Sequence[str], *, about: str, timeout_s: float = TIMEOUT_S) -> Any:
    """What the command prints. Raises PinUnreadable where it is missing, fails, hangs, or prints something else."""
    name = command[0]
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    except OSError as exc:
        raise PinUnreadable(
            f"{about} cannot be looked into: {name} cannot be started ({exc.strerror})",
            hint=f"Install {name}, or leave the name out: the image is then recorded as declared",
        ) from exc
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except TimeoutError as exc:
        raise PinUnreadable(
            f"{about} cannot be looked into: {name} has not answered for {timeout_s:g} s",
            hint="Check that its server can be reached from here",
        ) from exc
    finally:  # it never outlives this
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = [line.strip() for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
        reason = lines[-1][:SHOWN] if lines else f"exit code {process.returncode}"
        raise PinUnreadable(
            f"{about} cannot be looked into: {name} says: {reason}",
            hint=f"Try it by hand: {' '.join(command)}",
        )
    try:
        return orjson.loads(out)
    except orjson.JSONDecodeError as exc:
        raise PinUnreadable(
            f"{about} cannot be looked into: {name} printed no JSON", hint=f"Try it by hand: {' '.join(command)}"
        ) from exc


async def pod_digests(pod: str) -> tuple[str, ...]:
    """Of "namespace/pod" or "namespace/pod/container". Raises PinUnreadable."""
    namespace, name, *wanted = pod.split("/")
    about = f"Pod {namespace}/{name}"
    command = ("kubectl", "get", "pod", name, "--namespace", namespace, "--output", "json")
    answer = await ask_json((*command, "--request-timeout=15s"), about=about)
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


STEP_BYTES = 32 << 20
SAY_FROM_BYTES = 256 << 20
SAY_EVERY_S = 10.0
_WHICH_FOLDER = "--checkpoint names the folder on this machine; an empty name leaves it out"
_HUB_METADATA = Path(".cache/huggingface/download")
_PACKED = re.compile(r"^([0-9a-f]{40,64}) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _File:
    name: bytes
    path: str
    size_bytes: int
    mtime_ns: int

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.path, self.size_bytes, self.mtime_ns)


class LocalPins:
    """Asks the commands and folders of this machine. A file that has not changed since is not hashed again."""

    pod_image = staticmethod(pod_digests)
    container_image = staticmethod(docker_digests)

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}

    async def checkpoint_hash(self, folder: Path, *, say: Callable[[str], None]) -> str:
        """As "sha256:...". Raises InvalidValue for no folder with files, PinUnreadable where reading fails."""
        try:
            _check_folder(folder)
            files = await asyncio.to_thread(_files, folder)
            await self._read([one for one in files if one.key not in self._known], folder, say)
        except OSError as exc:
            raise PinUnreadable(
                f"The checkpoint's folder {folder} cannot be read: {exc.strerror}", hint=_WHICH_FOLDER
            ) from exc
        if not files:
            raise InvalidValue(f"The checkpoint's folder {folder} holds no files", hint="Correct --checkpoint")
        whole = hashlib.sha256()
        for one in files:
            whole.update(b"%s\0%d\0%s\n" % (one.name, one.size_bytes, self._known[one.key].encode()))
        return f"sha256:{whole.hexdigest()}"

    @staticmethod
    def revision(folder: Path) -> str:
        """The commit that a folder's path, its git, or the hub's metadata beside its files names; empty without one.

        Raises InvalidValue for what is no folder.
        """
        _check_folder(folder)
        with suppress(OSError):
            if commit := snapshot_of(str(folder.resolve())):
                return commit
        return _git_commit(folder / ".git") or _hub_commit(folder / _HUB_METADATA)

    async def _read(self, files: list[_File], folder: Path, say: Callable[[str], None]) -> None:
        total, done = sum(one.size_bytes for one in files), 0
        said_s = time.monotonic() if total >= SAY_FROM_BYTES else float("inf")
        if total >= SAY_FROM_BYTES:
            say(f"Hashing the checkpoint {folder}, {_gigabytes(total)}")
        for one in files:
            content, offset = hashlib.sha256(), 0
            # in steps, so that Ctrl-C ends it soon
            while n_read := await asyncio.to_thread(_step, one.path, offset, content):
                offset, done = offset + n_read, done + n_read
                if time.monotonic() - said_s >= SAY_EVERY_S:
                    said_s = time.monotonic()
                    say(f"Hashing the checkpoint: {_gigabytes(done)} of {_gigabytes(total)}")
            self._known[one.key] = content.hexdigest()


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InvalidValue(f"checkpoint {folder} is not a directory", hint=_WHICH_FOLDER)


def _step(path: str, offset: int, content: Any) -> int:
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        chunk = file.read(STEP_BYTES)
    content.update(chunk)
    return len(chunk)


def _files(folder: Path) -> list[_File]:
    """Every file, in order of name. Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    files = []
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = os.path.join(parent, name)
            seen = os.stat(path)
            if not stat.S_ISREG(seen.st_mode):
                continue
            relative = Path(path).relative_to(folder).as_posix()
            real = os.path.realpath(path)
            files.append(_File(os.fsencode(relative), real, seen.st_size, seen.st_mtime_ns))
    return sorted(files, key=lambda file: file.name)


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def _git_commit(git: Path) -> str:
    head = _text(git / "HEAD")
    if not head.startswith("ref: "):
        return commit_of(head)
    ref = head.removeprefix("ref: ")
    packed = {name: commit for commit, name in _PACKED.findall(_text(git / "packed-refs"))}
    return commit_of(_text(git / ref)) or packed.get(ref, "")


def _hub_commit(folder: Path) -> str:
    """The one commit that all files were downloaded of; each file's metadata begins with it."""
    commits = {_text(path).split("\n", 1)[0].strip() for path in folder.rglob("*.metadata")}
    return commit_of(commits.pop()) if len(commits) == 1 else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
