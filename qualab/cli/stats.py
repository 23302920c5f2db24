"""`qualab stats`: the statistics for a person with a few counts, or with a plan in mind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from qualab.cli.columns import terminal_width
from qualab.cli.options import Format, OutputFormat
from qualab.cli.output import is_unicode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)

app = typer.Typer(
    short_help="Calculators: what counts prove, and items that a margin needs.",
    help="Calculators: what counts prove, and how many items a margin needs. Nothing is read or stored.",
    no_args_is_help=True,
)

Items = Annotated[int, typer.Option("--items", help="Items that both arms answer.")]
Margin = Annotated[float, typer.Option(help="Largest difference that does not matter, as a fraction: 0.02 is 2 pp.")]
Discordance = Annotated[
    float, typer.Option(help="Share of items right in exactly one arm, as a fraction: measured in a pilot, or assumed.")
]
Alpha = Annotated[float, typer.Option(help="Level of each one-sided test, and of the two-sided test of a difference.")]
Metrics = Annotated[int, typer.Option(help="Primary metrics like this one that all have to pass.")]
Accuracy = Annotated[float, typer.Option(help="Share right, for the unpaired comparison figure alone.")]


@app.command("test", short_help="Is there a difference, and is it below the margin?")
def of_counts(
    gains: Annotated[int, typer.Option(help="Items that only the candidate (drafter on) got right.")],
    losses: Annotated[int, typer.Option(help="Items that only the baseline (drafter off) got right.")],
    items: Items,
    margin: Margin,
    both_right: Annotated[
        int | None, typer.Option(help="Items right in both arms: adds the accuracies and what needs them.")
    ] = None,
    alpha: Alpha = 0.05,
    strict: Annotated[
        bool, typer.Option("--strict/--no-strict", help="Call a loss REGRESSION inside the margin too.")
    ] = False,
    confidence: Annotated[
        float | None,
        typer.Option(help="Level of a further interval, which decides nothing. JSON has it at 0.95 by default."),
    ] = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Is there a difference, and is it smaller than the margin? From the counts of one right/wrong metric."""
    from qualab.cli.stats_text import paired_test_text
    from qualab.planning.calculators import paired_test

    found = paired_test(
        gains=gains,
        losses=losses,
        n_items=items,
        margin=margin,
        alpha=alpha,
        confidence_level=0.95 if confidence is None else confidence,
        both_right=both_right,
        is_strict=strict,
    )
    _print(found, output_format, partial(paired_test_text, shows_further=confidence is not None))


@app.command(short_help="How likely are so many items to prove the margin?")
def power(
    items: Items,
    discordance: Discordance,
    margin: Margin,
    difference: Annotated[float, typer.Option(help="Assumed true difference, candidate - baseline, a fraction.")] = 0.0,
    metrics: Metrics = 5,
    alpha: Alpha = 0.05,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """How likely are so many items to prove the margin, and to find a loss?"""
    from qualab.cli.stats_text import powers_text
    from qualab.planning.calculators import powers

    found = powers(
        n_items=items,
        discordance=discordance,
        margin=margin,
        difference=difference,
        alpha=alpha,
        n_metrics=metrics,
    )
    _print(found, output_format, powers_text)


@app.command(short_help="How small a loss can so many items show?")
def mde(
    items: Items,
    discordance: Discordance,
    power: Annotated[float, typer.Option(help="Probability to aim at.")] = 0.8,
    alpha: Alpha = 0.05,
    accuracy: Accuracy = 0.5,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """How small a loss (minimal detectable effect), and how narrow a margin, can so many items show?"""
    from qualab.cli.stats_text import smallest_effects_text
    from qualab.planning.calculators import smallest_effects

    found = smallest_effects(n_items=items, discordance=discordance, alpha=alpha, power=power, accuracy=accuracy)
    _print(found, output_format, smallest_effects_text)


@app.command(short_help="How many items prove the margin?")
def size(
    margin: Margin,
    discordance: Discordance,
    power: Annotated[float, typer.Option(help="Probability to aim at.")] = 0.9,
    looks: Annotated[int, typer.Option(help="Looks at which a run may stop; 1 for the end alone.")] = 10,
    metrics: Metrics = 5,
    repeats: Annotated[int, typer.Option(help="Answers an item and arm; needs --noise.")] = 1,
    noise: Annotated[
        float | None, typer.Option(help="Discordance of two runs of the same arm, a fraction; with --repeats.")
    ] = None,
    alpha: Alpha = 0.05,
    accuracy: Accuracy = 0.5,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """How many items prove the margin, if there is no true difference?"""
    from qualab.cli.stats_text import size_text
    from qualab.planning import calculators

    found = calculators.size(
        margin=margin,
        discordance=discordance,
        alpha=alpha,
        power=power,
        n_looks=looks,
        n_metrics=metrics,
        repeats=repeats,
        noise=noise,
        accuracy=accuracy,
    )
    _print(found, output_format, size_text)


@app.command(short_help="Recompute a published drafter off/on table.")
def reproduce(output_format: OutputFormat = Format.TEXT) -> None:
    """Recompute a published drafter off/on table, and show what pairing its items would have given."""
    from qualab.cli.stats_text import reproduction_text
    from qualab.planning import calculators as published

    _print(published.reproduce(), output_format, reproduction_text)


def _print(found: T, output_format: Format, text: Callable[[T, int], str]) -> None:
    if output_format is Format.JSON:
        from qualab.report.words import shown

        typer.echo(json.dumps(shown(found), indent=2, ensure_ascii=not is_unicode(sys.stdout), allow_nan=False))
    else:
        typer.echo(text(found, terminal_width()))
