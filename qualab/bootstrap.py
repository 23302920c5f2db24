"""The composition root: settings in, services out. Heavy adapters are imported when they are first needed."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import qualab
from qualab.clock import SystemClock
from qualab.model.names import ArmName
from qualab.model.ports import Renderer

if TYPE_CHECKING:
    from qualab.harness.catalog import Catalog
    from qualab.harness.process import Harness
    from qualab.run.prepare import PairServices, Services
    from qualab.settings import Settings
    from qualab.store import Store
    from qualab.store.registry import Registry


T = TypeVar("T")


def share(name: str) -> Path:
    """A folder that ships beside the package: `tasks` or `migrations`."""
    package = Path(qualab.__file__).parent
    installed = package / "_share" / name
    return installed if installed.is_dir() else package.parent / name


def database_url(db: str) -> str:
    """Name a database by its URL or file; without one, the embedded one in the user's data directory."""
    base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return db or str(base / "qualab" / "qualab.db")


def is_server(db: str) -> bool:
    """Whether this database is a server's, which may be away for a while."""
    from qualab.store.location import locate

    return locate(database_url(db)).path is None


def store_of(settings: Settings) -> Store:
    """Opens the database; a new embedded one is made."""
    return _store_at(settings.db)


def store_named(db: str | None) -> Store:
    """The same for a command that needs no other setting: the command line's database, else QUALAB_DB's.

    Reading all settings would be a seventh of the time that such a command takes.
    """
    return _store_at(_named(db))


def _named(db: str | None) -> str:
    environment = {name.upper(): value for name, value in os.environ.items()}  # settings' names have any case, too
    return environment.get("QUALAB_DB", "") if db is None else db


def database_shown(db: str | None) -> str:
    """Where that store is, for a person: without a password."""
    from qualab.store.location import locate

    return str(locate(database_url(_named(db))))


def _store_at(db: str) -> Store:
    from qualab.store import open_store

    return open_store(database_url(db), migrations=share("migrations"))


def registry_of(settings: Settings) -> Registry:
    """What the service keeps beside comparisons, in the same database."""
    return stores_of(settings)[1]


def stores_of(settings: Settings) -> tuple[Store, Registry]:
    """Both, on the same connections."""
    from qualab.store import open_store

    store = open_store(database_url(settings.db), migrations=share("migrations"))
    return store, store.registry


def now() -> datetime:
    """The time, aware UTC."""
    return SystemClock().now()


def harness_of(settings: Settings) -> Harness:
    """lm-evaluation-harness in processes of its own, with the tasks that ship beside the package."""
    from qualab.harness.process import Harness

    return Harness(tasks_dir=share("tasks"), item_timeout_s=settings.scoring_timeout)


def pair_services_of(settings: Settings) -> PairServices:
    """Everything that planning and preflight need: no database."""
    from qualab.endpoints.client import HttpEndpoint, named_tokenizer
    from qualab.endpoints.urls import same_server
    from qualab.run.prepare import PairServices

    return PairServices(
        harness=harness_of(settings),
        open_endpoint=HttpEndpoint,
        named_tokenizer=named_tokenizer,
        is_same_server=same_server,
    )


def services_of(settings: Settings, *, store: Store | None = None) -> Services:
    """Everything that a run needs, on a `store` that is open already or the settings' own."""
    from qualab.run.prepare import Services

    pair = pair_services_of(settings)
    return Services(
        **{own.name: getattr(pair, own.name) for own in fields(pair)},
        store=store or store_of(settings),
        clock=SystemClock(),
        runner=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
    )


def renderer(name: str) -> Renderer:
    """What draws a report as pdf, html, md or json."""
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


def keys_of(settings: Settings, *, managed: bool = False) -> dict[ArmName, str | None]:
    """API keys by arm; they live in memory only. A managed pair's is the one that vLLM takes from the environment."""
    from qualab.settings import api_keys

    if managed and (key := os.environ.get("VLLM_API_KEY")):
        return dict.fromkeys(ArmName, key)
    return api_keys(settings)


def upgrade_database(settings: Settings) -> None:
    """Brings the database to this version's schema."""
    from qualab.store import upgrade

    upgrade(database_url(settings.db), migrations=share("migrations"))


def current_revision(settings: Settings) -> tuple[str | None, str]:
    """The database's schema revision and this version's."""
    from qualab.store import current

    return current(database_url(settings.db), migrations=share("migrations"))


def run_async(job: Coroutine[Any, Any, T]) -> T:
    """Runs a use case to its end, on uvloop where there is one: a third less time a request than asyncio's own loop."""
    allow_open_files()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(job)


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


def allow_open_files() -> None:
    """Raises the limit of open files to what the system grants: every request in flight is one."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems grant less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def embedded_pair(*, say: Callable[[str], None], log_dir: Path) -> AbstractContextManager[Any]:
    """The demo's own pair of servers; yields (baseline URL, candidate URL)."""
    from qualab.managed import embedded

    return embedded.embedded_pair(embedded.prepare_model(say=say), log_dir=log_dir, say=say)
