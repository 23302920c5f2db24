"""`qualab sign-off` and `verify`: accept a verdict, and tell whether what was accepted is still what is stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from qualab.cli.options import Database, DataDir, Format, OutputFormat

if TYPE_CHECKING:
    from qualab.run.verify import Verification


ALTERED = 4
MARKS = {True: "ok", False: "ALTERED", None: "-"}
Comparison = Annotated[str, typer.Argument(help="Id of a comparison, or its beginning.")]


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command("sign-off", short_help="Accept a verdict, on record.")(sign_off)
    app.command("verify", short_help="Tell whether stored results were altered.")(verify)


def sign_off(
    comparison: Comparison,
    name: Annotated[str, typer.Option("--as", help="Who signs off.")],
    note: Annotated[str, typer.Option(help="What the report says beside the name.")] = "",
    override: Annotated[
        str, typer.Option(help="Why it is accepted although something stands in the way; the report shows it.")
    ] = "",
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Accept a comparison's verdict.

    Refused for what is limited, unpinned, INVALID, not proven, judged by a plan made after the data, or at 0, at 1 or
    below chance in both arms, unless a reason to override that is given.
    """
    from qualab import bootstrap
    from qualab.cli.output import who
    from qualab.report.words import ENGLISH, shown
    from qualab.run.sign import sign_off as sign
    from qualab.settings import load

    settings = load(command_line={"db": db})
    signed = sign(
        *bootstrap.stores_of(settings),
        comparison,
        signed_by=name,
        note=note,
        override=override,
        who=who(),
        at=bootstrap.now(),
    )
    if output_format is Format.JSON:
        typer.echo(json.dumps(shown(signed), indent=2, ensure_ascii=False))
        return
    typer.echo(f"{signed.comparison_id}: {signed.verdict.value} signed off by {signed.signed_by}")
    typer.echo(f"Plan {signed.plan_hash[:12]}, seal {signed.analysis_hash[:12] or 'none'}")
    for obstacle in signed.obstacles:
        typer.echo(f"In spite of: {ENGLISH.reason(obstacle)}")


def verify(
    comparison: Comparison, data_dir: DataDir = None, db: Database = None, output_format: OutputFormat = Format.TEXT
) -> None:
    """Make hashes, scores and the analysis again from stored answers. Exit code 4 where anything was altered."""
    from qualab import bootstrap
    from qualab.model.canonical import plain
    from qualab.run.verify import verify as verify_stored
    from qualab.settings import load

    settings = load(command_line={"db": db, "data_dir": data_dir})
    local = {"data_dir": str(data_dir.resolve())} if data_dir else None
    store, registry = bootstrap.stores_of(settings)
    found = verify_stored(bootstrap.services_of(settings, store=store), registry, comparison, local=local)
    if output_format is Format.JSON:
        typer.echo(json.dumps(plain(found), indent=2, ensure_ascii=False))
    else:
        _print(found)
    raise typer.Exit(ALTERED if found.is_altered else 0)


def _print(found: Verification) -> None:
    for check in found.checks:
        typer.echo(f"{MARKS[check.is_ok]:<8}{check.name:<10}{check.detail}")
    if found.is_altered:
        typer.echo(f"{found.comparison_id} was altered after it was stored.")
    else:
        typer.echo(f"Nothing of {found.comparison_id} was found altered. Its seal is {found.seal or 'not there'}")
