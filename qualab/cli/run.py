"""The experiment file that `qualab init` writes."""

from __future__ import annotations

import signal
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qualab.cli import options as o
from qualab.cli.options import Database, DataDir, Format, OutputFormat
from qualab.cli.output import INTERRUPTED, OF_VERDICT, complain, output_may_fail, program
from qualab.cli.pair import Managed, while_served, with_managed, with_pins
from qualab.errors import QualabError, UsageError
from qualab.model.names import ArmName

if TYPE_CHECKING:
    from qualab.cli.progress import TerminalProgress
    from qualab.model.comparison import Analysis
    from qualab.model.plan import Plan
    from qualab.run.experiment import Experiment
    from qualab.run.preflight import Keys
    from qualab.run.services import Services


EXPERIMENT = """\
# A comparison of two endpoints that differ in the drafter alone.  Run it with: qualab run experiment.yaml
# Command-line flags and QUALAB_* environment variables win over this file.

baseline: http://127.0.0.1:8000/v1     # drafter off
candidate: http://127.0.0.1:8001/v1    # drafter on
model: my-model                        # as both endpoints serve it

# Suites: release (default: generative, exercises the drafter), published-34 (lm-eval's official forms), demo.
# Or names of lm-eval's tasks and groups.
tasks: [release]

# What will count as equal, fixed before the run.
margin: 0.02          # 2 percentage points
# margins: {gsm8k: 0.03}          # others by benchmark, task or metric; the narrower name wins
# score_bounds: {reward: [-1, 1]} # lowest and highest score, where they are not 0 and 1
# objective: non_inferiority      # only a loss matters; default: equivalence
# strict: true                    # a loss inside the margin is a REGRESSION too: for a drafter said to be lossless
alpha: 0.05           # level of each one-sided test
# allow_unobserved: true          # let a verdict stand though neither /metrics nor answers tell that the drafter ran
# drafter_costs: {draft: 0.2, overhead: 0.05}   # in steps of the model: shows from which length on drafting pays
# power: 0.8                      # chance of proving the margin that `qualab plan` sizes for
# expected_missing: 0.001         # share of each arm's answers that `qualab plan` expects to be missing
# missing_lost: 0.25              # share of the pairs without an answer that the worst case takes as lost; default: all

# What both arms are made of. Without a digest and a commit (or a folder) nothing is signed off: docs/pinning.md
# pins:
#   image: vllm/vllm-openai@sha256:DIGEST   # `docker buildx imagetools inspect NAME:TAG` prints the digest
#   revision: COMMIT                        # of the checkpoint, not a branch
#   checkpoint: /models/my-model            # or its folder here: the plan holds its hash
# pods: {baseline: serving/off-0, candidate: serving/on-0}    # kubectl verifies their image; or, for docker:
# containers: {baseline: off, candidate: on}

# How requests are sent; the same in both arms.
concurrency: 8        # in flight in each arm
timeout: 300          # seconds an attempt may take
# max_attempts: 5
# max_wait: 600       # seconds that a request waits where its server asks for it (429, Retry-After)

# data_dir: /data/qualab        # data sets as local JSONL, where there is no hub (docs/tasks.md)
# apply_chat_template: true     # chat completions (true) or completions (false); default: as the suite says
# num_fewshot: 5                # default: as each task says
# gen_kwargs: {temperature: 0.7}    # unknown names are refused, unless allow_extra: true
# repeats: 1                    # answers an item; needs a temperature
# limit: 40                     # items a task, to try things out; never signed off
# noise_floor: {runs: 1, concurrency: 16}   # how much the baseline differs from itself, at another load
# looks: 5                      # stop at one of so many looks if all is proven, or harm is plain; default: never
# sequential: true              # the candidate after the baseline, on one device (--managed PAIR); never signed off
# seed: 1234
# label: my-release-1.2
# output_path: out              # also write lm-eval's files
# db: postgresql://user@host/qualab

# Keys never stand here: set QUALAB_API_KEY (or QUALAB_BASELINE_API_KEY, QUALAB_CANDIDATE_API_KEY), or
# api_key_file: /run/secrets/qualab
"""


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
    from qualab.cli.planfile import load_frozen, read_frozen
    from qualab.run.experiment import check
    from qualab.run.run import takes_turns
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
    from qualab.model.reason import Reason
    from qualab.report.words import ENGLISH
    from qualab.run import run as use_case
    from qualab.run.run import begin

    progress = _progress()
    if not (wanted.sequential and managed):
        with while_served(managed, progress):
            return run_to_end(use_case.start(services, wanted, keys=keys, progress=progress, frozen=frozen), progress)
    complain(ENGLISH.reason(Reason("arm-by-arm")))
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
    from qualab.model.registry import signed_off
    from qualab.run import run as use_case
    from qualab.run.prune import check_free
    from qualab.run.run import turns_left
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
    from qualab.run.run import take_turn

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
    pass

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

    from qualab.bootstrap import run_async
    from qualab.run.hints import resume_hint

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
    from qualab.run.export import export

    try:
        for path in export(services, comparison_id, folder):
            complain(f"Wrote {path}")
    except QualabError as error:
        error.hint = f"The result is stored. Write the files with: qualab export {comparison_id} DIR"
        raise
