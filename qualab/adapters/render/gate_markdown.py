"""A gate's result as Markdown, for a merge request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qualab.domain.comparison import MetricResult
from qualab.domain.gate import GateResult
from qualab.domain.numbers import percent, proven, pvalue, signed

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!&~@])")
"""Signs that would be markup, a reference, or a mention."""
HEAD = "| metric | difference | {level}interval | adjusted p | proven within | verdict |"
RULE = "| --- | ---: | ---: | ---: | ---: | --- |"


def gate_markdown(result: GateResult) -> str:
    """A few lines and one table."""
    return "\n".join(_lines(result)) + "\n"


def gate_markdown_of_error(name: str, *, code: str, message: str) -> str:
    """Where there is no result."""
    return f"### qualab: no verdict\n\nComparison {plain_text(name)}\n\n- {plain_text(message)} (`{code}`)\n"


def _lines(result: GateResult) -> Iterator[str]:
    yield f"### qualab: {result.verdict.value}"
    yield ""
    said = f" ({plain_text(result.label)})" if result.label else ""
    yield f"Comparison `{result.id}`{said} of {plain_text(result.model)}, plan `{result.plan_hash[:12]}`"
    yield ""
    for reason in result.reasons:
        yield f"- {plain_text(reason)}"
    yield ""
    level = result.confidence_level
    yield HEAD.format(level="" if level is None else f"{percent(level)} ")
    yield RULE
    for metric in (*result.primaries, *result.alarms):
        yield _row(metric)
    if result.caveats:
        yield ""
        yield "<details><summary>What this does not prove</summary>"
        yield ""
        for caveat in result.caveats:
            yield f"- {plain_text(caveat)}"
        yield ""
        yield "</details>"


def _row(metric: MetricResult) -> str:
    return f"| {' | '.join((plain_text(metric.id), *_numbers(metric), metric.verdict.value))} |"


def _numbers(metric: MetricResult) -> tuple[str, str, str, str]:
    found = metric.evidence
    if found is None:
        return "", "", "", ""
    between = found.equivalence_interval
    interval = f"{signed(between.low)} to {signed(between.high)}" if between else ""
    within = f"±{proven(found.provable_margin)}" if found.provable_margin is not None else "nothing"
    return f"{signed(found.difference)} pp", interval, pvalue(found.pvalue_adjusted), within


def plain_text(text: str) -> str:
    """A text that stays what it is in Markdown."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))
