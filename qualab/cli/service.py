"""`qualab serve`, `worker`, `token` and `db`: operate the service."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from qualab import bootstrap
from qualab.cli.options import Database, Given, duration, settings_options
from qualab.cli.output import Format, OutputFormat, complain, who
from qualab.errors import StoreLocked, StoreUnavailable, UsageError
from qualab.model.registry import Scope
from qualab.settings import load, read_secret

if TYPE_CHECKING:
    from qualab.model.registry import Token
    from qualab.service.access import Actor
    from qualab.service.settings import ServiceSettings
    from qualab.settings import Settings
    from qualab.store import Store


ALLOWED = ("allowed_endpoints", "allowed_paths", "secret_env", "secret_dir")
WEBHOOKS = ("allowed_webhooks", "webhook_secret_file", "public_url")
"""Limits of what requests may reach: give the service and its workers the same, as of webhooks."""
SHOWN = ("id", "name", "scope", "created_at", "expires_at", "revoked_at")
"""Parts of a token; never its secret."""
LOOK_S = 0.2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0

token = typer.Typer(help="Tokens of the service.", no_args_is_help=True)
database = typer.Typer(help="The database's schema.", no_args_is_help=True)


@settings_options("data_dir", "db", "host", "port", *ALLOWED, *WEBHOOKS, "allowed_hosts", "token_file")
def serve(
    worker: Annotated[bool, typer.Option("--worker/--no-worker", help="Run comparisons in this process, too.")] = True,
    *,
    given: Given,
) -> None:
    """Serve the REST API and web pages, with a worker. Every setting can also be given as QUALAB_SERVE_NAME."""
    from qualab.service.access import token_of
    from qualab.service.context import context_of
    from qualab.service.worker import working

    common, settings = _settings(given)
    store = bootstrap.store_at(common.db)
    own_token, file = None, settings.token_file
    if file:
        text = read_secret(file, "token")
        own_token = token_of(text, name=f"The token file {file}", scope=Scope.ADMIN, now=bootstrap.now())
    _check_closed(settings, store, own_token)
    from qualab.service.api.app import create_app
    from qualab.service.api.server import Server, begin_logging

    begin_logging()
    bootstrap.allow_open_files()
    services = bootstrap.services_of(common, store=store)
    context = context_of(services, settings)
    with ExitStack() as stack:
        if worker:
            apart = bootstrap.harness_of(common)
            is_shared = bootstrap.location_of(common.db).path is None
            stack.enter_context(working(context, is_shared=is_shared, harness=apart))
        app = create_app(context, schema=lambda: bootstrap.current_revision(common.db), own_token=own_token)
        # a command collects garbage as seldom as it can; a service often, so that nobody waits long while it does
        gc.freeze()
        gc.set_threshold(5_000, 20, 50)
        Server(app, started=lambda url: complain(f"qualab serves {url} (Ctrl-C stops it)")).run()


def _settings(given: Given) -> tuple[Settings, ServiceSettings]:
    from qualab.service.settings import ServiceSettings, load_service

    own = {name: value for name, value in given.items() if name in ServiceSettings.model_fields and name != "data_dir"}
    common = load(command_line={name: value for name, value in given.items() if name not in own})
    return common, load_service(**own, data_dir=common.data_dir)


def _check_closed(settings: ServiceSettings, store: Store, own_token: Token | None) -> None:
    now = bootstrap.now()
    if not (settings.is_loopback or own_token or any(token.is_valid(now) for token in store.tokens())):
        raise UsageError(
            f"Nobody is served on {settings.host} without a token, and there is none",
            hint="Make one first: qualab token create NAME --scope admin; or give one with --token-file",
        )


@settings_options("data_dir", "db", *ALLOWED, *WEBHOOKS)
def worker(
    concurrency: Annotated[int, typer.Option(min=1, help="Comparisons at once, each in a process of its own.")] = 1,
    *,
    given: Given,
) -> None:
    """Run queued comparisons until SIGTERM. Any number of workers may share one PostgreSQL."""
    if concurrency > 1:
        raise typer.Exit(_several(concurrency, sys.argv[1:]))
    from qualab.service.api.server import begin_logging
    from qualab.service.context import context_of
    from qualab.service.worker import working

    common, settings = _settings(given)
    begin_logging()
    bootstrap.allow_open_files()
    ended, is_shared = _ended_by_signals(), bootstrap.location_of(common.db).path is None

    def work() -> None:
        store = bootstrap.store_at(common.db)
        services = bootstrap.services_of(common, store=store)
        with working(context_of(services, settings), is_shared=is_shared):
            complain(f"qualab works as {services.runner} (Ctrl-C stops it)")
            ended.wait()

    _with_patience(work, ended, may_be_away=is_shared)


def _with_patience(work: Callable[[], None], ended: threading.Event, *, may_be_away: bool) -> None:
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return work()
        except (StoreUnavailable, StoreLocked) as error:
            if not may_be_away and isinstance(error, StoreUnavailable):
                raise
            complain(f"qualab: {error.message}; trying again in {pause_s:g} s")
            if ended.wait(pause_s):
                return None
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _ended_by_signals() -> threading.Event:
    """Make an event that SIGTERM and SIGINT set, even where the shell that started this ignores them."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended


