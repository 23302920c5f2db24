"""`qualab token`: who may ask the service for what."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from qualab.cli.options import Database, Format, OutputFormat
from qualab.model.registry import Scope

if TYPE_CHECKING:
    from qualab.model.ports import Registry
    from qualab.model.registry import Token
    from qualab.service.access import Actor


app = typer.Typer(help="Tokens of the service.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is: stands in the record of every change.")],
    scope: Annotated[Scope, typer.Option(help="Each holds the ones before it.")] = Scope.READ,
    expires: Annotated[str, typer.Option(help="After so long, as 12h, 90d or 52w; or never.")] = "90d",
    db: Database = None,
) -> None:
    """Make a token, and print it: once, it is kept nowhere."""
    from qualab.service.access import create_token

    lifetime = _lifetime(expires)
    token, text = create_token(_registry(db), name=name, scope=scope, lifetime=lifetime, by=_by())
    until = f"until {token.expires_at:%Y-%m-%d %H:%M} UTC" if token.expires_at else "for ever"
    typer.echo(text)
    typer.echo(f"Token {token.id} of {name} with scope {scope.value}, {until}. It is not shown again.", err=True)


@app.command()
def generate() -> None:
    """Print a new token for `qualab serve --token-file`: no database knows it."""
    from qualab.service.access import new_text

    typer.echo(new_text())


@app.command("list")
def list_tokens(db: Database = None, output_format: OutputFormat = Format.TEXT) -> None:
    """List tokens, newest first; never their secrets."""
    import json

    from qualab import bootstrap

    found, now = _registry(db).tokens(), bootstrap.now()
    if output_format is Format.JSON:
        typer.echo(json.dumps([_shown(one) for one in found], indent=2))
        return
    if not found:
        typer.echo("No tokens. Make one with: qualab token create NAME --scope run")
    for one in found:
        state = "valid" if one.is_valid(now) else "revoked" if one.revoked_at else "expired"
        until = f"{one.expires_at:%Y-%m-%d}" if one.expires_at else "never"
        typer.echo(f"{one.id}  {one.scope.value:<5}  {state:<7}  expires {until:<10}  {one.name}")


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(help="Id of a token, as `qualab token list` shows it.")], db: Database = None
) -> None:
    """Revoke a token: within seconds nobody gets in with it."""
    from qualab.service.access import revoke_token

    revoke_token(_registry(db), token, by=_by())
    typer.echo(f"Token {token} is revoked.")


def _registry(db: str | None) -> Registry:
    from qualab import bootstrap
    from qualab.settings import load

    return bootstrap.registry_of(load(command_line={"db": db}))


def _by() -> Actor:
    from qualab import bootstrap
    from qualab.cli.output import who
    from qualab.service.access import Actor

    return Actor(who=who(), at=bootstrap.now())


def _lifetime(text: str) -> timedelta | None:
    from qualab.cli.times import duration

    return None if text == "never" else duration(text, option="--expires")


def _shown(token: Token) -> dict[str, str | None]:
    times = {name: getattr(token, name) for name in ("created_at", "expires_at", "revoked_at")}
    said = {name: time and time.isoformat() for name, time in times.items()}
    return {"id": token.id, "name": token.name, "scope": token.scope.value, **said}
