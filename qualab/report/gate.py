"""A gate's result for pipelines: as JUnit XML beside other tests, and as a Markdown summary."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree as Xml

from qualab.model.canonical import canonical_json
from qualab.model.names import AuditRuling, Verdict
from qualab.model.report import Bullets, GateResult
from qualab.model.wording import signed
from qualab.report.audit import audit_lines, audit_sentence
from qualab.report.markdown import block_lines, escaped
from qualab.report.scores import metric_table
from qualab.report.words import ENGLISH

FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped."""
OUTCOMES = {
    Verdict.REGRESSION: "failure",
    Verdict.INVALID: "error",
    Verdict.INCONCLUSIVE: "skipped",
    Verdict.IMPROVEMENT: "skipped",
    Verdict.NOT_TESTED: "skipped",
}
"""Other verdicts pass; what proves nothing is neither right nor wrong."""


AUDIT_OUTCOMES = {
    AuditRuling.FOREIGN: "failure",
    AuditRuling.INVALID: "error",
    AuditRuling.INCONCLUSIVE: "skipped",
    AuditRuling.UNOBSERVED: "skipped",
}


def junit(result: GateResult) -> bytes:
    """Write a case each for the comparison, the token audit, the primary metrics, and others that got worse."""
    properties = Xml.Element("properties")
    for name in ("id", "label", "model", "plan_hash"):
        Xml.SubElement(properties, "property", name=name, value=_legal(getattr(result, name)))
    for name, reasons in (("reason", result.reasons), ("caveat", result.caveats)):
        for reason in reasons:
            Xml.SubElement(properties, "property", name=name, value=_legal(canonical_json(reason)))
    lines = "\n".join((*box_texts(result), *ENGLISH.reasons((*result.reasons, *result.caveats))))
    message = "; ".join(ENGLISH.reasons(result.reasons))
    cases = [_case("comparison", OUTCOMES.get(result.verdict), result.verdict, message, lines)]
    if audit := result.audit:
        lines = "\n".join(audit_lines(audit, ENGLISH))
        sentence = audit_sentence(audit, ENGLISH)
        cases.append(_case("token audit", AUDIT_OUTCOMES.get(audit.ruling), audit.ruling, sentence, lines))
    for metric in (*result.primaries, *result.alarms):
        message, evidence = ENGLISH.reason(metric.reason), metric.evidence
        facts = message
        if evidence:
            limits = evidence.equivalence_interval
            level = f", {ENGLISH('interval at', level=limits.confidence_level)} " if limits else ""
            interval = ENGLISH.interval(limits.low, limits.high) if limits else ""
            facts += f"\ndifference {signed(evidence.difference)} pp{level}{interval}, {evidence.n_items} pairs"
        cases.append(_case(metric.id, OUTCOMES.get(metric.verdict), metric.verdict, message, facts))
    return _written(result.id, [properties, *cases])


def junit_of_error(name: str, *, code: str, message: str) -> bytes:
    """Write one case that is in error, where there is no result."""
    return _written(name, [_case("comparison", "error", code, message)])


def _case(name: str, outcome: str | None, code: str, message: str, output: str = "") -> Xml.Element:
    case = Xml.Element("testcase", classname="qualab", name=_legal(name))
    if outcome:
        Xml.SubElement(case, outcome, type=code, message=_legal(message)).text = _legal(f"{code}: {message}")
    if output:
        Xml.SubElement(case, "system-out").text = _legal(output)
    return case


def _written(name: str, elements: Iterable[Xml.Element]) -> bytes:
    root = Xml.Element("testsuites")
    suite = Xml.SubElement(root, "testsuite", name=_legal(f"qualab {name}"))
    suite.extend(elements)
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for attribute, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
    Xml.indent(root)
    text: bytes = Xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _legal(text: str) -> str:
    return FORBIDDEN.sub("\ufffd", text)


def box_texts(result: GateResult) -> tuple[str, ...]:
    """Write the lines of the report's box, each after its label."""
    return tuple(f"{line.label}: {line.text}" for line in result.box)


def gate_markdown(result: GateResult) -> str:
    """Write a few lines and the report's rows of the metrics that decide or got worse."""
    label = f" ({result.label})" if result.label else ""
    table = metric_table((*result.primaries, *result.alarms), ENGLISH)
    lines = [
        f"### qualab: {result.verdict.value}\n",
        f"Comparison `{result.id}`{escaped(label)} of {escaped(result.model)}, plan `{result.plan_hash[:12]}`\n",
        *block_lines(Bullets(items=box_texts(result) or ENGLISH.reasons(result.reasons)), {}),
        "",
        *([f"Token audit: {escaped(audit_sentence(result.audit, ENGLISH))}\n"] if result.audit else []),
        *block_lines(table, {}),
    ]
    if result.caveats:
        lines += ["\n<details><summary>What this does not prove</summary>\n"]
        lines += [*block_lines(Bullets(items=ENGLISH.reasons(result.caveats)), {}), "\n</details>"]
    return "\n".join(lines) + "\n"


def gate_markdown_of_error(name: str, *, code: str, message: str) -> str:
    """Write what kept the gate from a result."""
    return f"### qualab: no verdict\n\nComparison {escaped(name)}\n\n- {escaped(message)} (`{code}`)\n"
