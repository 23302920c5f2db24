"""`qualab stats`: the statistics for a person with a few counts, or with a plan in mind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qualab.cli.options import Format, OutputFormat, with_parameters
from qualab.cli.output import annotated, print_json, table_in_parts, terminal_width, wrapped
from qualab.model.names import Verdict
from qualab.model.wording import percent, pp, proven, pvalue, share, signed

if TYPE_CHECKING:
    from qualab.planning.calculators import PairedTest, Powers, Reproduction, Size, SmallestEffects

Line = tuple[str, str, str]
"""A label, a value and what it means."""
Cells = Mapping[str, Callable[[Any], str]]
"""How a table's rows become the cells of each column, by its header."""
Text = Iterator["str | list[Line] | list[tuple[str, list[str]]]"]
"""Paragraphs, annotated lines and columns of tables."""
F = TypeVar("F", bound=Callable[[Any, Any], Text])

app = typer.Typer(
    help="Calculators: what counts prove, and how many items a margin needs. Nothing is read or stored.",
    no_args_is_help=True,
)
NEEDED = inspect.Parameter.empty
OPTIONS: Mapping[str, tuple[str, Any, str]] = {
    # option: the calculator's parameter, its type and its help
    "gains": ("gains", int, "Items that only the candidate (drafter on) got right."),
    "losses": ("losses", int, "Items that only the baseline (drafter off) got right."),
    "items": ("n_items", int, "Items that both arms answer."),
    "margin": ("margin", float, "Largest difference that does not matter, as a fraction: 0.02 is 2 pp."),
    "both_right": ("both_right", int, "Items right in both arms: adds the accuracies and what needs them."),
    "discordance": (
        "discordance",
        float,
        "Share of items right in exactly one arm, as a fraction: measured in a pilot, or assumed.",
    ),
    "difference": ("difference", float, "Assumed true difference, candidate - baseline, a fraction."),
    "power": ("power", float, "Probability to aim at."),
    "looks": ("n_looks", int, "Looks at which a run may stop; 1 for the end alone."),
    "metrics": ("n_metrics", int, "Primary metrics like this one that all have to pass."),
    "repeats": ("repeats", int, "Answers an item and arm; needs --noise."),
    "noise": ("noise", float, "Discordance of two runs of the same arm, a fraction; with --repeats."),
    "alpha": ("alpha", float, "Level of each one-sided test, and of the two-sided test of a difference."),
    "accuracy": ("accuracy", float, "Share right, for the unpaired comparison figure alone."),
    "strict": ("is_strict", bool, "Call a loss REGRESSION inside the margin too."),
    "confidence": (
        "confidence_level",
        float,
        "Level of a further interval, which decides nothing. JSON has it at 0.95 by default.",
    ),
}


def calculator(function: str, about: str, **defaults: Any) -> Callable[[F], F]:
    """Add a command for a function of `planning.calculators`, with these options and their defaults.

    It prints the text that the decorated function makes of the result, whose docstring is the command's short help.
    """

    def add(text: F) -> F:
        def command(output_format: Format, **values: Any) -> None:
            from qualab.planning import calculators
            from qualab.report.words import shown

            given = {OPTIONS[name][0]: value for name, value in values.items() if value is not None}
            result = getattr(calculators, function)(**given)
            if output_format is Format.JSON:
                print_json(shown(result))
            else:
                typer.echo(laid_out(text(result, values), terminal_width()))

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter(name, keyword, default=default, annotation=_option(name))
            for name, default in defaults.items()
        ]
        last = inspect.Parameter("output_format", keyword, default=Format.TEXT, annotation=OutputFormat)
        app.command(text.__name__, help=about, short_help=text.__doc__)(with_parameters(command, [*parameters, last]))
        return text

    return add


def _option(name: str) -> Any:
    _, kind, about = OPTIONS[name]
    flag = f"--{name.replace('_', '-')}"
    return Annotated[kind | None, typer.Option(f"{flag}/--no-{name}" if kind is bool else flag, help=about)]


def laid_out(text: Text, width: int) -> str:
    """Join a text's parts, each in lines of this width at most."""
    parts = []
    for part in text:
        if isinstance(part, str):
            parts.append(wrapped(part, width))
        elif len(part[0]) == 3:
            parts.append(annotated(part, width))
        else:
            parts.append(table_in_parts(part, width))
    return "\n".join(parts)


