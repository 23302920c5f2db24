"""The report on a terminal: some of its sections, the verdict last, in the width that there is."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from qualab.analysis.advice import payoff_of
from qualab.model.engine import EngineSummary, Observation, Preflight, Treatment, answers_by_replica
from qualab.model.names import ArmName
from qualab.model.report import (
    Block,
    Bullets,
    Column,
    Excerpt,
    Fact,
    Facts,
    Forest,
    Histogram,
    PairBars,
    Paragraph,
    Side,
    Table,
    Tone,
)
from qualab.model.wording import count, line_text
from qualab.report.arms import acceptance_blocks, engine_facts, facts_table, pin_facts
from qualab.report.audit import audit_lines
from qualab.report.model import model_of
from qualab.report.planning import planning_blocks
from qualab.report.source import Cells, Source, table, verdict_cell
from qualab.report.speed import advice_table
from qualab.report.words import ENGLISH

if TYPE_CHECKING:
    from qualab.analysis.flips import Flips, Pair, TextPairs
    from qualab.model.comparison import Analysis, Comparison
    from qualab.planning.suite import Planning

SECTIONS = ("metrics", "arms", "configuration", "missing", "looks", "noise", "acceptance", "verdict")
STYLES = {
    Tone.GOOD: "bold green",
    Tone.BAD: "bold red",
    Tone.OPEN: "bold yellow",
    Tone.BROKEN: "bold magenta",
    Tone.PLAIN: "",
}
UNBOUNDED = 160
"""Columns where the output is a file or a pipe."""
GAP = 2
"""Between two columns of a table."""
BEFORE, AFTER = 60, 160
"""Characters of an answer that are shown before and after its first difference."""
LONGEST_MARK = 24
BAR, BAR_WIDTH = "█", 24
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")
"""Shown by its first 12 digits."""
_NAMES = re.compile(r"(?<=\S)/(?=\S)")
"""Between a task and its metric."""
_KEPT = "\N{NO-BREAK SPACE}"


def make_console(*, is_error: bool = False) -> Console:
    """Make a console that is wide enough for tables where the output is a file or a pipe."""
    console = Console(stderr=is_error)
    return console if console.is_terminal else Console(stderr=is_error, width=UNBOUNDED)


def print_analysis(
    console: Console, comparison: Comparison, analysis: Analysis, observations: Sequence[Observation] = ()
) -> None:
    """Draw a comparison's report as it was found under the analysis's plan."""
    source = Source(
        comparison=comparison,
        analysis=analysis,
        by_replica=answers_by_replica(observations),
        payoff=payoff_of(analysis, observations, seed=comparison.plan.sampling.seed),
    )
    report = model_of(source, ENGLISH, sections=SECTIONS)
    under = "" if analysis.plan_hash == comparison.plan_hash else f" --plan {analysis.plan_hash[:12]}"
    for section in (own for own in report.sections if own.id != "verdict"):
        console.print(Text(section.title, style="bold"))
        blocks = (block for block in section.blocks if not isinstance(block, Histogram))
        print_blocks(console, blocks, command=f"qualab show {comparison.id}{under}")
        console.print()
    print_blocks(console, (block for own in report.sections if own.id == "verdict" for block in own.blocks))
    for line in audit_lines(analysis.audit, ENGLISH) if analysis.audit else ():
        print_hanging(console, line)
    console.print()
    console.print(Text.assemble("Verdict: ", (report.verdict.text, STYLES[report.verdict.tone])))
    for own in report.box:
        label = "" if own.id == "verdict" else f"{own.label}: "
        print_hanging(console, f"{label}{own.text}", style=STYLES[own.tone])
    if source.payoff.advice:
        print_blocks(console, [advice_table(source.payoff.advice, ENGLISH, has_evidence=False)])
    print_hanging(console, report.footer, style="dim")


def print_histograms(console: Console, treatment: Treatment) -> None:
    """Draw rounds by accepted tokens, task by task."""
    blocks = acceptance_blocks(treatment, ENGLISH)
    print_blocks(console, (block for block in blocks if isinstance(block, Histogram)))


def print_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    """List comparisons, one row each."""
    rows: list[Cells] = [
        {
            "id": comparison.id,
            "status": comparison.status.value,
            "verdict": verdict_cell(comparison.verdict, ENGLISH) if comparison.verdict else "",
            "model": line_text(comparison.plan.sampling.model),
            "tasks": line_text(",".join(comparison.plan.requested)),
            "label": line_text(comparison.label),
            "created": f"{comparison.created_at:%Y-%m-%d %H:%M}",
        }
        for comparison in comparisons
    ]
    names = tuple(rows[0])
    titles = dict(zip(names, names, strict=True))
    listed = table(ENGLISH, names, rows, n_texts=len(names), titles=titles, legends={}, dispensable=("created",))
    print_blocks(console, [listed])


def print_planning(console: Console, planning: Planning) -> None:
    """Draw what a plan's items can prove."""
    print_blocks(console, planning_blocks(planning), is_spaced=True)


