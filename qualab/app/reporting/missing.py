"""Which answers are missing, and whether it matters how they are treated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from qualab.app.reporting.source import Source, cells, columns
from qualab.app.reporting.words import Words
from qualab.domain.comparison import ArmSummary, MetricResult, PolicyResult, StatusMissing
from qualab.domain.names import AnswerStatus, MissingPolicy
from qualab.domain.numbers import count, percent, pvalue, share, signed
from qualab.domain.report import Block, Cell, Column, Paragraph, Row, Section, Table, Tone

ANSWERED = frozenset(status.value for status in AnswerStatus if status.is_answer)


def missing_section(source: Source, words: Words) -> Section:
    """By arm, then by metric and policy."""
    analysis = source.analysis
    blocks: list[Block] = [_arm_table(source, words)]
    missing = analysis.suite.missing
    n_lost = sum(arm.n_requests - arm.n_answers for arm in analysis.arms)
    if not n_lost and not missing.baseline_only + missing.candidate_only + missing.both + missing.left_out:
        blocks.append(Paragraph(text=words("nothing missing", n=count(sum(arm.n_requests for arm in analysis.arms)))))
    else:
        off, on, both = (count(n) for n in (missing.baseline_only, missing.candidate_only, missing.both))
        blocks.append(Paragraph(text=words("missing in", off=off, on=on, both=both, p=pvalue(missing.pvalue))))
        blocks += [Paragraph(text=_status(one, words)) for one in missing.by_status]
        if missing.left_out:
            blocks.append(Paragraph(text=words("left out", n=count(missing.left_out))))
        blocks += _policies(source, words)
    return Section(id="missing", title=words("missing answers"), blocks=tuple(blocks))


def _arm_table(source: Source, words: Words) -> Table:
    names = ("arm", "requests", "answered", "unanswered", "truncated", "empty", "stop strings", "retries")
    rows = tuple(_arm(one, source, words) for one in source.analysis.arms)
    table = Table(columns=columns(words, *names), rows=rows, legend=(words("missing legend"),))
    return _told(table) if source.plan.imported else table


def _told(table: Table) -> Table:
    """Without what no log tells."""
    kept = [place for place, one in enumerate(table.columns) if one.id not in ("truncated", "stop strings", "retries")]
    rows = tuple(replace(row, cells=tuple(row.cells[place] for place in kept)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[place] for place in kept), rows=rows, legend=())


def _arm(one: ArmSummary, source: Source, words: Words) -> Row:
    cut = one.truncated_share
    numbers = (one.n_requests, one.n_answers)
    more = (one.empty_answers, one.stop_string_answers, one.retries)
    return cells(
        words(source.key(f"{one.arm} arm")),
        *(Cell(text=count(n), value=n) for n in numbers),
        Cell(text=unanswered(one, words) or "0"),
        Cell(text="–" if cut is None else words.units(share(cut)), value=cut),
        *(Cell(text=count(n), value=n) for n in more),
    )


def unanswered(one: ArmSummary, words: Words) -> str:
    """How requests ended that have no answer; empty where all have."""
    lost = {status: n for status, n in one.statuses.items() if status not in ANSWERED}
    return ", ".join(words("status", n=count(n), status=words(status)) for status, n in lost.items())


def _status(one: StatusMissing, words: Words) -> str:
    off, on, both = (count(n) for n in (one.baseline_only, one.candidate_only, one.both))
    return words("missing by status", status=words(one.status), off=off, on=on, both=both, p=pvalue(one.pvalue))


def _policies(source: Source, words: Words) -> Iterator[Block]:
    rows = [row for row in source.analysis.metrics if row.policies and not row.equals]
    if not rows:
        yield Paragraph(text=words("policies unneeded"))
        return
    yield Paragraph(text=words("policies how", level=percent(1.0 - 2.0 * source.plan.rule.alpha)), is_muted=True)
    policies = list(dict.fromkeys(one.policy for row in rows for one in row.policies))
    named = (Column(id=policy.name.lower(), title=words(policy.value)) for policy in policies)
    last = (Column(id="all", title=words("all agree")), *columns(words, "tipping point"))
    yield Table(
        columns=(*columns(words, "metric"), *named, *last),
        rows=tuple(_policy_row(row, policies, words) for row in rows),
        is_wide=True,
        legend=(words("tipping legend"),),
    )


def _policy_row(row: MetricResult, policies: Sequence[MissingPolicy], words: Words) -> Row:
    """Each way of treating missing answers, and whether all of them prove the objective."""
    found = {one.policy: _policy(one, words) for one in row.policies}
    agree = all(one.is_equivalent for one in row.policies)
    texts = (found.get(policy, Cell(text="–")) for policy in policies)
    holds = words("tipping all")
    if row.tipping_point is not None:
        holds = words("tipping", most=count(row.tipping_point), n=count(row.n_missing))
    elif not agree:
        holds = "–"
    return cells(row.id, *texts, words("yes" if agree else "no"), holds)


def _policy(one: PolicyResult, words: Words) -> Cell:
    difference = signed(one.difference)
    text = f"{difference} ({words.interval(one.interval.low, one.interval.high)})" if one.interval else difference
    return Cell(text=text, value=one.difference, tone=Tone.GOOD if one.is_equivalent else Tone.OPEN)