@calculator(
    "paired_test",
    "Is there a difference, and is it smaller than the margin? From the counts of one right/wrong metric.",
    gains=NEEDED,
    losses=NEEDED,
    items=NEEDED,
    margin=NEEDED,
    both_right=None,
    alpha=0.05,
    strict=False,
    confidence=None,
)
def test(found: PairedTest, options: Mapping[str, Any]) -> Text:
    """Is there a difference, and is it below the margin?"""
    margin, level = pp(found.margin), f"{found.alpha:g}"
    inner, outer, other = found.equivalence_interval, found.interval, found.interval_newcombe
    counts = [
        ("items", f"{found.n_items:,}", "answered by both arms"),
        ("gains", f"{found.gains:,}", "only the candidate (drafter on) is right"),
        ("losses", f"{found.losses:,}", "only the baseline (drafter off) is right"),
    ]
    if found.baseline is not None and found.candidate is not None:
        counts.append(("right", share(found.candidate), f"of the candidate; {share(found.baseline)} of the baseline"))
    counts.append(("difference", _signed_pp(found.difference), "candidate minus baseline"))
    decides = f"Tango's score interval; has to lie inside ±{margin}"
    counts.append((f"{percent(inner.confidence_level)} interval", _interval(inner.low, inner.high), decides))
    if options["confidence"] is not None:
        label = f"{percent(outer.confidence_level)} interval"
        further = "the same at another level, which decides nothing"
        counts.append((label, _interval(outer.low, outer.high), further))
        if other:
            counts.append((label, _interval(other.low, other.high), "Newcombe's, as a cross-check"))
    yield counts
    yield from ("", "Is there a difference?")
    differs = [
        ("p (mid-p)", pvalue(found.pvalue), f"McNemar's test; at most {level} speaks for a difference"),
        ("p (exact)", pvalue(found.pvalue_exact), "the same on the safe side: a cross-check, decides nothing"),
        ("p (unconditional)", pvalue(found.pvalue_unconditional), "exact without fixing the number of changed items"),
    ]
    if found.pvalue_unpaired is not None:
        unpaired = "ignores the pairs; for comparison with older reports"
        differs.append(("p (unpaired)", pvalue(found.pvalue_unpaired), unpaired))
    yield differs
    yield from ("", f"Is it smaller than {margin} either way?")
    lower = f"score test against a loss of {margin}; has to be at most {level}"
    yield [
        ("p (lower)", pvalue(found.pvalue_lower), lower),
        ("p (upper)", pvalue(found.pvalue_upper), f"score test against a gain of {margin}; likewise"),
        ("p (exact guard)", pvalue(found.pvalue_equivalence_exact), "an exact test of both, which has to agree"),
        ("proven", _proven(found), "the narrowest margin that these counts prove"),
        *_items_needed(found),
    ]
    yield from ("", f"{found.verdict}: {_verdict_sentence(found)}")


def _items_needed(found: PairedTest) -> Iterator[Line]:
    from qualab.analysis.judge import items_about
    from qualab.report.words import ENGLISH

    if found.verdict is not Verdict.INCONCLUSIVE:
        return
    needed = ENGLISH.reason(items_about(found.items_needed, found.items_needed_range))
    yield "items needed", needed, f"for ±{pp(found.margin)} with 80 % power at this discordance, if nothing is lost"
    if found.difference:
        observed = "none is enough"
        if abs(found.difference) < found.margin:
            observed = ENGLISH.reason(items_about(found.items_needed_observed, found.items_needed_observed_range))
        yield "", observed, f"if the difference of {_signed_pp(found.difference)} is real"


def _proven(found: PairedTest) -> str:
    return "nothing" if found.provable_margin >= 1.0 else f"±{proven(found.provable_margin)}"


