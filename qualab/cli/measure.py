"""`qualab speed` and `limits`: what is measured of a pair beside its answers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualab import bootstrap
from qualab.cli.group import print_group
from qualab.cli.options import Given, settings_options
from qualab.cli.output import INTERRUPTED, Format, OutputFormat, complain, print_as
from qualab.cli.pair import Managed, while_served, with_managed
from qualab.cli.run import new_progress, run_to_end
from qualab.errors import UsageError
from qualab.model.names import ArmName
from qualab.settings import SPEED_OPTIONS, check_given, keys_of, load

if TYPE_CHECKING:
    from qualab.store import Store

PAIR_OPTIONS = (
    *("baseline", "candidate", "candidates", "model", "gen_kwargs", "apply_chat_template", "system_instruction"),
    *("label", "seed"),
)
Target = Annotated[
    str | None, typer.Argument(help="Experiment file or plan, or the id of a comparison or a group.", metavar="WHAT")
]


@settings_options(*SPEED_OPTIONS, *PAIR_OPTIONS, "tokenizer", "timeout", "api_key_file", "db")
def speed(
    target: Target = None, *, given: Given, managed: Managed = None, output_format: OutputFormat = Format.TEXT
) -> None:
    """Time both arms: tokens a second, time to the first token and between tokens, by kind of work, length and load.

    With a file or options a new comparison without tasks; with an id that comparison's pair, or all of a group. The
    arms take turns, and no other comparison may use their hosts meanwhile. What is timed is stored, and goes on.
    """
    from qualab.run.timed import speed_of_stored, start_speed

    file, stored_id = file_or_id(target, given)
    given = given if stored_id else with_managed(given, managed, planned={})
    settings, progress = load(file=file, command_line=given), new_progress()
    if not stored_id:
        check_given(settings)
    services = replace(
        bootstrap.services_of(settings), keys=keys_of(settings, managed=managed is not None), progress=progress
    )
    with while_served(managed, progress):
        if stored_id:
            job = speed_of_stored(services, stored_id, settings, given=given)
            run_to_end(job, progress, way_on=f"qualab speed {stored_id}")
        else:
            run_to_end(start_speed(services, settings), progress)
    print_speed(services.store, stored_id or progress.comparison_id, output_format)


def file_or_id(target: str | None, given: Iterable[str]) -> tuple[Path | None, str]:
    """Tell a file from the id of a stored comparison, whose pair no option may change. Raises UsageError."""
    if target is None or target.endswith((".yaml", ".yml")) or Path(target).is_file():
        return (Path(target) if target else None), ""
    if wrong := next((name for name in given if name in (*PAIR_OPTIONS, "timeout")), ""):
        hint = "Leave it out, or leave the id out to begin a new comparison"
        raise UsageError(f"--{wrong.replace('_', '-')} does not fit {target}, whose pair is stored", hint=hint)
    return None, target


@settings_options(*PAIR_OPTIONS, "api_key_file", "db")
def limits(
    target: Target = None,
    arm: Annotated[ArmName | None, typer.Option(help="This arm alone, as baseline or candidate.")] = None,
    start: Annotated[int, typer.Option(min=1, help="Tokens of the first prompt.")] = 512,
    output_tokens: Annotated[int, typer.Option(min=16, max=100_000, help="Longest answer; more for thoughts.")] = 64,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which a prompt counts as hung.")] = 600.0,
    recovery: Annotated[float, typer.Option(min=0.0, help="Seconds that a server that died is waited for.")] = 300.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: a prompt may kill a server.")] = False,
    *,
    given: Given,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Find the longest prompt that each arm answers rightly, where it refuses, and where it breaks.

    Prompts in English and Korean grow from 512 tokens to the advertised limit, with facts in them to be found again;
    then the edge is bisected. That can kill a server. Prompts are stored one by one: with the id it goes on.
    """
    from qualab.run.limits import LimitsOptions, find_limits
    from qualab.run.timed import start_speed

    file, stored_id = file_or_id(target, given)
    settings, progress = load(file=file, command_line=given), new_progress()
    services = replace(bootstrap.services_of(settings), keys=keys_of(settings), progress=progress)
    if not stored_id:
        check_given(settings)
    stored = services.store.group(stored_id) or [services.store.get(stored_id)] if stored_id else []
    pairs = [(own.baseline_url, own.candidate_url) for own in stored]
    pairs = pairs or [(own.baseline, own.candidate) for own in settings.pairs.values()]
    urls = ", ".join(dict.fromkeys(url for pair in pairs for url in pair))
    complain(f"Ever longer prompts go to {urls}, up to and just above the advertised limit.")
    danger = "They can kill a server, and with it the work of all who use it"
    if not yes and not sys.stdin.isatty():
        raise UsageError(danger, hint="If that may happen, give --yes")
    if not yes and not typer.confirm(f"{danger}. Go on?", err=True):
        raise typer.Exit(INTERRUPTED)
    if not stored_id:
        run_to_end(start_speed(services, settings, is_timed=False), progress)
        stored_id = progress.comparison_id
    arms, bounds = (arm,) if arm else tuple(ArmName), {"timeout_s": timeout, "recovery_s": recovery}
    options = LimitsOptions(arms=arms, start=start, output_tokens=output_tokens, **bounds)
    run_to_end(find_limits(services, stored_id, settings, options), progress, way_on=f"qualab limits {stored_id}")
    print_limits(services.store, stored_id, output_format)


def print_limits(store: Store, stored_id: str, output_format: Format) -> None:
    """Print the limits and the room of a comparison, or of each of a group."""
    from qualab.analysis.limits import capacity_of, limits_of
    from qualab.report.speed import capacity_blocks, limits_blocks
    from qualab.report.terminal import make_console, print_blocks
    from qualab.report.words import ENGLISH

    members = store.group(stored_id) or [store.get(stored_id)]
    seen = {own.id: store.observations(own.id) for own in members}
    documents: dict[str, Any] = {
        name: {"limits": limits_of(own), "capacity": capacity_of(own)} for name, own in seen.items()
    }

    def print_text() -> None:
        for name, document in documents.items():
            typer.echo(f"Comparison {name}")
            blocks = (*limits_blocks(document["limits"], ENGLISH), *capacity_blocks(document["capacity"], ENGLISH))
            print_blocks(make_console(), blocks, is_spaced=True)

    print_as(output_format, documents if len(documents) > 1 else documents[members[0].id], print_text)


def print_speed(store: Store, stored_id: str, output_format: Format) -> None:
    """Print the speeds of a comparison, or the tables of a group."""
    if store.group(stored_id):
        print_group(store, stored_id, output_format)
        return
    from qualab.analysis.speed import speed_of
    from qualab.report.speed import speed_blocks
    from qualab.report.terminal import make_console, print_blocks
    from qualab.report.words import ENGLISH

    comparison = store.get(stored_id)
    timed = speed_of(store.observations(comparison.id), seed=comparison.plan.sampling.seed)
    print_as(output_format, timed, lambda: print_blocks(make_console(), speed_blocks(timed, ENGLISH)))
    if output_format is Format.TEXT:
        typer.echo(f"\nNext: qualab advise {comparison.id}, or qualab report {comparison.id}")
