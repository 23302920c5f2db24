"""`qualab db`: the database's schema, and copies of it."""

from __future__ import annotations

from typing import Annotated

import typer

from qualab.cli.options import Database

app = typer.Typer(help="The database's schema, and copies of it.", no_args_is_help=True)


@app.command()
def upgrade(db: Database = None) -> None:
    """Bring the database to this version's schema."""
    from qualab import bootstrap
    from qualab.settings import load

    settings = load(command_line={"db": db})
    bootstrap.upgrade_database(settings)
    typer.echo(f"Schema {bootstrap.current_revision(settings)[0]}")


@app.command()
def current(db: Database = None) -> None:
    """Show the database's schema and this version's."""
    from qualab import bootstrap
    from qualab.settings import load

    found, head = bootstrap.current_revision(load(command_line={"db": db}))
    state = "up to date" if found == head else "run: qualab db upgrade"
    typer.echo(f"database {found or 'empty'}, this version {head} ({state})")


@app.command(short_help="Copy everything into another database.")
def copy(
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The database to read.")],
    target: Annotated[str, typer.Option("--to", metavar="URL", help="An empty one, or a file that is not there yet.")],
) -> None:
    """Copy everything into another database, from SQLite to PostgreSQL or back: all of it, or nothing."""
    from qualab import bootstrap

    bootstrap.copy_database(source, target, say=lambda table, count: typer.echo(f"{table:<14} {count:>12,} rows"))
    typer.echo("Every row arrived as it was sent.")
