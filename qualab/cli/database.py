"""`qualab db`: the database's schema."""

from __future__ import annotations

import typer

from qualab.cli.options import Database

app = typer.Typer(help="The database's schema.", no_args_is_help=True)


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
