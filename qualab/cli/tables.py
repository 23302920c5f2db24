"""What a terminal shows of the noise floor and of repeats: the primary metrics; JSON has all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qualab.cli.drafter_text import pin_lines, print_treatment
from qualab.cli.fitting import fit_columns, fits, headers, print_hanging
from qualab.cli.output import silence
from qualab.imports.findings import left_over
from qualab.model.comparison import (
    Analysis,
    ArmSummary,
    Comparison,
    LeakSummary,
    LooksTaken,
    MetricLook,
    MetricNoise,
    NoiseFloor,
    OddOneOut,
    PairSummary,
    RepeatNoise,
    RepeatSummary,
    TextsCompared,
)
from qualab.model.names import LookDecision, Verdict
from qualab.model.plan import Imported, Plan, TaskJoin
from qualab.model.wording import line_text, pvalue, seconds, share, signed
from qualab.report import metrics
from qualab.report.tokens import TokenRow, token_notes, token_rows
from qualab.report.words import ENGLISH
from qualab.run.sign import signoff_line

_INDENT = " " * 9


def noise_lines(analysis: Analysis) -> Iterator[str]:
    """The baseline against itself, beside the candidate; then the repeats of each item."""
    primaries = {row.id for row in analysis.metrics if row.is_primary}
    if analysis.noise:
        yield from _floor_lines(analysis.noise, primaries)
    if analysis.repeats:
        yield from _repeat_lines(analysis.repeats, primaries)


def _floor_lines(found: NoiseFloor, primaries: set[str]) -> Iterator[str]:
    runs = "1 more run" if found.n_runs == 1 else f"{found.n_runs} more runs"
    yield (
        f"{'noise':<9} {runs} of the baseline at concurrency {found.concurrency}, "
        f"{found.n_answered:,} of {found.n_asked:,} answered"
    )
    if found.note:
        yield f"{_INDENT} {ENGLISH.reason(found.note)}"
    if found.baseline and found.candidate:
        yield f"{_INDENT} texts of the baseline's runs: {_texts(found.baseline)}"
        yield f"{_INDENT} texts of the arms: {_texts(found.candidate)}{_odd(found.odd_texts)}"
    yield from (f"{_INDENT} {one.metric}: {_flips(one)}" for one in found.metrics if one.metric in primaries)


def _texts(found: TextsCompared) -> str:
    first = found.first_difference
    at = "" if first is None else f", first difference at character {first:,.0f} (median)"
    return f"{found.same_text:,} of {found.n_pairs:,} the same, {found.changed:,} changed beyond white space{at}"


def _odd(found: OddOneOut | None) -> str:
    if found is None:
        return ""
    if not found.n_odd:
        return "; no odd one out, so no test"
    return (
        f"; odd one out the candidate in {found.n_candidate_odd} of {found.n_odd} (a third by chance), "
        f"p {pvalue(found.pvalue)}"
    )


def _flips(found: MetricNoise) -> str:
    if found.flip_rate_baseline is None or found.flip_rate_candidate is None:
        return "no answer that both arms and all runs have"
    return (
        f"scores flip in {share(found.flip_rate_baseline)} between runs of the baseline, "
        f"{share(found.flip_rate_candidate)} between the arms{_odd(found.odd)}"
    )


def _repeat_lines(found: RepeatSummary, primaries: set[str]) -> Iterator[str]:
    head = "repeats"
    for one in found.metrics:
        if one.metric in primaries:
            yield f"{head:<9} {one.metric}, {one.arm}: {', '.join(_repeat_facts(one))}"
            head = ""


def _repeat_facts(one: RepeatNoise) -> Iterator[str]:
    if one.flip_rate is None:
        yield f"no item has all its {one.n_repeats} scores"
        return
    yield f"two of an item's {one.n_repeats} differ in {share(one.flip_rate)}"
    if one.icc is None or one.icc_mean is None:
        yield "no variance to share"
        return
    yield f"{share(one.icc)} of the variance between items, {share(1.0 - one.icc)} within"
    yield f"ICC(1) {one.icc:.2f}, ICC({one.n_repeats}) {one.icc_mean:.2f}"


def token_lines(plan: Plan, analysis: Analysis) -> Iterator[str]:
    """All tasks, then each where there are several; then whose tokens they are, or why there are none."""
    texts = [*map(_said, token_rows(analysis.tokens, ENGLISH)), *token_notes(plan, analysis, ENGLISH)]
    yield from (f"{'' if number else 'tokens':<9} {text}" for number, text in enumerate(texts))


def _said(row: TokenRow) -> str:
    arms = f"{row.label}: {row.candidate.text} between the arms"
    return arms if row.baseline is None else f"{arms}, {row.baseline.text} between runs of the baseline"


def import_lines(imported: Imported, analysis: Analysis) -> Iterator[str]:
    """Each arm's log, the join over all tasks, and what of the answers themselves is known."""
    yield ""
    logs = (("baseline", imported.baseline, imported.baseline_model),)
    for name, log, model in (*logs, ("candidate", imported.candidate, imported.candidate_model)):
        yield f"{name:<9} {log}{f', {model}' if model else ''}{_answers(analysis, name)}"
    total = _total(imported)
    more = "".join(f", {fact}" for fact in ENGLISH.reasons(left_over(total)))
    yield f"{'joined':<9} {total.paired:,} answers paired{more}"
    if analysis.pairs.n_pairs:
        yield f"{'pairs':<9} same text {analysis.pairs.same_text} of {analysis.pairs.n_pairs}"


