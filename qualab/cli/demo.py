"""`qualab demo`: stored answers of three real pairs, analysed on the spot; `--live` asks a pair on this machine."""

from __future__ import annotations

import signal
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from zstandard import decompress

from qualab import bootstrap
from qualab.analysis.analyse import analyse
from qualab.analysis.audit import scored_parts
from qualab.analysis.flips import flips, text_pairs
from qualab.analysis.imported import ImportedTasks
from qualab.analysis.scoring import summary_of
from qualab.cli.options import Database
from qualab.cli.output import Format, complain
from qualab.cli.pair import ended_by_sigterm
from qualab.cli.query import print_result
from qualab.cli.run import new_progress, print_next, run_to_end
from qualab.errors import ComparisonNotFound
from qualab.managed.embedded import MODEL_ALIAS, embedded_pair, prepare_model
from qualab.model.canonical import canonical_json
from qualab.model.comparison import Analysis, Comparison
from qualab.model.names import ArmName, AuditPart, Language
from qualab.model.ports import ComparisonFilter
from qualab.model.report import Report
from qualab.model.wording import visible_text
from qualab.report.model import report_model
from qualab.report.terminal import STYLES, make_console, pair_excerpt, print_blocks, print_hanging
from qualab.run.run import start
from qualab.settings import load
from qualab.store import Store, upgrade

STORED = "demo/comparisons.db.zst"
"""Made by make_comparisons.py beside it, out of real runs."""
ABOUT = {
    "demo-lossless": "1. A drafter that does what it should: llama.cpp with a draft model, 240 short questions.",
    "demo-sampling": "2. vLLM with n-gram lookup: its answers score as well, but what it samples is not the model's.",
    "demo-no-drafter": "3. A drafter that was never on: llama.cpp twice. `qualab run` refuses such a pair before its "
    "first item; here that check was left out, and the analysis sees it, too.",
}
"""By label, in the order in which they are shown."""
LIVE = {"tasks": ("demo_short",), "apply_chat_template": True, "margin": 0.05, "audit": True}
LIVE |= {"label": "demo", "concurrency": 8}


def demo(
    live: Annotated[bool, typer.Option("--live", help="Run a comparison here: a small model in llama.cpp.")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Serve that pair until Ctrl-C, and ask nothing.")] = False,
    db: Database = None,
) -> None:
    """Show three comparisons of real pairs, an EQUIVALENT, a REGRESSION and an INVALID, whose answers are stored.

    They are analysed now, and stay in the database like any others. `--live` runs one on this machine, in minutes.
    """
    if live or serve:
        _run_here(db, asks=live and not serve)
        return
    store, console, ids = bootstrap.store_at(db), make_console(), []
    console.width = min(console.width, 100)
    with tempfile.TemporaryDirectory() as folder, _unpacked(Path(folder) / "comparisons.db") as source:
        by_label = {comparison.label: comparison for comparison in source.list(ComparisonFilter(limit=len(ABOUT)))}
        for label, about in ABOUT.items():
            console.print()
            print_hanging(console, about, hang=3, style="bold")
            analysis = _analysed(store, by_label[label], source)
            ids.append(analysis.comparison_id)
            _print_box(console, report_model(store, ids[-1], Language.ENGLISH))
            sampled = [own for own in analysis.audit.worst if own.part is AuditPart.SAMPLED] if analysis.audit else []
            if sampled:
                # one whose score changed, else one with other texts
                changed = *flips(store, ids[-1], limit=1).shown, *text_pairs(store, ids[-1], limit=1).shown
                print_blocks(console, [pair_excerpt(own, f"Answers that differ: {own.item}") for own in changed[:1]])
                _print_shaded(console, store, ids[-1], sampled[0].position)
    print_next(ids[1], {"demo --live": "ask a pair on this machine, in some 3 minutes"})


def _unpacked(path: Path) -> Store:
    """Unpack the stored comparisons into a database of their own, with this version's schema."""
    path.write_bytes(decompress((bootstrap.share("tasks") / STORED).read_bytes()))
    upgrade(str(path), bootstrap.share("migrations"))
    return bootstrap.store_at(str(path))


def _analysed(store: Store, comparison: Comparison, source: Store) -> Analysis:
    """Analyse one in the user's database, where it is copied to unless it is there. Nothing is stored twice."""
    try:
        comparison = store.get(comparison.id)
    except ComparisonNotFound:
        store.copy(comparison, source)
    items = list(store.items(comparison.id))
    # means of stored scores need no lm-eval, which takes seconds to load
    tasks, summary = ImportedTasks(comparison.plan), summary_of(store, comparison.id, items)
    analysis, known = analyse(store, comparison, tasks, items, summary), store.analysis(comparison.id)
    if known is None or (canonical_json(known) != canonical_json(analysis) and not store.signoffs(comparison.id)):
        store.put_analysis(analysis, now=bootstrap.now())
    return analysis


def _print_box(console: Console, report: Report) -> None:
    lines = [
        Text.assemble(("" if own.id == "verdict" else f"{own.label}: ", "bold"), (own.text, STYLES[own.tone]))
        for own in report.box
    ]
    title = Text(report.verdict.text, STYLES[report.verdict.tone])
    console.print(Panel(Text("\n").join(lines), title=title, title_align="left"))


def _print_shaded(console: Console, store: Store, comparison_id: str, position: int) -> None:
    (item,) = store.items(comparison_id, positions=[position])
    parts = scored_parts(store, store.get(comparison_id), positions=[position], with_pieces=True)
    console.print(Text(f"\nSampled at temperature 1, token by token: {item.id}", style="bold"))
    grid = Table.grid(padding=(0, 0, 0, 2))
    grid.add_row("question", Text(item.doc["question"], style="dim"))
    for arm in ArmName:
        own, line = parts[AuditPart.SAMPLED, arm], Text()
        pieces = own.answers[0].pieces
        for text, gap, is_foreign in zip(pieces.texts if pieces else (), own.tokens.gaps, own.is_foreign, strict=False):
            shown = visible_text(text)
            style = "yellow" if gap >= 1.0 else ""  # a nat below the model's choice, or more
            line.append(*((f"[[{shown}]]", "bold red reverse") if is_foreign else (shown, style)))
        grid.add_row(arm, line)
    console.print(grid)
    console.print(Text("  [[ ]]: the model itself all but excludes this token in its place", style="dim"))


def _run_here(db: str | None, *, asks: bool) -> None:
    progress = new_progress()
    say = progress.phase if asks else complain
    with (
        tempfile.TemporaryDirectory(prefix="qualab-demo-") as logs,
        ended_by_sigterm(),
        embedded_pair(prepare_model(say=say), log_dir=Path(logs), say=say) as (baseline, candidate),
    ):
        if not asks:
            typer.echo(f"OFF={baseline} ON={candidate} MODEL={MODEL_ALIAS}")  # as a shell's variables
            complain("Ctrl-C stops both")
            with suppress(KeyboardInterrupt):
                while True:
                    signal.pause()
            return
        given = {"baseline": baseline, "candidate": candidate, "model": MODEL_ALIAS, "db": db}
        settings = load(command_line={**given, **LIVE})
        services = replace(bootstrap.services_of(settings), progress=progress)
        run_to_end(start(services, settings), progress)
    print_result(services.store, progress.comparison_id, Format.TEXT)
    typer.echo("\n240 items can prove a margin of 5 percentage points. A release needs more: 2 take about 1,100.")
    typer.echo(f"The results are in {bootstrap.location_of(settings.db)}; both endpoints are stopped.")
    print_next(progress.comparison_id)
