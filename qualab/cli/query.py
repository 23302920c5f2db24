"""`qualab list`, `show`, `report` and `prune`: look at stored comparisons, and delete old ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from qualab import bootstrap
from qualab.cli.options import ComparisonId, Database, PlanHash, duration, moment_of
from qualab.cli.output import (
    Format,
    OutputFormat,
    output_may_fail,
    print_as,
    print_json,
    who,
    write_file,
)
from qualab.errors import UsageError
from qualab.model.names import ComparisonStatus, Language, ReportFormat, Verdict, exit_code

if TYPE_CHECKING:
    from qualab.model.comparison import Analysis, Comparison
    from qualab.model.engine import Observation
    from qualab.store import Store


NONE_YET = "No comparisons yet in {}\n  Start one: qualab run --help, or try: qualab demo; --db names another database"
NONE_MATCHES = "No comparison matches these filters"
STANDARD_OUTPUT = Path("-")
SUFFIXES = {".pdf": ReportFormat.PDF, ".html": ReportFormat.HTML, ".htm": ReportFormat.HTML}
SUFFIXES |= {".md": ReportFormat.MARKDOWN, ".markdown": ReportFormat.MARKDOWN, ".json": ReportFormat.JSON}


def list_comparisons(
    status: Annotated[ComparisonStatus | None, typer.Option(help="Only comparisons with this status.")] = None,
    label: Annotated[str | None, typer.Option(help="Only comparisons with this label.")] = None,
    verdict: Annotated[Verdict | None, typer.Option(case_sensitive=False, help="Only this verdict.")] = None,
    model: Annotated[str | None, typer.Option(help="Only comparisons of this model.")] = None,
    group: Annotated[str | None, typer.Option(metavar="ID", help="Only the candidates of this group.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only those created since, as 2026-03-04 or 7d.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 50,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """List comparisons, newest first."""
    from qualab.model.canonical import plain
    from qualab.model.ports import ComparisonFilter
    from qualab.report.terminal import make_console, print_comparisons
    from qualab.run.prune import find_all

    begin = None if since is None else moment_of(since, option="--since", now=bootstrap.now())
    filters = ComparisonFilter(
        status=status, verdict=verdict, label=label, model=model, group=group, since=begin, limit=limit
    )
    comparisons = find_all(bootstrap.store_at(db), filters, now=bootstrap.now())
    if output_format is Format.JSON:
        documents = [plain(comparison) for comparison in comparisons]
        for document in documents:
            plan = document.pop("plan")
            del document["local"]
            document |= {"model": plan["sampling"]["model"], "tasks": plan["requested"], "suite": plan["suite"]}
        print_json(documents)
    elif not comparisons:
        is_all = filters == ComparisonFilter(limit=limit)
        typer.echo(NONE_YET.format(bootstrap.location_of(db)) if is_all else NONE_MATCHES)
    else:
        print_comparisons(make_console(), comparisons)


def show(
    comparison: ComparisonId,
    plan: PlanHash = None,
    rounds: Annotated[bool, typer.Option("--rounds", help="Also the drafter's rounds by accepted tokens.")] = False,
    flips: Annotated[bool, typer.Option("--flips", help="Instead the items whose score changed.")] = False,
    texts: Annotated[bool, typer.Option("--texts", help="Instead the pairs whose texts alone differ.")] = False,
    leaks: Annotated[
        bool,
        typer.Option("--leaks", help="Instead the pairs with stop strings, special tokens, broken characters or cuts."),
    ] = False,
    task: Annotated[str, typer.Option(help="With --flips, --texts or --leaks: only this task or group.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="With --flips, --texts or --leaks: how many.")] = 20,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Show a comparison's table and verdict under its plan; of a group the table that ranks its candidates."""
    store = bootstrap.store_at(db)
    if members := store.group(comparison):
        if plan or rounds or flips or texts or leaks:
            hint = f"Name one of them, as: qualab show {members[0].id}"
            raise UsageError(f"{comparison} is a group: of it there is the table of its candidates alone", hint=hint)
        from qualab.cli.group import print_group

        print_group(store, comparison, output_format)
        return
    if flips + texts + leaks > 1:
        raise UsageError("Only one of --flips, --texts and --leaks can be shown", hint="Call `qualab show` for each")
    if flips or texts or leaks:
        _print_pairs(store, comparison, output_format, flips=flips, leaks=leaks, task=task, limit=limit)
        return
    plan_hash = _whole_hash(store, comparison, plan)
    print_result(store, comparison, output_format, plan_hash=plan_hash, rounds=rounds)


