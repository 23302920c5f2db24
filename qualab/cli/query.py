"""`qualab list`, `show`, `compare` and `export`: look at what is stored."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from qualab.cli import options as o
from qualab.cli.options import Database, DataDir, Format, OutputFormat
from qualab.cli.output import OF_VERDICT, complain, is_unicode, output_may_fail
from qualab.cli.times import moment_of
from qualab.errors import UsageError
from qualab.model.names import ComparisonStatus, Verdict

if TYPE_CHECKING:
    from qualab.model.comparison import Analysis, Comparison
    from qualab.model.plan import Plan
    from qualab.model.ports import Store
    from qualab.run.compare import Reanalysis
    from qualab.settings import Settings


NONE_YET = "No comparisons yet in {}\n  Start one: qualab run --help, or try: qualab demo; --db names another database"
NONE_FOUND = "No comparison is like that"


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command("list")(list_comparisons)
    app.command("show", short_help="Show a comparison's table and verdict.")(show)
    app.command("compare")(compare)
    app.command("export", short_help="Write lm-eval's result and sample files.")(export)


def list_comparisons(
    status: Annotated[ComparisonStatus | None, typer.Option(help="Only comparisons that stand so.")] = None,
    label: Annotated[str | None, typer.Option(help="Only comparisons with this label.")] = None,
    verdict: Annotated[Verdict | None, typer.Option(case_sensitive=False, help="Only this verdict.")] = None,
    model: Annotated[str | None, typer.Option(help="Only comparisons of this model.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only those created since, as 2026-03-04, or 7d ago.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 50,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """List comparisons, newest first."""
    from qualab.bootstrap import database_shown, now, store_named
    from qualab.cli.tables import comparison_table, make_console
    from qualab.model.ports import ComparisonFilter
    from qualab.run.prune import find_all

    begin = None if since is None else moment_of(since, option="--since", now=now())
    wanted = ComparisonFilter(status=status, verdict=verdict, label=label, model=model, since=begin, limit=limit)
    found = find_all(store_named(db), wanted, now=now())
    if output_format is Format.JSON:
        print_json([_summary(one) for one in found])
    elif not found:
        is_all = wanted == ComparisonFilter(limit=limit)
        typer.echo(NONE_YET.format(database_shown(db)) if is_all else NONE_FOUND)
    else:
        console = make_console()
        console.print(comparison_table(console, found))


def show(
    comparison: Annotated[str, typer.Argument(help="Id of a comparison, or its beginning.")],
    plan: Annotated[
        str | None, typer.Option(help="Beginning of a plan's hash: what `qualab compare` found under it.")
    ] = None,
    rounds: Annotated[bool, typer.Option("--rounds", help="Also the drafter's rounds by accepted tokens.")] = False,
    flips: Annotated[
        bool, typer.Option("--flips", help="Instead the items whose score the candidate changed, with both answers.")
    ] = False,
    texts: Annotated[
        bool, typer.Option("--texts", help="Instead the pairs whose texts differ while their scores do not.")
    ] = False,
    leaks: Annotated[
        bool,
        typer.Option(
            "--leaks",
            help="Instead the pairs in which an answer goes past a stop string, holds special tokens or broken "
            "characters, or is cut: those in one arm alone first.",
        ),
    ] = False,
    task: Annotated[str, typer.Option(help="With --flips, --texts or --leaks: of this task or group alone.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="With --flips, --texts or --leaks: how many.")] = 20,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Show a comparison's table and verdict, as they were found under its plan."""
    from qualab.bootstrap import store_named

    store = store_named(db)
    if flips + texts + leaks > 1:
        raise UsageError("Only one of --flips, --texts and --leaks can be shown", hint="Call `qualab show` for each")
    if flips or texts or leaks:
        _print_pairs(store, comparison, output_format, flips=flips, leaks=leaks, task=task, limit=limit)
        return
    plan_hash = whole_hash(store, comparison, plan) if plan else None
    print_result(store, comparison, output_format, plan_hash=plan_hash)
    if rounds and output_format is Format.TEXT:
        _print_rounds(store, comparison, plan_hash)


