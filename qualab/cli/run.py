"""`qualab preflight`, `run`, `resume`, `audit` and `init`: ask two endpoints."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qualab import bootstrap
from qualab.cli.options import ComparisonId, ExperimentFile, Force, Given, settings_options
from qualab.cli.output import (
    INTERRUPTED,
    Format,
    OutputFormat,
    complain,
    output_may_fail,
    print_as,
)
from qualab.cli.pair import Managed, make_folder, while_served, with_managed, with_pins, write_example
from qualab.errors import QualabError
from qualab.model.names import INVALID, ArmName, exit_code
from qualab.settings import OPTIONS, check_given, keys_of, load

if TYPE_CHECKING:
    from qualab.cli.progress import TerminalProgress
    from qualab.model.comparison import Analysis
    from qualab.run.prepare import Services

T = TypeVar("T")
RESUME_PLACES = ("checkpoint", "pods", "containers", "data_dir")
"""Where another machine may find things."""


@settings_options(
    *("baseline", "candidate", "model", "tasks", "num_fewshot", "limit", "include_path", "gen_kwargs", "allow_extra"),
    *("apply_chat_template", "system_instruction", "allow_unobserved", "image", "revision", "checkpoint"),
    *("pods", "containers", "tokenizer", "api_key_file", "data_dir", "candidates", "bank", "db"),
)
def preflight(
    experiment: ExperimentFile = None,
    *,
    given: Given,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Check a pair before a run: same model and configuration; a drafter in the candidate alone, and it drafts.

    With a bank also that the baseline is, and would be asked, what it was when it was banked. Sends a few short
    requests, stores nothing, and exits with 0, or with 4 where the pair cannot be compared.
    """
    from qualab.cli.plan import load_frozen, read_frozen
    from qualab.report.terminal import make_console, print_preflight
    from qualab.run import run as use_case

    frozen = read_frozen(experiment)
    settings = load_frozen(frozen, given) if frozen else load(file=experiment, command_line=given)
    progress = new_progress()
    check_given(settings)
    services = bootstrap.services_of(settings) if settings.bank else bootstrap.pair_services_of(settings)
    services = replace(services, keys=keys_of(settings), progress=progress)
    plan, preflighted = frozen.plan if frozen else None, {}
    for name, own in settings.pairs.items():
        try:
            preflighted[name] = bootstrap.run_async(use_case.look_before(services, own, frozen=plan))
        finally:
            progress.finished()

    def print_all() -> None:
        for name, of_pair in preflighted.items():
            if name:
                typer.echo(f"Candidate {name}")
            print_preflight(make_console(), of_pair)

    print_as(output_format, preflighted if settings.candidates else preflighted[""], print_all)
    if any(of_pair.stopping for of_pair in preflighted.values()):
        raise typer.Exit(INVALID)


