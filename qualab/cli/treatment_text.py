"""What a terminal shows of the drafter and of the engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qualab.cli.fitting import beside, fit_columns, headers, print_hanging
from qualab.cli.pin_text import pin_lines
from qualab.domain.names import ArmName
from qualab.domain.preflight import Preflight
from qualab.domain.treatment import EngineSummary, TaskDrafting, Treatment

LEGEND = {
    "length": "length: tokens a round yields, 1 + accepted",
    "p10": "median, p10: of the rounds",
    "zero": "zero: rounds that accepted nothing",
    "an answer": "an answer: mean of each answer's own length",
    "thirds": "thirds: length in a task's first and last third of items",
}
DROPPED_FIRST = ("an answer", "median", "p10", "thirds", "answers", "zero")
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
        print_hanging(console, "; ".join(text for name, text in LEGEND.items() if name in shown), style="dim")


def fitting_acceptance_table(console: Console, treatment: Treatment) -> Table:
    """The table of tasks that fits: without columns of which nothing is known, and without some where it has to be."""

    def build(left: Sequence[str]) -> Table:
        return acceptance_table(treatment, left)

    known = [name for name, cell in CELLS.items() if any(cell(one) for one in treatment.tasks)]
    least = [name for name in known if name not in DROPPED_FIRST]
    return fit_columns(console, build, known, dropped_first=DROPPED_FIRST) or build(least)


def acceptance_table(treatment: Treatment, columns: Sequence[str]) -> Table:
    """One row a task that generates, with these columns. Never one for all: tasks draft differently."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("drafted in", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for one in treatment.tasks:
        table.add_row(Text(one.task), *(CELLS[name](one) for name in columns))
    return table


def print_histograms(console: Console, treatment: Treatment) -> None:
    """Rounds by accepted tokens, task by task."""
    if not any(sum(one.histogram) for one in treatment.tasks):
        print_hanging(console, "Neither counters nor answers tell how many tokens each round accepted: no histogram.")
    for one in treatment.tasks:
        total = sum(one.histogram)
        if not total:
            continue
        console.print(f"\n{one.task}: {total:,} rounds by accepted tokens", style="bold", highlight=False)
        for accepted, count in enumerate(one.histogram):
            bar = BAR * round(BAR_WIDTH * count / max(one.histogram))
            console.print(f"  {accepted:>2} {100 * count / total:5.1f} %  {bar}", highlight=False)


def print_preflight(console: Console, found: Preflight) -> None:
    """Both engines, then what was found."""
    for arm in ArmName:
        print_hanging(console, f"{arm:<9} {_engine(EngineSummary.of(arm, found.engines[arm]))}", hang=10)
    for line in pin_lines(found.pins):
        print_hanging(console, line, hang=10)
    for one in found.findings:
        mark = Text("STOP", style="bold red") if one.stops else Text("note", style="dim")
        console.print(beside(mark, one.what))
        if one.mend:
            print_hanging(console, one.mend, indent=5, hang=0, style="dim")
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


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _length(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _thirds(one: TaskDrafting) -> str:
    return "" if one.first_third is None or one.last_third is None else f"{one.first_third:.2f} → {one.last_third:.2f}"


CELLS: Mapping[str, Callable[[TaskDrafting], str]] = {
    "answers": lambda one: f"{one.n_answers:,}",
    "rounds": lambda one: _count(one.rounds),
    "drafted": lambda one: _count(one.draft_tokens),
    "accepted": lambda one: _share(one.accepted_share),
    "length": lambda one: _length(one.mean_length),
    "median": lambda one: _length(one.median_length),
    "p10": lambda one: _length(one.p10_length),
    "zero": lambda one: _share(one.zero_share),
    "an answer": lambda one: _length(one.request_mean_length),
    "thirds": _thirds,
}
