"""`qualab list`, `show` and `export`: look at what is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualab.cli.options import Database, DataDir, Format, OutputFormat
from qualab.domain.names import ComparisonStatus

if TYPE_CHECKING:
    from qualab.domain.comparison import Comparison
    from qualab.ports import Store


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command("list")(list_comparisons)
    app.command("show")(show)
    app.command("export")(export)


def list_comparisons(
    status: Annotated[ComparisonStatus | None, typer.Option(help="Only comparisons that stand so.")] = None,
    label: Annotated[str | None, typer.Option(help="Only comparisons with this label.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 50,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """List comparisons, newest first."""
    from qualab.cli.tables import comparison_table, make_console
    from qualab.ports import ComparisonFilter

    found = _store(db).list(ComparisonFilter(status=status, label=label, limit=limit))
    if output_format is Format.JSON:
        _print_json([_summary(one) for one in found])
    elif not found:
        typer.echo("No comparisons yet. Start one with: qualab run --help, or try: qualab demo")
    else:
        make_console().print(comparison_table(found))


def show(
    comparison: Annotated[str, typer.Argument(help="Id of a comparison, or its beginning.")],
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Show a comparison's table and verdict."""
    print_result(_store(db), comparison, output_format)


def export(
    comparison: Annotated[str, typer.Argument(help="Id of a comparison, or its beginning.")],
    folder: Annotated[Path, typer.Argument(help="Where the files go; one folder for each arm.")] = Path(),
    data_dir: DataDir = None,
    db: Database = None,
) -> None:
    """Write lm-eval compatible results_*.json and samples_*.jsonl for each arm."""
    from qualab import bootstrap
    from qualab.app.export import export as use_case
    from qualab.settings import load

    services = bootstrap.services_of(load(command_line={"db": db, "data_dir": data_dir}))
    local = {"data_dir": str(data_dir.resolve())} if data_dir else {}
    for path in use_case(services, comparison, folder, local=local):
        typer.echo(path)


def print_result(store: Store, comparison_id: str, output_format: Format) -> None:
    """One comparison with its newest analysis, for people or machines."""
    from qualab.app.hints import resume_hint
    from qualab.cli.tables import make_console, print_analysis
    from qualab.domain.canonical import plain

    comparison = store.get(comparison_id)
    analysis = store.analysis(comparison.id)
    if output_format is Format.JSON:
        _print_json({"comparison": plain(comparison), "analysis": plain(analysis) if analysis else None})
    elif analysis is None:
        typer.echo(f"Comparison {comparison.id} is {comparison.status.value}: no analysis yet.")
        if comparison.stop_reason:
            typer.echo(f"Stopped: {comparison.stop_reason}")
        typer.echo(resume_hint(comparison.id))
    else:
        print_analysis(make_console(), comparison, analysis)


def _summary(comparison: Comparison) -> dict[str, Any]:
    from qualab.domain.canonical import plain

    everything: dict[str, Any] = plain(comparison)
    plan = everything.pop("plan")
    everything.pop("local")
    return everything | {"model": plan["sampling"]["model"], "tasks": plan["requested"], "suite": plan["suite"]}


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _store(db: str | None) -> Store:
    from qualab import bootstrap
    from qualab.settings import load

    return bootstrap.store_of(load(command_line={"db": db}))