@settings_options(*(name for name in OPTIONS if name != "expected_missing"))
def run(
    experiment: ExperimentFile = None,
    *,
    given: Given,
    managed: Managed = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Compare two endpoints: ask both every item, score the answers, and test whether quality is equivalent."""
    from qualab.cli.plan import load_frozen, read_frozen
    from qualab.model.reason import Reason
    from qualab.report.words import ENGLISH
    from qualab.run import run as use_case

    frozen = read_frozen(experiment)
    given = with_managed(given, managed, planned=frozen.settings if frozen else {})
    settings = load_frozen(frozen, given) if frozen else with_pins(load(file=experiment, command_line=given), managed)
    if settings.sequential and managed is None:
        raise use_case.takes_turns()
    check_given(settings)  # before any server is started for it
    if settings.output_path:
        make_folder(settings.output_path, hint="Change --output-path")  # no run should end at one that cannot be
    progress, plan = new_progress(), frozen.plan if frozen else None
    keys = keys_of(settings, managed=managed is not None)
    services = replace(bootstrap.services_of(settings), keys=keys, progress=progress)
    arms = [ArmName.BASELINE] if settings.sequential else [*ArmName]
    if settings.candidates:
        from qualab.cli.group import finish_group
        from qualab.run.group import start_group

        result = run_to_end(start_group(services, settings, frozen=plan), progress)
        finish_group(services, result, output_format, folder=settings.output_path)
    if settings.sequential:
        complain(ENGLISH.reason(Reason("arm-by-arm")))
    with while_served(managed, progress, arms):
        analysis = run_to_end(use_case.start(services, settings, arms=arms, frozen=plan), progress)
    if settings.sequential:
        with while_served(managed, progress, [ArmName.CANDIDATE]):
            job = use_case.resume(services, progress.comparison_id, arms=[ArmName.CANDIDATE])
            analysis = run_to_end(job, progress)
        analysis = _scored(services, analysis, managed, progress)
    finish(services, analysis, output_format, folder=settings.output_path)


@settings_options(*RESUME_PLACES, "api_key_file", "db")
def resume(
    comparison: ComparisonId,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also ask again where the endpoint failed.")
    ] = False,
    *,
    given: Given,
    managed: Managed = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Go on with a comparison that was stopped, interrupted or killed; ask only what is missing.

    The id of a group goes on with all its candidates in step; that of one comparison with that candidate alone.
    """
    from qualab.model.registry import signed_off
    from qualab.run import run as use_case
    from qualab.run.prepare import local_of
    from qualab.run.prune import check_free

    settings = load(command_line=given)
    progress = new_progress()
    services = bootstrap.services_of(settings)
    local = {name: value for name, value in local_of(settings).items() if value and name in RESUME_PLACES}
    if settings.checkpoint == "":
        local["checkpoint"] = ""
    if services.store.group(comparison):
        from qualab.cli.group import finish_group
        from qualab.run.group import resume_group

        services = replace(services, keys=keys_of(settings), progress=progress)
        all_of_it = resume_group(services, comparison, local=local, retry_failed=retry_failed)
        finish_group(services, run_to_end(all_of_it, progress), output_format)
    # before any server is started for it
    stored = check_free(services, comparison)
    if services.store.signoffs(stored.id):
        raise signed_off(stored.id)
    services = replace(services, keys=keys_of(settings, managed=managed is not None), progress=progress)
    turns: list[tuple[ArmName, ...]] = [tuple(ArmName)]
    if stored.plan.sequential and managed:
        turns = [(arm,) for arm in use_case.turns_left(services, stored.id, retry_failed=retry_failed)]
        progress.comparison_id = stored.id  # for the hint, should a server fail before anything is asked
    for arms in turns:
        with while_served(managed, progress, arms):
            retries = retry_failed and len(arms) > 1
            job = use_case.resume(services, comparison, arms=arms, local=local, retry_failed=retries)
            analysis = run_to_end(job, progress)
    if stored.plan.sequential and managed:
        analysis = _scored(services, analysis, managed, progress)
    finish(services, analysis, output_format)


def _scored(
    services: Services, analysis: Analysis | None, managed: Path | None, progress: TerminalProgress
) -> Analysis | None:
    """Serve the baseline once more, where the token audit lacks it; the verdict stands whatever comes of that."""
    from qualab.run import run as use_case

    if analysis is None or not use_case.lacks_baseline(services.store, analysis.comparison_id):
        return analysis
    try:
        with while_served(managed, progress, [ArmName.BASELINE]):
            job = use_case.audit(services, analysis.comparison_id, load(), arms=[ArmName.BASELINE])
            return run_to_end(job, progress, way_on=f"qualab audit {analysis.comparison_id} --managed {managed}")
    except QualabError as error:
        complain(f"The token audit ended early: {error}")
        return analysis


@settings_options("audit_tokens", "audit_items", *RESUME_PLACES, "api_key_file", "db")
def audit(
    comparison: ComparisonId,
    *,
    given: Given,
    managed: Managed = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Audit the tokens of a finished comparison whose pair is still there: would the model have chosen them itself?

    The baseline's engine scores both arms' answers, and answers at temperature 1 that are asked for now. Nothing is
    asked or scored twice. Where a plan has an audit, `qualab run` has done it already, as far as it could.
    """
    from qualab.cli.query import end_with_result
    from qualab.run import run as use_case
    from qualab.run.prepare import local_of

    settings = load(command_line=given)
    progress = new_progress()
    services = bootstrap.services_of(settings)
    is_given = not given.keys().isdisjoint(("audit_tokens", "audit_items"))
    stored = use_case.auditable(services, comparison, is_given=is_given)  # before any server is started for it
    local = {name: value for name, value in local_of(settings).items() if value and name in RESUME_PLACES}
    services = replace(services, keys=keys_of(settings, managed=managed is not None), progress=progress)
    arms = [ArmName.BASELINE] if stored.plan.sequential else [*ArmName]
    with while_served(managed, progress, arms):
        job = use_case.audit(services, stored.id, settings, arms=arms, local=local)
        analysis = run_to_end(job, progress, way_on=f"qualab audit {stored.id}")
    end_with_result(services.store, analysis, output_format)


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("experiment.yaml"), force: Force = False
) -> None:
    """Write a commented experiment.yaml."""
    write_example("experiment.yaml", path, force=force)
    typer.echo(f"Wrote {path}. Edit it, then:")
    typer.echo(f"  qualab plan {path}    what its items can prove")
    typer.echo(f"  qualab run {path}")


def new_progress() -> TerminalProgress:
    """Make the progress of a command, on its error output."""
    from qualab.cli.progress import TerminalProgress
    from qualab.report.terminal import make_console

    return TerminalProgress(make_console(is_error=True))


def run_to_end(job: Coroutine[Any, Any, T], progress: TerminalProgress, *, way_on: str = "") -> T:
    """Run a job. Where Ctrl-C or SIGTERM ends it early, say how to go on: by resuming, unless another way is given."""
    from qualab.run.prune import resume_hint

    before = signal.getsignal(signal.SIGTERM)
    try:
        return bootstrap.run_async(_cancelled_by_sigterm(job))
    except (KeyboardInterrupt, asyncio.CancelledError):
        job.close()
        progress.finished()
        hint = f". {resume_hint(progress.comparison_id)}" if progress.comparison_id else " before anything was asked."
        hint = f". Everything so far is stored. Go on with: {way_on}" if way_on else hint
        complain(f"Interrupted{hint}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


async def _cancelled_by_sigterm(job: Coroutine[Any, Any, T]) -> T:
    """Handle SIGTERM itself, not as Ctrl-C, which a script's shell lets its background jobs ignore."""
    if task := asyncio.current_task():
        with suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await job


def finish(services: Services, analysis: Analysis | None, output_format: Format, *, folder: Path | None = None) -> None:
    """Write lm-eval's files into the folder, if any; always print the result; exit as the verdict says."""
    from qualab.cli.query import print_result
    from qualab.run.stored import export

    assert analysis is not None  # the candidate's turn comes last
    try:
        for path in export(services, analysis.comparison_id, folder) if folder else ():
            complain(f"Wrote {path}")
    except QualabError as error:
        error.hint = f"The result is stored. Write the files with: qualab export {analysis.comparison_id} DIR"
        raise
    finally:
        with output_may_fail():
            print_result(services.store, analysis.comparison_id, output_format)
            if output_format is Format.TEXT:
                print_next(analysis.comparison_id)
    raise typer.Exit(exit_code(analysis.verdict))


def print_next(comparison_id: str, more: Mapping[str, str] | None = None) -> None:
    """Print commands for a closer look, with the path of `qualab` where a shell would not find it."""
    called, on_path = Path(sys.argv[0]), shutil.which("qualab")
    is_found = on_path is not None and Path(on_path).resolve() == called.resolve()
    program = "qualab" if called.name != "qualab" or is_found else sys.argv[0]
    steps = {
        f"show {comparison_id}": "this table (--format json)",
        f"show {comparison_id} --flips": "what changed",
        f"report {comparison_id}": "a PDF (--lang ko)",
        "serve": "all in a browser",
        f"export {comparison_id} DIR": "lm-eval's files",
        **(more or {}),
    }
    room = max(map(len, steps))
    typer.echo("\nNext:")
    for step, shown in steps.items():
        typer.echo(f"  {program} {step:<{room}}  {shown}")