def _answers(analysis: Analysis, name: str) -> str:
    (arm,) = (arm for arm in analysis.arms if arm.arm == name)
    if not arm.n_requests:
        return ""
    n_missing = arm.n_requests - arm.n_answers
    missing = f", {n_missing:,} without an answer" if n_missing else ""
    return f": {arm.n_answers:,} answers, {arm.empty_answers} empty{missing}"


def _total(imported: Imported) -> TaskJoin:
    joins = imported.joins
    return TaskJoin(
        task="",
        paired=sum(join.paired for join in joins),
        only_baseline=sum(join.only_baseline for join in joins),
        only_candidate=sum(join.only_candidate for join in joins),
        prompt_differs=sum(join.prompt_differs for join in joins),
        target_differs=sum(join.target_differs for join in joins),
        duplicated=sum(join.duplicated for join in joins),
        lost=sum(join.lost for join in joins),
    )


GAINS_LOSSES = "+/−"
DECISIONS = {
    LookDecision.CONTINUE: "open",
    LookDecision.PROVEN: "proven",
    LookDecision.IMPROVEMENT: "better",
    LookDecision.HARM: "worse",
}
STYLES = {
    Verdict.EQUIVALENT: "bold green",
    Verdict.NON_INFERIOR: "bold green",
    Verdict.REGRESSION: "bold red",
    Verdict.IMPROVEMENT: "bold cyan",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.INVALID: "bold magenta",
    Verdict.NOT_TESTED: "dim",
}
LEGEND = {
    "metric": "* primary metric, which decides",
    GAINS_LOSSES: "+/− scores gained and lost by the candidate",
    "verdict": "† drafter not exercised",
}
DROPPED_FIRST = ("clusters", "n", GAINS_LOSSES, "adj. p", "baseline", "candidate", "p")
"""Columns that a narrow terminal has no room for, the most dispensable first."""


