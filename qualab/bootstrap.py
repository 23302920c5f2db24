"""The composition root: settings in, services out. Heavy adapters are imported when they are first needed."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import qualab
from qualab.model.ports import Clock

if TYPE_CHECKING:
    from qualab.harness.catalog import Catalog
    from qualab.harness.process import Harness
    from qualab.model.report import Report
    from qualab.run.prepare import PairServices, Services
    from qualab.settings import Settings
    from qualab.store import Store
    from qualab.store.failures import Location

T = TypeVar("T")


def share(name: str) -> Path:
    """A folder that ships beside the package: `tasks` or `migrations`."""
    package = Path(qualab.__file__).parent
    installed = package / "_share" / name
    return installed if installed.is_dir() else package.parent / name


def database_url(db: str | None) -> str:
    """Name a database by its URL or file: None is QUALAB_DB's, "" the embedded one in the user's data directory.

    Reading all settings for QUALAB_DB would be a seventh of the time that `qualab list` takes.
    """
    environment = {name.upper(): value for name, value in os.environ.items()}  # settings' names have any case, too
    base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return (environment.get("QUALAB_DB", "") if db is None else db) or str(base / "qualab" / "qualab.db")


def location_of(db: str | None) -> Location:
    """Locate a database: as text it has no password."""
    from qualab.store.failures import locate

    return locate(database_url(db))


def store_at(db: str | None) -> Store:
    """Open a database; a new embedded one is made."""
    from qualab.store import open_store

    return open_store(database_url(db), migrations=share("migrations"))


def now() -> datetime:
    """The time, aware UTC."""
    return Clock().now()


def harness_of(settings: Settings) -> Harness:
    """lm-evaluation-harness in processes of its own, with the tasks that ship beside the package."""
    from qualab.harness.process import Harness

    return Harness(tasks_dir=share("tasks"), item_timeout_s=settings.scoring_timeout)


def pair_services_of(settings: Settings) -> PairServices:
    """Make the services of planning and preflight: no database."""
    from qualab.endpoints.client import HttpEndpoint, named_tokenizer
    from qualab.endpoints.replicas import opening
    from qualab.endpoints.urls import same_server
    from qualab.run.prepare import PairServices

    return PairServices(
        harness=harness_of(settings),
        open_endpoint=opening(HttpEndpoint),
        named_tokenizer=named_tokenizer,
        is_same_server=same_server,
    )


def services_of(settings: Settings, *, store: Store | None = None) -> Services:
    """Make the services of a run, on a `store` that is open already or the settings' own."""
    from qualab.run.prepare import Services

    pair = pair_services_of(settings)
    return Services(
        **{own.name: getattr(pair, own.name) for own in fields(pair)},
        store=store or store_at(settings.db),
        clock=Clock(),
        runner=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
    )


def renderer(name: str) -> Callable[[Report], bytes]:
    """Return the function that draws a report as pdf, html, md or json."""
    if name == "pdf":
        from qualab.report.pdf import render_pdf

        return render_pdf
    if name == "html":
        from qualab.report.html import render_html

        return render_html
    from qualab.report.markdown import render_json, render_markdown

    return {"md": render_markdown, "json": render_json}[name]


def task_catalog() -> Catalog:
    """Read the installed task catalog; lm-eval is not loaded."""
    from qualab.harness.catalog import read_catalog

    return read_catalog(share("tasks"))


def current_revision(db: str | None) -> tuple[str | None, str]:
    """Return the database's schema revision and this version's."""
    from qualab.store import current

    return current(database_url(db), migrations=share("migrations"))


def run_async(job: Coroutine[Any, Any, T]) -> T:
    """Run a use case to its end, on uvloop where there is one: a third less time a request than asyncio's own loop."""
    allow_open_files()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(job)


def new_loop() -> asyncio.AbstractEventLoop:
    """Make a loop, uvloop's where there is one."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


def allow_open_files() -> None:
    """Raise the limit of open files to what the system grants: every request in flight is one."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems grant less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
