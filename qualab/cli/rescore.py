"""`qualab rescore`: what the installed tasks make of stored answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualab.cli.options import Database, DataDir, Format, OutputFormat

if TYPE_CHECKING:
    from qualab.run.rescore import ChangedScore, MetricChange, Rescored


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command("rescore", short_help="Score stored answers again with the installed tasks.")(rescore)


def rescore(
    comparison: Annotated[str, typer.Argument(help="Id of a comparison, or its beginning.")],
    limit: Annotated[int, typer.Option(min=0, help="How many changed scores are listed.")] = 20,
    store: Annotated[
        bool, typer.Option("--store", help="Keep the new analysis beside the old one, marked; nothing is replaced.")
    ] = False,
    data_dir: DataDir = None,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Score stored answers again with the installed tasks, and show what changed, metric by metric and item by item."""
    from qualab import bootstrap
    from qualab.run.rescore import rescore as use_case
    from qualab.settings import load

    settings = load(command_line={"db": db, "data_dir": data_dir})
    services = bootstrap.services_of(settings)
    local = {"data_dir": str(settings.data_dir.resolve())} if settings.data_dir else {}
    found = use_case(services, comparison, local=local, store=store)
    if output_format is Format.JSON:
        from qualab.cli.query import print_json

        print_json(_document(found))
    else:
        for line in _lines(found, limit):
            typer.echo(line)


def _document(found: Rescored) -> dict[str, Any]:
    from qualab.report.words import shown

    everything: dict[str, Any] = shown(found)
    return {**everything, "comparison": found.comparison.id}


def _lines(found: Rescored, limit: int) -> Iterator[str]:
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
