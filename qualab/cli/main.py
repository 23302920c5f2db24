"""The `qualab` command: one clear line for every error, and an exit code that says which kind it was."""

from __future__ import annotations

import atexit
import gc
import pkgutil
import re
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from qualab import __version__
from qualab.cli.output import (
    INTERRUPTED,
    NO_ROOM,
    complain,
    keep_meaning,
    say_unwritten,
)
from qualab.errors import QualabError
from qualab.model.names import UNEXPECTED, exit_code

# imports make many objects that live on: looking through them again and again is a fifth of a short command's time
gc.set_threshold(300_000, 20, 20)


COMMANDS = {
    "plan": ("plan:plan", "Say what the items can prove, and freeze the plan."),
    "preflight": ("run:preflight", "Check that a pair differs in the drafter alone."),
    "run": ("run:run", "Compare two endpoints, and give a verdict."),
    "resume": ("run:resume", "Go on with a comparison; asks only what is missing."),
    "baseline": ("baseline:app", "Bank a baseline's answers: a new candidate costs one arm."),
    "speed": ("measure:speed", "Time both arms: tokens a second, and what a drafter gains."),
    "limits": ("measure:limits", "Find up to which length each arm answers rightly."),
    "audit": ("run:audit", "Tell whether the model itself would have chosen the tokens."),
    "init": ("run:init", "Write a commented experiment.yaml."),
    "list": ("query:list_comparisons", "List comparisons, newest first."),
    "show": ("query:show", "Show a comparison's table and verdict."),
    "compare": ("stored:compare", "Analyse stored scores again."),
    "export": ("stored:export", "Write lm-eval's files, or one table of pairs."),
    "report": ("query:report", "Write a report: PDF, HTML, Markdown or JSON."),
    "advise": ("query:advise", "Tell where to turn the drafter on."),
    "gate": ("gate:gate", "Wait for a verdict; the exit code tells it."),
    "sign-off": ("stored:sign_off", "Accept a verdict, on record."),
    "verify": ("stored:verify", "Tell whether stored results were altered."),
    "import": ("stored:import_", "Compare the logs of two runs that are there already."),
    "rescore": ("stored:rescore", "Score stored answers again with the installed tasks."),
    "demo": ("demo:demo", "Show three real comparisons; --live runs one here."),
    "serve-pair": ("pair:serve_pair", "Serve two vLLM servers until Ctrl-C."),
    "serve": ("service:serve", "Serve the REST API and web pages, with a worker."),
    "prune": ("query:prune", "Delete old comparisons with all that belongs to them."),
    "worker": ("service:worker", "Run what the service was asked for."),
    "pair": ("pair:app", "A pair of vLLM servers from one file."),
    "db": ("service:database", "The database's schema."),
    "stats": ("stats:app", "Calculators: what counts prove, and items that a margin needs."),
    "token": ("service:token", "Tokens of the service."),
}
"""Where each command is, and its line in `qualab --help`, which loads none of them."""
SETTINGS: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}


class LazyGroup(TyperGroup):
    """Load a command when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, short_help=about) for name, (_, about) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Replace the name by the command. The base class refuses an unknown one, unless a shell completes it: None."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name else None, rest


def load_command(name: str) -> Any:
    """Import the module of a command, or of a group of commands."""
    path, about = COMMANDS[name]
    target = pkgutil.resolve_name(f"qualab.cli.{path}")
    root = typer.Typer(**SETTINGS)
    root.callback()(lambda: None)
    if isinstance(target, typer.Typer):
        root.add_typer(target, name=name)
    else:
        root.command(name, short_help=about)(target)
    return typer.main.get_group(root).commands[name]


WIDEST_HELP = 140
"""Columns of a help text, where the terminal has as many."""

app = typer.Typer(
    name="qualab",
    help="Does turning a drafter on change what a served model answers? Compares two endpoints item by item.",
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST_HELP},
    **SETTINGS,
)


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
    """Run a command; options may be spelt as settings are, with underscores.

    Exit codes: 0 equivalent, 1 regression, 2 usage, 3 inconclusive, 4 invalid, 5 infrastructure.
    """
    keep_meaning()
    atexit.register(gc.freeze)  # the process ends: what lives need not be looked through once more
    arguments = [re.sub("^--[a-z_-]+", lambda option: option[0].replace("_", "-"), part) for part in sys.argv[1:]]
    try:
        if arguments and arguments[0] in ("run", "plan", "preflight"):
            from qualab.cli.lm_eval import translated

            arguments = translated(arguments)
        app(arguments)
    except QualabError as error:
        complain(f"qualab: {error.message}")
        if error.hint:
            complain(f"  {error.hint}")
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # a traceback exits with 1, too
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            say_unwritten(error)
        else:
            complain(f"{traceback.format_exc()}qualab failed unexpectedly; this is a bug")
        sys.exit(UNEXPECTED)
