"""Tokens, and the record of who did what."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from qualab.errors import StoreError
from qualab.model.registry import AuditEntry, Page, Token, decode_cursor, encode_cursor, page_of, token_not_found
from qualab.model.wording import storable_text
from qualab.store import codes
from qualab.store.bulk import insert_rows
from qualab.store.payloads import to_json
from qualab.store.tables import audit, token
from qualab.store.times import from_us, from_us_or_none, to_us, to_us_or_none

_T = token.c


def add_token(connection: Connection, value: Token) -> None:
    """Raises StoreError where the id is taken."""
    row = {
        "id": value.id,
        "name": storable_text(value.name),
        "digest": value.digest,
        "scope": codes.SCOPE.of[value.scope],
        "created_at": to_us(value.created_at),
        "expires_at": to_us_or_none(value.expires_at),
        "revoked_at": to_us_or_none(value.revoked_at),
    }
    if len(value.digest) != 32:
        raise StoreError("a token's digest has 32 bytes")
    if not insert_rows(connection, token, [tuple(row.values())], names=tuple(row), skip_known=True):
        raise StoreError(f"token {value.id} exists already")


def read_token(connection: Connection, token_id: str) -> Token | None:
    """None where no token has this id."""
    row = connection.execute(select(token).where(_T.id == token_id)).one_or_none()
    return None if row is None else _token_of(row)


def read_tokens(connection: Connection) -> list[Token]:
    """Newest first."""
    return [_token_of(row) for row in connection.execute(select(token).order_by(_T.key.desc()))]


def revoke_token(connection: Connection, token_id: str, entry: AuditEntry) -> None:
    """From the entry's time on; one that is revoked already stays as it is. Raises TokenNotFound."""
    living = update(token).where(_T.id == token_id, _T.revoked_at.is_(None))
    if connection.execute(living.values(revoked_at=to_us(entry.at))).rowcount:
        add_entry(connection, entry)
    elif read_token(connection, token_id) is None:
        raise token_not_found(token_id)


def add_entry(connection: Connection, entry: AuditEntry) -> None:
    """Notes what the transaction changes."""
    row = {
        "at": to_us(entry.at),
        "who": storable_text(entry.who),
        "action": storable_text(entry.action),
        "subject": storable_text(entry.subject),
        "details": to_json(entry.details, of="the record of a change"),
    }
    connection.execute(insert(audit), row)


def read_audit(connection: Connection, *, cursor: str | None, limit: int) -> Page[AuditEntry]:
    """A page, newest first. Raises InvalidValue for a cursor of another list."""
    limit = max(limit, 1)
    query = select(audit).order_by(audit.c.key.desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(audit.c.key < decode_cursor(cursor, "audit", 1)[0])
    page = page_of(connection.execute(query).all(), limit, lambda row: encode_cursor("audit", row.key))
    return Page(entries=tuple(map(_entry_of, page.entries)), next_cursor=page.next_cursor)


def read_recorded(connection: Connection, subject: str, action: str) -> list[AuditEntry]:
    """Of one action on one subject, the oldest first."""
    mine = (audit.c.subject == storable_text(subject), audit.c.action == action)
    return [_entry_of(row) for row in connection.execute(select(audit).where(*mine).order_by(audit.c.key))]


def _token_of(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        digest=row.digest,
        scope=codes.SCOPE.name[row.scope],
        created_at=from_us(row.created_at),
        expires_at=from_us_or_none(row.expires_at),
        revoked_at=from_us_or_none(row.revoked_at),
    )


def _entry_of(row: Row[Any]) -> AuditEntry:
    return AuditEntry(
        at=from_us(row.at), who=row.who, action=row.action, subject=row.subject, details=json.loads(row.details)
    )
