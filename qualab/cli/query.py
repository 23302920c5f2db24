"""`qualab list`, `show`, `report` and `prune`: look at what is stored, and delete what is old."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qualab.cli.options import ComparisonId, Database, Format, OutputFormat, before, duration, moment_of
from qualab.cli.output import is_unicode, who
from qualab.errors import UsageError
from qualab.model.names import ComparisonStatus, Language, ReportFormat, Verdict

if TYPE_CHECKING:
    from qualab.model.comparison import Analysis, Comparison
    from qualab.run.prune import Pruned
    from qualab.store import Store


NONE_YET = "No comparisons yet in {}\n  Start one: qualab run --help, or try: qualab demo; --db names another database"
NONE_FOUND = "No comparison is like that"
STANDARD_OUTPUT = Path("-")
SUFFIXES = {".pdf": ReportFormat.PDF, ".html": ReportFormat.HTML, ".htm": ReportFormat.HTML}
SUFFIXES |= {".md": ReportFormat.MARKDOWN, ".markdown": ReportFormat.MARKDOWN, ".json": ReportFormat.JSON}


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
    comparison: ComparisonId,
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


def print_result(store: Store, comparison_id: str, output_format: Format, *, plan_hash: str | None = None) -> None:
    """One comparison with its newest analysis, under its own plan unless another is named."""
    from qualab.bootstrap import now
    from qualab.run.prune import find

    comparison = find(store, comparison_id, now=now())
    analysis = store.analysis(comparison.id, plan_hash=plan_hash)
    if analysis is not None or output_format is Format.JSON:
        print_analysed(comparison, analysis, output_format)
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


def print_analysed(comparison: Comparison, analysis: Analysis | None, output_format: Format) -> None:
    """Print a comparison with its analysis, as JSON also without one."""
    from qualab.cli.tables import make_console, print_analysis
    from qualab.model.canonical import plain

    if output_format is Format.JSON:
        shown = {"comparison": plain(comparison), "analysis": plain(analysis) if analysis else None}
        print_json(shown | {"signoff": _signoff(comparison, analysis) if analysis else None})
    elif analysis is not None:
        print_analysis(make_console(), comparison, analysis)


def _signoff(comparison: Comparison, analysis: Analysis) -> dict[str, Any]:
    from qualab.run.sign import signoff_obstacles

    obstacles = signoff_obstacles(analysis, comparison)
    return {"is_possible": not obstacles, "obstacles": list(obstacles)}


def _summary(comparison: Comparison) -> dict[str, Any]:
    from qualab.model.canonical import plain

    everything: dict[str, Any] = plain(comparison)
    plan = everything.pop("plan")
    everything.pop("local")
    return everything | {"model": plan["sampling"]["model"], "tasks": plan["requested"], "suite": plan["suite"]}


def print_json(value: Any) -> None:
    """Indented JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=not is_unicode(sys.stdout)))


def report(
    comparison: ComparisonId,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; - for the standard output. By default qualab-ID.FORMAT here."),
    ] = None,
    language: Annotated[Language, typer.Option("--lang", help="Language of the report.")] = Language.ENGLISH,
    report_format: Annotated[
        ReportFormat | None, typer.Option("--format", help="By default as the file's name ends, else pdf.")
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(help="Beginning of a plan's hash: what `qualab compare` found under it, after the data."),
    ] = None,
    db: Database = None,
) -> None:
    """Write a report on a comparison, to be read before a release is signed off."""
    from qualab import bootstrap
    from qualab.report.model import report_model
    from qualab.settings import load

    chosen = report_format or SUFFIXES.get(output.suffix.lower() if output else "", ReportFormat.PDF)
    store, registry = bootstrap.stores_of(load(command_line={"db": db}))
    plan_hash = whole_hash(store, comparison, plan) if plan else None
    found = report_model(store, registry, comparison, language, plan_hash=plan_hash)
    content = bootstrap.renderer(chosen.value)(found)
    if output == STANDARD_OUTPUT:
        sys.stdout.buffer.write(content)
        return
    of_plan = f"-{found.plan_hash[:12]}" if plan else ""
    path = output or Path(f"qualab-{found.comparison_id}{of_plan}.{chosen.value}")
    _write_whole(path, content)
    typer.echo(f"Wrote {path}")


def _write_whole(path: Path, content: bytes) -> None:
    """Whole or not at all: a report that is half there could be taken for one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as exc:
        beside.unlink(missing_ok=True)
        raise UsageError(f"Cannot write {path}: {exc.strerror}", hint="Name another file with -o") from exc


def prune(
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Created longer ago, as 12h, 90d or 2w.")],
    label: Annotated[str | None, typer.Option(help="Only comparisons with this label.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be deleted.")] = False,
    db: Database = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Delete old comparisons with everything that belongs to them; never those that are signed off, run or wait."""
    from qualab import bootstrap
    from qualab.run.prune import prune as delete_old
    from qualab.settings import load

    now = bootstrap.now()
    cutoff = before(now, duration(older_than, option="--older-than"))
    registry = bootstrap.registry_of(load(command_line={"db": db}))
    found = delete_old(registry, before=cutoff, label=label, who=who(), now=now, dry_run=dry_run)
    if output_format is Format.JSON:
        typer.echo(json.dumps([_pruned(one) for one in found], ensure_ascii=False, indent=2))
    else:
        _print_pruned(found, gone="would delete" if dry_run else "deleted")


def _print_pruned(found: Iterable[Pruned], *, gone: str) -> None:
    n_gone = n_kept = 0
    for one in found:
        summary = one.summary
        n_gone, n_kept = n_gone + (not one.kept), n_kept + bool(one.kept)
        what = f"kept ({one.kept})" if one.kept else gone
        typer.echo(
            f"{what}: {summary.id}  {summary.created_at:%Y-%m-%d}  {summary.status.value}  {summary.label}".rstrip()
        )
    typer.echo(f"{gone} {n_gone:,}, kept {n_kept:,}")


def _pruned(one: Pruned) -> dict[str, object]:
    summary = one.summary
    return {
        "id": summary.id,
        "created_at": summary.created_at.isoformat(),
        "status": summary.status.value,
        "label": summary.label,
        "kept": one.kept,
    }
