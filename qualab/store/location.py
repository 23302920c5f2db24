"""Where a database is: a file path, sqlite:///FILE or postgresql://..., read once and never shown with its password."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from qualab.errors import InvalidValue

_FORMS = "give a file path, sqlite:///FILE or postgresql://USER@HOST/NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A database's place."""

    url: URL
    path: Path | None
    """The file of a SQLite database."""

    def __str__(self) -> str:
        """For a person: the path, or the URL without anything secret."""
        if self.path is not None:
            return str(self.path)
        secret = [name for name in self.url.query if "pass" in name.lower()]
        shown = self.url.set(drivername="postgresql").difference_update_query(secret)
        return shown.render_as_string(hide_password=True)

    def without_secrets(self, text: str) -> str:
        """The text with the password blotted out, should a driver have quoted it."""
        passwords = [self.url.password, *(self.url.query.get(name) for name in ("password", "sslpassword"))]
        for password in passwords:
            if isinstance(password, str) and password:
                text = text.replace(password, "***")
        return text


def locate(where: str) -> Location:
    """Raises InvalidValue for what is no database's place."""
    if not where.strip():
        raise InvalidValue("the database has no name", hint=_FORMS)
    if "://" not in where:
        path = Path(where).expanduser()
        return Location(url=URL.create("sqlite", database=str(path)), path=path)
    try:
        url = make_url(where)
    except (ArgumentError, ValueError):  # ValueError: a port that is no number, which may be half a password
        raise InvalidValue(
            "the database URL cannot be read", hint=f"{_FORMS}; a password's special characters as %40 and so on"
        ) from None
    backend = url.get_backend_name()
    if backend == "sqlite":
        name = url.database or ""
        if name.startswith("file:"):
            name = name.removeprefix("file:").partition("?")[0]
        if name in ("", ":memory:"):
            raise InvalidValue("a database in memory would be lost", hint="give a file: sqlite:///FILE")
        return Location(url=url.set(drivername="sqlite"), path=Path(name))
    if backend not in ("postgresql", "postgres"):
        raise InvalidValue(f"'{backend}' databases are not supported", hint=_FORMS)
    if "@" in (url.host or ""):
        raise InvalidValue(
            "the database URL has more than one @", hint="write an @ in the user name or password as %40"
        )
    return Location(url=url.set(drivername="postgresql+psycopg"), path=None)
