"""`qualab compare`, `import`, `rescore`, `sign-off`, `verify` and `export`: what stored or logged answers are worth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from qualab.cli.options import (
    Allow,
    ComparisonId,
    Database,
    Format,
    Given,
    OutputFormat,
    finding_codes,
    local_data,
    settings_options,
)
from qualab.cli.output import OF_VERDICT, complain, output_may_fail, who
from qualab.cli.plan import read_frozen
from qualab.cli.query import print_analysed, print_json, print_result
from qualab.errors import UsageError
from qualab.model.names import ArmName
from qualab.settings import RULE_FIELDS, Settings, load

if TYPE_CHECKING:
    from qualab.imports.import_ import Wanted
    from qualab.model.plan import Plan
    from qualab.run.stored import ChangedScore, MetricChange, Reanalysis, Rescored
    from qualab.run.verify import Verification


Logs = Annotated[Path | None, typer.Option(help="Folder or file with this arm's logs.")]
ALTERED = 4
MARKS = {True: "ok", False: "ALTERED", None: "-"}


@settings_options(*RULE_FIELDS, "data_dir", "db")
def compare(
    comparison: ComparisonId,
    other: Annotated[
        str | None,
        typer.Argument(help="Another: compares run with run, as ID/baseline; an id alone is its candidate."),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="Judge by this plan file instead of the comparison's own.")] = None,
    allow: Allow = None,
    *,
    given: Given,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Analyse stored scores again. Under another plan than the one before the data: marked, and never signed off."""
    from qualab import bootstrap
    from qualab.run.stored import compare_again, with_rule

    settings = load(command_line=given)
    if other is not None:
        _compare_runs(settings, (comparison, other), plan, allow or "", output_format)
    services = bootstrap.services_of(settings)
    judged_by = _other_plan(plan)
    if changes := _rule_changes(settings, given):
        judged_by = with_rule(judged_by or services.store.get(comparison).plan, changes)
    found = compare_again(services, comparison, other=judged_by, local=local_data(given.get("data_dir")))
    with output_may_fail():
        print_analysed(found.comparison, found.analysis, output_format)
        for line in _about(found):
            complain(line)
    raise typer.Exit(OF_VERDICT[found.analysis.verdict])


def _rule_changes(settings: Settings, given: Given) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in RULE_FIELDS if name in given}


def _compare_runs(
    settings: Settings, runs: tuple[str, str], plan: Path | None, allow: str, output_format: Format
) -> NoReturn:
    """Two runs of the store, joined as two logs are."""
    from qualab import bootstrap
    from qualab.imports.import_ import Wanted, compare_runs

    if plan is not None:
        raise UsageError("A plan judges one comparison", hint="Give --margin and the like for two runs")
    services = bootstrap.import_services_of(settings)
    wanted = Wanted(rule=settings.rule, allowed=finding_codes(allow))
    found = compare_runs(services, *runs, wanted)
    with output_may_fail():
        print_result(services.store, found.comparison_id, output_format)
    raise typer.Exit(OF_VERDICT[found.verdict])


def _other_plan(path: Path | None) -> Plan | None:
    if path is None:
        return None
    frozen = read_frozen(path)
    if frozen is None:
        raise UsageError(f"{path} is no plan file", hint="`qualab plan` writes one")
    return frozen.plan


def _about(found: Reanalysis) -> Iterator[str]:
    id_, digest = found.comparison.id, found.analysis.plan_hash[:12]
    if not found.is_own_plan:
        yield f"Stored beside the original: qualab show {id_} --plan {digest}. `qualab show {id_}` is as it was."
    elif not found.is_as_stored:
        yield f"Not what is stored: other versions made that analysis. It is kept; `qualab show {id_}` is as it was."