def _verdict_sentence(found: PairedTest) -> str:
    from qualab.report.words import ENGLISH

    margin = pp(found.margin)
    if found.verdict is Verdict.EQUIVALENT:
        if found.difference and found.pvalue <= found.alpha:
            return f"{ENGLISH.reason(found.reason)}."
        return f"these counts prove that the drafter changes the score by less than {margin}."
    if found.verdict is Verdict.REGRESSION:
        if found.equivalence_interval.high < -found.margin:
            return f"the candidate is worse by more than {margin}."
        if found.is_equivalent:
            return f"the candidate is worse, though by less than {margin}: strict."
        return f"the candidate is worse; by more or by less than {margin} is open."
    if found.verdict is Verdict.IMPROVEMENT:
        size = f", though by less than {margin}" if found.is_equivalent else ""
        return f"the candidate is better{size}: a drafter that loses nothing should not improve anything either."
    narrowest = "no margin at all" if found.provable_margin >= 1.0 else f"{_proven(found)}, not ±{margin}"
    return f"no difference is shown, but none is ruled out either: these counts prove {narrowest}."


@calculator(
    "powers",
    "How likely are so many items to prove the margin, and to find a loss?",
    items=NEEDED,
    discordance=NEEDED,
    margin=NEEDED,
    difference=0.0,
    metrics=5,
    alpha=0.05,
)
def power(found: Powers, _: object) -> Text:
    """How likely are so many items to prove the margin?"""
    yield _assumed(found.n_items, found.discordance, found.difference)
    margin = pp(found.margin)
    guarded = ("not computed", "takes too long above 20,000 items; hardly any lower there")
    if found.equivalence_guarded is not None:
        guarded = (share(found.equivalence_guarded), "what the verdict EQUIVALENT takes")
    finds = f"finds {_signed_pp(found.difference)}" if found.difference else "false alarm"
    detection = f"McNemar's test, mid-p, which decides; {share(found.detection_exact)} exact"
    lines = [
        (f"proves ±{margin}", share(found.equivalence), "both one-sided score tests"),
        ("with the exact guard", *guarded),
        (f"proves it for {found.n_metrics} metrics", share(found.joint), "were they independent and all like this one"),
        ("", share(found.power_for_joint), "what each of them needs, for 80 % together"),
        (finds, share(found.detection), detection),
    ]
    if found.detection_of_margin is not None:
        more = "on top of the discordance assumed here"
        lines.append((f"finds a loss of {margin}", share(found.detection_of_margin), more))
    yield lines


@calculator(
    "smallest_effects",
    "How small a loss (minimal detectable effect), and how narrow a margin, can so many items show?",
    items=NEEDED,
    discordance=NEEDED,
    power=0.8,
    alpha=0.05,
    accuracy=0.5,
)
def mde(found: SmallestEffects, _: object) -> Text:
    """How small a loss can so many items show?"""
    unpaired = f"smallest loss found, at {percent(found.accuracy)} right"
    yield _assumed(found.n_items, found.discordance)
    yield f"With {percent(found.power)} power:"
    yield [
        ("smallest loss found", _or_none(found.mde), "all losses and gains together make up the discordance"),
        ("", _or_none(found.mde_beyond_noise), "the discordance is noise, and the loss comes on top"),
        ("narrowest margin", _or_none(found.smallest_margin, sign="±"), "proven, if there is no true difference"),
        ("without pairing", _or_none(found.mde_unpaired), unpaired),
    ]


@calculator(
    "size",
    "How many items prove the margin, if there is no true difference?",
    margin=NEEDED,
    discordance=NEEDED,
    power=0.9,
    looks=10,
    metrics=5,
    repeats=1,
    noise=None,
    alpha=0.05,
    accuracy=0.5,
)
def size(found: Size, _: object) -> Text:
    """How many items prove the margin?"""
    assumed = f"{percent(found.discordance)} of the items right in exactly one arm, no true difference"
    yield f"Items to prove ±{pp(found.margin)} with {percent(found.power)} power ({assumed}):"
    guarded = "" if found.power_guarded is None else f"; {share(found.power_guarded)} with the exact guard"
    together = f"each, so that all pass with {percent(found.power)}: {share(found.power_each)} each"
    lines = [
        ("one metric", f"{found.n_items:,}", f"one look, at the end{guarded}"),
        (f"{found.n_metrics} metrics", f"{found.n_items_joint:,}", together),
    ]
    if looks := found.looks:
        lines.append((f"{looks.n_looks} early looks", f"{looks.most_items:,}", "at most"))
        average = ("not computed", "on average: simulated up to 10,000 items only")
        if looks.expected_items is not None and looks.power is not None and looks.harm is not None:
            ends = f"{share(looks.power)} proven, {share(looks.harm)} stopped as harmful"
            average = (f"{looks.expected_items:,.0f}", f"on average, simulated: {ends}")
        lines.append(("", *average))
    if found.n_items_repeated is not None and found.discordance_repeated is not None:
        left = f"{found.repeats} answers an item, which leave a discordance of {percent(found.discordance_repeated)}"
        lines.append(("with repeats", f"{found.n_items_repeated:,}", left))
    unpaired = f"in each arm, at {percent(found.accuracy)} right"
    yield [*lines, ("without pairing", f"{found.n_items_unpaired:,}", unpaired)]