def print_preflight(console: Console, preflight: Preflight) -> None:
    """Draw both arms, then what was found about them."""
    engines = [EngineSummary.of(arm, preflight.engines[arm]) for arm in ArmName]
    facts = (*engine_facts(engines, ENGLISH), *pin_facts(preflight.pins, ENGLISH))
    print_blocks(console, [facts_table(facts, ENGLISH)])
    console.print()
    for finding in preflight.findings:
        label, style = ("STOP", "bold red") if finding.stops else ("note", None)
        print_hanging(console, f"{label} {ENGLISH.reason(finding.what)}", hang=5, style=style)
        if finding.hint:
            print_hanging(console, finding.hint, indent=5, style="dim")
    console.print()
    if preflight.stopping:
        console.print(Text("This pair cannot be compared.", style="bold red"))
    else:
        console.print(Text("Both arms are ready; as far as can be seen, only the drafter differs.", style="green"))


def print_flips(console: Console, flips: Flips, *, n_other_texts: int = 0) -> None:
    """Draw a summary, then each flip. `n_other_texts`: pairs whose texts differ without a flip."""
    if not (total := flips.n_losses + flips.n_gains):
        others = f" {n_other_texts} pairs have other texts and the same score (--texts)." if n_other_texts else ""
        print_hanging(console, f"No item flipped.{others}")
        return
    titles = [
        f"{'lost' if flip.is_loss else 'gained'}  {_item(flip)}  {flip.metric.partition('/')[2]}: "
        f"{flip.scores[0]:g} to {flip.scores[1]:g}"
        for flip in flips.shown
    ]
    _print_pairs(console, f"{flips.n_losses} lost, {flips.n_gains} gained by the candidate", flips.shown, titles, total)


def print_text_pairs(console: Console, pairs: TextPairs, *, leaks: bool) -> None:
    """Draw a summary, then each pair; `leaks`: those of which a text leaks."""
    kind = "in which an answer leaks" if leaks else "with other texts and the same score"
    if not pairs.n_pairs:
        print_hanging(console, f"No pair {kind}.")
        return
    titles = []
    for pair in pairs.shown:
        both = zip(ArmName, pair.leaks, strict=True)
        kinds = (f"{arm}: {', '.join(leak.replace('_', ' ') for leak in own)}" for arm, own in both if own)
        titles.append("  ".join((_item(pair), *kinds)))
    _print_pairs(console, f"{pairs.n_pairs} pairs {kind}", pairs.shown, titles, pairs.n_pairs)


def _item(pair: Pair) -> str:
    return f"{pair.item}{f', repeat {pair.repeat}' if pair.repeat else ''}"


def _print_pairs(console: Console, head: str, pairs: Sequence[Pair], titles: Sequence[str], total: int) -> None:
    print_hanging(console, head if len(pairs) == total else f"{head}; {len(pairs)} shown (--limit)")
    print_blocks(console, map(pair_excerpt, pairs, titles))


def pair_excerpt(pair: Pair, title: str) -> Excerpt:
    """Show both answers around their first difference, each on one line."""
    facts, place = {"right": line_text(pair.target[:200])}, pair.first_difference
    texts = pair.answers if place is not None and any(pair.answers) else ()  # a table of scores has no answers
    if texts:
        token = "" if pair.first_token is None else f", token {count(pair.first_token)}"
        facts["first difference"] = f"character {count(place or 0)}{token}"
    elif any(pair.answers):
        facts["both"] = f"{line_text(pair.answers[0][:AFTER])} (the same text)"
    start, end = max(0, (place or 0) - BEFORE), (place or 0) + AFTER
    return Excerpt(
        title=line_text(title),
        facts=tuple(Fact(label=label, text=text) for label, text in facts.items()),
        shared=line_text(texts[0][start:place]) if texts else "",
        is_cut=start > 0,
        sides=tuple(
            Side(title=arm, text=line_text(text[place:end]), is_cut=len(text) > end)
            for arm, text in zip(ArmName, texts, strict=False)
        ),
    )


