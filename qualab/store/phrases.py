"""Texts that recur in many rows (fingerprints, finish reasons, metric keys), stored once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, select

from qualab.model.wording import valid_text
from qualab.store.bulk import insert_rows
from qualab.store.tables import phrase

_BY_DIGEST = select(phrase.c.id, phrase.c.digest).where(phrase.c.digest.in_(bindparam("digests", expanding=True)))


class Phrases:
    """Ids by text. What a transaction adds is remembered by `keep`, once it is committed."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def ids(self, connection: Connection, texts: Iterable[str]) -> dict[str, int]:
        """The id of each text, added where it is new."""
        wanted = set(texts)
        found = {text: known for text in wanted if (known := self._ids.get(text)) is not None}
        new = wanted - found.keys()
        return {**found, **_added(connection, sorted(new))} if new else found

    def keep(self, ids: dict[str, int]) -> None:
        """Remembers committed ids; forgets all when they are too many (a server that never says the same twice)."""
        if len(self._ids) > 10_000:
            self._ids.clear()
        self._ids.update(ids)


def digest_of(text: str) -> bytes:
    """What a phrase is found by."""
    return hashlib.sha256(valid_text(text).encode()).digest()[:16]


def _added(connection: Connection, texts: list[str]) -> dict[str, int]:
    digests = {text: digest_of(text) for text in texts}
    rows = [(digest, valid_text(text).encode()) for text, digest in digests.items()]
    insert_rows(connection, phrase, rows, names=("digest", "text"), skip_known=True)
    ids = {digest: key for key, digest in connection.execute(_BY_DIGEST, {"digests": list(digests.values())})}
    return {text: ids[digest] for text, digest in digests.items()}
