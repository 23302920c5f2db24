"""Access: bearer tokens, rate limits, and the secrets that requests may refer to."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from anyio import to_thread

from qualab.errors import InvalidValue, SecretForbidden, TooManyRequests, Unauthenticated
from qualab.model.ports import Clock
from qualab.model.registry import AuditEntry, Scope, Token
from qualab.model.wording import storable_text

if TYPE_CHECKING:
    from qualab.store import Store

T = TypeVar("T")
FORM = re.compile(r"qlb_([0-9a-f]{12})\.([A-Za-z0-9_-]{43})")
MAX_NAME = 100
FRESH_S = 2.0
"""How long a token is not read again: a revoked one is refused everywhere after that."""
MAX_TOKENS = 4_096
_NO_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who asks for a change, and when: for the audit log."""

    who: str
    at: datetime
    details: dict[str, str] = field(default_factory=dict)

    @property
    def caller(self) -> str:
        return self.details.get("token", self.who)

    def entry(self, action: str, subject: str, **details: str) -> AuditEntry:
        return AuditEntry(at=self.at, who=self.who, action=action, subject=subject, details=self.details | details)


LOOPBACK = Token(id="", name="loopback", digest=b"", scope=Scope.ADMIN, created_at=datetime.min, expires_at=None)
"""Stands for programs of this machine while there has never been a token."""


def create_token(store: Store, *, name: str, scope: Scope, lifetime: timedelta | None, by: Actor) -> tuple[Token, str]:
    """Make a token, and its text, which is shown once and stored nowhere. Raises InvalidValue."""
    if not name.strip() or len(name) > MAX_NAME or storable_text(name) != name or not name.isprintable():
        raise InvalidValue(f"The name of a token must be 1 to {MAX_NAME} printable characters", hint="As ci-nightly")
    if lifetime is not None and lifetime <= timedelta(0):
        raise InvalidValue("A token must expire after it was made", hint="As --expires 90d, or none")
    text = new_text()
    token = replace(
        token_of(text, name=name, scope=scope, now=by.at), expires_at=None if lifetime is None else by.at + lifetime
    )
    store.add_token(token, entry=by.entry("token.create", token.id, name=name, scope=scope.value))
    return token, text


def new_text() -> str:
    """Make the text that a caller presents as a token."""
    return f"qlb_{secrets.token_hex(6)}.{secrets.token_urlsafe(32)}"


def token_of(text: str, *, name: str, scope: Scope, now: datetime) -> Token:
    """Read a token that never expires. Raises InvalidValue, which does not repeat the text."""
    parts = FORM.fullmatch(text)
    if parts is None:
        raise InvalidValue(f"{name} holds no token", hint="Write what `qualab token generate` prints into it")
    return Token(id=parts[1], name=name, digest=digest_of(parts[2]), scope=scope, created_at=now, expires_at=None)


def digest_of(secret: str) -> bytes:
    """Hash a secret by SHA-256: it has 256 random bits, so that a slow hash would add nothing."""
    return hashlib.sha256(secret.encode()).digest()


class Authenticator:
    """Recognize callers by the database's tokens, read again after FRESH_S, and by the service's own token."""

    def __init__(self, store: Store, clock: Clock, *, own: Token | None = None) -> None:
        self._store = store
        self._own = own
        self._clock = clock
        self._reads: OrderedDict[str, tuple[float, Any]] = OrderedDict()
        """Tokens by their ids, and under "" whether there is any; each with the time at which it was read."""

    async def token(self, presented: str | None, *, is_local: bool) -> Token:
        """Recognize a token; a local caller needs none as long as there has never been one. Raises Unauthenticated."""
        if presented is None:
            if is_local and not self._own and not await self._fresh("", lambda: bool(self._store.tokens())):
                return LOOPBACK
            raise Unauthenticated("A bearer token is needed", hint="Send Authorization: Bearer TOKEN")
        token, parts = None, FORM.fullmatch(presented)
        if parts is not None:
            is_own = self._own is not None and parts[1] == self._own.id
            token = self._own if is_own else await self._fresh(parts[1], partial(self._store.token, parts[1]))
        is_right = hmac.compare_digest(digest_of(parts[2] if parts else ""), token.digest if token else _NO_DIGEST)
        if token is None or not is_right or not token.is_valid(self._clock.now()):
            raise Unauthenticated("The token is not valid", hint="It is wrong, expired or revoked: qualab token list")
        return token

    async def _fresh(self, key: str, read: Callable[[], T]) -> T:
        read_at_s, value = self._reads.get(key, (float("-inf"), None))
        if self._clock.monotonic_s() - read_at_s >= FRESH_S:
            value = await to_thread.run_sync(read)
            self._reads[key] = (self._clock.monotonic_s(), value)
            if len(self._reads) > MAX_TOKENS:
                self._reads.popitem(last=False)
        return cast(T, value)


HINT = "Write env:NAME or file:/path, which the service's operator allows with --secret-env and --secret-dir"


class ReferencedSecrets:
    """Keys that requests may refer to. No message repeats what was given: it may be a key."""

    def __init__(self, *, env: Sequence[str] = (), folder: Path | None = None) -> None:
        self._env = tuple(env)
        self._folders = () if folder is None else (folder,)

    def check(self, reference: object, *, field: str = "api_key") -> None:
        """Raises SecretForbidden unless this is a reference that the operator allows."""
        kind, _, name = str(reference).partition(":")
        is_variable = kind == "env" and any(fnmatchcase(name, pattern) for pattern in self._env)
        if not name or not (is_variable or (kind == "file" and lies_in(name, self._folders))):
            fields = {field: "must be env:NAME or file:/path"}
            raise SecretForbidden(f"{field} is not a reference that the operator allows", hint=HINT, fields=fields)

    def read(self, reference: str) -> str:
        """Read a key. Raises SecretForbidden."""
        self.check(reference)
        kind, _, name = reference.partition(":")
        try:
            secret = os.environ.get(name, "") if kind == "env" else Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            secret = ""
        if not secret.strip():
            raise SecretForbidden(f"The {kind} reference of a key leads to nothing here", hint=HINT)
        return secret.strip()


def lies_in(path: str, folders: Iterable[Path]) -> bool:
    """Tell whether a path, links followed, lies in one of the folders."""
    try:
        whole = Path(path).resolve()
        return any(whole.is_relative_to(folder.resolve()) for folder in folders)
    except (OSError, ValueError, RuntimeError):
        return False


MAX_CALLERS = 10_000
"""Callers whose rate is remembered; one that is forgotten may send a burst again."""


class RateLimit:
    """Allow `rate` requests a second for each caller, `burst` at once after a pause. A rate of 0 limits nothing."""

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Raises TooManyRequests, with `retry_after_s`."""
        if not self._rate:
            return
        now = time.monotonic()
        left, since = self._left.get(caller, (float(self._burst), now))
        left = min(float(self._burst), left + (now - since) * self._rate)
        is_empty = left < 1.0
        self._left[caller] = (left if is_empty else left - 1.0, now)
        self._left.move_to_end(caller)
        if len(self._left) > MAX_CALLERS:
            self._left.popitem(last=False)
        if is_empty:
            raise TooManyRequests(
                f"More than {self._rate:g} requests a second",
                hint="Ask less often",
                retry_after_s=math.ceil((1.0 - left) / self._rate),
            )
