"""`qualab report`: a comparison as a document for people."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from qualab.cli.options import Database
from qualab.errors import UsageError
from qualab.model.names import Language, ReportFormat

STANDARD_OUTPUT = Path("-")
SUFFIXES = {".pdf": ReportFormat.PDF, ".html": ReportFormat.HTML, ".htm": ReportFormat.HTML}
SUFFIXES |= {".md": ReportFormat.MARKDOWN, ".markdown": ReportFormat.MARKDOWN, ".json": ReportFormat.JSON}


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command("report", short_help="Write a report: PDF, HTML, Markdown or JSON.")(report)


def report(
    comparison: Annotated[str, typer.Argument(help="Id of a comparison, or its beginning.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; - for the standard output. By default qualab-ID.FORMAT here."),
    ] = None,
    language: Annotated[Language, typer.Option("--lang", help="Language of the report.")] = Language.ENGLISH,
    report_format: Annotated[
        ReportFormat | None, typer.Option("--format", help="By default as the file's name ends, else pdf.")
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(help="Beginning of a plan's hash: what `qualab compare` found under it, after the data."),
    ] = None,
    db: Database = None,
) -> None:
    """Write a report on a comparison, to be read before a release is signed off."""
    from qualab import bootstrap
    from qualab.cli.query import whole_hash
    from qualab.report.model import report_model
    from qualab.settings import load

    chosen = report_format or SUFFIXES.get(output.suffix.lower() if output else "", ReportFormat.PDF)
    store, registry = bootstrap.stores_of(load(command_line={"db": db}))
    plan_hash = whole_hash(store, comparison, plan) if plan else None
    found = report_model(store, registry, comparison, language, plan_hash=plan_hash)
    content = bootstrap.renderer(chosen.value)(found)
    if output == STANDARD_OUTPUT:
        sys.stdout.buffer.write(content)
        return
    of_plan = f"-{found.plan_hash[:12]}" if plan else ""
    path = output or Path(f"qualab-{found.comparison_id}{of_plan}.{chosen.value}")
    _write(path, content)
    typer.echo(f"Wrote {path}")


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: a report that is half there could be taken for one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as exc:
        beside.unlink(missing_ok=True)
        raise UsageError(f"Cannot write {path}: {exc.strerror}", hint="Name another file with -o") from exc
