"""Tables and notes at the widths of real terminals."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.made_up import MadeUp, Stored, stored
from qualab.cli import stats
from qualab.cli.drafter_text import acceptance_table, fitting_acceptance_table
from qualab.cli.fitting import fits, headers, print_hanging
from qualab.cli.output import annotated
from qualab.cli.tables import comparison_table, fitting_metric_table, metric_table, print_analysis
from qualab.model.comparison import Analysis
from qualab.model.engine import TaskDrafting, Treatment
from tests.cli.conftest import Command

TASK = "haerae_standard_nomenclature_gen"


@pytest.fixture(scope="module")
def made_up() -> Stored:
    return stored(MadeUp(scale=0.05))


@pytest.fixture(scope="module")
def analysis(made_up: Stored) -> Analysis:
    return made_up.analyse()


def console(width: int) -> Console:
    return Console(width=width, record=True, file=io.StringIO())


def drafting(*, median: float | None) -> Treatment:
    one = TaskDrafting(
        task=TASK,
        n_answers=20,
        rounds=1000,
        draft_tokens=3000,
        accepted_tokens=2000,
        accepted_share=2 / 3,
        mean_length=3.0,
        median_length=median,
        p10_length=median,
        zero_share=0.1,
        histogram=(),
        request_mean_length=3.0,
        first_third=3.0,
        last_third=2.9,
    )
    return Treatment(is_observed=True, engines=(), tasks=(one,), bins=(), troubles=(), notes=())


def test_a_table_fits_exactly_where_rich_needs_no_more_room(made_up: Stored, analysis: Analysis) -> None:
    for table in (
        metric_table(analysis),
        metric_table(analysis, columns=["n", "p"], splits_names=True),
        comparison_table(console(200), [replace(made_up.comparison, label="\uac00\ub098\ub2e4 \U0001f600")]),
        acceptance_table(drafting(median=2.9), ["rounds"]),
    ):
        needed = console(10_000).measure(table).maximum
        assert fits(console(needed), table)
        assert not fits(console(needed - 1), table)


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_no_cell_is_cut_at_any_width(made_up: Stored, analysis: Analysis, width: int) -> None:
    shown = console(width)
    print_analysis(shown, made_up.comparison, analysis)
    text = shown.export_text()
    assert "…" not in text
    for row in analysis.metrics:
        task, metric = row.id.split("/")
        assert f" {task}/" in text
        assert metric in text


def test_columns_without_room_are_named_with_the_way_to_see_them(made_up: Stored, analysis: Analysis) -> None:
    narrow, wide = console(80), console(160)
    for one in (narrow, wide):
        print_analysis(one, made_up.comparison, analysis)
    said = " ".join(narrow.export_text().split())
    assert "No room for: n, clusters, baseline, candidate, " in said
    assert f"`qualab show {made_up.comparison.id} | cat`" in said
    assert "No room for" not in wide.export_text()
    print_analysis(other := console(80), made_up.comparison, replace(analysis, plan_hash="0ther" * 12))
    assert f"`qualab show {made_up.comparison.id} --plan 0ther0ther0t | cat`" in " ".join(other.export_text().split())


def test_120_columns_have_room_for_p_values_and_changed_scores(analysis: Analysis) -> None:
    assert {"p", "adj. p", "+/−"} <= set(headers(fitting_metric_table(console(120), analysis)))


def test_n_counts_the_scores_where_clusters_are_counted_beside_it(analysis: Analysis) -> None:
    table = fitting_metric_table(console(160), analysis)
    cells = {str(column.header): list(column.cells) for column in table.columns}
    for row, n, clusters in zip(analysis.metrics, cells["n"], cells["clusters"], strict=True):
        assert row.evidence is not None
        assert int(str(n)) == row.evidence.n_items
        assert str(clusters) == "–" or int(str(clusters)) < int(str(n))


@pytest.mark.parametrize("width", [80, 120])
def test_a_task_is_named_beside_what_was_drafted_in_it(width: int) -> None:
    shown = console(width)
    shown.print(fitting_acceptance_table(shown, drafting(median=3.0)))
    assert f"\n{TASK} " in shown.export_text()


def test_what_nothing_is_known_of_has_no_column() -> None:
    assert "median" not in headers(fitting_acceptance_table(console(160), drafting(median=None)))
    assert "median" in headers(fitting_acceptance_table(console(160), drafting(median=3.0)))


def test_a_list_keeps_ids_whole(made_up: Stored) -> None:
    one = replace(
        made_up.comparison, label="a label that is much longer than any terminal has room for beside all else"
    )
    shown = console(80)
    shown.print(comparison_table(shown, [one]))
    assert f"\n{one.id} " in shown.export_text()


def test_a_paragraph_hangs_below_its_first_line_and_is_no_markup() -> None:
    shown = console(30)
    print_hanging(shown, "Note: a [red]sentence[/red] that is longer than the line", indent=2)
    first, second, *_ = shown.export_text().splitlines()
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
    "reproduce": (),
}


@pytest.mark.parametrize("name", CALCULATIONS)
def test_calculators_fit_the_terminal_and_lose_no_word(
    qualab: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    whole = qualab("stats", name, *CALCULATIONS[name]).out
    monkeypatch.setattr(stats, "terminal_width", lambda: 80)
    narrow = qualab("stats", name, *CALCULATIONS[name]).out
    assert max(map(len, whole.splitlines())) > 80 >= max(map(len, narrow.splitlines()))
    missing = Counter(whole.split()) - Counter(narrow.split())
    assert not missing
    if name != "reproduce":  # whose tables' parts repeat the first column
        assert whole.split() == narrow.split()


def test_what_stands_beside_a_note_has_room_or_the_note_goes_below() -> None:
    rows = [("label", "1,234", "a note of some words"), ("", "5", "")]
    assert annotated(rows, 80) == "  label  1,234  a note of some words\n             5"
    assert annotated(rows, 36) == "  label  1,234  a note of some words\n             5"
    assert annotated(rows, 30) == "  label  1,234  a note of some\n    words\n             5"
    assert annotated([("l", "1", "a note of some words more")], 28) == "  l  1  a note of some words\n        more"
