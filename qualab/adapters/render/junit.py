"""A gate's result as JUnit XML, which pipelines show beside other tests."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from qualab.domain.comparison import MetricResult
from qualab.domain.gate import GateResult
from qualab.domain.names import Verdict
from qualab.domain.numbers import percent, signed

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
    case = _case(suite, "comparison", result.verdict, "; ".join(result.reasons))
    Xml.SubElement(case, "system-out").text = _legal("\n".join((*result.reasons, *result.caveats)))
    for metric in rows:
        case = _case(suite, metric.id, metric.verdict, metric.reason)
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
        return metric.reason
    between = found.equivalence_interval
    interval = ""
    if between:
        interval = f", {percent(between.confidence_level)} interval {signed(between.low)} to {signed(between.high)}"
    return f"{metric.reason}\ndifference {signed(found.difference)} pp{interval}, {found.n_items} pairs"


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
