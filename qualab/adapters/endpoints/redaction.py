"""Text from a server, made fit to be shown: without keys, without control characters, short."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

from qualab.errors import InvalidValue

HIDDEN = "[key]"
EXCERPT_CHARACTERS = 200
READ_BYTES = 65_536
SHORT_KEY = 8
"""Shorter keys (as "EMPTY") are hidden as whole words only, or plain text would be blotted out."""

KEY_LIKE = re.compile(r"(?i)\bbearer\s+[^\s\"',;]+|\bsk-[\w*.-]{4,}")


def checked_key(key: str | None) -> str:
    """The key without surrounding space; empty where there is none. Raises InvalidValue without showing it."""
    text = (key or "").strip()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidValue("The API key holds characters that no key has", hint="A key is one word of ASCII characters")
    return text


class Redactor:
    """Replaces secrets in text. Its own repr shows none."""

    __slots__ = ("_pattern",)

    def __init__(self, *secrets: str) -> None:
        forms = {form for secret in secrets if secret for form in (secret, quote(secret, safe=""), _escaped(secret))}
        words = [_pattern(form) for form in sorted(forms, key=len, reverse=True)]
        self._pattern = re.compile("|".join(words)) if words else None

    def __repr__(self) -> str:
        return "Redactor()"

    def __call__(self, text: str) -> str:
        """The text with every secret, and everything that looks like one, replaced."""
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
        return KEY_LIKE.sub(HIDDEN, text)

    def excerpt(self, text: str | bytes, *, limit: int = EXCERPT_CHARACTERS) -> str:
        """One line of at most `limit` characters. Secrets are replaced before anything is cut."""
        if isinstance(text, bytes):
            text = text[:READ_BYTES].decode(errors="replace")
        shown = "".join(character if character.isprintable() else " " for character in self(text[:READ_BYTES]))
        line = " ".join(shown.split())
        return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _escaped(secret: str) -> str:
    return json.dumps(secret)[1:-1]


def _pattern(form: str) -> str:
    return re.escape(form) if len(form) >= SHORT_KEY else rf"(?<!\w){re.escape(form)}(?!\w)"
