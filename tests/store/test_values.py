"""Times and texts as they are stored, and back; drivers' errors to qualab's own."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sqlalchemy import Dialect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import OperationalError

from qualab.bootstrap import location_of
from qualab.errors import StoreError, StoreFull, StoreLocked, StoreReadOnly, StoreUnavailable
from qualab.model.wording import storable_text
from qualab.store import failures
from qualab.store.failures import translated
from qualab.store.location import locate
from qualab.store.tables import ExactText, PlainText, UtcTime


def test_a_drivers_reason_is_said_in_one_line_without_tabs() -> None:
    reason = "Connection refused\n\tIs the server running?"
    said = failures.unreachable(locate("postgresql://me@db/q"), reason).message
    assert said == "cannot open the database at postgresql://me@db/q: Connection refused Is the server running?"


def test_where_results_are_is_said_without_a_password() -> None:
    assert str(location_of("postgresql://me:secret@db/q")) == "postgresql://me:***@db/q"
    assert str(location_of("/some/where.db")) == "/some/where.db"


@given(moment=st.datetimes(timezones=st.timezones()))
@pytest.mark.parametrize("dialect", [sqlite.dialect(), postgresql.dialect()], ids=["sqlite", "postgresql"])
def test_a_time_comes_back_to_the_microsecond(dialect: Dialect, moment: datetime) -> None:
    assume(datetime.min.replace(tzinfo=UTC) + timedelta(days=2) < moment < datetime.max.replace(tzinfo=UTC))
    stored = UtcTime().process_bind_param(moment, dialect)
    read = UtcTime().process_result_value(stored, dialect)
    assert (read, read and read.tzinfo) == (moment.astimezone(UTC), UTC)


@given(text=st.text(alphabet=st.characters(categories=("Lu", "Lo"), include_characters="\x00␀0\n🧪")))
def test_an_exact_text_comes_back_and_is_stored_without_nul(text: str) -> None:
    stored = ExactText().process_bind_param(text, sqlite.dialect())
    assert stored is not None
    assert "\x00" not in stored
    assert ExactText().process_result_value(stored, sqlite.dialect()) == text


@pytest.mark.parametrize(
    ("code", "free_bytes", "expected"),
    [
        (sqlite3.SQLITE_FULL, 10**9, StoreFull),
        (sqlite3.SQLITE_IOERR_WRITE, 0, StoreFull),
        (sqlite3.SQLITE_IOERR_SHMSIZE, 4_096, StoreFull),
        (sqlite3.SQLITE_CANTOPEN, 0, StoreFull),
        (sqlite3.SQLITE_IOERR_WRITE, 10**9, StoreError),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, 10**9, StoreLocked),
        (sqlite3.SQLITE_LOCKED_SHAREDCACHE, 10**9, StoreLocked),
        (sqlite3.SQLITE_READONLY_DIRECTORY, 10**9, StoreReadOnly),
        (sqlite3.SQLITE_CANTOPEN, 10**9, StoreUnavailable),
    ],
)
def test_an_error_code_of_sqlite_means_the_same_everywhere(
    code: int, free_bytes: int, expected: type[StoreError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures.shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    error = sqlite3.OperationalError("as the driver says it")
    error.sqlite_errorcode = code
    with pytest.raises(StoreError) as caught, translated(locate(str(tmp_path / "q.db"))):
        raise OperationalError("SELECT 1", {}, error)
    assert type(caught.value) is expected


@pytest.mark.parametrize("url", ["postgresql://u:s3cret@h/d", "postgresql://u@h/d?password=s3cret"])
def test_a_password_that_a_driver_quotes_is_blotted_out(url: str) -> None:
    assert locate(url).without_secrets('no such thing as "s3cret"') == 'no such thing as "***"'
    assert "s3cret" not in str(locate(url))


@pytest.mark.parametrize(("text", "stored"), [("a\x00b", "a\ufffdb"), ("\ud800", "\ufffd"), ("정답 🧪", "정답 🧪")])
def test_a_text_that_postgresql_cannot_hold_is_mended(text: str, stored: str) -> None:
    assert PlainText().process_bind_param(text, postgresql.dialect()) == storable_text(text) == stored