def compare(
    comparison: Annotated[str, typer.Argument(help="Id of a comparison, or its beginning.")],
    other: Annotated[
        str | None,
        typer.Argument(help="Another: compares run with run, as ID/baseline; an id alone is its candidate."),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="Judge by this plan file instead of the comparison's own.")] = None,
    margin: o.Margin = None,
    margins: o.Margins = None,
    score_bounds: o.ScoreBounds = None,
    objective: o.ObjectiveOption = None,
    strict: o.Strict = None,
    alpha: o.Alpha = None,
    max_missing_share: o.MaxMissingShare = None,
    missing_lost: o.MissingLost = None,
    allow: o.Allow = None,
    data_dir: DataDir = None,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Analyse stored scores again. Under another plan than the one before the data: marked, and never signed off."""
    rule: dict[str, Any] = {"margin": margin, "margins": margins, "objective": objective, "alpha": alpha}
    rule |= {"max_missing_share": max_missing_share, "missing_lost": missing_lost}
    rule |= {"strict": strict, "score_bounds": score_bounds}
    changes = {name: value for name, value in rule.items() if value is not None}
    from qualab import bootstrap
    from qualab.run.compare import compare_again, with_rule
    from qualab.settings import load

    settings = load(command_line={"db": db, "data_dir": data_dir, **changes})
    if other is not None:
        _compare_runs(settings, (comparison, other), plan, allow or "", output_format)
    services = bootstrap.services_of(settings)
    judged_by = _other_plan(plan)
    if changes:
        own = judged_by or services.store.get(comparison).plan
        judged_by = with_rule(own, {name: getattr(settings, name) for name in changes})
    local = {"data_dir": str(data_dir.resolve())} if data_dir else {}
    found = compare_again(services, comparison, other=judged_by, local=local)
    with output_may_fail():
        _print_analysis(found.comparison, found.analysis, output_format)
        for line in _about(found):
            complain(line)
    raise typer.Exit(OF_VERDICT[found.analysis.verdict])


def _compare_runs(
    settings: Settings, runs: tuple[str, str], plan: Path | None, allow: str, output_format: Format
) -> NoReturn:
    """Two runs of the store, joined as two logs are."""
    from qualab import bootstrap
    from qualab.imports.import_ import Wanted, compare_runs

    if plan is not None:
        raise UsageError("A plan judges one comparison", hint="Give --margin and the like for two runs")
    services = bootstrap.import_services_of(settings)
    wanted = Wanted(rule=bootstrap.rule_of(settings), allowed=o.finding_codes(allow))
    found = compare_runs(services, *runs, wanted)
    with output_may_fail():
        print_result(services.store, found.comparison_id, output_format)
    raise typer.Exit(OF_VERDICT[found.verdict])


def _other_plan(path: Path | None) -> Plan | None:
    from qualab.cli.planfile import read_frozen

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


def whole_hash(store: Store, comparison_id: str, beginning: str) -> str:
    """Of a plan that a stored analysis is under, by the hash's beginning. Raises UsageError."""
    known = store.plan_hashes(store.get(comparison_id).id)
    matching = [one for one in known if beginning and one.startswith(beginning)]
    if len(matching) != 1:
        raise UsageError(
            f"{len(matching) or 'No'} plans of this comparison's analyses begin with {beginning}",
            hint=f"There are: {', '.join(one[:12] for one in known)}",
        )
    return matching[0]


def export(
    comparison: Annotated[str, typer.Argument(help="Id of a comparison, or its beginning.")],
    folder: Annotated[Path, typer.Argument(help="Where the files go; one folder for each arm.")] = Path(),
    data_dir: DataDir = None,
    db: Database = None,
) -> None:
    """Write lm-eval compatible results_*.json and samples_*.jsonl for each arm."""
    from qualab import bootstrap
    from qualab.run.export import export as use_case
    from qualab.settings import load

    services = bootstrap.services_of(load(command_line={"db": db, "data_dir": data_dir}))
    local = {"data_dir": str(data_dir.resolve())} if data_dir else {}
    for path in use_case(services, comparison, folder, local=local):
        typer.echo(path)


