"""`qualab plan`: show what the items can prove before anything is asked, and freeze the plan in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from qualab import bootstrap
from qualab.cli.options import Given, settings_options
from qualab.cli.output import Format, OutputFormat, complain, print_json, write_file
from qualab.errors import InvalidValue, UsageError
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
        str | None, typer.Option(help="Share of items right in one arm alone, as 0.05,gsm8k=0.02.")
    ] = None,
    pilot: Annotated[str | None, typer.Option(help="Stored comparison to take other figures from.")] = None,
    design_effect: Annotated[
        str | None, typer.Option(help="Clusters' factor on the variance, as belebele=1.2.")
    ] = None,
    noise: Annotated[str | None, typer.Option(help="Discordance of two runs of one arm, as 0.04.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second, both arms together: adds the time.")] = None,
    output: Annotated[Path, typer.Option(help="Where the plan goes.")] = Path("plan.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace another plan in that file.")] = False,
    *,
    given: Given,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Say what the items can prove before anything is asked of an endpoint, and freeze the plan for `qualab run`."""
    from qualab.model.canonical import plan_hash
    from qualab.planning import suite
    from qualab.report.terminal import make_console, print_planning
    from qualab.report.words import shown

    shares = {"discordance": discordance, "design_effect": design_effect, "noise": noise}
    beliefs = suite.Given(**{name: parse_shares(text) for name, text in shares.items() if text}, rate=rate)
    settings = load(file=experiment, command_line=given)
    planning = _planned(settings, beliefs, pilot)
    if output_format is Format.JSON:
        print_json({"plan_hash": plan_hash(planning.plan), **shown(planning)})
    else:
        print_planning(make_console(), planning)
    outcome = "No plan is written yet: it needs the model's name (--model)."
    if settings.model:
        in_file = read_experiment(experiment) if experiment else {}
        outcome = _freeze(planning, settings, {**in_file, **given}, output, force=force)
    typer.echo(f"\n{outcome}", err=output_format is Format.JSON)


def _planned(settings: Settings, beliefs: suite.Given, pilot: str | None) -> Planning:
    from qualab.planning.suite import pilot_of, plan_comparison
    from qualab.run.bank import find_banked, with_bank
    from qualab.run.pins import LocalPins
    from qualab.run.prepare import local_of, make_plan, task_options

    measured = pilot_of(bootstrap.store_at(settings.db), pilot) if pilot else None
    tasks = bootstrap.harness_of(settings).load(task_options(settings))
    folder, digest = local_of(settings)["checkpoint"], ""
    if folder:
        digest = bootstrap.run_async(LocalPins().checkpoint_hash(Path(folder), say=complain))
    plan = make_plan(settings, tasks, checkpoint_hash=digest)
    if settings.bank:
        plan = with_bank(plan, settings, find_banked(bootstrap.store_at(settings.db), settings.bank))
    return plan_comparison(
        plan,
        tasks.render(),
        beliefs,
        measured,
        missing=settings.expected_missing,
        n_candidates=len(settings.candidates) or 1,
    )


def _freeze(planning: Planning, settings: Settings, given: Given, output: Path, *, force: bool) -> str:
    """Write the plan file; return what was done. Raises UsageError where the file holds something else."""
    from qualab.model.canonical import plan_hash
    from qualab.run.prepare import FrozenPlan, to_document

    digest = plan_hash(planning.plan)
    before = None
    with suppress(UsageError):
        before = read_frozen(output) if output.exists() else None
    same = before if before is not None and before.plan_hash == digest else None
    if output.exists() and not force and not same:
        hint = f"This plan ({digest[:12]}) is not written: --force replaces the file, --output names another"
        raise UsageError(f"{output} exists, and holds another plan or something else", hint=hint)
    frozen = FrozenPlan(
        plan=planning.plan,
        plan_hash=digest,
        frozen_at=same.frozen_at if same else bootstrap.now(),
        settings=_experiment_settings(settings, given),
    )
    outcome = "updated, still" if same else "replaced by" if output.exists() else "holds"
    if same and same.settings == frozen.settings:
        outcome = "already holds"
    else:
        document = dict(to_document(frozen, _figures(planning)))
        body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
        write_file(output, HEAD.format(name=output) + body, hint="Choose another file with --output")
    places = ["--managed PAIR"] if planning.plan.sequential else []
    held = {*frozen.settings, *(["candidate"] if settings.candidates else [])}
    places = places or [f"--{arm} URL" for arm in ("baseline", "candidate") if arm not in held]
    return f"{output} {outcome} plan {digest[:12]}.\nNext: {' '.join(['qualab run', str(output), *places])}"


def _figures(planning: Planning) -> dict[str, Any]:
    from qualab.report.words import ENGLISH

    names = {name: name for name in ("margin", "power", "provable_margin", "items_needed", "items_needed_alone")}
    names |= {"power_with_missing": "power_missing", "power_with_looks": "power_looks"}
    figures: dict[str, Any] = {
        "joint_power": planning.joint_power,
        "expected_missing": planning.expected_missing,
        "requests": planning.n_requests,
        "metrics": {
            metric.id: {"items": metric.asked.n_items, "discordance": metric.belief.discordance}
            | {name: getattr(metric, part) for name, part in names.items()}
            for metric in planning.metrics
        },
        "audit": planning.audit
        and {name: getattr(planning.audit, name) for name in ("n_tokens", "provable_share", "n_tokens_needed")},
        "cannot_be_proven": list(ENGLISH.reasons(planning.unproven)),
    }
    rounded: dict[str, Any] = json.loads(json.dumps(figures), parse_float=lambda text: round(float(text), 6))
    return rounded


def _experiment_settings(settings: Settings, given: Given) -> dict[str, Any]:
    """Select what a plan file keeps: settings that make the plan, and the places that were given or found here."""
    from qualab.run.prepare import local_of

    values = settings.model_dump(mode="json", include=set(PLAN_FIELDS))
    values |= {name: str(given[name]) for name in PLACE_FIELDS if given.get(name)}
    values |= local_of(settings) | {"include_path": ",".join(str(path.resolve()) for path in settings.include_path)}
    values["candidates"] = settings.candidates
    return {name: value for name, value in values.items() if value or (name in PLAN_FIELDS and value is not None)}


def read_frozen(path: Path | None) -> FrozenPlan | None:
    """Read the frozen plan in a file, None where it is an experiment file. Raises UsageError, PlanChanged."""
    if path is None or PLAN_FORMAT not in (document := read_document(path)):
        return None
    from qualab.run.prepare import from_document

    return from_document(document, where=str(path))


def load_frozen(frozen: FrozenPlan, given: Mapping[str, Any]) -> Settings:
    """Load the settings of a plan's run. Raises InvalidValue for a flag or variable that would make another plan."""
    settings, planned = load(content=frozen.settings, command_line=given), load(command_line=frozen.settings)
    changes = [f"--{name}" for name in PLAN_FIELDS if given.get(name) is not None]
    differing = (name for name in PLAN_FIELDS if getattr(settings, name) != getattr(planned, name))
    changes += [f"{ENV_PREFIX}{name.upper()}" for name in differing]
    if changes:
        raise InvalidValue(
            f"{changes[0]} would change the frozen plan",
            hint=f"Leave it out, or run `qualab plan` again. Free to choose: {', '.join(PLACE_FIELDS[:11])}",
        )
    return settings
