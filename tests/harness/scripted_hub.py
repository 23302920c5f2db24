"""A model hub on this machine: what the hub's and the data sets' libraries ask of one, and commits that can move on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from tests.scripted_server import NOT_FOUND, ScriptedServer, Step, reply

Files = Mapping[str, bytes]


class ScriptedHub(ScriptedServer):
    """Data sets by name, each with its commits in order; a branch is at the last of them."""

    def __init__(self) -> None:
        super().__init__()
        self.repositories: dict[str, dict[str, Files]] = {}
        self.is_down = False
        """Whether it hangs up without a word."""
        self.answer(self._answer_hub)

    @property
    def asked(self) -> list[str]:
        return [f"{one.method} {unquote(one.path)}" for one in self.seen]

    def push(self, name: str, files: Files) -> str:
        """A new commit of a data set, with all its files; returns it."""
        commits = self.repositories.setdefault(name, {})
        commit = hashlib.sha1(f"{name} {len(commits)}".encode()).hexdigest()
        commits[commit] = files
        return commit

    async def _answer_hub(self, request: web.Request) -> web.StreamResponse:
        if self.is_down:
            assert request.transport is not None
            request.transport.close()
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        step = NOT_FOUND
        if parts[:2] == ["api", "datasets"] and len(parts) >= 4:
            what, revision = (parts[4], parts[5]) if len(parts) > 5 else ("revision", "main")
            step = self._described("/".join(parts[2:4]), what, revision)
        elif parts[0] == "datasets" and len(parts) >= 6 and parts[3] == "resolve":
            step = self._file("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
        return await step(request)

    def _files(self, name: str, revision: str) -> tuple[str, Files] | None:
        commits = self.repositories.get(name, {})
        commit = list(commits)[-1] if revision == "main" and commits else revision
        return (commit, commits[commit]) if commit in commits else None

    def _described(self, name: str, what: str, revision: str) -> Step:
        found = self._files(name, revision)
        if found is None:
            lacks = "RevisionNotFound" if name in self.repositories else "RepoNotFound"
            return reply({}, status=404, headers={"X-Error-Code": lacks})
        commit, files = found
        if what == "revision":
            siblings = [{"rfilename": path} for path in files]
            return reply({"id": name, "sha": commit, "siblings": siblings, "tags": [], "private": False})
        return reply([{"path": path, **_entry(content)} for path, content in files.items()])  # the tree

    def _file(self, name: str, revision: str, path: str) -> Step:
        found = self._files(name, revision)
        if found is None:
            return reply("", status=404, headers={"X-Error-Code": "RevisionNotFound"})
        commit, files = found
        if path not in files:
            return reply("", status=404, headers={"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        return reply(files[path], headers={"ETag": f'"{_entry(files[path])["oid"]}"', "X-Repo-Commit": commit})


def _entry(content: bytes) -> dict[str, Any]:
    return {"type": "file", "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
