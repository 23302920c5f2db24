"""`qualab import`: the answer from logs that are there already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualab.cli import options as o
from qualab.cli.options import Database, Format, OutputFormat
from qualab.cli.output import OF_VERDICT, output_may_fail
from qualab.errors import UsageError
from qualab.model.names import ArmName

if TYPE_CHECKING:
    from qualab.imports.import_ import Wanted
    from qualab.settings import Settings


Logs = Annotated[Path | None, typer.Option(help="Folder or file with this arm's logs.")]


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command("import", short_help="Compare the logs of two runs that are there already.")(import_)


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
    allow: o.Allow = None,
    margin: o.Margin = None,
    margins: o.Margins = None,
    score_bounds: o.ScoreBounds = None,
    objective: o.ObjectiveOption = None,
    strict: o.Strict = None,
    alpha: o.Alpha = None,
    max_missing_share: o.MaxMissingShare = None,
    missing_lost: o.MissingLost = None,
    label: o.Label = None,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Compare the logs of two runs (lm-eval, Inspect, lighteval, NeMo Evaluator), item by item; store the result."""
    rule: dict[str, Any] = {"margin": margin, "margins": margins, "objective": objective, "alpha": alpha}
    rule |= {"max_missing_share": max_missing_share, "missing_lost": missing_lost}
    rule |= {"strict": strict, "score_bounds": score_bounds}
    changes = {name: value for name, value in rule.items() if value is not None}
    from qualab import bootstrap
    from qualab.cli.query import print_result
    from qualab.imports.import_ import import_logs
    from qualab.settings import load

    settings = load(command_line={"db": db, "label": label, **changes})
    wanted = _wanted(settings, changes, (table, baseline, candidate), run=run or "", allow=allow or "")
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
    from qualab import bootstrap
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
        allowed=o.finding_codes(allow),
        rule=bootstrap.rule_of(settings),
        changes={name: getattr(settings, name) for name in changes},
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