class _Console(Console):
    """Goes on when its reader has left; rich's own ends the command with 1, which is the code of a regression."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        silence(self.file)


def make_console(*, is_error: bool = False) -> Console:
    """A console wide enough for the table where the output is a file or a pipe."""
    console = _Console(stderr=is_error)
    return console if console.is_terminal else _Console(stderr=is_error, width=160)


def print_analysis(console: Console, comparison: Comparison, analysis: Analysis) -> None:
    """The table, the verdict with its reasons, and how the arms answered."""
    _print_metrics(console, comparison, analysis)
    for line in metrics.row_notes(analysis.metrics, ENGLISH):
        print_hanging(console, line, style="dim")
    imported = comparison.plan.imported
    arms = import_lines(imported, analysis) if imported else _arm_lines(analysis.arms, analysis.pairs)
    looks, noise = _look_lines(analysis.looks), (*noise_lines(analysis), *token_lines(comparison.plan, analysis))
    leaks = _leak_lines(analysis.leaks)
    pins = pin_lines(analysis.pinning.found if analysis.pinning else ())
    for line in (*arms, *leaks, *_suite_lines(analysis), *looks, *noise, *pins):
        print_hanging(console, line, hang=_hang(line))
    print_treatment(console, analysis.treatment)
    console.print()
    console.print(Text.assemble("Verdict: ", (analysis.verdict.value, STYLES[analysis.verdict])))
    for reason in analysis.reasons:
        print_hanging(console, ENGLISH.reason(reason), indent=2)
    print_hanging(console, signoff_line(analysis, comparison))
    for caveat in analysis.caveats:
        print_hanging(console, f"Note: {ENGLISH.reason(caveat)}", indent=2, style="dim")
    console.print(f"  Plan {analysis.plan_hash[:12]}, comparison {comparison.id}", style="dim", highlight=False)


def _hang(line: str) -> int:
    """Facts stand in a column of their own, after the name of what they are of."""
    return 10 if line[9:10] == " " else 2


def _print_metrics(console: Console, comparison: Comparison, analysis: Analysis) -> None:
    table = fitting_metric_table(console, analysis)
    console.print(table)
    shown = headers(table)
    legend = [text for name, text in LEGEND.items() if name in shown]
    legend.append(ENGLISH("legend interval"))
    print_hanging(console, "; ".join(legend), style="dim")
    if hidden := [name for name in _columns(analysis) if name not in shown]:
        under = "" if analysis.plan_hash == comparison.plan_hash else f" --plan {analysis.plan_hash[:12]}"
        shown_whole = f"`qualab show {comparison.id}{under} | cat`"
        text = f"No room for: {', '.join(hidden)}. A wider terminal has it, and {shown_whole}."
        print_hanging(console, text, style="dim")


def fitting_metric_table(console: Console, analysis: Analysis) -> Table:
    """The table of metrics that fits: with names on two lines, and without some columns, where it has to be."""
    columns = _columns(analysis)
    whole = metric_table(analysis)
    if fits(console, whole):
        return whole

    def build(left: Sequence[str]) -> Table:
        return metric_table(analysis, columns=left, splits_names=True)

    least = [name for name in columns if name not in DROPPED_FIRST]
    return fit_columns(console, build, columns, dropped_first=DROPPED_FIRST) or build(least)


def metric_table(analysis: Analysis, *, columns: Sequence[str] | None = None, splits_names: bool = False) -> Table:
    """The report's rows, with all columns or these. Split names have the task's and the metric's on a line each."""
    found = metrics.metric_table(analysis, ENGLISH)
    titles = [column.title for column in found.columns]
    shown = _columns(analysis) if columns is None else columns
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("metric", overflow="fold", min_width=24)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row, result in zip(found.rows, analysis.metrics, strict=True):
        texts = {title: cell.text for title, cell in zip(titles, row.cells, strict=True)}
        label = texts["metric"].replace("/", "/\n    ", 1) if splits_names else texts["metric"]
        numbers = (Text(texts[name]) for name in shown)
        table.add_row(Text(label), *numbers, Text(texts["verdict"], style=STYLES[result.verdict]))
    return table


def _columns(analysis: Analysis) -> list[str]:
    """The report's columns of numbers, without the one that only older reports have."""
    found = metrics.metric_columns(analysis, ENGLISH)
    return [column.title for column in found if column.is_number and column.id != "unpaired"]


def _arm_lines(arms: Sequence[ArmSummary], pairs: PairSummary) -> Iterator[str]:
    yield ""
    for arm in arms:
        yield f"{arm.arm:<9} {', '.join(_arm_facts(arm))}"
    if pairs.n_pairs:
        facts = [f"same text {pairs.same_text} of {pairs.n_pairs}"]
        facts.append(f"finish reasons differ in {pairs.finish_reasons_differ}")
        facts.append(f"prompt tokens differ in {pairs.prompt_tokens_differ}")
        yield f"{'pairs':<9} {', '.join(facts)}"


def _leak_lines(found: Sequence[LeakSummary]) -> Iterator[str]:
    for number, one in enumerate(found):
        counts = f"baseline {one.n_baseline}, candidate {one.n_candidate}, p {pvalue(one.pvalue)}"
        yield f"{'' if number else 'leaks':<9} {ENGLISH(one.kind)}: {counts}"