def _whole_hash(store: Store, comparison_id: str, beginning: str | None) -> str | None:
    """Find a stored analysis' plan hash by its beginning. Raises UsageError."""
    if not beginning:
        return None
    known = store.plan_hashes(store.get(comparison_id).id)
    matching = [plan_hash for plan_hash in known if plan_hash.startswith(beginning)]
    if len(matching) != 1:
        hint = f"There are: {', '.join(plan_hash[:12] for plan_hash in known)}"
        raise UsageError(
            f"{len(matching) or 'No'} plans of this comparison's analyses begin with {beginning}", hint=hint
        )
    return matching[0]


def end_with_result(store: Store, analysis: Analysis, output_format: Format) -> NoReturn:
    """Print a stored result, and exit as its verdict says, even where the output fails."""
    with output_may_fail():
        print_result(store, analysis.comparison_id, output_format)
    raise typer.Exit(exit_code(analysis.verdict))


def print_result(
    store: Store, comparison_id: str, output_format: Format, *, plan_hash: str | None = None, rounds: bool = False
) -> None:
    """Print a comparison with its newest analysis, under its own plan unless another is named."""
    from qualab.report.terminal import make_console, print_histograms
    from qualab.report.words import ENGLISH
    from qualab.run.prune import find, resume_hint, runner_of

    comparison = find(store, comparison_id, now=bootstrap.now())
    analysis = store.analysis(comparison.id, plan_hash=plan_hash)
    if analysis is not None or output_format is Format.JSON:
        print_analysed(comparison, analysis, output_format, store.observations(comparison.id))
        if rounds and output_format is Format.TEXT and analysis and analysis.treatment:
            print_histograms(make_console(), analysis.treatment)
        return
    typer.echo(f"Comparison {comparison.id} is {comparison.status.value}: no analysis yet.")
    if comparison.stop_reason:
        typer.echo(f"Stopped: {ENGLISH.reason(comparison.stop_reason)}")
    runner = runner_of(store, comparison.id, now=bootstrap.now())
    typer.echo(f"It is being run by {runner}" if runner else resume_hint(comparison.id))


def print_analysed(
    comparison: Comparison, analysis: Analysis | None, output_format: Format, observations: Sequence[Observation] = ()
) -> None:
    """Print a comparison with its analysis, as JSON also without one."""
    from qualab.analysis.advice import payoff_of
    from qualab.report.terminal import make_console, print_analysis
    from qualab.report.words import shown
    from qualab.run.sign import signoff_obstacles

    if output_format is Format.JSON:
        document: dict[str, Any] = {"comparison": shown(comparison), "analysis": None, "signoff": None, "payoff": None}
        if analysis:
            obstacles = shown(list(signoff_obstacles(analysis, comparison)))
            document["analysis"] = shown(analysis)
            document["signoff"] = {"is_possible": not obstacles, "obstacles": obstacles}
            document["payoff"] = shown(payoff_of(analysis, observations, seed=comparison.plan.sampling.seed))
        print_json(document)
    elif analysis is not None:
        print_analysis(make_console(), comparison, analysis, observations)


