"""`qualab stats`: statistics of a few counts, or for a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from qualab.cli.output import Format, OutputFormat, annotated, print_json, terminal_width, wrapped
from qualab.model.wording import percent, pp, proven, pvalue, share, signed

Line = tuple[str, str, str]
"""A label, a value and a note."""

app = typer.Typer(
    help="Calculators: what counts prove, and how many items a margin needs. Nothing is read or stored.",
    no_args_is_help=True,
)
Items = Annotated[int, typer.Option(help="Items that both arms answer.")]
Margin = Annotated[float, typer.Option(help="Largest difference that does not matter, as a fraction: 0.02 is 2 pp.")]
Discordance = Annotated[float, typer.Option(help="Share of items right in exactly one arm, a fraction.")]
Power = Annotated[float, typer.Option(help="Probability to aim at.")]
Metrics = Annotated[int, typer.Option(help="Primary metrics like this one that all have to pass.")]
Alpha = Annotated[float, typer.Option(help="Level of each one-sided test, and of the two-sided test of a difference.")]
Accuracy = Annotated[float, typer.Option(help="Share right, for the unpaired comparison figure alone.")]


def _print(output_format: Format, given: Mapping[str, Any], result: Any, text: Iterable[str | list[Line]]) -> None:
    if output_format is Format.JSON:
        from qualab.report.words import shown

        print_json({**given, **shown(result)})
        return
    width = terminal_width()
    for part in text:
        typer.echo(wrapped(part, width) if isinstance(part, str) else annotated(part, width))


@app.command("test", short_help="Is there a difference, and is it below the margin?")
def judge_counts(
    gains: Annotated[int, typer.Option(help="Items that only the candidate (drafter on) got right.")],
    losses: Annotated[int, typer.Option(help="Items that only the baseline (drafter off) got right.")],
    items: Items,
    margin: Margin,
    both_right: Annotated[int | None, typer.Option(help="Items right in both arms: adds accuracies.")] = None,
    alpha: Alpha = 0.05,
    strict: Annotated[bool, typer.Option(help="Call a loss REGRESSION inside the margin too.")] = False,
    confidence: Annotated[
        float | None, typer.Option(help="Level of a further interval, which decides nothing.")
    ] = None,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """Is there a difference, and is it smaller than the margin? From the counts of one right/wrong metric."""
    from qualab.planning.calculators import paired_test
    from qualab.report.words import ENGLISH

    given: dict[str, Any] = {"gains": gains, "losses": losses, "n_items": items, "both_right": both_right}
    given |= {"margin": margin, "alpha": alpha, "is_strict": strict}
    result = paired_test(**given, confidence_level=0.95 if confidence is None else confidence)
    counts = [
        ("items", f"{items:,}", "answered by both arms"),
        ("gains", f"{gains:,}", "only the candidate (drafter on) is right"),
        ("losses", f"{losses:,}", "only the baseline (drafter off) is right"),
    ]
    if result.baseline is not None and result.candidate is not None:
        counts.append(("right", share(result.candidate), f"of the candidate; {share(result.baseline)} of the baseline"))
    counts.append(("difference", _signed_pp(result.difference), "candidate minus baseline"))
    intervals = [(result.equivalence_interval, f"Tango's score interval; has to lie inside ±{pp(margin)}")]
    if confidence is not None:
        intervals.append((result.interval, "the same at another level, which decides nothing"))
        if result.interval_newcombe:
            intervals.append((result.interval_newcombe, "Newcombe's, as a cross-check"))
    for interval, note in intervals:
        bounds = f"{signed(interval.low)} to {signed(interval.high)} pp"
        counts.append((f"{percent(interval.confidence_level)} interval", bounds, note))
    differs = [
        ("p (mid-p)", pvalue(result.pvalue), f"McNemar's test; at most {alpha:g} speaks for a difference"),
        ("p (exact)", pvalue(result.pvalue_exact), "the same on the safe side: a cross-check, decides nothing"),
        ("p (unconditional)", pvalue(result.pvalue_unconditional), "exact without fixing the number of changed items"),
    ]
    if result.pvalue_unpaired is not None:
        differs.append(("p (unpaired)", pvalue(result.pvalue_unpaired), "ignores the pairs; for older reports"))
    narrowest = "nothing" if result.provable_margin >= 1.0 else f"±{proven(result.provable_margin)}"
    lower = f"score test against a loss of {pp(margin)}; has to be at most {alpha:g}"
    is_smaller = [
        ("p (lower)", pvalue(result.pvalue_lower), lower),
        ("p (upper)", pvalue(result.pvalue_upper), f"score test against a gain of {pp(margin)}; likewise"),
        ("p (exact guard)", pvalue(result.pvalue_equivalence_exact), "an exact test of both, which has to agree"),
        ("proven", narrowest, "the narrowest margin that these counts prove"),
    ]
    verdict = f"{result.verdict}: {ENGLISH.reason(result.reason)}."
    parts = (counts, "", "Is there a difference?", differs, "", f"Is it smaller than {pp(margin)} either way?")
    _print(output_format, given, result, (*parts, is_smaller, "", verdict))


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
    from qualab.planning.calculators import powers

    given: dict[str, Any] = {"n_items": items, "discordance": discordance, "margin": margin}
    given |= {"difference": difference, "n_metrics": metrics, "alpha": alpha}
    result = powers(**given)
    guarded = ("not computed", "takes too long above 20,000 items; hardly any lower there")
    if result.equivalence_guarded is not None:
        guarded = (share(result.equivalence_guarded), "what the verdict EQUIVALENT takes")
    finds = f"finds {_signed_pp(difference)}" if difference else "false alarm"
    detection = f"McNemar's test, mid-p, which decides; {share(result.detection_exact)} exact"
    lines = [
        (f"proves ±{pp(margin)}", share(result.equivalence), "both one-sided score tests"),
        ("with the exact guard", *guarded),
        (f"proves it for {metrics} metrics", share(result.joint), "were they independent and all like this one"),
        ("", share(result.power_for_joint), "what each of them needs, for 80 % together"),
        (finds, share(result.detection), detection),
    ]
    if result.detection_of_margin is not None:
        more = "on top of the discordance assumed here"
        lines.append((f"finds a loss of {pp(margin)}", share(result.detection_of_margin), more))
    _print(output_format, given, result, [_assumed(items, discordance, difference), lines])


@app.command(short_help="How small a loss can so many items show?")
def mde(
    items: Items,
    discordance: Discordance,
    power: Power = 0.8,
    alpha: Alpha = 0.05,
    accuracy: Accuracy = 0.5,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """How small a loss (minimal detectable effect), and how narrow a margin, can so many items show?"""
    from qualab.planning.calculators import smallest_effects

    given: dict[str, Any] = {"n_items": items, "discordance": discordance}
    given |= {"power": power, "alpha": alpha, "accuracy": accuracy}
    result = smallest_effects(**given)
    unpaired = f"smallest loss found, at {percent(accuracy)} right"
    lines = [
        ("smallest loss found", _or_none(result.mde), "all losses and gains together make up the discordance"),
        ("", _or_none(result.mde_beyond_noise), "the discordance is noise, and the loss comes on top"),
        ("narrowest margin", _or_none(result.smallest_margin, sign="±"), "proven, if there is no true difference"),
        ("without pairing", _or_none(result.mde_unpaired), unpaired),
    ]
    _print(output_format, given, result, [_assumed(items, discordance), f"With {percent(power)} power:", lines])


@app.command(short_help="How many items prove the margin?")
def size(
    margin: Margin,
    discordance: Discordance,
    power: Power = 0.9,
    looks: Annotated[int, typer.Option(help="Looks at which a run may stop; 1 for the end alone.")] = 10,
    metrics: Metrics = 5,
    repeats: Annotated[int, typer.Option(help="Answers an item and arm; needs --noise.")] = 1,
    noise: Annotated[float | None, typer.Option(help="Discordance of two runs of one arm.")] = None,
    alpha: Alpha = 0.05,
    accuracy: Accuracy = 0.5,
    output_format: OutputFormat = Format.TEXT,
) -> None:
    """How many items prove the margin, if there is no true difference?"""
    from qualab.planning import calculators

    given: dict[str, Any] = {"margin": margin, "discordance": discordance, "alpha": alpha, "power": power}
    given |= {"n_metrics": metrics, "repeats": repeats, "noise": noise, "accuracy": accuracy}
    result = calculators.size(**given, n_looks=looks)
    assumed = f"{percent(discordance)} of the items right in exactly one arm, no true difference"
    head = f"Items to prove ±{pp(margin)} with {percent(power)} power ({assumed}):"
    guarded = "" if result.power_guarded is None else f"; {share(result.power_guarded)} with the exact guard"
    together = f"each, so that all pass with {percent(power)}: {share(result.power_each)} each"
    lines = [
        ("one metric", f"{result.n_items:,}", f"one look, at the end{guarded}"),
        (f"{metrics} metrics", f"{result.n_items_joint:,}", together),
    ]
    if early := result.looks:
        lines.append((f"{early.n_looks} early looks", f"{early.most_items:,}", "at most"))
        average = ("not computed", "on average: simulated up to 10,000 items only")
        if early.expected_items is not None and early.power is not None and early.harm is not None:
            ends = f"{share(early.power)} proven, {share(early.harm)} stopped as harmful"
            average = (f"{early.expected_items:,.0f}", f"on average, simulated: {ends}")
        lines.append(("", *average))
    if result.n_items_repeated is not None and result.discordance_repeated is not None:
        left = f"{repeats} answers an item, which leave a discordance of {percent(result.discordance_repeated)}"
        lines.append(("with repeats", f"{result.n_items_repeated:,}", left))
    unpaired = f"in each arm, at {percent(accuracy)} right"
    _print(
        output_format, given, result, [head, [*lines, ("without pairing", f"{result.n_items_unpaired:,}", unpaired)]]
    )


def _assumed(n_items: int, discordance: float, difference: float = 0.0) -> str:
    truth = f", true difference {_signed_pp(difference)}" if difference else ""
    return f"{n_items:,} items, {percent(discordance)} of them right in exactly one arm (discordance){truth}"


def _signed_pp(fraction: float) -> str:
    return f"{signed(fraction)} pp"


def _or_none(fraction: float | None, *, sign: str = "") -> str:
    return "none exists" if fraction is None else f"{sign}{100 * fraction:.2f} pp"
