"""A checkpoint's folder: the hash of its files, and the commit that came with it.

The hash is the SHA-256 over a line for each file, in order of name: relative name, NUL, size, NUL, the SHA-256 of its
content, newline. Links to files count as the files; folders whose names begin with a dot (.git, .cache) do not count.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qualab.domain.pins import commit_of, snapshot_of
from qualab.errors import InvalidValue, PinUnreadable

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


class FolderHashes:
    """Hashes folders; a file that has not changed since is not read again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}

    async def hash_of(self, folder: Path, *, say: Callable[[str], None]) -> str:
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
    return sorted(_walk(folder), key=lambda one: one.name)


def _walk(folder: Path) -> Iterator[_File]:
    def fail(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = os.path.join(parent, name)
            seen = os.stat(path)
            if not stat.S_ISREG(seen.st_mode):
                continue
            relative = Path(path).relative_to(folder).as_posix()
            real = os.path.realpath(path)
            yield _File(os.fsencode(relative), real, seen.st_size, seen.st_mtime_ns)


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def local_revision(folder: Path) -> str:
    """The commit that a folder's path, its git, or the hub's metadata beside its files names; empty without one.

    Raises InvalidValue for what is no folder.
    """
    _check_folder(folder)
    with suppress(OSError):
        if commit := snapshot_of(str(folder.resolve())):
            return commit
    return _git_commit(folder / ".git") or _hub_commit(folder / _HUB_METADATA)


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
