"""The `qualab` command: one clear line for every error, and an exit code that says which kind it was."""

from __future__ import annotations

import atexit
import gc
import sys
import traceback
from typing import Annotated

import typer

from qualab import __version__
from qualab.cli import (
    database,
    demo,
    gate,
    import_,
    pair,
    plan,
    preflight,
    prune,
    query,
    report,
    rescore,
    run,
    serve,
    signing,
    stats,
    token,
    worker,
)
from qualab.cli.output import INTERRUPTED, NO_ROOM, UNEXPECTED, complain, keep_meaning, of_error, say_unwritten, silence
from qualab.errors import QualabError

# imports make many objects that live on: looking through them again and again is a fifth of a short command's time
gc.set_threshold(300_000, 20, 20)


app = typer.Typer(
    name="qualab",
    help="Does turning a drafter on change what a served model answers? Compares two endpoints item by item.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
plan.register(app)
preflight.register(app)
run.register(app)
query.register(app)
report.register(app)
gate.register(app)
signing.register(app)
import_.register(app)
rescore.register(app)
demo.register(app)
pair.register(app)
serve.register(app)
prune.register(app)
worker.register(app)
app.add_typer(database.app, name="db")
app.add_typer(stats.app, name="stats")
app.add_typer(token.app, name="token")


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"qualab {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Compares two OpenAI-compatible endpoints that differ in the drafter alone."""


def main() -> None:
    """Entry point. Exit codes: 0 equivalent, 1 regression, 2 usage, 3 inconclusive, 4 invalid, 5 infrastructure."""
    keep_meaning()
    atexit.register(gc.freeze)  # the process ends: what lives need not be looked through once more
    try:
        app()
    except QualabError as error:
        _print_error(error)
        sys.exit(of_error(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer makes it 1, which would read as a regression
            silence(sys.stdout)
            sys.exit(UNEXPECTED)
        raise
    except Exception as error:  # a traceback exits with 1, too
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            say_unwritten(error)
        else:
            complain(f"{traceback.format_exc()}qualab failed unexpectedly; this is a bug")
        sys.exit(UNEXPECTED)


def _print_error(error: QualabError) -> None:
    complain(f"qualab: {error.message}")
    if error.hint:
        complain(f"  {error.hint}")
