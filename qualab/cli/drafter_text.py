"""What a terminal shows of pins: each part once where both arms have it from the same source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qualab.cli.fitting import beside, fit_columns, headers, print_hanging
from qualab.model.engine import EngineSummary, LengthBin, Preflight, Treatment
from qualab.model.names import ArmName
from qualab.model.plan import DIGEST, PinFound
from qualab.model.wording import count, share
from qualab.report.acceptance import drafting_table, histogram
from qualab.report.words import ENGLISH

SHOWN = 12
"""Digits of a digest or commit."""


def pin_lines(found: Sequence[PinFound]) -> Iterator[str]:
    """One line a part and source."""
    groups: dict[tuple[str, str, str], list[ArmName]] = {}
    for one in found:
        groups.setdefault((one.part, _short(one), _source(one)), []).append(one.arm)
    for number, ((part, value, source), arms) in enumerate(groups.items()):
        whose = "" if len(arms) == len(ArmName) else f" of the {arms[0]}"
        yield f"{'' if number else 'pins':<9} {part}{whose} {value} ({source})"


def _short(one: PinFound) -> str:
    value = one.values[0]
    if digest := DIGEST.search(value):
        kind, _, digits = digest[0].partition(":")
        return value.replace(digest[0], f"{kind}:{digits[:SHOWN]}")
    return value[:SHOWN] if one.is_verified else value[:40]


def _source(one: PinFound) -> str:
    return f"verified by {one.source}" if one.is_verified else one.source


LEGEND = {
    "length": "length: tokens a round yields, 1 + accepted",
    "p10": "median, p10: of the rounds",
    "zero": "zero: rounds that accepted nothing",
    "an answer": "an answer: mean of each answer's own length",
    "thirds": "thirds: length in a task's first and last third of items",
    "cost": "cost: of a round beyond a step of the baseline, in such steps, by both engines' decode times here",
    "over break-even": "over break-even: length above {even}, where drafting begins to pay; decides nothing",
}
DROPPED_FIRST = ("an answer", "median", "p10", "thirds", "cost", "answers", "zero", "over break-even")
"""Columns that a narrow terminal has no room for, the most dispensable first."""

BAR = "█"
BAR_WIDTH = 24


def print_treatment(console: Console, treatment: Treatment | None) -> None:
    """The engines, and what the drafter did in each task."""
    if treatment is None:
        return
    for engine in treatment.engines:
        print_hanging(console, f"{engine.arm:<9} {_engine(engine)}", hang=10)
    if treatment.is_observed:
        console.print()
        table = fitting_acceptance_table(console, treatment)
        console.print(table)
        shown = headers(table)
        even = "1 + cost" if treatment.break_even_length is None else f"the plan's {treatment.break_even_length:.2f}"
        legend = "; ".join(text.format(even=even) for name, text in LEGEND.items() if name in shown)
        if legend:
            print_hanging(console, legend, style="dim")
        if treatment.bins:
            print_hanging(console, f"by tokens of the prompt: {'; '.join(map(_bin, treatment.bins))}", hang=2)


def fitting_acceptance_table(console: Console, treatment: Treatment) -> Table:
    """The table of tasks that fits: without columns of which nothing is known, and without some where it has to be."""

    def build(left: Sequence[str]) -> Table:
        return acceptance_table(treatment, left)

    known = [column.title for column in drafting_table(treatment.tasks, ENGLISH).columns if column.is_number]
    least = [name for name in known if name not in DROPPED_FIRST]
    return fit_columns(console, build, known, dropped_first=DROPPED_FIRST) or build(least)


def acceptance_table(treatment: Treatment, columns: Sequence[str]) -> Table:
    """The report's rows, a task each, with these columns."""
    found = drafting_table(treatment.tasks, ENGLISH)
    titles = [column.title for column in found.columns]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("drafted in", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.rows:
        texts = {title: cell.text for title, cell in zip(titles, row.cells, strict=True)}
        table.add_row(Text(row.cells[0].text), *(texts[name] for name in columns))
    return table


def print_histograms(console: Console, treatment: Treatment) -> None:
    """Rounds by accepted tokens, task by task."""
    found = [one for task in treatment.tasks if (one := histogram(task, ENGLISH))]
    if not found:
        print_hanging(console, ENGLISH("no histogram"))
    for one in found:
        console.print(f"\n{one.title} by accepted tokens", style="bold", highlight=False)
        most = max(bar.count for bar in one.bars)
        for bar in one.bars:
            console.print(
                f"  {bar.label:>2} {bar.text:>7}  {BAR * round(BAR_WIDTH * bar.count / most)}", highlight=False
            )


def print_preflight(console: Console, found: Preflight) -> None:
    """Both engines, then what was found."""
    for arm in ArmName:
        print_hanging(console, f"{arm:<9} {_engine(EngineSummary.of(arm, found.engines[arm]))}", hang=10)
    for line in pin_lines(found.pins):
        print_hanging(console, line, hang=10)
    for one in found.findings:
        mark = Text("STOP", style="bold red") if one.stops else Text("note", style="dim")
        console.print(beside(mark, ENGLISH.reason(one.what)))
        if one.hint:
            print_hanging(console, one.hint, indent=5, hang=0, style="dim")
    console.print()
    if found.stopping:
        console.print(Text("This pair cannot be compared.", style="bold red"))
    else:
        console.print(Text("Both arms are ready; as far as can be seen, only the drafter differs.", style="green"))


def _engine(one: EngineSummary) -> str:
    facts = [f"{one.kind} {one.version}".strip()]
    facts += [f"model {one.model_root}"] if one.model_root else []
    facts += [f"context {one.max_model_len:,} tokens"] if one.max_model_len else []
    facts += [f"KV cache {one.kv_cache_tokens:,} tokens"] if one.kv_cache_tokens else []
    facts += [f"drafter {one.drafter}"] if one.drafter else []
    return ", ".join(facts)


def _bin(one: LengthBin) -> str:
    where = f"{count(one.from_tokens)} to {count(one.to_tokens)}"
    if one.draft_tokens is None:
        return f"{where} {count(one.accepted_tokens)} accepted in {count(one.n_answers)} answers"
    if not one.draft_tokens:
        return f"{where} nothing drafted in {count(one.n_answers)} answers"
    return f"{where} {share(one.accepted_tokens / one.draft_tokens)} of {count(one.draft_tokens)}"
