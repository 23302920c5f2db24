"""`qualab compare`, `import`, `rescore`, `sign-off`, `verify` and `export`: judge stored or logged answers."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualab import bootstrap
from qualab.cli.options import Allow, ComparisonId, Database, Given, finding_codes, local_data, settings_options
from qualab.cli.output import (
    Format,
    OutputFormat,
    complain,
    output_may_fail,
    print_as,
    print_json,
    who,
    write_file,
)
from qualab.cli.plan import read_frozen
from qualab.cli.query import end_with_result, print_analysed
from qualab.errors import UsageError
from qualab.model.names import INVALID, ArmName, exit_code
from qualab.settings import RULE_FIELDS, Settings, load

if TYPE_CHECKING:
    from qualab.run.stored import Rescored


Logs = Annotated[Path | None, typer.Option(help="Folder or file with this arm's logs.")]


class TableFormat(StrEnum):
    """Form of a table of pairs."""

    PARQUET = "parquet"
    CSV = "csv"


MARKS = {True: "ok", False: "ALTERED", None: "-"}


@settings_options(*RULE_FIELDS, "data_dir", "db")
def compare(
    comparison: ComparisonId,
    other: Annotated[str | None, typer.Argument(help="Second run, as ID/baseline (or ID: its candidate).")] = None,
    plan: Annotated[Path | None, typer.Option(help="Judge by this plan file instead of the comparison's own.")] = None,
    allow: Allow = None,
    *,
    given: Given,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Analyse stored scores again. A result under a plan made after the data is marked, and never signed off."""
    from qualab.imports.import_ import ImportRequest, compare_runs
    from qualab.run.stored import compare_again, with_rule

    settings = load(command_line=given)
    if other is not None:
        if plan is not None:
            raise UsageError("A plan judges one comparison", hint="Give --margin and the like for two runs")
        store = bootstrap.store_at(settings.db)
        request = ImportRequest(rule=settings.rule, allowed=finding_codes(allow))
        joined = compare_runs(store, bootstrap.task_catalog(), comparison, other, request, now=bootstrap.now())
        end_with_result(store, joined, output_format)
    services = bootstrap.services_of(settings)
    frozen = read_frozen(plan)
    if plan is not None and frozen is None:
        raise UsageError(f"{plan} is not a plan file", hint="`qualab plan` writes one")
    judged_by = frozen.plan if frozen else None
    if changes := _rule_changes(settings, given):
        judged_by = with_rule(judged_by or services.store.get(comparison).plan, changes)
    again = compare_again(services, comparison, other=judged_by, local=local_data(given.get("data_dir")))
    show, digest = f"qualab show {again.comparison.id}", again.analysis.plan_hash[:12]
    with output_may_fail():
        print_analysed(again.comparison, again.analysis, output_format)
        if not again.is_own_plan:
            complain(f"Stored beside the original: {show} --plan {digest}. `{show}` is unchanged.")
        elif not again.is_as_stored:
            complain(f"This differs from the stored analysis, which other versions made; `{show}` is unchanged.")
    raise typer.Exit(exit_code(again.analysis.verdict))


def _rule_changes(settings: Settings, given: Given) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in RULE_FIELDS if name in given}


