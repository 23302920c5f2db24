"""Prints groups of candidates that were compared with one baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from qualab import bootstrap
from qualab.cli.output import Format, complain, output_may_fail, print_as
from qualab.errors import QualabError
from qualab.model.names import WORST_FIRST, exit_code

if TYPE_CHECKING:
    from qualab.run.group import GroupResult
    from qualab.run.prepare import Services
    from qualab.store import Store


def print_group(store: Store, group_id: str, output_format: Format) -> None:
    """Print the table that ranks a group's candidates. Raises ComparisonNotFound."""
    from qualab.report.group import group_table, group_title, ranked_group, speed_tables
    from qualab.report.terminal import make_console, print_blocks
    from qualab.report.words import ENGLISH

    group = ranked_group(store, group_id, now=bootstrap.now())

    def print_text() -> None:
        typer.echo(group_title(group, ENGLISH))
        print_blocks(make_console(), [group_table(group, ENGLISH), *speed_tables(group, ENGLISH)])
        for own in group.candidates:
            if own.stop_reason:
                typer.echo(f"{own.name} stopped: {ENGLISH.reason(own.stop_reason)}")

    print_as(output_format, group, print_text)


def finish_group(
    services: Services, result: GroupResult, output_format: Format, *, folder: Path | None = None
) -> NoReturn:
    """Print the table of a run that has ended, and exit as the worst of its candidates.

    Writes lm-eval's files of each into a folder of its own, if any.
    """
    from qualab.run.stored import export

    for name, outcome in result.outcomes.items():
        if isinstance(outcome, QualabError):
            complain(f"qualab: candidate {name}: {outcome.message}\n  {outcome.hint}")
        elif folder:
            for path in export(services, outcome.comparison_id, folder / name):
                complain(f"Wrote {path}")
    with output_may_fail():
        print_group(services.store, result.id, output_format)
        if output_format is Format.TEXT:
            typer.echo(f"\nNext:\n  qualab show {result.id}    this table (--format json)")
            typer.echo(
                f"  qualab show {result.id}-NAME    one candidate's own comparison; also report, export, sign-off"
            )
    codes = {exit_code(own if isinstance(own, QualabError) else own.verdict) for own in result.outcomes.values()}
    raise typer.Exit(min(codes, key=WORST_FIRST.index))
