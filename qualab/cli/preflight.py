"""`qualab preflight`: can these two endpoints be compared?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qualab.cli import options as o
from qualab.cli.options import DataDir, Format, OutputFormat

CANNOT = 4


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command("preflight", short_help="Check that a pair differs in the drafter alone.")(preflight)


def preflight(
    experiment: Annotated[
        Path | None, typer.Argument(help="An experiment file (`qualab init` writes one), or a plan (`qualab plan`).")
    ] = None,
    baseline: o.Baseline = None,
    candidate: o.Candidate = None,
    model: o.Model = None,
    tasks: o.Tasks = None,
    num_fewshot: o.Fewshot = None,
    limit: o.Limit = None,
    include_path: o.IncludePath = None,
    gen_kwargs: o.GenKwargs = None,
    allow_extra: o.AllowExtra = None,
    apply_chat_template: o.ChatTemplate = None,
    system_instruction: o.SystemInstruction = None,
    allow_unobserved: o.AllowUnobserved = None,
    image: o.Image = None,
    revision: o.Revision = None,
    checkpoint: o.Checkpoint = None,
    pods: o.Pods = None,
    containers: o.Containers = None,
    tokenizer: o.Tokenizer = None,
    api_key_file: o.KeyFile = None,
    data_dir: DataDir = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Check a pair before a run: same model and configuration, one drafter, in the candidate, that drafts.

    Asks a few short requests, stores nothing, and exits with 0, or with 4 where the pair cannot be compared.
    """
    given = {name: value for name, value in locals().items() if name not in ("experiment", "output_format")}
    from qualab import bootstrap
    from qualab.cli.drafter_text import print_preflight
    from qualab.cli.planfile import load_frozen, read_frozen
    from qualab.cli.progress import TerminalProgress
    from qualab.cli.query import print_json
    from qualab.cli.tables import make_console
    from qualab.report.words import shown
    from qualab.run import run as use_case
    from qualab.settings import load

    frozen = read_frozen(experiment)
    settings = load_frozen(frozen, given) if frozen else load(file=experiment, command_line=given)
    progress = TerminalProgress(make_console(is_error=True))
    job = use_case.look_before(
        bootstrap.services_of(settings, keeps_nothing=True),
        bootstrap.experiment_of(settings),
        keys=bootstrap.keys_of(settings),
        progress=progress,
        frozen=frozen.plan if frozen else None,
    )
    try:
        found = bootstrap.run_async(job)
    finally:
        progress.finished()
    if output_format is Format.JSON:
        print_json(shown(found))
    else:
        print_preflight(make_console(), found)
    if found.stopping:
        raise typer.Exit(CANNOT)
