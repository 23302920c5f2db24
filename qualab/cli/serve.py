"""`qualab serve`: the service, API and worker in one process."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qualab.cli.options import AllowEndpoint, AllowPath, Database, DataDir, SecretDir, SecretEnv
from qualab.cli.output import complain
from qualab.errors import InvalidValue, UsageError

if TYPE_CHECKING:
    from qualab.model.ports import Registry
    from qualab.model.registry import Token
    from qualab.service.settings import ServiceSettings


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command("serve", short_help="Serve the REST API and web pages, with a worker.")(serve)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; another than loopback needs a token.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one. Default: 8080.")] = None,
    allow_endpoint: AllowEndpoint = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name that the Host header may hold. Repeat it for more.")
    ] = None,
    allow_path: AllowPath = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with an admin token (`qualab token generate`), beside those of the database."),
    ] = None,
    secret_env: SecretEnv = None,
    secret_dir: SecretDir = None,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Whether this process also runs what is asked for.")
    ] = True,
    data_dir: DataDir = None,
    db: Database = None,
) -> None:
    """Serve the REST API and web pages, with a worker. Every setting can be given as QUALAB_SERVE_NAME, too."""
    from qualab import bootstrap
    from qualab.service import jobs
    from qualab.service.settings import load_service
    from qualab.settings import load

    common = load(command_line={"db": db, "data_dir": data_dir})
    settings = load_service(
        host=host,
        port=port,
        allowed_endpoints=allow_endpoint or None,
        allowed_hosts=allow_host or None,
        allowed_paths=allow_path or None,
        secret_env=secret_env or None,
        secret_dir=secret_dir,
        token_file=token_file,
        data_dir=common.data_dir,
    )
    store, registry = bootstrap.stores_of(common)
    own_token = _own_token(settings)
    _check_closed(settings, registry, own_token)
    from qualab.service.api.app import create_app
    from qualab.service.api.server import begin_logging, server_of

    begin_logging()
    bootstrap.allow_open_files()
    services = bootstrap.services_of(common, store=store)
    database = bootstrap.database_url(common.db)
    apart = bootstrap.harness_of(common)
    with jobs.queueing_context(services, registry, settings, database=database, works=worker, harness=apart) as context:
        app = create_app(context, settings, schema=lambda: bootstrap.current_revision(common), own_token=own_token)
        _collect_often()
        server_of(app, settings, started=lambda url: complain(f"qualab serves {url} (Ctrl-C stops it)")).run()


def _collect_often() -> None:
    """A command collects garbage as seldom as it can; a service often, so that nobody waits long while it does."""
    gc.freeze()
    gc.set_threshold(5_000, 20, 50)


def _own_token(settings: ServiceSettings) -> Token | None:
    """That of the token file. Raises InvalidValue."""
    from qualab import bootstrap
    from qualab.model.registry import Scope
    from qualab.service.access import token_of

    path = settings.token_file
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidValue(f"Cannot read the token file {path}", hint="Change --token-file") from exc
    return token_of(text, name=f"The token file {path}", scope=Scope.ADMIN, now=bootstrap.now())


def _check_closed(settings: ServiceSettings, registry: Registry, own_token: Token | None) -> None:
    """Raises UsageError where anybody could come in."""
    from qualab import bootstrap
    from qualab.service.access import valid_tokens

    if not settings.is_loopback and own_token is None and not valid_tokens(registry, bootstrap.now()):
        raise UsageError(
            f"Nobody is served on {settings.host} without a token, and there is none",
            hint="Make one first: qualab token create NAME --scope admin; or give one with --token-file",
        )
