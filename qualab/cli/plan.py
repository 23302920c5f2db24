"""`qualab plan`: what the items can prove, before anything is asked; and the plan file that freezes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from qualab.cli.options import Format, Given, OutputFormat, settings_options
from qualab.cli.output import complain
from qualab.errors import InvalidValue, UsageError
from qualab.model.plan import arms_text
from qualab.settings import (
    ENV_PREFIX,
    OPTIONS,
    PLACE_FIELDS,
    PLAN_FIELDS,
    PLAN_FORMAT,
    Settings,
    load,
    parse_shares,
    read_document,
    read_experiment,
)

if TYPE_CHECKING:
    from qualab.planning import suite
    from qualab.planning.suite import Planning
    from qualab.run.prepare import FrozenPlan


HEAD = """\
# A comparison's plan, frozen before its data. Run it: qualab run {name} --baseline URL --candidate URL
# Do not edit it: its hash is stored with every run. Another margin is another plan: run `qualab plan` again.
"""


@settings_options(*(name for name in OPTIONS if name not in ("pods", "containers")))
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
    rate: Annotated[float | None, typer.Option(help="Requests a second, both arms together: adds the time.")] = None,
    output: Annotated[Path, typer.Option(help="Where the plan goes.")] = Path("plan.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace another plan in that file.")] = False,
    *,
    given: Given,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Say what the items can prove before anything is asked of an endpoint, and freeze the plan for `qualab run`."""
    from qualab.planning import suite

    beliefs = suite.Given(
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
    in_file = read_experiment(experiment) if experiment else {}
    outcome = _freeze(found, settings, {**in_file, **given}, output, force=force)
    typer.echo(f"\n{outcome}", err=output_format is Format.JSON)


def _planned(settings: Settings, beliefs: suite.Given, pilot: str | None) -> Planning:
    from qualab import bootstrap
    from qualab.planning.suite import pilot_of, plan_comparison
    from qualab.run.pins import LocalPins
    from qualab.run.prepare import local_of, make_plan, task_options

    seen = pilot_of(bootstrap.store_of(settings), pilot) if pilot else None
    tasks = bootstrap.harness_of(settings).load(task_options(settings))
    folder, digest = local_of(settings)["checkpoint"], ""
    if folder:
        digest = bootstrap.run_async(LocalPins().checkpoint_hash(Path(folder), say=complain))
    plan = make_plan(settings, tasks, checkpoint_hash=digest)
    return plan_comparison(plan, tasks.render(), beliefs, seen, missing=settings.expected_missing)


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


def _freeze(found: Planning, settings: Settings, said: Mapping[str, Any], output: Path, *, force: bool) -> str:
    """Writes the plan file and says what was done. Raises UsageError where the file holds something else."""
    from qualab import bootstrap
    from qualab.model.canonical import plan_hash
    from qualab.run.prepare import FrozenPlan, to_document

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


def experiment_settings(settings: Settings, said: Mapping[str, Any]) -> dict[str, Any]:
    """What a plan file keeps: everything that makes the plan, where its items are, and other places that were said.

    `said` is what the experiment file and the command line hold; what the environment holds stays there.
    """
    everything = settings.model_dump(mode="json", include=set(PLAN_FIELDS))
    places = {name: str(said[name]) for name in PLACE_FIELDS if said.get(name)}
    places |= {name: arms_text(getattr(settings, name)) for name in ("pods", "containers") if said.get(name)}
    if settings.pin_names.checkpoint:
        places["checkpoint"] = str(Path(settings.pin_names.checkpoint).resolve())
    if settings.data_dir:
        places["data_dir"] = str(settings.data_dir.resolve())
    places["include_path"] = ",".join(str(path.resolve()) for path in settings.include_path)
    places["tokenizer"] = settings.tokenizer
    kept = {**{name: everything[name] for name in PLAN_FIELDS}, **{name: one for name, one in places.items() if one}}
    return {name: value for name, value in kept.items() if value is not None}


def write_plan_file(path: Path, document: Mapping[str, Any]) -> None:
    """Raises UsageError where the file cannot be written."""
    body = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120)
    try:
        path.write_text(HEAD.format(name=path) + body, encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"Cannot write {path}: {exc.strerror}", hint="Choose another file with --output") from exc


def read_frozen(path: Path | None) -> FrozenPlan | None:
    """The frozen plan in a file, None where it is an experiment file. Raises UsageError, PlanChanged."""
    if path is None or PLAN_FORMAT not in (document := read_document(path)):
        return None
    from qualab.run.prepare import from_document

    return from_document(document, where=str(path))


def load_frozen(frozen: FrozenPlan, given: Mapping[str, Any]) -> Settings:
    """The settings of a plan's run. Raises InvalidValue for a flag or variable that would make it another plan."""
    flags = [name for name in PLAN_FIELDS if given.get(name) is not None]
    if flags:
        raise _refused(f"--{flags[0]}")
    settings, planned = load(content=frozen.settings, command_line=given), load(command_line=frozen.settings)
    for name in PLAN_FIELDS:
        if getattr(settings, name) != getattr(planned, name):
            raise _refused(f"{ENV_PREFIX}{name.upper()}")
    return settings


def _refused(what: str) -> InvalidValue:
    return InvalidValue(
        f"{what} would change the frozen plan",
        hint=f"Leave it out, or run `qualab plan` again. Free to choose: {', '.join(PLACE_FIELDS[:11])}",
    )
