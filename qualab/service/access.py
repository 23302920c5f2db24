"""Who may come in: bearer tokens, made, listed, revoked and recognised."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path

from qualab.errors import Forbidden, InvalidValue, SecretForbidden, Unauthenticated
from qualab.model.ports import Clock, Registry
from qualab.model.registry import Scope, Token
from qualab.model.wording import storable_text
from qualab.service.desk import By

PREFIX = "qlb_"
FORM = re.compile(r"qlb_([0-9a-f]{12})\.([A-Za-z0-9_-]{43})")
MOST_CHARACTERS = 100
FRESH_S = 2.0
"""How long what is known of a token holds: a revoked one is refused everywhere after that."""
KEPT = 4_096
_NOBODY = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks."""

    name: str
    scope: Scope
    token_id: str
    """Empty where none is needed."""

    def check(self, wanted: Scope) -> None:
        """Raises Forbidden."""
        if not self.scope.allows(wanted):
            raise Forbidden(
                f"This needs the scope {wanted.value}; the token has {self.scope.value}",
                hint=f"Create one: qualab token create NAME --scope {wanted.value}",
            )


NOBODY_ELSE = Caller(name="loopback", scope=Scope.ADMIN, token_id="")
"""Who asks from this machine while there has never been a token."""


def create_token(
    registry: Registry, *, name: str, scope: Scope, lifetime: timedelta | None, by: By
) -> tuple[Token, str]:
    """A new token, and its text, which is shown once and kept nowhere. Raises InvalidValue."""
    if not name.strip() or len(name) > MOST_CHARACTERS or storable_text(name) != name or not name.isprintable():
        raise InvalidValue(
            f"The name of a token must be 1 to {MOST_CHARACTERS} printable characters", hint="As ci-nightly"
        )
    if lifetime is not None and lifetime <= timedelta(0):
        raise InvalidValue("A token must expire after it was made", hint="As --expires 90d, or none")
    text = new_text()
    token = replace(
        token_of(text, name=name, scope=scope, now=by.at), expires_at=None if lifetime is None else by.at + lifetime
    )
    registry.add_token(token, entry=by.entry("token.create", token.id, name=name, scope=scope.value))
    return token, text


def new_text() -> str:
    """What a caller presents as a token."""
    return f"{PREFIX}{secrets.token_hex(6)}.{secrets.token_urlsafe(32)}"


def token_of(text: str, *, name: str, scope: Scope, now: datetime) -> Token:
    """The token of such a text; it never expires. Raises InvalidValue, the text not repeated."""
    found = FORM.fullmatch(text)
    if found is None:
        raise InvalidValue(f"{name} holds no token", hint="Write what `qualab token generate` prints into it")
    return Token(id=found[1], name=name, digest=digest_of(found[2]), scope=scope, created_at=now, expires_at=None)


def revoke_token(registry: Registry, token_id: str, *, by: By) -> None:
    """From now on. Raises TokenNotFound."""
    registry.revoke_token(token_id, entry=by.entry("token.revoke", token_id))


def valid_tokens(registry: Registry, now: datetime) -> Sequence[Token]:
    """Those that open something."""
    return [token for token in registry.tokens() if token.is_valid(now)]


def digest_of(secret: str) -> bytes:
    """SHA-256: the secret has 256 random bits, which nobody guesses, so that a slow hash would add nothing."""
    return hashlib.sha256(secret.encode()).digest()


class Door:
    """Recognises callers: by the database's tokens, of which what it knows is at most FRESH_S old, and by the service's
    `own`."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        *,
        own: Token | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._own = own
        self._clock = clock
        self._monotonic_s = monotonic_s
        self._seen: OrderedDict[str, tuple[float, Token | None]] = OrderedDict()
        self._has_tokens: tuple[float, bool] = (float("-inf"), True)

    def remembered(self, presented: str | None, *, is_local: bool) -> Caller | None:
        """The caller where that is known already; asks no database."""
        if presented is None:
            seen_at, has_tokens = self._has_tokens
            return None if has_tokens or not is_local or self._is_old(seen_at) else NOBODY_ELSE
        found = FORM.fullmatch(presented)
        if found and self._own and found[1] == self._own.id:
            return self._judged(self._own, found[2])
        seen = self._seen.get(found[1]) if found else None
        if found is None or seen is None or self._is_old(seen[0]):
            return None
        return self._judged(seen[1], found[2])

    def caller(self, presented: str | None, *, is_local: bool) -> Caller:
        """Raises Unauthenticated. Nothing is needed by a local caller as long as there has never been a token."""
        if presented is None:
            if is_local and not self._any_token():
                return NOBODY_ELSE
            raise Unauthenticated("A bearer token is needed", hint="Send Authorization: Bearer TOKEN")
        found = FORM.fullmatch(presented)
        caller = self._judged(self._token(found[1]), found[2]) if found else None
        if caller is None:
            raise Unauthenticated("The token is not valid", hint="It is wrong, expired or revoked: qualab token list")
        return caller

    def _judged(self, token: Token | None, secret: str) -> Caller | None:
        is_right = hmac.compare_digest(digest_of(secret), token.digest if token else _NOBODY)
        if token is None or not is_right or not token.is_valid(self._clock.now()):
            return None
        return Caller(name=token.name, scope=token.scope, token_id=token.id)

    def _token(self, token_id: str) -> Token | None:
        if self._own and token_id == self._own.id:
            return self._own
        seen = self._seen.get(token_id)
        if seen is not None and not self._is_old(seen[0]):
            return seen[1]
        found = self._registry.token(token_id)
        self._seen[token_id] = (self._monotonic_s(), found)
        self._seen.move_to_end(token_id)
        while len(self._seen) > KEPT:
            self._seen.popitem(last=False)
        return found

    def _any_token(self) -> bool:
        if self._own:
            return True
        if self._is_old(self._has_tokens[0]):
            self._has_tokens = (self._monotonic_s(), bool(self._registry.tokens()))
        return self._has_tokens[1]

    def _is_old(self, seen_at: float) -> bool:
        return self._monotonic_s() - seen_at >= FRESH_S


HINT = "Write env:NAME or file:/path, which the service's operator allows with --secret-env and --secret-dir"


class ReferencedSecrets:
    """`qualab.model.ports.Secrets`. No message repeats what was given: it may be a key."""

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
