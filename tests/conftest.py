"""What all tests share: hypothesis's profiles, and empty databases of both kinds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from qualab.store import upgrade
from qualab.store.tables import metadata
from tests.fresh_store import MIGRATIONS, new_file
from tests.store import postgresql
from tests.store.postgresql import DATABASE, execute, url_of

# The same examples every time, on however slow a machine: what passed passes again.
# `pytest --hypothesis-profile=search` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, deadline=None)
settings.load_profile("same")
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The folder of a PostgreSQL server's socket. A test that stops it starts it again."""
    if postgresql.binaries() is None:
        pytest.skip(f"needs PostgreSQL {postgresql.OLDEST} or newer: apt-get install postgresql")
    pytest.importorskip("psycopg")
    with postgresql.running() as folder:
        execute(folder, f"CREATE DATABASE {DATABASE}")
        upgrade(url_of(folder), MIGRATIONS)
        yield folder


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{new_file(tmp_path / 'qualab.db')}"


@pytest.fixture
def postgresql_url(server: str) -> str:
    """One database for all tests, emptied for each: making one takes long."""
    execute(server, f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY", database=DATABASE)
    return url_of(server)


@pytest.fixture
def empty_postgresql_url(server: str) -> Iterator[str]:
    name = f"empty_{next(_numbers)}"
    execute(server, f"CREATE DATABASE {name}")
    yield url_of(server, name)
    execute(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of the current schema."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    is_sqlite = request.param == "sqlite"
    return str(tmp_path / "empty.db" if is_sqlite else request.getfixturevalue("empty_postgresql_url"))