def print_blocks(console: Console, blocks: Iterable[Block], *, command: str = "", is_spaced: bool = False) -> None:
    """Draw blocks. `command` shows them whole where a table has no room for some of its columns."""
    for place, block in enumerate(blocks):
        if place and is_spaced:
            console.print()
        match block:
            case Paragraph():
                print_hanging(console, block.text, style="dim" if block.is_muted else None)
            case Bullets():
                if block.title:
                    print_hanging(console, block.title)
                for item in block.items:
                    print_hanging(console, f"- {item}", indent=2)
            case Facts():
                for fact in block.facts:
                    print_hanging(console, f"{fact.label}: {fact.text}")
            case Table():
                _print_table(console, block, command)
            case Histogram():
                console.print(Text(f"\n{block.title}: {block.axis}", style="bold"))
                most = max(bar.count for bar in block.bars)
                for bar in block.bars:
                    drawn = BAR * round(BAR_WIDTH * bar.count / most)
                    console.print(Text(f"  {bar.label:>2} {bar.text:>7}  {drawn}"))
            case Excerpt():
                _print_excerpt(console, block)
            case Forest():
                for row in block.rows:
                    print_hanging(console, f"{row.label}: {row.text}, {row.verdict.text}")
            case PairBars():
                for pair in block.rows:
                    print_hanging(console, f"{pair.label}, {pair.note}: {pair.text}, {pair.ratio.text}")


def print_hanging(console: Console, text: str, *, indent: int = 0, hang: int = 2, style: str | None = None) -> None:
    """Draw a paragraph: `indent` spaces before its first line, `hang` more before the others."""
    lines = textwrap.wrap(
        _DIGEST.sub(r"\1", text).replace(" %", f"{_KEPT}%").replace(" pp", f"{_KEPT}pp"),
        width=console.width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_on_hyphens=False,
        break_long_words=False,
    )
    for line in lines or [""]:
        console.print(line.replace(_KEPT, " "), style=style, highlight=False, markup=False, soft_wrap=True)


def _print_table(console: Console, block: Table, command: str) -> None:
    """Draw it whole where it fits; else with names on two lines, without dispensable columns, in parts."""
    kept, width = list(block.columns), console.width
    cells = {
        column.id: [_DIGEST.sub(r"\1", row.cells[n].marked) for row in block.rows] for n, column in enumerate(kept)
    }
    styles = {column.id: [STYLES[row.cells[n].tone] for row in block.rows] for n, column in enumerate(kept)}
    if _width(kept, cells) > width:
        cells[kept[0].id] = [_NAMES.sub("/\n    ", text, count=1) for text in cells[kept[0].id]]
    for name in block.dispensable:
        if _width(kept, cells) > width:
            kept = [column for column in kept if column.id != name]
    for n, part in enumerate(_parts(kept, cells, width)):
        if n:
            console.print()
        fits = _width(part, cells) <= width
        grid = Grid(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
        for column in part:
            justify: Literal["left", "right"] = "right" if column.is_number else "left"
            grid.add_column(Text(column.title), justify=justify, overflow="fold", no_wrap=fits or column.is_number)
        for row in range(len(block.rows)):
            grid.add_row(*(Text(cells[column.id][row], style=styles[column.id][row]) for column in part))
        console.print(grid)
    if notes := [column.note for column in kept if column.note] + list(block.notes):
        print_hanging(console, " · ".join(notes), style="dim")
    if command and (hidden := [column.title for column in block.columns if column not in kept]):
        text = f"No room for: {', '.join(hidden)}. A wider terminal has it, and `{command} | cat`."
        print_hanging(console, text, style="dim")


def _parts(columns: Sequence[Column], cells: dict[str, list[str]], width: int) -> Iterator[list[Column]]:
    """Split the columns into as many parts as the width asks for, each with the names of the rows; texts wrap."""
    names = [column for n, column in enumerate(columns) if not any(one.is_number for one in columns[: n + 1])]
    part = list(names)
    for column in columns[len(names) :]:
        if len(part) > len(names) and _width([*part, column], cells) > width:
            yield part
            part = list(names)
        part.append(column)
    yield part


def _width(columns: Sequence[Column], cells: dict[str, list[str]]) -> int:
    texts = ((column.title, *cells[column.id]) for column in columns)
    widths = [max(cell_len(line) for text in own for line in text.split("\n")) for own in texts]
    return sum(widths) + GAP * (len(widths) - 1)


def _print_excerpt(console: Console, block: Excerpt) -> None:
    console.print()
    console.print(Text(block.title, style="bold"))
    for fact in block.facts:
        console.print(Text(f"  {fact.label}: {fact.text}", style="dim"))
    for side in block.sides:
        # the first word in [[ ]], or the white space that a text begins with
        words = side.text[:LONGEST_MARK].split()
        end = 1 if not words or side.text[0].isspace() else len(words[0])
        before = f"  {side.title:<9}: {'...' if block.is_cut else ''}{block.shared[-BEFORE:]}"
        mark = (f"[[{side.text[:end] or '(end)'}]]", "bold reverse")
        console.print(Text.assemble(before, mark, f"{side.text[end:]}{'...' if side.is_cut else ''}"))
