"""`qualab run`, `resume` and `init`: the main job from a terminal."""

from __future__ import annotations

import signal
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qualab.cli import experiment_options as o
from qualab.cli.exits import INTERRUPTED, OF_VERDICT
from qualab.cli.options import Database, DataDir, Format, OutputFormat
from qualab.cli.output import complain, output_may_fail, program
from qualab.cli.pair import Managed, while_served, with_managed, with_pins
from qualab.domain.names import ArmName
from qualab.errors import QualabError, UsageError

if TYPE_CHECKING:
    from qualab.app.experiment import Experiment
    from qualab.app.preflight import Keys
    from qualab.app.services import Services
    from qualab.cli.progress import TerminalProgress
    from qualab.domain.comparison import Analysis
    from qualab.domain.plan import Plan

T = TypeVar("T")
NOT_SETTINGS = ("experiment", "managed", "output_format")


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command("run", short_help="Compare two endpoints, and give a verdict.")(run)
    app.command("resume", short_help="Go on with a comparison; asks only what is missing.")(resume)
    app.command("init")(init)


def run(
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
    seed: o.Seed = None,
    repeats: o.Repeats = None,
    looks: o.Looks = None,
    sequential: o.Sequential = None,
    noise_floor_runs: o.NoiseRuns = None,
    noise_floor_concurrency: o.NoiseConcurrency = None,
    margin: o.Margin = None,
    margins: o.Margins = None,
    score_bounds: o.ScoreBounds = None,
    objective: o.ObjectiveOption = None,
    strict: o.Strict = None,
    alpha: o.Alpha = None,
    power: o.Power = None,
    concurrency: o.Concurrency = None,
    timeout: o.Timeout = None,
    max_attempts: o.MaxAttempts = None,
    max_wait: o.MaxWait = None,
    max_failed_share: o.MaxFailedShare = None,
    max_missing_share: o.MaxMissingShare = None,
    missing_lost: o.MissingLost = None,
    min_accepted_share: o.MinAcceptedShare = None,
    allow_unobserved: o.AllowUnobserved = None,
    image: o.Image = None,
    revision: o.Revision = None,
    checkpoint: o.Checkpoint = None,
    pods: o.Pods = None,
    containers: o.Containers = None,
    drafter_costs: o.DrafterCosts = None,
    tokenizer: o.Tokenizer = None,
    label: o.Label = None,
    api_key_file: o.KeyFile = None,
    output_path: o.OutputPath = None,
    data_dir: DataDir = None,
    db: Database = None,
    managed: Managed = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Compare two endpoints: ask both every item, score, test, and say whether quality is equivalent."""
    given = {name: value for name, value in locals().items() if name not in NOT_SETTINGS}
    from qualab import bootstrap
    from qualab.app.experiment import check
    from qualab.app.run import takes_turns
    from qualab.cli.planfile import load_frozen, read_frozen
    from qualab.settings import load

    frozen = read_frozen(experiment)
    given = with_managed(given, managed, planned=frozen.settings if frozen else {})
    settings = load_frozen(frozen, given) if frozen else with_pins(load(file=experiment, command_line=given), managed)
    if settings.sequential and managed is None:
        raise takes_turns()
    wanted = bootstrap.experiment_of(settings)
    check(wanted)  # before any server is started for it
    if settings.output_path:
        _make_folder(settings.output_path)
    services = bootstrap.services_of(settings)
    keys = bootstrap.keys_of(settings, managed=managed is not None)
    analysis = _started(services, wanted, managed, keys=keys, frozen=frozen.plan if frozen else None)
    finish(services, analysis, output_format, folder=settings.output_path)


def _started(
    services: Services, wanted: Experiment, managed: Path | None, *, keys: Keys, frozen: Plan | None
) -> Analysis:
    from qualab.app import run as use_case
    from qualab.app.interleaving import LOST
    from qualab.app.turns import begin

    progress = _progress()
    if not (wanted.sequential and managed):
        with while_served(managed, progress):
            return run_to_end(use_case.start(services, wanted, keys=keys, progress=progress, frozen=frozen), progress)
    complain(LOST)
    with while_served(managed, progress, [ArmName.BASELINE]):
        job = begin(services, wanted, keys=keys, progress=progress, frozen=frozen)
        comparison_id = run_to_end(job, progress)
    return _took_turns(services, comparison_id, [ArmName.CANDIDATE], managed, progress, keys=keys)


def resume(
    comparison: Annotated[str, typer.Argument(help="Id of a comparison, or its beginning.")],
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", "--retry_failed", help="Also ask again what the endpoint failed at."),
    ] = False,
    checkpoint: o.Checkpoint = None,
    pods: o.Pods = None,
    containers: o.Containers = None,
    api_key_file: o.KeyFile = None,
    data_dir: DataDir = None,
    db: Database = None,
    managed: Managed = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Go on with a comparison that was stopped, interrupted or killed; asks only what is missing."""
    from qualab import bootstrap
    from qualab.app import run as use_case
    from qualab.app.standing import check_free
    from qualab.app.turns import turns_left
    from qualab.domain.lookup import signed_off
    from qualab.settings import load

    pins = {"checkpoint": checkpoint, "pods": pods, "containers": containers}
    settings = load(command_line={"data_dir": data_dir, "db": db, "api_key_file": api_key_file, **pins})
    progress = _progress()
    services = bootstrap.services_of(settings)
    local = {"data_dir": str(settings.data_dir.resolve())} if settings.data_dir else {}
    local |= bootstrap.places_here(settings)
    # before any server is started for it
    found = check_free(services.store, comparison, runner=services.runner, now=services.clock.now())
    if bootstrap.registry_of(settings).signoffs(found.id):
        raise signed_off(found.id)
    keys = bootstrap.keys_of(settings, managed=managed is not None)
    if found.plan.sequential and managed:
        turns = turns_left(services, found.id, retry_failed=retry_failed)
        analysis = _took_turns(services, found.id, turns, managed, progress, keys=keys, local=local)
    else:
        with while_served(managed, progress):
            job = use_case.resume(
                services, comparison, keys=keys, progress=progress, local=local, retry_failed=retry_failed
            )
            analysis = run_to_end(job, progress)
    finish(services, analysis, output_format)


def _took_turns(
    services: Services,
    comparison_id: str,
    turns: Sequence[ArmName],
    managed: Path,
    progress: TerminalProgress,
    *,
    keys: Keys,
    local: Mapping[str, str] | None = None,
) -> Analysis:
    """Serves one arm after the other and lets it be asked. The last turn ends with the analysis."""
    from qualab.app.turns import take_turn

    progress.comparison_id = comparison_id  # for the way on, should a server fail before anything is asked
    for arm in turns:
        with while_served(managed, progress, [arm]):
            job = take_turn(services, comparison_id, arm, keys=keys, progress=progress, local=local)
            analysis = run_to_end(job, progress)
    assert analysis is not None
    return analysis


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("experiment.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a commented experiment.yaml."""
    from qualab.cli.example import EXPERIMENT

    if path.exists() and not force:
        raise UsageError(f"{path} is there already", hint="Give another path, or --force to overwrite it")
    try:
        path.write_text(EXPERIMENT, encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"Cannot write {path}: {exc.strerror}") from exc
    typer.echo(f"Wrote {path}. Edit it, then:")
    typer.echo(f"  qualab plan {path}    what its items can prove")
    typer.echo(f"  qualab run {path}")


def _progress() -> TerminalProgress:
    from qualab.cli.progress import TerminalProgress
    from qualab.cli.tables import make_console

    return TerminalProgress(make_console(is_error=True))


def run_to_end(job: Coroutine[Any, Any, T], progress: TerminalProgress) -> T:
    """Runs a job; whatever ends it early, Ctrl-C and SIGTERM too, says how to go on."""
    import asyncio

    from qualab.app.hints import resume_hint
    from qualab.bootstrap import run_async

    before = signal.getsignal(signal.SIGTERM)
    try:
        return run_async(_cancelled_by_sigterm(job))
    except (KeyboardInterrupt, asyncio.CancelledError):
        job.close()
        progress.finished()
        way_on = f". {resume_hint(progress.comparison_id)}" if progress.comparison_id else " before anything was asked."
        complain(f"Interrupted{way_on}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


async def _cancelled_by_sigterm(job: Coroutine[Any, Any, T]) -> T:
    """By itself and not by way of Ctrl-C, to which a script's shell makes its background jobs deaf."""
    import asyncio

    if task := asyncio.current_task():
        with suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await job


def finish(services: Services, analysis: Analysis, output_format: Format, *, folder: Path | None = None) -> None:
    """Writes lm-eval's files where a folder is named, prints the result in any case, and exits as the verdict says."""
    from qualab.cli.query import print_result

    try:
        if folder:
            _export(services, analysis.comparison_id, folder)
    finally:
        with output_may_fail():
            print_result(services.store, analysis.comparison_id, output_format)
            if output_format is Format.TEXT:
                print_next(analysis.comparison_id)
    raise typer.Exit(OF_VERDICT[analysis.verdict])


def print_next(comparison_id: str) -> None:
    """Which commands look further into a result."""
    steps = {
        f"show {comparison_id}": "this table (--format json)",
        f"show {comparison_id} --flips": "what changed",
        f"report {comparison_id}": "a PDF (--lang ko)",
        "serve": "all in a browser",
        f"export {comparison_id} DIR": "lm-eval's files",
    }
    room = max(map(len, steps))
    typer.echo("\nNext:")
    for step, shown in steps.items():
        typer.echo(f"  {program()} {step:<{room}}  {shown}")


def _make_folder(folder: Path) -> None:
    """Before anything is asked: no run should end at a folder that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"Cannot make the folder {folder}: {exc.strerror}", hint="Change --output-path") from exc


def _export(services: Services, comparison_id: str, folder: Path) -> None:
    from qualab.app.export import export

    try:
        for path in export(services, comparison_id, folder):
            complain(f"Wrote {path}")
    except QualabError as error:
        error.hint = f"The result is stored. Write the files with: qualab export {comparison_id} DIR"
        raise
