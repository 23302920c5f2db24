"""`qualab prune`: delete old comparisons."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from qualab.cli.options import Database, Format, OutputFormat
from qualab.cli.times import before, duration

if TYPE_CHECKING:
    from qualab.run.prune import Pruned


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command("prune", short_help="Delete old comparisons with all that belongs to them.")(prune)


def prune(
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Created longer ago, as 12h, 90d or 2w.")],
    label: Annotated[str | None, typer.Option(help="Only comparisons with this label.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be deleted.")] = False,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Delete old comparisons with everything that belongs to them; never those that are signed off, run or wait."""
    from qualab import bootstrap
    from qualab.run.prune import prune as delete_old
    from qualab.settings import load

    now = bootstrap.now()
    cutoff = before(now, duration(older_than, option="--older-than"))
    registry = bootstrap.registry_of(load(command_line={"db": db}))
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    found = delete_old(registry, before=cutoff, label=label, who=who, now=now, dry_run=dry_run)
    if output_format is Format.JSON:
        typer.echo(json.dumps([_plain(one) for one in found], ensure_ascii=False, indent=2))
    else:
        _print(found, gone="would delete" if dry_run else "deleted")


def _print(found: Iterable[Pruned], *, gone: str) -> None:
    n_gone = n_kept = 0
    for one in found:
        summary = one.summary
        n_gone, n_kept = n_gone + (not one.kept), n_kept + bool(one.kept)
        what = f"kept ({one.kept})" if one.kept else gone
        typer.echo(
            f"{what}: {summary.id}  {summary.created_at:%Y-%m-%d}  {summary.status.value}  {summary.label}".rstrip()
        )
    typer.echo(f"{gone} {n_gone:,}, kept {n_kept:,}")


def _plain(one: Pruned) -> dict[str, object]:
    summary = one.summary
    return {
        "id": summary.id,
        "created_at": summary.created_at.isoformat(),
        "status": summary.status.value,
        "label": summary.label,
        "kept": one.kept,
    }
