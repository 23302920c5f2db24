"""`qualab stats`: the statistics for a person with a few counts, or with a plan in mind."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from qualab.analysis.judge import items_about
from qualab.cli.options import Format, OutputFormat
from qualab.cli.output import annotated, is_unicode, table_in_parts, terminal_width, wrapped
from qualab.model.names import Verdict
from qualab.model.wording import percent, pp, pvalue, share, signed
from qualab.report.words import ENGLISH, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from qualab.planning.calculators import PairedTest, Powers, Reproduction, Size, SmallestEffects

    T = TypeVar("T", bound=DataclassInstance)

Line = tuple[str, str, str]
"""A label, a value and what it means."""
Row = tuple[str, ...]

app = typer.Typer(
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
    from qualab.planning import calculators as published

    _print(published.reproduce(), output_format, reproduction_text)


def _print(found: T, output_format: Format, text: Callable[[T, int], str]) -> None:
    if output_format is Format.JSON:
        typer.echo(json.dumps(shown(found), indent=2, ensure_ascii=not is_unicode(sys.stdout), allow_nan=False))
    else:
        typer.echo(text(found, terminal_width()))


def paired_test_text(found: PairedTest, width: int, *, shows_further: bool = False) -> str:
    """Counts, difference, both questions with their p-values, and one sentence; with `shows_further` more intervals."""
    return "\n".join(
        [
            annotated(_counts(found, shows_further=shows_further), width),
            "",
            "Is there a difference?",
            annotated(_difference_tests(found), width),
            "",
            f"Is it smaller than {pp(found.margin)} either way?",
            annotated(_equivalence_tests(found), width),
            "",
            wrapped(f"{found.verdict}: {verdict_sentence(found)}", width),
        ]
    )


def _counts(found: PairedTest, *, shows_further: bool) -> Iterator[Line]:
    yield "items", f"{found.n_items:,}", "answered by both arms"
    yield "gains", f"{found.gains:,}", "only the candidate (drafter on) is right"
    yield "losses", f"{found.losses:,}", "only the baseline (drafter off) is right"
    if found.baseline is not None and found.candidate is not None:
        yield "right", share(found.candidate), f"of the candidate; {share(found.baseline)} of the baseline"
    yield "difference", signed_pp(found.difference), "candidate minus baseline"
    inner, outer, other = found.equivalence_interval, found.interval, found.interval_newcombe
    decides = f"Tango's score interval; has to lie inside ±{pp(found.margin)}"
    yield f"{percent(inner.confidence_level)} interval", interval(inner.low, inner.high), decides
    if shows_further:
        level = f"{percent(outer.confidence_level)} interval"
        yield level, interval(outer.low, outer.high), "the same at another level, which decides nothing"
        if other:
            yield level, interval(other.low, other.high), "Newcombe's, as a cross-check"


def _difference_tests(found: PairedTest) -> Iterator[Line]:
    yield "p (mid-p)", pvalue(found.pvalue), f"McNemar's test; at most {found.alpha:g} speaks for a difference"
    yield "p (exact)", pvalue(found.pvalue_exact), "the same on the safe side: a cross-check, decides nothing"
    yield "p (unconditional)", pvalue(found.pvalue_unconditional), "exact without fixing the number of changed items"
    if found.pvalue_unpaired is not None:
        yield "p (unpaired)", pvalue(found.pvalue_unpaired), "ignores the pairs; for comparison with older reports"


def _equivalence_tests(found: PairedTest) -> Iterator[Line]:
    margin, level = pp(found.margin), f"{found.alpha:g}"
    yield "p (lower)", pvalue(found.pvalue_lower), f"score test against a loss of {margin}; has to be at most {level}"
    yield "p (upper)", pvalue(found.pvalue_upper), f"score test against a gain of {margin}; likewise"
    yield "p (exact guard)", pvalue(found.pvalue_equivalence_exact), "an exact test of both, which has to agree"
    yield "proven", _proven(found), "the narrowest margin that these counts prove"
    if found.verdict is Verdict.INCONCLUSIVE:
        needed = ENGLISH.reason(items_about(found.items_needed, found.items_needed_range))
        yield "items needed", needed, f"for ±{margin} with 80 % power at this discordance, if nothing is lost"
        if abs(found.difference) >= found.margin:
            yield "", "none is enough", f"if the difference of {signed_pp(found.difference)} is real"
        elif found.difference:
            observed = items_about(found.items_needed_observed, found.items_needed_observed_range)
            yield "", ENGLISH.reason(observed), f"if the difference of {signed_pp(found.difference)} is real"


def _proven(found: PairedTest) -> str:
    """Rounded up: a narrower margin would not be proven."""
    hundredths = math.ceil(1e4 * found.provable_margin - 1e-6)
    return "nothing" if found.provable_margin >= 1.0 else f"±{hundredths / 100:.2f} pp"


def verdict_sentence(found: PairedTest) -> str:
    """What the verdict means, for a person."""
    return _SENTENCES[found.verdict](found)


def _equivalent(found: PairedTest) -> str:
    if found.difference and found.pvalue <= found.alpha:
        return f"{ENGLISH.reason(found.reason)}."
    return f"these counts prove that the drafter changes the score by less than {pp(found.margin)}."


def _regression(found: PairedTest) -> str:
    if found.equivalence_interval.high < -found.margin:
        return f"the candidate is worse by more than {pp(found.margin)}."
    if found.is_equivalent:
        return f"the candidate is worse, though by less than {pp(found.margin)}: strict."
    return f"the candidate is worse; by more or by less than {pp(found.margin)} is open."


def _improvement(found: PairedTest) -> str:
    size = f", though by less than {pp(found.margin)}" if found.is_equivalent else ""
    return f"the candidate is better{size}: a drafter that loses nothing should not improve anything either."


def _inconclusive(found: PairedTest) -> str:
    proven = "no margin at all" if found.provable_margin >= 1.0 else f"{_proven(found)}, not ±{pp(found.margin)}"
    return f"no difference is shown, but none is ruled out either: these counts prove {proven}."


_SENTENCES = {
    Verdict.EQUIVALENT: _equivalent,
    Verdict.REGRESSION: _regression,
    Verdict.IMPROVEMENT: _improvement,
    Verdict.INCONCLUSIVE: _inconclusive,
}


def powers_text(found: Powers, width: int) -> str:
    """Chances of each outcome at the assumed truth."""
    assumed = _assumed(found.n_items, found.discordance, width, found.difference)
    return f"{assumed}\n{annotated(_powers(found), width)}"


def _powers(found: Powers) -> Iterator[Line]:
    margin, joint = pp(found.margin), f"proves it for {found.n_metrics} metrics"
    yield f"proves ±{margin}", share(found.equivalence), "both one-sided score tests"
    if found.equivalence_guarded is None:
        yield "with the exact guard", "not computed", "takes too long above 20,000 items; hardly any lower there"
    else:
        yield "with the exact guard", share(found.equivalence_guarded), "what the verdict EQUIVALENT takes"
    yield joint, share(found.joint), "were they independent and all like this one"
    yield "", share(found.power_for_joint), "what each of them needs, for 80 % together"
    what = f"finds {signed_pp(found.difference)}" if found.difference else "false alarm"
    yield (
        what,
        share(found.detection),
        f"McNemar's test, mid-p, which decides; {share(found.detection_exact)} exact",
    )
    if found.detection_of_margin is not None:
        yield f"finds a loss of {margin}", share(found.detection_of_margin), "on top of the discordance assumed here"


def smallest_effects_text(found: SmallestEffects, width: int) -> str:
    """Both minimal detectable effects and the narrowest margin."""
    return "\n".join(
        [
            _assumed(found.n_items, found.discordance, width),
            f"With {percent(found.power)} power:",
            annotated(_smallest_effects(found), width),
        ]
    )


def _smallest_effects(found: SmallestEffects) -> Iterator[Line]:
    yield "smallest loss found", _or_none(found.mde), "all losses and gains together make up the discordance"
    yield "", _or_none(found.mde_beyond_noise), "the discordance is noise, and the loss comes on top"
    yield "narrowest margin", _or_none(found.smallest_margin, sign="±"), "proven, if there is no true difference"
    yield "without pairing", _or_none(found.mde_unpaired), f"smallest loss found, at {percent(found.accuracy)} right"


def size_text(found: Size, width: int) -> str:
    """Items for the margin, in every design."""
    assumed = f"{percent(found.discordance)} of the items right in exactly one arm, no true difference"
    return "\n".join(
        [
            wrapped(f"Items to prove ±{pp(found.margin)} with {percent(found.power)} power ({assumed}):", width),
            annotated(_sizes(found), width),
        ]
    )


def _sizes(found: Size) -> Iterator[Line]:
    guarded = "" if found.power_guarded is None else f"; {share(found.power_guarded)} with the exact guard"
    yield "one metric", f"{found.n_items:,}", f"one look, at the end{guarded}"
    together = f"each, so that all pass with {percent(found.power)}"
    yield f"{found.n_metrics} metrics", f"{found.n_items_joint:,}", f"{together}: {share(found.power_each)} each"
    yield from _looks(found)
    if found.n_items_repeated is not None and found.discordance_repeated is not None:
        left = f"{found.repeats} answers an item, which leave a discordance of {percent(found.discordance_repeated)}"
        yield "with repeats", f"{found.n_items_repeated:,}", left
    yield "without pairing", f"{found.n_items_unpaired:,}", f"in each arm, at {percent(found.accuracy)} right"


def _looks(found: Size) -> Iterator[Line]:
    if not (looks := found.looks):
        return
    yield f"{looks.n_looks} early looks", f"{looks.most_items:,}", "at most"
    if looks.expected_items is None or looks.power is None or looks.harm is None:
        yield "", "not computed", "on average: simulated up to 10,000 items only"
        return
    ends = f"{share(looks.power)} proven, {share(looks.harm)} stopped as harmful"
    yield "", f"{looks.expected_items:,.0f}", f"on average, simulated: {ends}"


def reproduction_text(found: Reproduction, width: int) -> str:
    """Three tables, each with a title and what its columns mean."""
    margin, power = pp(found.planned_margin), percent(found.planned_power)
    blocks = [
        (
            "A published comparison, drafter off and on, with unpaired tests (shares right in percent)",
            _in_parts(_PUBLISHED_HEAD, _published_rows(found), width),
            "MDE: smallest loss that the unpaired test sees with 80 and 90 % power. 4 pp seen: its chance to see 4 pp.",
        ),
        (
            f"The same {found.paired_items} items paired, by discordance (share of items right in exactly one arm)",
            _in_parts(_PAIRED_HEAD, _paired_rows(found), width),
            "MDE: all changed items together are the discordance. noise + loss: the loss comes on top of it.",
        ),
        (
            f"Items for ±{margin} with {power} power, no true difference",
            _in_parts(_PLANNING_HEAD, _planning_rows(found), width),
            "",
        ),
    ]
    return "\n\n".join(
        "\n".join([wrapped(title, width), rows, *([wrapped(legend, width)] if legend else [])])
        for title, rows, legend in blocks
    )


def _in_parts(head: Row, rows: Iterable[Row], width: int) -> str:
    return table_in_parts(list(zip(head, zip(*rows, strict=True), strict=True)), width)


_PUBLISHED_HEAD = ("metric", "items", "off", "on", "p printed", "p again", "MDE 80", "MDE 90", "4 pp seen")
_PAIRED_HEAD = ("discordance", "MDE", "noise + loss", "margin 80", "margin 90", "n for ±1 pp", "±2 pp", "±3 pp")
_PLANNING_HEAD = ("design", "items", "with 10 looks: at most", "on average")


def _published_rows(found: Reproduction) -> Iterator[Row]:
    for row in found.published:
        source = row.published
        yield (
            source.metric,
            str(source.n_items),
            f"{100 * source.off:.2f}",
            f"{100 * source.on:.2f}",
            f"{source.pvalue:.3f}",
            f"{row.pvalue:.3f}",
            _or_none(row.mde80),
            _or_none(row.mde90),
            share(row.power_at_4pp, 0),
        )


def _paired_rows(found: Reproduction) -> Iterator[Row]:
    for row in found.paired:
        effects = (_or_none(effect) for effect in (row.mde80, row.mde_beyond_noise80))
        margins = (_or_none(margin, sign="±") for margin in (row.margin80, row.margin90))
        sizes = (f"{n:,}" for n in (row.items_for_1pp, row.items_for_2pp, row.items_for_3pp))
        yield percent(row.discordance), *effects, *margins, *sizes


def _planning_rows(found: Reproduction) -> Iterator[Row]:
    for row in found.planning:
        looks = row.looks
        average = "" if looks.expected_items is None else f"{looks.expected_items:,.0f}"
        yield (
            f"paired, {percent(row.discordance)} discordance",
            f"{row.fixed_items:,}",
            f"{looks.most_items:,}",
            average,
        )
    for other in found.planning_unpaired:
        yield f"unpaired, {percent(other.accuracy)} right", f"{other.n_items:,} an arm", "", ""


def _assumed(n_items: int, discordance: float, width: int, difference: float = 0.0) -> str:
    truth = f", true difference {signed_pp(difference)}" if difference else ""
    return wrapped(
        f"{n_items:,} items, {percent(discordance)} of them right in exactly one arm (discordance){truth}", width
    )


def signed_pp(fraction: float) -> str:
    """A difference in percentage points with its sign."""
    return f"{signed(fraction)} pp"


def interval(low: float, high: float) -> str:
    """Limits in percentage points."""
    return f"{signed(low)} to {signed(high)} pp"


def _or_none(fraction: float | None, *, sign: str = "") -> str:
    return "none exists" if fraction is None else f"{sign}{100 * fraction:.2f} pp"