def _several(count: int, arguments: list[str]) -> int:
    """Start workers, and end all when one ends. Returns the first exit code that is not 0."""
    ended = _ended_by_signals()
    command = [sys.executable, "-m", "qualab", *arguments, "--concurrency", "1"]
    children = [subprocess.Popen(command) for _ in range(count)]
    while not ended.wait(LOOK_S) and all(child.poll() is None for child in children):
        pass
    for child in children:
        if child.poll() is None:
            child.terminate()
    return next((code for code in [child.wait() for child in children] if code), 0)


@token.command()
def create(
    name: Annotated[str, typer.Argument(help="Its owner's name, for the record of changes.")],
    scope: Annotated[Scope, typer.Option(help="Each includes the ones before it.")] = Scope.READ,
    expires: Annotated[str, typer.Option(help="When it expires, as 12h, 90d or 52w; or never.")] = "90d",
    db: Database = None,
) -> None:
    """Make a token and print it, once: it is stored nowhere."""
    from qualab.service.access import create_token

    lifetime = None if expires == "never" else duration(expires, option="--expires")
    made, text = create_token(bootstrap.store_at(db), name=name, scope=scope, lifetime=lifetime, by=_by())
    until = f"until {made.expires_at:%Y-%m-%d %H:%M} UTC" if made.expires_at else "for ever"
    typer.echo(text)
    typer.echo(f"Token {made.id} of {name} with scope {scope.value}, {until}. It is not shown again.", err=True)


@token.command()
def generate() -> None:
    """Print a new token for `qualab serve --token-file`; no database knows it."""
    from qualab.service.access import new_text

    typer.echo(new_text())


@token.command("list")
def list_tokens(db: Database = None, output_format: OutputFormat = Format.TEXT) -> None:
    """List tokens, newest first; never their secrets."""
    tokens, now = bootstrap.store_at(db).tokens(), bootstrap.now()
    if output_format is Format.JSON:
        documents = [{name: getattr(entry, name) for name in SHOWN} for entry in tokens]
        typer.echo(json.dumps(documents, indent=2, default=datetime.isoformat))
        return
    if not tokens:
        typer.echo("No tokens. Make one with: qualab token create NAME --scope run")
    for entry in tokens:
        state = "valid" if entry.is_valid(now) else "revoked" if entry.revoked_at else "expired"
        until = f"{entry.expires_at:%Y-%m-%d}" if entry.expires_at else "never"
        typer.echo(f"{entry.id}  {entry.scope.value:<5}  {state:<7}  expires {until:<10}  {entry.name}")


@token.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="token", help="Id of a token, as `qualab token list` shows it.")],
    db: Database = None,
) -> None:
    """Revoke a token: within seconds it is refused."""
    bootstrap.store_at(db).revoke_token(token_id, entry=_by().entry("token.revoke", token_id))
    typer.echo(f"Token {token_id} is revoked.")


def _by() -> Actor:
    from qualab.service.access import Actor

    return Actor(who=who(), at=bootstrap.now())


@database.command()
def upgrade(db: Database = None) -> None:
    """Bring the database to this version's schema."""
    from qualab.store import upgrade as upgrade_schema

    upgrade_schema(bootstrap.database_url(db), migrations=bootstrap.share("migrations"))
    typer.echo(f"Schema {bootstrap.current_revision(db)[0]}")


@database.command()
def current(db: Database = None) -> None:
    """Show the database's schema and this version's."""
    revision, head = bootstrap.current_revision(db)
    state = "up to date" if revision == head else "run: qualab db upgrade"
    typer.echo(f"database {revision or 'empty'}, this version {head} ({state})")
