"""A gate's result as JUnit XML, which pipelines show beside other tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree as Xml

from qualab.model.canonical import canonical_json
from qualab.model.comparison import MetricResult
from qualab.model.names import Verdict
from qualab.model.report import GateResult
from qualab.model.wording import percent, proven, pvalue, signed
from qualab.report.words import ENGLISH

FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped."""
OUTCOMES = {
    Verdict.REGRESSION: "failure",
    Verdict.INVALID: "error",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.IMPROVEMENT: "skipped",
    Verdict.NOT_TESTED: "skipped",
}
"""What is no outcome of a test passes; what proves nothing is neither right nor wrong."""


def junit(result: GateResult) -> bytes:
    """One case for the comparison, one for each primary metric and for every other that got worse."""
    rows = (*result.primaries, *result.alarms)
    suite = _suite(result.id)
    properties = Xml.SubElement(suite, "properties")
    for name in ("id", "label", "model", "plan_hash"):
        Xml.SubElement(properties, "property", name=name, value=_legal(getattr(result, name)))
    for name, reasons in (("reason", result.reasons), ("caveat", result.caveats)):
        for reason in reasons:
            Xml.SubElement(properties, "property", name=name, value=_legal(canonical_json(reason)))
    case = _case(suite, "comparison", result.verdict, "; ".join(ENGLISH.reasons(result.reasons)))
    Xml.SubElement(case, "system-out").text = _legal("\n".join(ENGLISH.reasons((*result.reasons, *result.caveats))))
    for metric in rows:
        case = _case(suite, metric.id, metric.verdict, ENGLISH.reason(metric.reason))
        Xml.SubElement(case, "system-out").text = _legal(_line(metric))
    return _written(suite)


def junit_of_error(name: str, *, code: str, message: str) -> bytes:
    """Where there is no result: one case that is in error."""
    suite = _suite(name)
    _outcome(Xml.SubElement(suite, "testcase", classname="qualab", name="comparison"), "error", code, message)
    return _written(suite)


def _suite(name: str) -> Xml.Element:
    return Xml.Element("testsuite", name=_legal(f"qualab {name}"))


def _case(suite: Xml.Element, name: str, verdict: Verdict, message: str) -> Xml.Element:
    case = Xml.SubElement(suite, "testcase", classname="qualab", name=_legal(name))
    if verdict in OUTCOMES:
        _outcome(case, OUTCOMES[verdict], verdict.value, message)
    return case


def _outcome(case: Xml.Element, kind: str, code: str, message: str) -> None:
    Xml.SubElement(case, kind, type=code, message=_legal(message)).text = _legal(f"{code}: {message}")


def _line(metric: MetricResult) -> str:
    found = metric.evidence
    if found is None:
        return ENGLISH.reason(metric.reason)
    between = found.equivalence_interval
    interval = ""
    if between:
        interval = f", {percent(between.confidence_level)} interval {signed(between.low)} to {signed(between.high)}"
    return f"{ENGLISH.reason(metric.reason)}\ndifference {signed(found.difference)} pp{interval}, {found.n_items} pairs"


def _written(suite: Xml.Element) -> bytes:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for attribute, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    text: bytes = Xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _legal(text: str) -> str:
    return FORBIDDEN.sub("\ufffd", text)


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
        yield f"- {plain_text(ENGLISH.reason(reason))}"
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
            yield f"- {plain_text(ENGLISH.reason(caveat))}"
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