def _print_pairs(
    store: Store, comparison_id: str, output_format: Format, *, flips: bool, leaks: bool, task: str, limit: int
) -> None:
    from qualab.analysis import flips as use_case
    from qualab.report.terminal import make_console, print_flips, print_text_pairs

    if not flips:
        pairs = use_case.text_pairs(store, comparison_id, leaks=leaks, task=task, limit=limit)
        print_as(output_format, pairs, lambda: print_text_pairs(make_console(), pairs, leaks=leaks))
        return
    flipped = use_case.flips(store, comparison_id, task=task, limit=limit)
    n_others = 0
    if not flipped.shown:
        n_others = use_case.text_pairs(store, comparison_id, task=task, limit=0).n_pairs
    print_as(output_format, flipped, lambda: print_flips(make_console(), flipped, n_other_texts=n_others))


def advise(comparison: ComparisonId, db: Database = None, output_format: OutputFormat = Format.TEXT) -> None:
    """Tell where to turn the drafter on: by kind of work, length of prompt and load, with the evidence.

    As JSON it is a routing table: the first route that matches a request counts.
    """
    from qualab.report.speed import advice_blocks
    from qualab.report.terminal import make_console, print_blocks
    from qualab.report.words import ENGLISH
    from qualab.run.stored import payoff_in

    payoff = payoff_in(bootstrap.store_at(db), comparison, "advice")
    blocks = advice_blocks(payoff, ENGLISH)
    print_as(output_format, payoff.advice, lambda: print_blocks(make_console(), blocks, is_spaced=True))


def report(
    comparison: ComparisonId,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file, or - for standard output.")] = None,
    language: Annotated[Language, typer.Option("--lang", help="Language of the report.")] = Language.ENGLISH,
    report_format: Annotated[
        ReportFormat | None, typer.Option("--format", help="Default: as the file's name ends, else pdf.")
    ] = None,
    plan: PlanHash = None,
    db: Database = None,
) -> None:
    """Write a report on a comparison, to be read before a release is signed off."""
    from qualab.report.model import report_model

    chosen = report_format or SUFFIXES.get(output.suffix.lower() if output else "", ReportFormat.PDF)
    store = bootstrap.store_at(db)
    plan_hash = _whole_hash(store, comparison, plan)
    model = report_model(store, comparison, language, plan_hash=plan_hash)
    content = bootstrap.renderer(chosen.value)(model)
    if output == STANDARD_OUTPUT:
        with suppress(BrokenPipeError):
            sys.stdout.buffer.write(content)
        return
    of_plan = f"-{model.plan_hash[:12]}" if plan else ""
    path = output or Path(f"qualab-{model.comparison_id}{of_plan}.{chosen.value}")
    write_file(path, content, hint="Name another file with -o")
    typer.echo(f"Wrote {path}")


def prune(
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Created longer ago, as 12h, 90d or 2w.")],
    label: Annotated[str | None, typer.Option(help="Only comparisons with this label.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be deleted.")] = False,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Delete old comparisons with all that belongs to them; never those that are signed off, running or queued."""
    from qualab.run.prune import prune as delete_old

    now = bootstrap.now()
    cutoff = now - duration(older_than, option="--older-than")
    pruned = list(delete_old(bootstrap.store_at(db), before=cutoff, label=label, who=who(), now=now, dry_run=dry_run))
    if output_format is Format.JSON:
        rows = ((row.summary, {"kept": row.kept, "created_at": row.summary.created_at.isoformat()}) for row in pruned)
        print_json([{part: getattr(own, part) for part in ("id", "status", "label")} | more for own, more in rows])
        return
    gone = "would delete" if dry_run else "deleted"
    for row in pruned:
        outcome, summary = f"kept ({row.kept})" if row.kept else gone, row.summary
        line = f"{outcome}: {summary.id}  {summary.created_at:%Y-%m-%d}  {summary.status.value}  {summary.label}"
        typer.echo(line.rstrip())
    n_kept = sum(bool(row.kept) for row in pruned)
    typer.echo(f"{gone} {len(pruned) - n_kept:,}, kept {n_kept:,}")
