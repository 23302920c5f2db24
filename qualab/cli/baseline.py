"""`qualab baseline`: bank baselines whose answers stand in for those of later comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qualab import bootstrap
from qualab.cli.options import ComparisonId, Database
from qualab.cli.output import Format, OutputFormat, print_as, print_json, who

if TYPE_CHECKING:
    from qualab.model.bank import Bank

app = typer.Typer(no_args_is_help=True, help="Bank a baseline's answers, so that a new candidate costs one arm.")
Name = Annotated[str, typer.Argument(help="Name of a banked baseline.")]


@app.command()
def add(name: Name, comparison: ComparisonId, db: Database = None, output_format: OutputFormat = Format.TEXT) -> None:
    """Bank the baseline of a finished comparison that measured its noise; it is kept meanwhile."""
    from qualab.run.bank import add_bank

    bank = add_bank(bootstrap.store_at(db), name, comparison, who=who(), now=bootstrap.now())
    print_as(output_format, bank, lambda: _print(bank))
    if output_format is Format.TEXT:
        typer.echo(f"Use it with: qualab run --bank {name} ...")


@app.command("list")
def list_banks(db: Database = None, output_format: OutputFormat = Format.TEXT) -> None:
    """List banked baselines by name."""
    from qualab.report.words import shown

    banks = bootstrap.store_at(db).banks()
    if output_format is Format.JSON:
        print_json([shown(bank) for bank in banks])
        return
    if not banks:
        typer.echo("No baseline is banked. Bank a finished comparison's: qualab baseline add NAME ID")
    for bank in banks:
        typer.echo(f"{bank.name}  {bank.banked_at:%Y-%m-%d}  {bank.model}  K={bank.n_runs}  of {bank.comparison_id}")


@app.command()
def show(name: Name, db: Database = None, output_format: OutputFormat = Format.TEXT) -> None:
    """Show what is banked: comparison, plan, engine, pins, and how much two of its runs differ."""
    bank = bootstrap.store_at(db).bank(name)
    print_as(output_format, bank, lambda: _print(bank))


@app.command()
def drop(name: Name, db: Database = None) -> None:
    """Forget a bank. Its comparison stays, and so do the copies that others took."""
    from qualab.model.registry import AuditEntry

    entry = AuditEntry(at=bootstrap.now(), who=who(), action="baseline.drop", subject=name, details={})
    bootstrap.store_at(db).drop_bank(name, entry=entry)
    typer.echo(f"Baseline {name} is banked no more.")


def _print(bank: Bank) -> None:
    noise, engine = bank.noise, bank.engine
    pins = ", ".join(f"{pin.part} {pin.values[0]} ({pin.source})" for pin in bank.pins)
    rows = {
        "Bank": f"{bank.name}, of {bank.banked_at:%Y-%m-%d %H:%M} UTC",
        "Comparison": f"{bank.comparison_id}, plan {bank.plan_hash[:12]}",
        "Model": bank.model,
        "Answers": f"{bank.n_runs} an item",
        "Engine": f"{engine.kind} {engine.version or '(version not told)'}, {len(engine.config)} settings",
        "Pins": pins or "none",
        "Noise": f"{noise.n_texts_differ:,} of {noise.n_texts:,} texts, {noise.n_scores_differ:,} of "
        f"{noise.n_scores:,} scores differ between two of its runs",
    }
    for label, text in rows.items():
        typer.echo(f"{label:<12}{text}")