@calculator(
    "reproduce", "Recompute a published drafter off/on table, and show what pairing its items would have given."
)
def reproduce(found: Reproduction, _: object) -> Text:
    """Recompute a published drafter off/on table."""
    yield "A published comparison, drafter off and on, with unpaired tests (shares right in percent)"
    yield [(head, [cell(row) for row in found.published]) for head, cell in _PUBLISHED.items()]
    yield "MDE: smallest loss that the unpaired test sees with 80 and 90 % power. 4 pp seen: its chance to see 4 pp."
    yield ""
    yield f"The same {found.paired_items} items paired, by discordance (share of items right in exactly one arm)"
    yield [(head, [cell(row) for row in found.paired]) for head, cell in _PAIRED.items()]
    yield "MDE: all changed items together are the discordance. noise + loss: the loss comes on top of it."
    yield ""
    margin, aimed = pp(found.planned_margin), percent(found.planned_power)
    yield f"Items for ±{margin} with {aimed} power, no true difference"
    designs = [
        (
            f"paired, {percent(row.discordance)} discordance",
            f"{row.fixed_items:,}",
            f"{row.looks.most_items:,}",
            "" if row.looks.expected_items is None else f"{row.looks.expected_items:,.0f}",
        )
        for row in found.planning
    ]
    designs += [
        (f"unpaired, {percent(row.accuracy)} right", f"{row.n_items:,} an arm", "", "")
        for row in found.planning_unpaired
    ]
    heads = ("design", "items", "with 10 looks: at most", "on average")
    yield [(head, list(cells)) for head, cells in zip(heads, zip(*designs, strict=True), strict=True)]


_PUBLISHED: Cells = {
    "metric": lambda row: row.published.metric,
    "items": lambda row: str(row.published.n_items),
    "off": lambda row: f"{100 * row.published.off:.2f}",
    "on": lambda row: f"{100 * row.published.on:.2f}",
    "p printed": lambda row: f"{row.published.pvalue:.3f}",
    "p again": lambda row: f"{row.pvalue:.3f}",
    "MDE 80": lambda row: _or_none(row.mde80),
    "MDE 90": lambda row: _or_none(row.mde90),
    "4 pp seen": lambda row: share(row.power_at_4pp, 0),
}
_PAIRED: Cells = {
    "discordance": lambda row: percent(row.discordance),
    "MDE": lambda row: _or_none(row.mde80),
    "noise + loss": lambda row: _or_none(row.mde_beyond_noise80),
    "margin 80": lambda row: _or_none(row.margin80, sign="±"),
    "margin 90": lambda row: _or_none(row.margin90, sign="±"),
    "n for ±1 pp": lambda row: f"{row.items_for_1pp:,}",
    "±2 pp": lambda row: f"{row.items_for_2pp:,}",
    "±3 pp": lambda row: f"{row.items_for_3pp:,}",
}


def _assumed(n_items: int, discordance: float, difference: float = 0.0) -> str:
    truth = f", true difference {_signed_pp(difference)}" if difference else ""
    return f"{n_items:,} items, {percent(discordance)} of them right in exactly one arm (discordance){truth}"


def _signed_pp(fraction: float) -> str:
    return f"{signed(fraction)} pp"


def _interval(low: float, high: float) -> str:
    return f"{signed(low)} to {signed(high)} pp"


def _or_none(fraction: float | None, *, sign: str = "") -> str:
    return "none exists" if fraction is None else f"{sign}{100 * fraction:.2f} pp"
