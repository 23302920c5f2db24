"""Finds out what both arms are made of, and whether that is what the plan names.

Images are told by kubectl and docker; checkpoints by their folder on this machine, and by the engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from qualab.errors import InvalidValue, PinUnreadable
from qualab.model.engine import Engine, Finding
from qualab.model.names import ArmName
from qualab.model.plan import DECLARED, DIGEST, PinFound, PinPart, Pins, by_arm, commit_of, snapshot_of
from qualab.model.reason import Reason

Say = Callable[[str], None]
TIMEOUT_S = 20.0
MOST_SHOWN = 200
ENGINES_REVISIONS = ("model_config.revision", "revision", "model_sha")
"""The revision that vLLM and SGLang were told to load, and the commit that TGI loaded."""
PINNED_REVISION = (
    "Name the checkpoint by its commit with --revision (the hub's page shows it, `git ls-remote URL BRANCH` "
    "prints it), or name its folder with --checkpoint"
)


async def find_pins(
    source: LocalPins, pins: Pins, local: Mapping[str, str], engines: Mapping[ArmName, Engine], *, say: Say
) -> tuple[PinFound, ...]:
    """Find what each arm is made of: verified where something tells, else as the plan declares it.

    `local` names pods, containers and the checkpoint's folder. Raises PinUnreadable.
    """
    pods, containers = (by_arm(local.get(name, "")) for name in ("pods", "containers"))

    async def image_of(arm: ArmName) -> tuple[tuple[str, ...], str]:
        if pod := pods.get(arm):
            return await source.pod_image(pod), f"kubectl, pod {pod}"
        if container := containers.get(arm):
            return await source.container_image(container), f"docker, container {container}"
        return (pins.image,), DECLARED

    images = await asyncio.gather(*map(image_of, engines))
    folder = Path(local["checkpoint"]) if local.get("checkpoint") else None
    of_folder: dict[PinPart, str] = {}
    if folder:
        of_folder[PinPart.REVISION] = await asyncio.to_thread(source.revision, folder)
        if pins.checkpoint_hash:  # hashed only where the plan has a hash to compare with
            of_folder[PinPart.CHECKPOINT] = await source.checkpoint_hash(folder, say=say)
    seen: list[PinFound] = []
    for (arm, engine), image in zip(engines.items(), images, strict=True):
        is_named = folder is not None and engine.model_root.startswith("/") and Path(engine.model_root) == folder
        teller = f"{folder} on this machine{', the path that the engine names' if is_named else ''}"
        told: dict[PinPart, tuple[tuple[str, ...], str]] = {
            PinPart.IMAGE: image,
            PinPart.REVISION: ((pins.revision,), DECLARED),
            PinPart.CHECKPOINT: ((pins.checkpoint_hash,), DECLARED),
        }
        told |= {part: ((value,), teller) for part, value in of_folder.items() if value}
        of_engine = (commit_of(engine.config.get(name, "")) for name in ENGINES_REVISIONS)
        if commit := snapshot_of(engine.model_root) or next(filter(None, of_engine), ""):
            told[PinPart.REVISION] = (commit,), "the engine"
        seen += [
            PinFound(arm=arm, part=part, values=values, source=source_name)
            for part, (values, source_name) in told.items()
            if values != ("",)
        ]
    return tuple(seen)


def pin_findings(pins: Pins, seen: Sequence[PinFound], earlier: Sequence[PinFound] = ()) -> Iterator[Finding]:
    """Find pins that are not the plan's, or not what they were; floating ones do not stop."""
    before = {(pin.arm, pin.part): pin for pin in earlier if pin.is_verified}
    for part in PinPart:
        verified = [pin for pin in seen if pin.part is part and pin.is_verified]
        about = {
            pin.arm: {"arm": pin.arm, "part": part, "value": pin.values[0], "source": pin.source} for pin in verified
        }
        if planned := pins.fixed(part):
            hint = f"Start both arms with the planned {part}, or make a new plan of what they run (--{part})"
            for pin in verified:
                if planned not in pin.values:
                    yield _stops("preflight.pin-not-planned", {**about[pin.arm], "planned": planned}, hint)
            continue
        if len(verified) == len(ArmName) and verified[0].is_other_than(verified[1]):
            values: dict[str, object] = {"part": part}
            for pin in verified:
                values |= {pin.arm.value: pin.values[0], f"{pin.arm}_source": pin.source}
            yield _stops("preflight.pins-differ", values, f"Start both arms with one {part}")
        for pin in verified:
            if (then := before.get((pin.arm, part))) and pin.is_other_than(then):
                hint = "Start it as it was, or begin a new comparison"
                yield _stops("preflight.pin-changed", {**about[pin.arm], "before": then.values[0]}, hint)
    if pins.unpinned:
        reason = Reason("preflight.unpinned", {"parts": pins.unpinned})
        yield Finding(stops=False, what=reason, hint=". ".join(_ways_to_pin(pins, seen)))