def _suite_lines(analysis: Analysis) -> Iterator[str]:
    suite = analysis.suite
    if found := suite.global_test:
        yield (
            f"{'together':<9} mean difference of {found.n_metrics} metrics {signed(found.difference)} pp, "
            f"p {pvalue(found.pvalue)} (global sign-flip test)"
        )
    if suite.joint_power is not None:
        yield (
            f"{'planned':<9} {share(suite.joint_power)} power to prove every primary metric at the discordance that "
            "the plan assumes"
        )
    missing = suite.missing
    if missing.baseline_only or missing.candidate_only:
        yield (
            f"{'missing':<9} in the baseline alone {missing.baseline_only}, in the candidate alone "
            f"{missing.candidate_only}, p {pvalue(missing.pvalue)}"
        )
    for row in analysis.metrics:
        if row.is_primary and row.tipping_point is not None:
            yield f"{'':<9} {row.id} holds unless more than {row.tipping_point} of {row.n_missing} pairs were lost"


def _look_lines(taken: LooksTaken | None) -> Iterator[str]:
    """Where the run stopped and what that saved, then where each primary metric stood at the last look."""
    if taken is None or not taken.looks:
        return
    last = taken.looks[-1]
    of = f"look {last.number} of {taken.n_planned}, after {taken.n_items:,} of {taken.n_items_planned:,} items"
    if taken.stopped_early:
        saved = taken.n_items_planned - taken.n_items
        yield f"{'looks':<9} stopped at {of}: {saved:,} items and {taken.n_requests_saved:,} requests saved"
    else:
        yield f"{'looks':<9} went to the end: {of}"
    for one in last.metrics:
        since = f" since look {one.decided_at}" if one.decided_at else ""
        yield f"{'':<9} {one.metric}: {DECISIONS[one.decision]}{since}; {', '.join(_look_facts(one))}"


def _look_facts(one: MetricLook) -> Iterator[str]:
    yield f"{one.n_pairs:,} pairs"
    if one.boundary is None:
        yield "nothing new to look at"
    else:
        statistic = "none" if one.statistic is None else f"{one.statistic:.2f}"
        yield f"z {statistic} against a boundary of {one.boundary:.2f}"


def _arm_facts(arm: ArmSummary) -> Iterator[str]:
    yield f"{arm.n_answers} of {arm.n_requests} answered"
    missing = {status: n for status, n in arm.statuses.items() if status not in ("ok", "truncated")}
    yield from (f"{n} {status.replace('_', ' ')}" for status, n in missing.items())
    if arm.truncated_share is not None:
        yield f"truncated {share(arm.truncated_share)}"
    yield f"empty {arm.empty_answers}"
    yield f"with stop string {arm.stop_string_answers}"
    yield f"retries {arm.retries}"
    if arm.latency_p50_s is not None and arm.latency_p99_s is not None:
        yield f"latency p50 {seconds(arm.latency_p50_s)}, p99 {seconds(arm.latency_p99_s)}"
    if len(arm.fingerprints) > 1:
        yield f"{len(arm.fingerprints)} system fingerprints"
    if len(arm.models) > 1:
        yield f"models {', '.join(f'{name} ({n})' for name, n in arm.models.items())}"


def comparison_table(console: Console, comparisons: Sequence[Comparison]) -> Table:
    """One row a comparison. Its id is whole at any width; when it was created, which the id tells, goes first."""

    def build(left: Sequence[str]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in left:
            table.add_column(name, no_wrap=name in ("id", "status", "verdict"), overflow="fold")
        for cells in rows:
            table.add_row(*(cells[name] for name in left))
        return table

    rows = [_about(one) for one in comparisons]
    columns = ["id", "status", "verdict", "model", "tasks", "label", "created"]
    return fit_columns(console, build, columns, dropped_first=["created"]) or build(columns[:-1])


def _about(one: Comparison) -> dict[str, Text]:
    return {
        "id": Text(one.id),
        "status": Text(one.status.value),
        "verdict": Text(one.verdict.value, style=STYLES[one.verdict]) if one.verdict else Text(""),
        "model": Text(line_text(one.plan.sampling.model)),
        "tasks": Text(line_text(",".join(one.plan.requested))),
        "label": Text(line_text(one.label)),
        "created": Text(f"{one.created_at:%Y-%m-%d %H:%M}"),
    }
