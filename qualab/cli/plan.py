"""`qualab plan`: what the items can prove, before anything is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualab.cli import options as o
from qualab.cli.options import Database, DataDir, Format, OutputFormat
from qualab.cli.output import complain
from qualab.errors import UsageError

if TYPE_CHECKING:
    from qualab.planning.suite import Given, Planning
    from qualab.run.experiment import FrozenPlan
    from qualab.settings import Settings


NOT_SETTINGS = {
    *("experiment", "output_format", "output", "force"),
    *("discordance", "pilot", "design_effect", "noise", "rate"),
}


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command("plan", short_help="Say what the items can prove, and freeze the plan.")(plan)


def plan(
    experiment: Annotated[Path | None, typer.Argument(help="An experiment file, or a plan to make anew.")] = None,
    discordance: Annotated[
        str | None, typer.Option(help="Share of items right in exactly one arm, as 0.05 or 0.05,gsm8k=0.02.")
    ] = None,
    pilot: Annotated[str | None, typer.Option(help="Take what is not said here from this stored comparison.")] = None,
    design_effect: Annotated[
        str | None,
        typer.Option(
            "--design-effect", "--design_effect", help="What clusters multiply the variance by; as 1.2 or belebele=1.2."
        ),
    ] = None,
    noise: Annotated[
        str | None, typer.Option(help="Discordance of two runs of one arm, which --repeats divide; as 0.04.")
    ] = None,
    expected_missing: Annotated[
        float | None,
        typer.Option(
            "--expected-missing",
            "--expected_missing",
            help="Share of each arm's answers expected to be missing; as 0.005.",
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second, both arms together: adds the time.")] = None,
    output: Annotated[Path, typer.Option(help="Where the plan goes.")] = Path("plan.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace another plan in that file.")] = False,
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
    drafter_costs: o.DrafterCosts = None,
    tokenizer: o.Tokenizer = None,
    label: o.Label = None,
    api_key_file: o.KeyFile = None,
    output_path: o.OutputPath = None,
    data_dir: DataDir = None,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Say what the items can prove before anything is asked of an endpoint, and freeze the plan for `qualab run`."""
    given = {name: value for name, value in locals().items() if name not in NOT_SETTINGS}
    from qualab.planning.suite import Given
    from qualab.settings import load, parse_shares

    beliefs = Given(
        discordance=parse_shares(discordance) if discordance else {},
        design_effect=parse_shares(design_effect) if design_effect else {},
        noise=parse_shares(noise) if noise else {},
        rate=rate,
    )
    settings = load(file=experiment, command_line=given)
    found = _planned(settings, beliefs, pilot)
    _print(found, output_format)
    if not settings.model:
        typer.echo("\nNo plan is written yet: it needs the model's name (--model).", err=output_format is Format.JSON)
        return
    said = _freeze(found, settings, _said(experiment, given), output, force=force)
    typer.echo(f"\n{said}", err=output_format is Format.JSON)


def _planned(settings: Settings, beliefs: Given, pilot: str | None) -> Planning:
    from qualab import bootstrap
    from qualab.planning.suite import pilot_of, plan_comparison
    from qualab.run.experiment import check, task_options
    from qualab.run.pins import planned_hash

    wanted = bootstrap.experiment_of(settings, needed=())
    check(wanted)
    seen = pilot_of(bootstrap.store_of(settings), pilot) if pilot else None
    tasks = bootstrap.harness_of(settings).load(task_options(wanted))
    named = planned_hash(bootstrap.pin_source(), wanted.places, None, say=complain)
    return plan_comparison(wanted, tasks, beliefs, seen, checkpoint_hash=bootstrap.run_async(named))


def _print(found: Planning, output_format: Format) -> None:
    from qualab.cli.plan_text import planning_text
    from qualab.cli.tables import make_console
    from qualab.model.canonical import plain, plan_hash
    from qualab.report.words import ENGLISH

    if output_format is Format.JSON:
        everything = {"plan_hash": plan_hash(found.plan), **plain(found), "caveats": ENGLISH.reasons(found.caveats)}
        typer.echo(json.dumps(everything, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        typer.echo(planning_text(found, width=make_console().width))


def _said(experiment: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """What file and command line say, the latter before the former."""
    from qualab.settings import read_experiment

    in_file = read_experiment(experiment) if experiment else {}
    return in_file | {name: value for name, value in given.items() if value is not None}


def _freeze(found: Planning, settings: Settings, said: Mapping[str, Any], output: Path, *, force: bool) -> str:
    """Writes the plan file and says what was done. Raises UsageError where the file holds something else."""
    from qualab import bootstrap
    from qualab.cli.planfile import experiment_settings, write_plan_file
    from qualab.model.canonical import plan_hash
    from qualab.run.experiment import FrozenPlan, to_document

    digest = plan_hash(found.plan)
    before = _before(output)
    same = before if before is not None and before.plan_hash == digest else None
    if output.exists() and not force and not same:
        raise UsageError(
            f"{output} is there already, and holds another plan or something else",
            hint=f"This plan ({digest[:12]}) is not written: --force replaces the file, --output names another",
        )
    frozen = FrozenPlan(
        plan=found.plan,
        plan_hash=digest,
        frozen_at=same.frozen_at if same else bootstrap.now(),
        settings=experiment_settings(settings, said),
    )
    if same and same.settings == frozen.settings:
        what = "already holds"
    else:
        what = "replaced by" if output.exists() and not same else "updated, still" if same else "holds"
        write_plan_file(output, to_document(frozen, _figures(found)))
    return f"{output} {what} plan {digest[:12]}.\n{_next(frozen, output)}"


def _before(output: Path) -> FrozenPlan | None:
    """The whole plan that a file holds already."""
    from qualab.cli.planfile import read_frozen

    try:
        return read_frozen(output) if output.exists() else None
    except UsageError:
        return None


def _next(frozen: FrozenPlan, output: Path) -> str:
    if frozen.plan.sequential:
        return f"Next: qualab run {output} --managed PAIR"
    missing = [f"--{arm} URL" for arm in ("baseline", "candidate") if arm not in frozen.settings]
    return f"Next: {' '.join(['qualab run', str(output), *missing])}"


def _figures(found: Planning) -> dict[str, Any]:
    """The planning figures that a person looks for in the file."""
    return {
        "joint_power": _rounded(found.joint_power),
        "expected_missing": found.expected_missing,
        "requests": found.n_requests,
        "metrics": {
            one.id: {
                "items": one.asked.n_items,
                "margin": one.margin,
                "discordance": _rounded(one.belief.discordance),
                "power": _rounded(one.power),
                "power_with_missing": _rounded(one.power_missing),
                "power_with_looks": _rounded(one.power_looks),
                "provable_margin": _rounded(one.provable_margin),
                "items_needed": one.items_needed,
                "items_needed_alone": one.items_needed_alone,
            }
            for one in found.metrics
        },
        "cannot_be_proven": list(found.unproven),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
