"""Both stores, each new for every test."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from qualab.store import Store, open_store, upgrade
from qualab.store.tables import metadata
from tests.store import postgresql

MIGRATIONS = Path(__file__).parents[2] / "migrations"
DATABASE = "contract"
TABLES = ", ".join(metadata.tables)
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The folder of a PostgreSQL server's socket."""
    if postgresql.binaries() is None:
        pytest.skip(f"needs PostgreSQL {postgresql.OLDEST} or newer: apt-get install postgresql")
    pytest.importorskip("psycopg")
    with postgresql.running() as folder:
        execute(folder, f"CREATE DATABASE {DATABASE}")
        upgrade(url_of(folder, DATABASE), MIGRATIONS)
        yield folder


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new SQLite database, to copy."""
    path = tmp_path_factory.mktemp("template") / "new.db"
    upgrade(str(path), MIGRATIONS)
    return path


@pytest.fixture
def sqlite_url(template: Path, tmp_path: Path) -> str:
    path = tmp_path / "qualab.db"
    shutil.copy(template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgresql_url(server: str) -> str:
    """One database for all tests, emptied for each: making one takes long."""
    execute(server, f"TRUNCATE {TABLES} RESTART IDENTITY", database=DATABASE)
    return url_of(server, DATABASE)


@pytest.fixture
def empty_postgresql_url(server: str) -> Iterator[str]:
    name = f"empty_{next(_numbers)}"
    execute(server, f"CREATE DATABASE {name}")
    yield url_of(server, name)
    execute(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of the current schema."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return str(tmp_path / "empty.db")
    found: str = request.getfixturevalue("empty_postgresql_url")
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Every store that there is."""
    with open_store(request.getfixturevalue(f"{request.param}_url"), migrations=MIGRATIONS) as opened:
        yield opened


def url_of(folder: str, name: str) -> str:
    return f"postgresql://qualab@/{name}?host={folder}"


def execute(folder: str, statement: str, *, database: str = "postgres") -> None:
    import psycopg

    with psycopg.connect(host=folder, user="qualab", dbname=database, autocommit=True) as connection:
        connection.execute(statement.encode())
