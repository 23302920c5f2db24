"""The token audit as it is seen: one sentence everywhere, its section in every form, whatever the tokens are."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from xml.etree import ElementTree as Xml

import pytest
from pypdf import PdfReader
from rich.console import Console

from qualab.model.audit import Audit
from qualab.model.names import AuditRuling, Language, Verdict
from qualab.model.reason import Reason
from qualab.model.report import Bullets, PairHistogram, Report, Table
from qualab.model.wording import cut_text, one_in, token_text
from qualab.report.charts import draw
from qualab.report.gate import gate_markdown, junit
from qualab.report.html import render_html
from qualab.report.markdown import render_json, render_markdown
from qualab.report.model import model_of
from qualab.report.pdf import render_pdf
from qualab.report.source import Source
from qualab.report.terminal import print_analysis
from qualab.report.words import ENGLISH, Words
from tests.app.report_texts import english_in
from tests.render.audits import AUDITS, CLEAN, FEW, FOREIGN, INVALID, RARE, SHARP, UNOBSERVED, made_audit
from tests.render.samples import sample
from tests.render.test_gate_files import make_result


def source(audit: Audit | None, *, verdict: Verdict | None = None, is_worse: bool = False) -> Source:
    """A comparison without a loss in any metric, or with one in the first; FOREIGN is a REGRESSION."""
    made, analysis = sample()
    is_foreign = audit is not None and audit.ruling is AuditRuling.FOREIGN
    rows = [replace(row, verdict=Verdict.EQUIVALENT) for row in analysis.metrics]
    if is_worse:
        rows[0] = replace(rows[0], verdict=Verdict.REGRESSION)
    reasons = analysis.reasons
    if audit and is_foreign:
        worst = ({name: getattr(token, name) for name in WORST} | {"item": "gsm8k/5"} for token in audit.worst)
        told = (Reason("audit.worst", values) for values in worst)
        reasons = (Reason("audit", {"ruling": audit.ruling, "reason": audit.reason}), *told)
    judged = verdict or (Verdict.REGRESSION if is_foreign or is_worse else Verdict.EQUIVALENT)
    analysis = replace(analysis, audit=audit, metrics=tuple(rows), verdict=judged, reasons=reasons)
    return Source(comparison=made.store.get(made.comparison.id), analysis=analysis, observations=())


WORST = ("token", "before", "after", "choice", "gap", "rank", "arm")


def model(audit: Audit | None, language: Language = Language.ENGLISH) -> Report:
    return model_of(source(audit), Words(language=language))


OPEN = {"difference": 0.001, "low": -0.012, "high": 0.014, "margin": 0.01}
SENTENCES = (
    (CLEAN, "No token in 96,204 was one the model would not have chosen (at most 1 in 32,000)."),
    (
        made_audit(AuditRuling.CLEAN, "clean", 3, share=0.00008, total=96_204),
        "3 tokens in 96,204 were ones the model would not have chosen (at most 1 in 12,000).",
    ),
    (RARE, "1 in 19 sampled tokens is one the model all but excludes: the drafter's sampling is broken."),
    (
        FOREIGN,
        "14 of 96,204 greedy tokens, in 14 answers, are ones the model would not have chosen: the drafter changes what "
        "the model says at temperature 0.",
    ),
    (
        SHARP,
        "When sampled, the candidate takes the model's choice 7.80 pp too often: the drafter sharpens the model's "
        "distribution.",
    ),
    (
        made_audit(AuditRuling.FOREIGN, "calibration", difference=-0.031, low=-0.05, high=-0.012, margin=0.01),
        "When sampled, the candidate takes the model's choice 3.10 pp too seldom: the drafter flattens the model's "
        "distribution.",
    ),
    (
        FEW,
        "Token audit INCONCLUSIVE: no foreign token so far, which leaves up to 1 in 320 possible; the plan allows 1 in "
        "1,000. 2,018 more tokens without a foreign one would settle it.",
    ),
    (
        made_audit(AuditRuling.INCONCLUSIVE, "few-tokens", 2, share=0.002, limit=0.001, n=2, needed=500),
        "Token audit INCONCLUSIVE: 2 foreign tokens so far, which leaves up to 1 in 500 possible; the plan allows 1 in "
        "1,000.",
    ),
    (
        made_audit(AuditRuling.INCONCLUSIVE, "calibration-open", **OPEN, needed=4_400),
        "Token audit INCONCLUSIVE: when sampled, the model's choice is taken −1.20 to +1.40 pp more often than in the "
        "baseline, not proven to lie within ±1 pp. About 4,400 sampled tokens in each arm would settle it.",
    ),
    (
        made_audit(AuditRuling.INCONCLUSIVE, "calibration-open", **OPEN, needed=None),
        "Token audit INCONCLUSIVE: when sampled, the model's choice is taken −1.20 to +1.40 pp more often than in the "
        "baseline, not proven to lie within ±1 pp.",
    ),
    (
        made_audit(AuditRuling.INCONCLUSIVE, "early", why=Reason("unasked-left-out")),
        "Token audit INCONCLUSIVE: it ended early: Items that only one of the two runs asked are left out: they are "
        "not missing.",
    ),
    (UNOBSERVED, "This engine cannot score a given text: tokens were not audited."),
    (
        INVALID,
        "Token audit INVALID: 120 of 96,157 of the baseline's own greedy tokens lie more than 1 nat below the model's "
        "choice: its scoring is not that of its decoding.",
    ),
)


@pytest.mark.parametrize(("audit", "sentence"), SENTENCES)
def test_one_sentence_stands_on_the_first_page_in_the_section_and_in_the_gate(audit: Audit, sentence: str) -> None:
    found, is_foreign = model(audit), audit.ruling is AuditRuling.FOREIGN
    assert found.headline == sentence if is_foreign else found.headline.endswith(f" {sentence}")
    assert next(iter(found.section("audit").blocks)).text == sentence  # type: ignore[union-attr]
    result = make_result(audit=audit)
    case = Xml.fromstring(junit(result))[0].find("testcase[@name='token audit']")
    assert case is not None
    outcomes = {child.tag: child.get("message") for child in case if child.tag != "system-out"}
    assert outcomes == ({} if audit.ruling is AuditRuling.CLEAN else {OUTCOMES[audit.ruling]: sentence})
    assert f"\nToken audit: {sentence}\n" in gate_markdown(result)
    korean = model(audit, Language.KOREAN)
    assert english_in(korean) == []
    assert "{" not in korean.headline


OUTCOMES = {
    AuditRuling.FOREIGN: "failure",
    AuditRuling.INVALID: "error",
    AuditRuling.INCONCLUSIVE: "skipped",
    AuditRuling.UNOBSERVED: "skipped",
}


def test_metrics_that_got_worse_are_said_after_the_foreign_tokens_and_only_where_there_are_some() -> None:
    worse = model_of(source(RARE, is_worse=True), ENGLISH)
    assert re.match("1 in 19 .* is broken. The candidate's quality is worse in 1 of 34 metrics", worse.headline)
    assert "of 34 metrics" not in model(RARE).headline
    invalid = model_of(source(RARE, verdict=Verdict.INVALID), ENGLISH).headline
    assert invalid.startswith("1 in 19")
    assert "No verdict on quality" in invalid
    first, *_ = next(block for block in worse.section("verdict").blocks if isinstance(block, Bullets)).items
    assert first.startswith("Token audit FOREIGN: 140 of 2,619 sampled tokens")


def cells(found: Report) -> Iterator[str]:
    for block in found.section("audit").blocks:
        if isinstance(block, Table):
            yield from (cell.text for row in block.rows for cell in row.cells)


SPACES = re.compile(r"[\s\u200b\u200e\\]")


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("audit", [RARE, CLEAN], ids=["rare", "clean"])
def test_every_form_shows_every_cell_and_no_token_is_markup(audit: Audit, language: Language) -> None:
    found = model(audit, language)
    paper = "".join(page.extract_text() for page in PdfReader(io.BytesIO(render_pdf(found))).pages)
    web, markdown = render_html(found).decode(), render_markdown(found).decode()
    raw = web.replace("&#34;", '"').replace("&#39;", "'").replace("&lt;", "<").replace("&gt;", ">")
    for text, has_all in (
        (raw, True),
        (markdown, True),
        (render_json(found).decode().replace('\\"', '"'), True),
        (paper, False),
    ):
        squeezed = SPACES.sub("", text)
        wanted = [cell for cell in cells(found) if has_all or cell.isascii()]
        assert [cell for cell in wanted if SPACES.sub("", cell) not in squeezed] == []
    assert "[[<script>]]" not in web
    assert not any(
        line.count(" | ") != 5 for line in markdown.splitlines() if line.startswith(("| gsm8k/6", "| gsm8k/7"))
    )


@pytest.mark.parametrize("audit", AUDITS.values(), ids=AUDITS)
def test_a_terminal_has_three_lines_of_it_and_no_line_is_too_long(audit: Audit) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    own = source(audit)
    print_analysis(console, own.comparison, own.analysis)
    *_, verdict = console.export_text().partition("\nWhy")
    assert max(map(len, verdict.splitlines())) <= 80
    counted = [line for line in verdict.splitlines() if line.startswith(("Greedy: ", "Sampled: ", "Model's choice "))]
    assert len(counted) == bool(audit.foreign) + 2 * bool(audit.sampled)
    assert ("[[" in verdict) == bool(audit.worst and audit.ruling is AuditRuling.FOREIGN)


def test_the_methods_name_the_audits_sources_where_there_was_one() -> None:
    for audit, names in ((RARE, {"Clopper", "Leviathan"}), (FOREIGN, {"Clopper"}), (None, set())):
        (bullets,) = model(audit).section("methods").blocks
        assert isinstance(bullets, Bullets)
        assert {name for name in ("Clopper", "Leviathan") if name in "".join(bullets.items)} == names
    assert "audit" not in [section.id for section in model(None).sections]


def test_bars_rise_by_powers_of_ten_hollow_for_the_baseline_and_the_limit_is_a_line() -> None:
    chart = next(block for block in model(FOREIGN).section("audit").blocks if isinstance(block, PairHistogram))
    counts = (1_000, 100, 10, 1, 0, 0, 0, 0, 0, 0), (1_000, 0, 0, 0, 0, 10, 0, 0, 0, 0)
    drawn = Xml.fromstring(draw(replace(chart, counts=counts)))
    rects = [rect for rect in drawn if rect.tag.endswith("rect") and float(rect.get("y", "0")) > 40.0]
    hollow, full = (
        [float(rect.get("height", "0")) for rect in rects if rect.get("class") == name]
        for name in ("bar nothing", "bar")
    )
    power = hollow[0] - hollow[1]
    assert hollow == pytest.approx([hollow[0] - power * n for n in range(4)], abs=0.2)
    assert full == pytest.approx([hollow[0], hollow[2]], abs=0.2)
    assert (power > 10.0, hollow[3] > 5.0) == (True, True), "a single token is seen"
    (limit,) = (line for line in drawn if line.get("class") == "edge")
    (after,) = (rect for rect in rects if rect.get("class") == "bar" and float(rect.get("x", "0")) > 200.0)
    assert float(limit.get("x1", "0")) < float(after.get("x", "0")), "foreign tokens stand beyond it"
    assert drawn.get("aria-label", "").startswith("Greedy: 192,408 tokens.")


CUT = (
    (("abcdef", 6), "abcdef"),
    (("abcdef", 5), "abcde…"),
    (("a\nb\tc", 9), "a\\nb\\tc"),
    (("\x00" * 9, 20), "‹U+0000›‹U+0000›…"),
    (("", 5), ""),
    (("אב", 5), "\u200eאב\u200e"),
)


def test_tokens_are_cut_and_made_visible() -> None:
    assert [(values, cut_text(*values)) for values, _ in CUT] == list(CUT)
    assert cut_text("abcdef\x00", 10, keeps_end=True) == "…ef‹U+0000›"
    assert (token_text("  "), token_text(" a"), token_text("")) == ("␣␣", " a", "")
    shares = ((140 / 2_619, "19"), (1.0, "1"), (0.6, "1.7"), (1 / 32_113, "32,000"), (0.001, "1,000"))
    assert [(share, one_in(share)) for share, _ in shares] == list(shares)
    assert (one_in(1 / 32_999, at_most=True), one_in(1 / 999, at_most=True)) == ("32,000", "990")