@settings_options(*RULE_FIELDS, "label", "db")
def import_(
    table: Annotated[
        Path | None, typer.Argument(help="A table with both arms' scores instead: CSV, JSON Lines or Parquet.")
    ] = None,
    baseline: Logs = None,
    candidate: Logs = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="Part of each run's file name, as baseline=TEXT,candidate=TEXT: needed where one folder holds both. "
            "Default: the newest run."
        ),
    ] = None,
    allow: Allow = None,
    *,
    given: Given,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Compare the logs of two runs (lm-eval, Inspect, lighteval, NeMo Evaluator), item by item; store the result."""
    from qualab import bootstrap
    from qualab.imports.import_ import import_logs

    settings = load(command_line=given)
    wanted = _wanted(
        settings, _rule_changes(settings, given), (table, baseline, candidate), run=run or "", allow=allow or ""
    )
    services = bootstrap.import_services_of(settings)
    analysis = import_logs(services, wanted)
    with output_may_fail():
        print_result(services.store, analysis.comparison_id, output_format)
    raise typer.Exit(OF_VERDICT[analysis.verdict])


def _wanted(
    settings: Settings,
    changes: dict[str, Any],
    given: tuple[Path | None, Path | None, Path | None],
    *,
    run: str,
    allow: str,
) -> Wanted:
    from qualab.imports.import_ import Wanted

    table, baseline, candidate = given
    if table is not None and (baseline or candidate):
        raise UsageError("A table holds both arms", hint="Give a table, or --baseline and --candidate")
    if table is None and (baseline is None or candidate is None):
        raise UsageError("Two logs are needed", hint="Give --baseline DIR --candidate DIR, or one table")
    return Wanted(
        places={ArmName.BASELINE: table or baseline, ArmName.CANDIDATE: table or candidate},  # type: ignore[dict-item]
        is_table=table is not None,
        runs=_runs(run),
        allowed=finding_codes(allow),
        rule=settings.rule,
        changes=changes,
        label=settings.label,
    )


def _runs(text: str) -> dict[ArmName, str]:
    """ "baseline=A,candidate=B", or one text for both."""
    from qualab.model.plan import by_arm

    if "=" in text:
        try:
            return by_arm(text)
        except ValueError as exc:
            raise UsageError(f"run: {exc}", hint="As baseline=TEXT,candidate=TEXT, or one TEXT for both") from exc
    return dict.fromkeys(ArmName, text) if text else {}


@settings_options("data_dir", "db")
def rescore(
    comparison: ComparisonId,
    limit: Annotated[int, typer.Option(min=0, help="How many changed scores are listed.")] = 20,
    store: Annotated[
        bool, typer.Option("--store", help="Keep the new analysis beside the old one, marked; nothing is replaced.")
    ] = False,
    *,
    given: Given,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Score stored answers again with the installed tasks, and show what changed, metric by metric and item by item."""
    from qualab import bootstrap
    from qualab.report.words import shown
    from qualab.run.stored import rescore as use_case

    settings = load(command_line=given)
    services = bootstrap.services_of(settings)
    found = use_case(services, comparison, local=local_data(settings.data_dir), store=store)
    if output_format is Format.JSON:
        print_json({**shown(found), "comparison": found.comparison.id})
    else:
        for line in _changes(found, limit):
            typer.echo(line)


def _changes(found: Rescored, limit: int) -> Iterator[str]:
    from qualab.report.words import ENGLISH

    yield from (f"Tasks: {one}" for one in ENGLISH.reasons(found.tasks_changed))
    changed = [one for one in found.metrics if one.n_changed or one.verdict_before != one.verdict_now]
    n_scores = sum(one.n_scores for one in found.metrics)
    if not changed:
        yield f"Nothing changed: all {n_scores:,} scores are as stored."
    else:
        yield f"{len(found.scores):,} of {n_scores:,} scores changed:"
        yield from (f"  {_metric(one)}" for one in changed)
        yield from (f"  {_score(one)}" for one in found.scores[:limit])
        if len(found.scores) > limit:
            yield f"  ... and {len(found.scores) - limit:,} more (--limit, or --format json for all)"
    if found.is_stored:
        digest = found.analysis.plan_hash[:12]
        yield f"Stored beside the original: qualab show {found.comparison.id} --plan {digest}"


