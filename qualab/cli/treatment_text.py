"""What a terminal shows of the drafter and of the engines."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qualab.cli.pin_text import pin_lines
from qualab.domain.names import ArmName
from qualab.domain.preflight import Preflight
from qualab.domain.treatment import EngineSummary, TaskDrafting, Treatment

BAR = "█"
BAR_WIDTH = 24


def print_treatment(console: Console, treatment: Treatment | None) -> None:
    """The engines, and what the drafter did in each task."""
    if treatment is None:
        return
    for engine in treatment.engines:
        console.print(f"{engine.arm:<9} {_engine(engine)}", highlight=False)
    if treatment.is_observed:
        console.print()
        console.print(acceptance_table(treatment))
        console.print("length: tokens a round yields, 1 + accepted; zero: rounds that accepted nothing", style="dim")


def acceptance_table(treatment: Treatment) -> Table:
    """One row a task that generates. Never one for all: tasks draft differently."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("drafted in", overflow="fold", min_width=20)
    for name in ("answers", "rounds", "drafted", "accepted", "length", "median", "p10", "zero", "an answer", "thirds"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in treatment.tasks:
        table.add_row(one.task, *_cells(one))
    return table


def _cells(one: TaskDrafting) -> Iterator[str]:
    yield f"{one.n_answers:,}"
    yield _count(one.rounds)
    yield _count(one.draft_tokens)
    yield _share(one.accepted_share)
    yield _length(one.mean_length)
    yield _length(one.median_length)
    yield _length(one.p10_length)
    yield _share(one.zero_share)
    yield _length(one.request_mean_length)
    yield "" if one.first_third is None or one.last_third is None else f"{one.first_third:.2f} → {one.last_third:.2f}"


def print_histograms(console: Console, treatment: Treatment) -> None:
    """Rounds by accepted tokens, task by task."""
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
        engine = found.engines[arm]
        facts = EngineSummary(
            arm=arm,
            kind=engine.kind,
            version=engine.version,
            model_root=engine.model_root,
            max_model_len=engine.max_model_len,
            kv_cache_tokens=engine.kv_cache_tokens,
            drafter=engine.drafter,
        )
        console.print(f"{arm:<9} {_engine(facts)}", highlight=False)
    for line in pin_lines(found.pins):
        console.print(line, highlight=False)
    for one in found.findings:
        mark = Text("STOP ", style="bold red") if one.stops else Text("note ", style="dim")
        console.print(Text.assemble(mark, one.what))
        if one.mend:
            console.print(f"     {one.mend}", style="dim", highlight=False)
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