def print_result(store: Store, comparison_id: str, output_format: Format, *, plan_hash: str | None = None) -> None:
    """One comparison with its newest analysis, under its own plan unless another is named."""
    from qualab.bootstrap import now
    from qualab.run.prune import find

    comparison = find(store, comparison_id, now=now())
    analysis = store.analysis(comparison.id, plan_hash=plan_hash)
    if analysis is not None or output_format is Format.JSON:
        _print_analysis(comparison, analysis, output_format)
    else:
        _print_standing(store, comparison)


def _print_standing(store: Store, comparison: Comparison) -> None:
    """Of a comparison without an analysis: what it is at, and who runs it or how to go on."""
    from qualab.bootstrap import now
    from qualab.run.hints import resume_hint
    from qualab.run.prune import runner_of

    typer.echo(f"Comparison {comparison.id} is {comparison.status.value}: no analysis yet.")
    if comparison.stop_reason:
        typer.echo(f"Stopped: {comparison.stop_reason}")
    runner = runner_of(store, comparison.id, now=now())
    typer.echo(f"It is being run by {runner}" if runner else resume_hint(comparison.id))


def _print_pairs(
    store: Store, comparison_id: str, output_format: Format, *, flips: bool, leaks: bool, task: str, limit: int
) -> None:
    from qualab.analysis import flips as use_case
    from qualab.cli.flip_text import print_flips, print_text_pairs
    from qualab.cli.tables import make_console
    from qualab.model.canonical import plain

    flipped = use_case.flips(store, comparison_id, task=task, limit=limit) if flips else None
    if output_format is Format.TEXT and flipped and not flipped.shown:
        others = use_case.text_pairs(store, comparison_id, task=task, limit=0)
        print_flips(make_console(), flipped, n_other_texts=others.n_pairs)
        return
    found = flipped or use_case.text_pairs(store, comparison_id, leaks=leaks, task=task, limit=limit)
    if output_format is Format.JSON:
        print_json(plain(found))
    elif isinstance(found, use_case.Flips):
        print_flips(make_console(), found)
    else:
        print_text_pairs(make_console(), found, leaks=leaks)


def _print_rounds(store: Store, comparison_id: str, plan_hash: str | None) -> None:
    from qualab.cli.drafter_text import print_histograms
    from qualab.cli.tables import make_console

    analysis = store.analysis(store.get(comparison_id).id, plan_hash=plan_hash)
    if analysis and analysis.treatment:
        print_histograms(make_console(), analysis.treatment)


def _print_analysis(comparison: Comparison, analysis: Analysis | None, output_format: Format) -> None:
    from qualab.cli.tables import make_console, print_analysis
    from qualab.report.words import shown

    if output_format is Format.JSON:
        both = {"comparison": shown(comparison), "analysis": shown(analysis) if analysis else None}
        print_json(both | {"signoff": _signoff(comparison, analysis) if analysis else None})
    elif analysis is not None:
        print_analysis(make_console(), comparison, analysis)


def _signoff(comparison: Comparison, analysis: Analysis) -> dict[str, Any]:
    from qualab.report.words import shown
    from qualab.run.sign import signoff_obstacles

    obstacles = signoff_obstacles(analysis, comparison)
    return {"is_possible": not obstacles, "obstacles": [shown(one) for one in obstacles]}


def _summary(comparison: Comparison) -> dict[str, Any]:
    from qualab.model.canonical import plain

    everything: dict[str, Any] = plain(comparison)
    plan = everything.pop("plan")
    everything.pop("local")
    return everything | {"model": plan["sampling"]["model"], "tasks": plan["requested"], "suite": plan["suite"]}


def print_json(value: Any) -> None:
    """Indented JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=not is_unicode(sys.stdout)))
