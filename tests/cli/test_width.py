"""Tables and notes at the widths of real terminals."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.made_up import MadeUp, Stored, stored
from qualab.cli import stats
from qualab.model.comparison import Analysis
from qualab.model.engine import Treatment
from qualab.model.report import Cell, Column, Row, Table
from qualab.report.terminal import print_analysis, print_blocks, print_comparisons, print_hanging
from tests.app.test_report_model import DRAFTING
from tests.cli.conftest import Command

TASK = "haerae_standard_nomenclature_gen"


@pytest.fixture(scope="module")
def made_up() -> Stored:
    return stored(MadeUp(scale=0.05))


@pytest.fixture(scope="module")
def analysis(made_up: Stored) -> Analysis:
    task = replace(DRAFTING, task=TASK)
    treatment = Treatment(is_observed=True, engines=(), tasks=(task,), bins=(), troubles=(), notes=())
    return replace(made_up.analyse(), treatment=treatment)


def console(width: int) -> Console:
    return Console(width=width, record=True, file=io.StringIO())


def shown(width: int, made_up: Stored, analysis: Analysis) -> str:
    print_analysis(one := console(width), made_up.comparison, analysis)
    return one.export_text()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_no_cell_is_cut_and_no_line_is_too_long_at_any_width(made_up: Stored, analysis: Analysis, width: int) -> None:
    text = shown(width, made_up, analysis)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for row in analysis.metrics:
        task, metric = row.id.split("/")
        assert f" {task}/" in text
        assert metric in text
    assert f"\n{TASK} " in text


def test_columns_without_room_are_named_with_the_way_to_see_them(made_up: Stored, analysis: Analysis) -> None:
    narrow = " ".join(shown(80, made_up, analysis).split())
    assert "No room for: n, clusters, 90 % interval, p, adj. p, unpaired p, +/−. A wider terminal" in narrow
    assert f"`qualab show {made_up.comparison.id} | cat`" in narrow
    assert "No room for" not in shown(200, made_up, analysis)
    other = " ".join(shown(80, made_up, replace(analysis, plan_hash="0ther" * 12)).split())
    assert f"`qualab show {made_up.comparison.id} --plan 0ther0ther0t | cat`" in other
    heads = shown(120, made_up, analysis).splitlines()[1].split()
    assert {"p", "adj.", "+/−"} <= set(heads)


def table(*widths: int) -> Table:
    """With one row, columns named by letters, and numbers of these widths."""
    columns = (Column(id="name", title="name", is_number=False), *(Column(id=one, title=one) for one in "abc"))
    cells = (Cell(text="가나다"), *(Cell(text="1" * width) for width in widths))
    return Table(columns=columns, rows=(Row(cells=cells),))


@pytest.mark.parametrize(("width", "n_parts"), [(36, 1), (35, 2), (19, 3), (16, 3)])
def test_a_table_is_whole_where_it_fits_exactly_and_else_in_parts_with_its_names(width: int, n_parts: int) -> None:
    print_blocks(one := console(width), [table(8, 8, 8)])
    text = one.export_text()
    assert text.count("가나다") == n_parts
    assert text.count("1" * 8) == 3


def test_a_list_keeps_ids_whole_and_leaves_out_when_they_were_created_first(made_up: Stored) -> None:
    label = "a label that is much longer than any terminal has room for beside all else"
    print_comparisons(narrow := console(80), [replace(made_up.comparison, label=label)])
    text = narrow.export_text()
    assert f"\n{made_up.comparison.id} " in text
    assert "created" not in text
    print_comparisons(wide := console(160), [made_up.comparison])
    assert "created" in wide.export_text()


def test_a_paragraph_hangs_below_its_first_line_and_is_no_markup() -> None:
    print_hanging(one := console(30), "Note: a [red]sentence[/red] that is longer than the line", indent=2)
    first, second, *_ = one.export_text().splitlines()
    assert first.startswith("  Note: a [red]sentence[/red]")
    assert second.startswith("    ")


@pytest.mark.parametrize("group", [[], ["stats"], ["pair"], ["db"]])
def test_the_list_of_commands_says_each_in_a_whole_sentence(qualab: Command, group: list[str]) -> None:
    _, commands = qualab(*group, "--help").out.split("Commands:")
    assert "..." not in commands


CALCULATIONS = {
    "test": ("--gains", 7, "--losses", 12, "--items", 600, "--margin", 0.02, "--both-right", 300),
    "power": ("--items", 600, "--discordance", 0.05, "--margin", 0.03),
    "mde": ("--items", 600, "--discordance", 0.05),
    "size": ("--margin", 0.02, "--discordance", 0.05, "--looks", 1, "--repeats", 4, "--noise", 0.02),
}


@pytest.mark.parametrize("name", CALCULATIONS)
def test_calculators_fit_the_terminal_and_lose_no_word(
    qualab: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    whole = qualab("stats", name, *CALCULATIONS[name]).out
    monkeypatch.setattr(stats, "terminal_width", lambda: 80)
    narrow = qualab("stats", name, *CALCULATIONS[name]).out
    assert max(map(len, whole.splitlines())) > 80 >= max(map(len, narrow.splitlines()))
    assert whole.split() == narrow.split()
