"""Keys behind references: environment variables and files that the operator lets requests name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from qualab.errors import SecretForbidden

HINT = "Write env:NAME or file:/path, which the service's operator allows with --secret-env and --secret-dir"


class ReferencedSecrets:
    """`qualab.ports.Secrets`. No message repeats what was given: it may be a key."""

    def __init__(self, *, env: Sequence[str] = (), folder: Path | None = None) -> None:
        self._env = tuple(env)
        self._folder = folder

    def check(self, reference: str) -> None:
        """Raises SecretForbidden."""
        kind, _, name = reference.partition(":")
        if kind == "env" and any(fnmatchcase(name, pattern) for pattern in self._env):
            return
        if kind == "file" and self._allowed(name):
            return
        if kind in ("env", "file") and name:
            what = "variable" if kind == "env" else "file"
            raise SecretForbidden(f"A key refers to a {what} that requests may not name", hint=HINT)
        raise SecretForbidden("A key is given as a value: only a reference to it may be sent", hint=HINT)

    def read(self, reference: str) -> str:
        """Raises SecretForbidden."""
        self.check(reference)
        kind, _, name = reference.partition(":")
        try:
            found = os.environ.get(name, "") if kind == "env" else Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise SecretForbidden("The file that a key refers to cannot be read here", hint=HINT) from exc
        if not found.strip():
            raise SecretForbidden(f"The {kind} reference of a key leads to nothing here", hint=HINT)
        return found.strip()

    def _allowed(self, name: str) -> bool:
        """Whether the file, links followed, lies in the folder."""
        try:
            return self._folder is not None and Path(name).resolve().is_relative_to(self._folder.resolve())
        except (OSError, ValueError, RuntimeError):
            return False
