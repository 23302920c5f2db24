"""A model hub on this machine: what the hub's and the data sets' libraries ask of one, and commits that can move on."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

Files = Mapping[str, bytes]


@dataclass(kw_only=True)
class ScriptedHub:
    """Data sets by name, each with its commits in order; a branch is at the last of them."""

    repositories: dict[str, dict[str, Files]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Method and path of every request."""
    is_down: bool = False
    """Whether it hangs up without a word."""

    def push(self, name: str, files: Files) -> str:
        """A new commit of a data set, with all its files; returns it."""
        commits = self.repositories.setdefault(name, {})
        commit = hashlib.sha1(f"{name} {len(commits)}".encode()).hexdigest()
        commits[commit] = files
        return commit

    def files(self, name: str, revision: str) -> tuple[str, Files] | None:
        commits = self.repositories.get(name, {})
        commit = list(commits)[-1] if revision == "main" and commits else revision
        return (commit, commits[commit]) if commit in commits else None

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    hub: ScriptedHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.hub.is_down:
            self.close_connection = True
            return
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.hub.asked.append(f"{self.command} /{'/'.join(parts)}")
        if parts[:2] == ["api", "datasets"] and len(parts) >= 4:
            self._describe("/".join(parts[2:4]), parts[4:])
        elif parts[0] == "datasets" and len(parts) >= 6 and parts[3] == "resolve":
            self._send_file("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
        else:
            self._send(404, b"")

    def _describe(self, name: str, rest: list[str]) -> None:
        what, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
        if name not in self.hub.repositories:
            self._send(404, b"{}", **{"X-Error-Code": "RepoNotFound"})
        elif (found := self.hub.files(name, revision)) is None:
            self._send(404, b"{}", **{"X-Error-Code": "RevisionNotFound"})
        elif what == "revision":
            siblings = [{"rfilename": path} for path in found[1]]
            self._send_json({"id": name, "sha": found[0], "siblings": siblings, "tags": [], "private": False})
        else:  # tree
            self._send_json([_entry(path, content) for path, content in found[1].items()])

    def _send_file(self, name: str, revision: str, path: str) -> None:
        found = self.hub.files(name, revision)
        if found is None:
            self._send(404, b"", **{"X-Error-Code": "RevisionNotFound"})
        elif path not in found[1]:
            self._send(404, b"", **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": found[0]})
        else:
            content = found[1][path]
            self._send(200, content, ETag=f'"{_oid(content)}"', **{"X-Repo-Commit": found[0]})

    def _send_json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _entry(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
