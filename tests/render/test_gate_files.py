"""What a gate writes for a pipeline: whatever stands in a label or a reason, the files stay what they are."""

from __future__ import annotations

import xml.etree.ElementTree as Xml
from dataclasses import replace
from typing import Any

import pytest

from qualab.model.names import IntervalOf, Verdict
from qualab.model.reason import Reason, of
from qualab.model.report import GateResult
from qualab.report.gate import gate_markdown, junit, junit_of_error
from tests.store.samples import make_analysis

HOSTILE = 'a\x00b\x1b[31m </testsuite> & "q" ]]> |x| @team #1 `c` <script>\n\nend'
HOSTILE_REASON = Reason("finding", {"what": of(HOSTILE, Reason("no-primary"))})


def make_result(verdict: Verdict = Verdict.EQUIVALENT, **changes: Any) -> GateResult:
    facts: dict[str, Any] = {"id": "c-1", "label": "nightly", "model": "m", "plan_hash": "p" * 64}
    facts |= {"reasons": (Reason("no-primary"),), "caveats": (Reason("loglikelihoods"),)}
    facts["metrics"] = make_analysis(verdict=verdict).metrics
    return GateResult(verdict=verdict, **(facts | changes))


CHILDREN = {
    Verdict.EQUIVALENT: [],
    Verdict.NON_INFERIOR: [],
    Verdict.REGRESSION: ["failure"],
    Verdict.INVALID: ["error"],
    Verdict.INCONCLUSIVE: ["skipped"],
    Verdict.IMPROVEMENT: ["skipped"],
}


@pytest.mark.parametrize("verdict", CHILDREN)
def test_a_verdict_is_what_a_pipeline_makes_of_it(verdict: Verdict) -> None:
    case = Xml.fromstring(junit(make_result(verdict)))[0].find("testcase[@name='comparison']")
    assert case is not None
    assert [element.tag for element in case if element.tag not in ("system-out", "properties")] == CHILDREN[verdict]


def test_every_primary_metric_and_every_other_that_got_worse_is_a_case_and_a_row() -> None:
    (metric, *_) = make_analysis().metrics
    worse = replace(metric, id="other/x", is_primary=False, verdict=Verdict.REGRESSION)
    fine = replace(metric, id="other/y", is_primary=False)
    result = make_result(Verdict.REGRESSION, metrics=(metric, worse, fine))
    suite = Xml.fromstring(junit(result))[0]
    names = [case.get("name") for case in suite.findall("testcase")]
    assert names == ["comparison", metric.id, "other/x"]
    assert suite.get("failures") == "2"
    table = [line for line in gate_markdown(result).splitlines() if line.startswith("| ")]
    assert ["exact" in line for line in table[2:]] == [True, False], "a row for each below title and rule"
    assert len({line.count(" | ") for line in table}) == 1


def test_the_interval_that_decides_is_shown_with_its_level() -> None:
    (metric, *_) = make_analysis().metrics
    assert metric.evidence is not None
    inner, outer = (
        IntervalOf(low=-0.01 * k, high=0.02 * k, confidence_level=level) for k, level in ((1, 0.9), (2, 0.95))
    )
    evidence = replace(metric.evidence, interval=outer, equivalence_interval=inner)
    result = make_result(metrics=(replace(metric, evidence=evidence),))
    markdown = gate_markdown(result)
    assert "| 90 % interval |" in markdown
    assert "**−1.00 to +2.00** |" in markdown
    assert ", 90 % interval −1.00 to +2.00, " in junit(result).decode()
    assert "95 %" not in markdown + junit(result).decode()


def test_hostile_text_stays_text_in_xml() -> None:
    content = junit(make_result(label=HOSTILE, reasons=(HOSTILE_REASON,), caveats=(HOSTILE_REASON,)))
    suite = Xml.fromstring(content)[0]
    label = suite.find("properties/property[@name='label']")
    assert label is not None
    assert '</testsuite> & "q" ]]>' in str(label.get("value"))
    assert len(Xml.fromstring(content)) == 1
    assert b"\x00" not in content
    assert b"\x1b" not in content
    Xml.fromstring(junit_of_error(HOSTILE, code="x", message=HOSTILE))


def test_hostile_text_is_no_markdown() -> None:
    text = gate_markdown(make_result(label=HOSTILE, reasons=(HOSTILE_REASON,)))
    (line,) = (line for line in text.splitlines() if line.startswith("- a"))
    for sign in ("<", "@", "#", "`", "|", "&"):
        assert f"\\{sign}" in line
    assert all(not one.startswith("end") for one in text.splitlines())