def _stops(code: str, values: Mapping[str, object], hint: str) -> Finding:
    return Finding(stops=True, what=Reason(code, values), hint=hint)


def _ways_to_pin(pins: Pins, seen: Sequence[PinFound]) -> Iterator[str]:
    if not pins.fixed(PinPart.IMAGE):
        name = re.sub(r":[^:/]*$", "", pins.image.partition("@")[0]) or "NAME"
        running = next((pin for pin in seen if pin.part is PinPart.IMAGE and DIGEST.fullmatch(pin.values[0])), None)
        if running:
            yield f"Name the image by its digest: --image {name}@{running.values[0]} is what the {running.arm} runs"
        else:
            finds = f"`docker buildx imagetools inspect {pins.image or 'NAME:TAG'}` prints the digest"
            yield f"Name the image as --image {name}@sha256:DIGEST ({finds})"
    if not pins.fixed(PinPart.REVISION) and not pins.checkpoint_hash:
        yield PINNED_REVISION


async def ask_json(command: Sequence[str], *, about: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Read a command's JSON. Raises PinUnreadable where it is missing, fails, hangs, or prints something else."""
    name = command[0]

    def unreadable(why: str, hint: str = f"Try it by hand: {' '.join(command)}") -> PinUnreadable:
        return PinUnreadable(f"{about} cannot be looked into: {name} {why}", hint=hint)

    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    except OSError as exc:
        hint = f"Install {name}, or leave the name out: the image is then recorded as declared"
        raise unreadable(f"cannot be started ({exc.strerror})", hint) from exc
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except TimeoutError as exc:
        raise unreadable(f"has not answered for {timeout_s:g} s") from exc
    finally:  # it never outlives this
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = [line.strip() for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
        raise unreadable(f"says: {lines[-1][:MOST_SHOWN] if lines else f'exit code {process.returncode}'}")
    try:
        return orjson.loads(out)
    except orjson.JSONDecodeError as exc:
        raise unreadable("printed no JSON") from exc


def _digests(texts: Iterable[object], *, about: str) -> tuple[str, ...]:
    digests = [digest for text in texts if isinstance(text, str) for digest in DIGEST.findall(text)]
    if not digests:
        raise PinUnreadable(f"{about} names no image digest yet", hint="Wait until it is running")
    return tuple(dict.fromkeys(digests))


STEP_BYTES = 32 << 20
SAY_FROM_BYTES = 256 << 20
SAY_EVERY_S = 10.0
_WHICH_FOLDER = "--checkpoint names the folder on this machine; an empty name leaves it out"
_HUB_METADATA = Path(".cache/huggingface/download")
_PACKED = re.compile(r"^([0-9a-f]{40,64}) (\S+)$", re.MULTILINE)


_File = tuple[str, int, int]
"""Path, size in bytes, and time of change in nanoseconds."""


class LocalPins:
    """Asks the commands and folders of this machine. A file that has not changed since is not hashed again."""

    def __init__(self) -> None:
        self._known: dict[_File, str] = {}

    @staticmethod
    async def pod_image(pod: str) -> tuple[str, ...]:
        """Read the digests of "namespace/pod" or "namespace/pod/container". Raises PinUnreadable."""
        namespace, name, *container = pod.split("/")
        about = f"Pod {namespace}/{name}"
        command = ("kubectl", "get", "pod", name, "--namespace", namespace, "--output", "json", "--request-timeout=15s")
        answer = await ask_json(command, about=about)
        try:
            statuses = {status["name"]: status for status in answer["status"]["containerStatuses"]}
            specs = {spec["name"]: spec for spec in answer["spec"]["containers"]}
        except (KeyError, TypeError):
            statuses = {}
        if not statuses:
            raise PinUnreadable(f"{about} has no container yet", hint="Wait until it is running")
        if not container and len(statuses) == 1:
            container = [*statuses]
        if not container or container[0] not in statuses:
            trouble = f"no container {container[0]}" if container else "several containers"
            raise PinUnreadable(
                f"{about} has {trouble}: {', '.join(statuses)}",
                hint="Name one of them as namespace/pod/container",
            )
        status, spec = statuses[container[0]], specs.get(container[0], {})
        return _digests([status.get("imageID"), status.get("image"), spec.get("image")], about=about)

    @staticmethod
    async def container_image(container: str) -> tuple[str, ...]:
        """Read the digests of a container by name or id. Raises PinUnreadable."""
        about = f"Container {container}"
        try:
            (details,) = await ask_json(("docker", "container", "inspect", container), about=about)
            image_id, started_as = details["Image"], details["Config"]["Image"]
            (image,) = await ask_json(("docker", "image", "inspect", image_id), about=f"{about}'s image")
            pulled_by = image.get("RepoDigests") or []
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise PinUnreadable(f"{about} cannot be looked into: docker names no image of it") from exc
        own = image_id if ":" in image_id else f"sha256:{image_id}"
        return _digests([*pulled_by, started_as, own], about=about)

    async def checkpoint_hash(self, folder: Path, *, say: Callable[[str], None]) -> str:
        """Hash names and contents. Raises InvalidValue for no folder with files, PinUnreadable where reading fails."""
        try:
            _check_folder(folder)
            files = await asyncio.to_thread(_files, folder)
            await self._read([file for file in files.values() if file not in self._known], folder, say)
        except OSError as exc:
            raise PinUnreadable(
                f"The checkpoint's folder {folder} cannot be read: {exc.strerror}", hint=_WHICH_FOLDER
            ) from exc
        if not files:
            raise InvalidValue(f"The checkpoint's folder {folder} holds no files", hint="Correct --checkpoint")
        whole = hashlib.sha256()
        for name, file in sorted(files.items()):
            whole.update(b"%s\0%d\0%s\n" % (name, file[1], self._known[file].encode()))
        return f"sha256:{whole.hexdigest()}"

    @staticmethod
    def revision(folder: Path) -> str:
        """Read the commit from a folder's path, its git, or the hub's metadata; empty without one."""
        _check_folder(folder)
        with suppress(OSError):
            if commit := snapshot_of(str(folder.resolve())):
                return commit
        # each file's metadata begins with the commit that it was downloaded of
        metadata = (folder / _HUB_METADATA).rglob("*.metadata")
        commits = {_text(path).split("\n", 1)[0].strip() for path in metadata}
        return _git_commit(folder / ".git") or (commit_of(commits.pop()) if len(commits) == 1 else "")

    async def _read(self, files: list[_File], folder: Path, say: Callable[[str], None]) -> None:
        total, done = sum(size_bytes for _, size_bytes, _ in files), 0
        last_s = time.monotonic() if total >= SAY_FROM_BYTES else float("inf")
        if total >= SAY_FROM_BYTES:
            say(f"Hashing the checkpoint {folder}, {_gigabytes(total)}")
        for file in files:
            content, offset = hashlib.sha256(), 0
            # in steps, so that Ctrl-C ends it soon
            while n_read := await asyncio.to_thread(_step, file[0], offset, content):
                offset, done = offset + n_read, done + n_read
                if time.monotonic() - last_s >= SAY_EVERY_S:
                    last_s = time.monotonic()
                    say(f"Hashing the checkpoint: {_gigabytes(done)} of {_gigabytes(total)}")
            self._known[file] = content.hexdigest()


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InvalidValue(f"checkpoint {folder} is not a directory", hint=_WHICH_FOLDER)


def _step(path: str, offset: int, content: Any) -> int:
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        chunk = file.read(STEP_BYTES)
    content.update(chunk)
    return len(chunk)


def _files(folder: Path) -> dict[bytes, _File]:
    def fail(error: OSError) -> None:
        raise error

    files = {}
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = os.path.join(parent, name)
            seen = os.stat(path)
            if stat.S_ISREG(seen.st_mode):
                relative = Path(path).relative_to(folder).as_posix()
                files[os.fsencode(relative)] = (os.path.realpath(path), seen.st_size, seen.st_mtime_ns)
    return files


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def _git_commit(git: Path) -> str:
    head = _text(git / "HEAD")
    if not head.startswith("ref: "):
        return commit_of(head)
    ref = head.removeprefix("ref: ")
    packed = {name: commit for commit, name in _PACKED.findall(_text(git / "packed-refs"))}
    return commit_of(_text(git / ref)) or packed.get(ref, "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