def _metric(one: MetricChange) -> str:
    verdicts = [verdict.value if verdict else "none" for verdict in (one.verdict_before, one.verdict_now)]
    said = verdicts[0] if verdicts[0] == verdicts[1] else f"{verdicts[0]}, now {verdicts[1]}"
    counted = f"{one.n_changed:,} of {one.n_scores:,}" if one.n_scores else "a group"
    return f"{one.metric}: {counted}; {said}"


def _score(one: ChangedScore) -> str:
    repeat = f", repeat {one.repeat}" if one.repeat else ""
    return f"{one.item}{repeat}, {one.arm}, {one.metric}: {_value(one.before)}, now {_value(one.now)}"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def sign_off(
    comparison: ComparisonId,
    name: Annotated[str, typer.Option("--as", help="Who signs off.")],
    note: Annotated[str, typer.Option(help="What the report says beside the name.")] = "",
    override: Annotated[
        str, typer.Option(help="Why it is accepted although something stands in the way; the report shows it.")
    ] = "",
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Accept a comparison's verdict.

    Refused for what is limited, unpinned, INVALID, not proven, judged by a plan made after the data, or at 0, at 1 or
    below chance in both arms, unless a reason to override that is given.
    """
    from qualab import bootstrap
    from qualab.report.words import ENGLISH, shown
    from qualab.run.sign import sign_off as sign

    settings = load(command_line={"db": db})
    signed = sign(
        *bootstrap.stores_of(settings),
        comparison,
        signed_by=name,
        note=note,
        override=override,
        who=who(),
        at=bootstrap.now(),
    )
    if output_format is Format.JSON:
        typer.echo(json.dumps(shown(signed), indent=2, ensure_ascii=False))
        return
    typer.echo(f"{signed.comparison_id}: {signed.verdict.value} signed off by {signed.signed_by}")
    typer.echo(f"Plan {signed.plan_hash[:12]}, seal {signed.analysis_hash[:12] or 'none'}")
    for obstacle in ENGLISH.reasons(signed.obstacles):
        typer.echo(f"In spite of: {obstacle}")


@settings_options("data_dir", "db")
def verify(comparison: ComparisonId, *, given: Given, output_format: OutputFormat = Format.TEXT) -> None:
    """Make hashes, scores and the analysis again from stored answers. Exit code 4 where anything was altered."""
    from qualab import bootstrap
    from qualab.model.canonical import plain
    from qualab.run.verify import verify as verify_stored

    settings = load(command_line=given)
    local = local_data(given.get("data_dir")) or None
    store, registry = bootstrap.stores_of(settings)
    found = verify_stored(bootstrap.services_of(settings, store=store), registry, comparison, local=local)
    if output_format is Format.JSON:
        typer.echo(json.dumps(plain(found), indent=2, ensure_ascii=False))
    else:
        _print_checks(found)
    raise typer.Exit(ALTERED if found.is_altered else 0)


def _print_checks(found: Verification) -> None:
    for check in found.checks:
        typer.echo(f"{MARKS[check.is_ok]:<8}{check.name:<10}{check.detail}")
    if found.is_altered:
        typer.echo(f"{found.comparison_id} was altered after it was stored.")
    else:
        typer.echo(f"Nothing of {found.comparison_id} was found altered. Its seal is {found.seal or 'not there'}")


@settings_options("data_dir", "db")
def export(
    comparison: ComparisonId,
    folder: Annotated[Path, typer.Argument(help="Where the files go; one folder for each arm.")] = Path(),
    *,
    given: Given,
) -> None:
    """Write lm-eval compatible results_*.json and samples_*.jsonl for each arm."""
    from qualab import bootstrap
    from qualab.run.stored import export as use_case

    services = bootstrap.services_of(load(command_line=given))
    for path in use_case(services, comparison, folder, local=local_data(given.get("data_dir"))):
        typer.echo(path)