@settings_options(*RULE_FIELDS, "label", "db")
def import_(
    table: Annotated[Path | None, typer.Argument(help="Table of both arms' scores: CSV, JSONL or Parquet.")] = None,
    baseline: Logs = None,
    candidate: Logs = None,
    run: Annotated[
        str | None,
        typer.Option(help="Part of each run's file name, as baseline=TEXT,candidate=TEXT. Default: the newest run."),
    ] = None,
    allow: Allow = None,
    *,
    given: Given,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Compare the logs of two runs (lm-eval, Inspect, lighteval, NeMo Evaluator) item by item; store the result."""
    from qualab.imports.import_ import ImportRequest, import_logs
    from qualab.model.plan import by_arm

    settings = load(command_line=given)
    paths = {arm: path for arm, path in zip(ArmName, (baseline, candidate), strict=True) if path is not None}
    if table is not None and paths:
        raise UsageError("A table holds both arms", hint="Give a table, or --baseline and --candidate")
    if table is None and len(paths) < len(ArmName):
        raise UsageError("Two logs are needed", hint="Give --baseline DIR --candidate DIR, or one table")
    try:
        runs = by_arm(run or "")
    except ValueError as exc:
        raise UsageError(f"run: {exc}", hint="As baseline=TEXT,candidate=TEXT") from exc
    request = ImportRequest(
        paths=paths,
        table=table,
        runs=runs,
        allowed=finding_codes(allow),
        rule=settings.rule,
        changes=_rule_changes(settings, given),
        label=settings.label,
    )
    store = bootstrap.store_at(settings.db)
    analysis = import_logs(store, bootstrap.task_catalog(), request, now=bootstrap.now())
    end_with_result(store, analysis, output_format)


@settings_options("data_dir", "db")
def rescore(
    comparison: ComparisonId,
    limit: Annotated[int, typer.Option(min=0, help="How many changed scores are listed.")] = 20,
    store: Annotated[bool, typer.Option("--store", help="Keep the new analysis beside the old one.")] = False,
    *,
    given: Given,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Score stored answers again with the installed tasks, and show which scores and verdicts changed."""
    from qualab.report.words import shown
    from qualab.run.stored import rescore as use_case

    settings = load(command_line=given)
    services = bootstrap.services_of(settings)
    rescored = use_case(services, comparison, local=local_data(settings.data_dir), store=store)
    if output_format is Format.JSON:
        print_json({**shown(rescored), "comparison": rescored.comparison.id})
    else:
        for line in _changes(rescored, limit):
            typer.echo(line)


def _changes(rescored: Rescored, limit: int) -> Iterator[str]:
    from qualab.report.words import ENGLISH

    yield from (f"Tasks: {sentence}" for sentence in ENGLISH.reasons(rescored.tasks_changed))
    changed = [metric for metric in rescored.metrics if metric.n_changed or metric.verdict_before != metric.verdict_now]
    n_scores = sum(metric.n_scores for metric in rescored.metrics)
    if not changed:
        yield f"Nothing changed: all {n_scores:,} scores are as stored."
    else:
        yield f"{len(rescored.scores):,} of {n_scores:,} scores changed:"
        for metric in changed:
            counted = f"{metric.n_changed:,} of {metric.n_scores:,}" if metric.n_scores else "a group"
            before, now = _value(metric.verdict_before), _value(metric.verdict_now)
            yield f"  {metric.metric}: {counted}; {before if before == now else f'{before}, now {now}'}"
        for score in rescored.scores[:limit]:
            repeat = f", repeat {score.repeat}" if score.repeat else ""
            before, now = _value(score.before), _value(score.now)
            yield f"  {score.item}{repeat}, {score.arm}, {score.metric}: {before}, now {now}"
        if len(rescored.scores) > limit:
            yield f"  ... and {len(rescored.scores) - limit:,} more (--limit, or --format json for all)"
    if rescored.is_stored:
        digest = rescored.analysis.plan_hash[:12]
        yield f"Stored beside the original: qualab show {rescored.comparison.id} --plan {digest}"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def sign_off(
    comparison: ComparisonId,
    name: Annotated[str, typer.Option("--as", help="Who signs off.")],
    note: Annotated[str, typer.Option(help="A note that the report shows beside the name.")] = "",
    override: Annotated[str, typer.Option(help="Why it is accepted in spite of obstacles.")] = "",
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Accept a comparison's verdict.

    Refused where it is limited, unpinned, INVALID, not proven, judged by a plan made after the data, or has both arms
    at 0, at 1 or below chance, unless --override says why.
    """
    from qualab.report.words import ENGLISH
    from qualab.run.sign import sign_off as sign

    store, now = bootstrap.store_at(db), bootstrap.now()
    signed = sign(store, comparison, signed_by=name, note=note, override=override, who=who(), at=now)
    lines = (
        f"{signed.comparison_id}: {signed.verdict.value} signed off by {signed.signed_by}",
        f"Plan {signed.plan_hash[:12]}, seal {signed.analysis_hash[:12] or 'none'}",
        *(f"In spite of: {obstacle}" for obstacle in ENGLISH.reasons(signed.obstacles)),
    )
    print_as(output_format, signed, lambda: print(*lines, sep="\n"))


@settings_options("data_dir", "db")
def verify(comparison: ComparisonId, *, given: Given, output_format: OutputFormat = Format.TEXT) -> None:
    """Recompute hashes, scores and the analysis from stored answers. Exit code 4 where anything was altered."""
    from qualab.run.verify import verify as verify_stored

    settings = load(command_line=given)
    services = bootstrap.services_of(settings)
    verification = verify_stored(services, comparison, local=local_data(given.get("data_dir")) or None)
    lines = [f"{MARKS[check.is_ok]:<8}{check.name:<10}{check.detail}" for check in verification.checks]
    altered = f"{verification.comparison_id} was altered after it was stored."
    whole = f"{verification.comparison_id} is unaltered. Its seal: {verification.seal or 'none'}"
    lines.append(altered if verification.is_altered else whole)
    print_as(output_format, verification, lambda: print(*lines, sep="\n"))
    raise typer.Exit(INVALID if verification.is_altered else 0)


@settings_options("data_dir", "db")
def export(
    comparison: ComparisonId,
    path: Annotated[
        Path | None, typer.Argument(help="Folder for lm-eval's files, one in it for each arm; with --format a file.")
    ] = None,
    table: Annotated[
        TableFormat | None, typer.Option("--format", help="Instead one table of pairs, as ID.parquet or ID.csv.")
    ] = None,
    *,
    given: Given,
) -> None:
    """Write lm-eval compatible results_*.json and samples_*.jsonl for each arm, or one table of pairs."""
    settings = load(command_line=given)
    if table is None:
        from qualab.run.stored import export as use_case

        services = bootstrap.services_of(settings)
        for written in use_case(services, comparison, path or Path(), local=local_data(given.get("data_dir"))):
            typer.echo(written)
        return
    from qualab.run.pairs import encoded_pairs, pairs_of

    store = bootstrap.store_at(settings.db)
    comparison = store.get(comparison).id
    path = path or Path()
    file = path / f"{comparison}.{table}" if path.is_dir() else path
    write_file(file, encoded_pairs(pairs_of(store, comparison), is_csv=table is TableFormat.CSV))
    typer.echo(file)
