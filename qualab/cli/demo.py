"""`qualab demo`: the main job on a real pair that comes with the package."""

from __future__ import annotations

import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from qualab.cli.options import Database

CONCURRENCY = 8
MODEL = "smollm2"


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command("demo", short_help="Compare a small model, drafter off and on, on this machine.")(demo)


def demo(
    serve: Annotated[bool, typer.Option("--serve", help="Serve the pair until Ctrl-C, and ask nothing.")] = False,
    db: Database = None,
) -> None:
    """Run a real comparison on this machine: a small model in llama.cpp, drafter off and on, 240 items."""
    if serve:
        _serve()
    else:
        _compare(db)


def _serve() -> None:
    """Prints the pair as a shell's variables."""
    from qualab import bootstrap
    from qualab.cli.output import complain
    from qualab.cli.pair import ended_by_sigterm

    with (
        tempfile.TemporaryDirectory(prefix="qualab-demo-") as logs,
        suppress(KeyboardInterrupt),
        ended_by_sigterm(),
        bootstrap.embedded_pair(say=complain, log_dir=Path(logs)) as (baseline, candidate),
    ):
        typer.echo(f"OFF={baseline} ON={candidate} MODEL={MODEL}")
        complain("Ctrl-C stops both")
        while True:
            signal.pause()


def _compare(db: str | None) -> None:
    from qualab import bootstrap
    from qualab.cli.options import Format
    from qualab.cli.progress import TerminalProgress
    from qualab.cli.query import print_result
    from qualab.cli.run import print_next, run_to_end
    from qualab.cli.tables import make_console
    from qualab.run import run as use_case
    from qualab.settings import load

    progress = TerminalProgress(make_console(is_error=True))
    with (
        tempfile.TemporaryDirectory(prefix="qualab-demo-") as logs,
        bootstrap.embedded_pair(say=progress.phase, log_dir=Path(logs)) as (baseline, candidate),
    ):
        settings = load(
            command_line={
                "baseline": baseline,
                "candidate": candidate,
                "model": MODEL,
                "tasks": ("demo",),
                "label": "demo",
                "concurrency": CONCURRENCY,
                "db": db,
            }
        )
        services = bootstrap.services_of(settings)
        job = use_case.start(services, bootstrap.experiment_of(settings), keys={}, progress=progress)
        analysis = run_to_end(job, progress)
    print_result(services.store, analysis.comparison_id, Format.TEXT)
    typer.echo(f"\nThe results are in {bootstrap.database_shown(settings.db)}; both endpoints are stopped.")
    print_next(analysis.comparison_id)
