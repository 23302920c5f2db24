"""The report in two languages: whole catalogues, every sentence of an analysis known, no English left in Korean."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

import qualab
from qualab.model.names import Language
from qualab.report.words import CATALOGUES, ENGLISH, Words
from qualab.report.words.sentences import FORMS, WORDS, in_korean
from tests.app.report_texts import english_in, texts
from tests.render.samples import report

PACKAGE = Path(qualab.__file__).parent
KOREAN = Words(language=Language.KOREAN)
PRODUCERS = (
    "analysis/analyse.py",
    "run/compare.py",
    "imports/findings.py",
    "run/rescore.py",
    "analysis/interleaving.py",
    "analysis/judge.py",
    "analysis/looks.py",
    "analysis/missing.py",
    "analysis/endings.py",
    "analysis/noise.py",
    "analysis/means.py",
    "analysis/labels.py",
    "analysis/samples.py",
    "analysis/suspect.py",
    "analysis/drafter.py",
)
"""Modules that make sentences which analyses keep."""
ERRORS = frozenset({"InvalidValue", "PairDiffers", "PlanChanged", "ValueError"})


def places(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def constants(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def fragments(path: Path) -> Iterator[str]:
    """The constant pieces of a module's sentences: no docstrings, nothing of errors."""
    tree = ast.parse(path.read_text())
    left_out = {id(part) for node in ast.walk(tree) if _says_nothing_stored(node) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            piece = node.value.strip(" ;,:().'%−")
            if re.search(r"[a-z]{2,} [a-z]{2,}", piece):
                yield piece


def _says_nothing_stored(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS


def test_both_languages_have_the_same_texts_with_the_same_places() -> None:
    english, korean = (CATALOGUES[language] for language in (Language.ENGLISH, Language.KOREAN))
    assert english.keys() == korean.keys()
    extra = {"number"}  # a month as a number, which English does not take
    for key in english.keys() - {"guard", "no guard"}:
        allowed = places(english[key]) | extra | {"month"}
        assert places(korean[key]) <= allowed, key
        assert places(english[key]) - {"month", "shares", "runs"} <= places(korean[key]) | {"month"}, key


def test_every_text_is_used() -> None:
    used = {text for path in (PACKAGE / "report").glob("*.py") for text in constants(path)}
    used |= {
        text
        for path in (PACKAGE / "report/words/__init__.py", PACKAGE / "cli/drafter_text.py")
        for text in constants(path)
    }
    vocabularies = [PACKAGE / f"model/{name}.py" for name in ("names", "plan", "engine")]
    words = {text for path in vocabularies for text in constants(path)}
    made = {
        f"{head}{word}{tail}"
        for word in words
        for head in ("", "headline ", "limits of ", "objective ", "pin ", "tokens ", "tokens lack ")
        for tail in ("", " arm", " of logs", " arm of logs")
    }
    parts = {
        "headline INCONCLUSIVE without primaries",
        "primaries one",
        "primaries many",
        "primaries one lost",
        "primaries many lost",
        "title of logs",
        "approve of logs",
    }
    assert CATALOGUES[Language.ENGLISH].keys() - used - made - parts == set()


@pytest.mark.parametrize("name", PRODUCERS)
def test_every_sentence_that_an_analysis_keeps_is_known_in_korean(name: str) -> None:
    known = "\n".join((*FORMS, *WORDS))
    unknown = [piece for piece in fragments(PACKAGE / name) if piece not in known]
    assert [piece for piece in unknown if piece not in NOT_SENTENCES] == []


NOT_SENTENCES: frozenset[str] = frozenset({"analysis of"})
"""The name of a random stream."""


@pytest.mark.parametrize(
    ("english", "korean"),
    [
        (
            "gsm8k/em,none: these 40 items prove ±7.22 pp; ±2.00 pp needs about 133 items at this discordance",
            "gsm8k/em,none: 문항 40개로 ±7.22%p까지 입증. 지금의 불일치율 기준으로 ±2.00%p를 입증하려면 약 133개 필요",
        ),
        (
            "a/b: proven over complete pairs, but not with this policy: worst case against the candidate; 13 pairs "
            "without an answer alone cost ±0.99 pp (holds unless more than 7 of these 13 were lost): `qualab resume "
            "2026-a --retry-failed`",
            "a/b: 완전한 쌍으로는 입증되지만, 다음 처리 방식에서는 아님: 후보에게 가장 불리하게 처리. 답이 없는 "
            "13쌍만으로도 ±0.99%p의 여유를 잃음 (이 13쌍 중 오답이 된 것이 7쌍 이하라면 판정이 유지됨): "
            "`qualab resume 2026-a --retry-failed`",
        ),
        (
            "a/b: 13 of 1,319 pairs lack an answer, more than the plan allows (0.5 %); 1 pair without an answer alone "
            "costs −0.99 pp",
            "a/b: 1,319쌍 중 13쌍에 답이 없어 계획의 허용치(0.5%)를 넘음. 답이 없는 1쌍만으로도 −0.99%p의 여유를 잃음",
        ),
        (
            "The arms differ in how often the status is timeout: 0 items in the baseline alone, 10 in the candidate "
            "alone (p 0.002).",
            "두 서버의 ‘시간 초과’ 빈도가 다릅니다: 기준만 문항 0개, 후보만 10개 (p 0.002).",
        ),
        (
            "gsm8k/em,none: these 40 items prove ±7.22 pp; ±2.00 pp needs about 751 (548 to 1,039) items at this "
            "discordance and no true difference, about 1,582 (1,148 to 2,192) if the difference of −0.83 pp is real",
            "gsm8k/em,none: 문항 40개로 ±7.22%p까지 입증. 지금의 불일치율 기준으로 "
            "±2.00%p를 입증하려면, 실제 차이가 없을 때 "
            "약 751개(548 ~ 1,039개), −0.83%p의 차이가 실제일 때 약 1,582개(1,148 ~ 2,192개) 필요",
        ),
        (
            "gsm8k/em,none: these 4 items prove no margin; −2.00 pp needs about 751 (548 to more than 200,000) items "
            "at this discordance and no true difference; more items will not prove it if the difference of −5.00 pp is "
            "real",
            "gsm8k/em,none: 문항 4개로는 어떤 한계도 입증되지 않음. 지금의 불일치율 "
            "기준으로 −2.00%p를 입증하려면, 실제 차이가 없을 때 "
            "약 751개(548개 ~ 200,000개 초과) 필요. −5.00%p의 차이가 실제라면 문항을 늘려도 입증할 수 없음",
        ),
        (
            "gsm8k/em,none: a loss of 0.30 pp (0.15 to 0.46) is real and inside the margin",
            "gsm8k/em,none: 0.30%p의 저하(0.15 ~ 0.46)가 실제로 있으나 허용 한계 안",
        ),
        (
            "a/b: the candidate is worse (adjusted p 0.0021), inside the margin: the plan is strict",
            "a/b: 후보가 더 나쁨. 허용 한계 안이지만 엄격한 계획이므로 품질 저하 (보정 p 0.0021)",
        ),
        ("the candidate is worse by more than 2.00 pp (adjusted p 1e-09)", "후보가 2.00%p 넘게 더 나쁨 (보정 p 1e-09)"),
        (
            "Unpinned: no image is named: not for sign-off.",
            "고정되지 않음: 이미지가 지정되지 않음. 승인에 쓸 수 없습니다.",
        ),
        (
            "a/b: the candidate is better (adjusted p 0.0021); a lossless drafter should not improve anything either",
            "a/b: 후보가 더 좋음 (보정 p 0.0021). 무손실 드래프터라면 점수가 좋아져서도 안 됨",
        ),
        ("the engines differ in dtype: half and float", "두 엔진의 dtype 설정이 다름: half / float"),
        (
            "gsm8k: 97 answers paired, 1 only in the baseline, 2 with other prompts (allowed: prompts).",
            "gsm8k: 답변 97개를 짝지음, 기준에만 있는 것 1개, 프롬프트가 다른 것 2개 (허용: prompts).",
        ),
        (
            "Allowed: gsm8k: the number of few-shot examples: 0 and 5.",
            "허용함: gsm8k: 퓨샷 예시 수: 0 / 5.",
        ),
        (
            "a/acc,none: taken for a mean of 0/1 scores, which gives the log's own values.",
            "a/acc,none: 0/1 점수의 평균(으)로 봄. 로그의 값과 일치함.",
        ),
        (
            "1 item has the same answer and another score: the scoring differs, not the drafter (see qualab rescore)",
            "답이 같은데 점수가 다른 문항 1개: 드래프터가 아니라 채점이 다름 (qualab rescore 참고)",
        ),
        (
            "gsm8k: 900 answers paired, 419 lost in both logs (allowed: rows).",
            "gsm8k: 답변 900개를 짝지음, 두 로그 모두에서 빠진 것 419개 (허용: rows).",
        ),
        (
            "both runs have the same date (2026-05-01 10:00:00): one may be a copy of the other.",
            "두 실행의 시각이 같음 (2026-05-01 10:00:00): 한쪽이 다른 쪽의 복사본일 수 있음.",
        ),
        (
            'Allowed: a: the generation settings differ in 9 of 10 answers: {"temperature":0} and {"temperature":0.7}.',
            '허용함: a: 답변 10개 중 9개의 생성 설정이 다름: {"temperature":0} / {"temperature":0.7}.',
        ),
        (
            "not compared, since the log of the baseline and the candidate does not tell: task versions, "
            "the chat template.",
            "기준 로그와 후보 로그에 없어 비교하지 못한 것: 과제 버전, 채팅 템플릿.",
        ),
        (
            "not compared, since the log of the candidate does not tell: few-shot examples.",
            "후보 로그에 없어 비교하지 못한 것: 퓨샷 예시.",
        ),
        (
            "sums: the candidate's scores come from more answers an item than the one that is kept.",
            "sums: 후보 쪽 점수는 문항마다 저장된 답변 하나가 아니라 여러 답변에서 나옴.",
        ),
        (
            "The engine's configuration is not open in the baseline and the candidate: names, versions and models "
            "alone were compared.",
            "기준과 후보 엔진의 설정이 공개되어 있지 않아 이름, 버전, 모델만 비교했습니다.",
        ),
        (
            "The candidate's turn began 5.0 h after the baseline's.",
            "후보 실행은 기준 실행보다 5.0시간 뒤에 시작했습니다.",
        ),
    ],
)
def test_a_stored_sentence_keeps_its_parts(english: str, korean: str) -> None:
    assert KOREAN.sentence(english) == korean
    assert ENGLISH.sentence(english) == english


def test_an_unknown_sentence_is_shown_and_marked() -> None:
    assert in_korean("something that a later version says") is None
    assert KOREAN.sentence("something that a later version says") == "something that a later version says (원문)"


def test_no_english_sentence_is_left_in_a_korean_report() -> None:
    assert english_in(report(Language.KOREAN)) == []


def test_an_english_report_has_no_hangul() -> None:
    assert [text for text in texts(report(Language.ENGLISH)) if re.search("[가-힣]", text)] == []


def test_dates_and_units_are_in_the_languages_form() -> None:
    korean, english = report(Language.KOREAN), report(Language.ENGLISH)
    assert "2026년" in korean.subtitle
    assert " 2026" in english.subtitle
    assert any("%p" in text for text in texts(korean))
    assert not any(" pp" in text or " %" in text for text in texts(korean))
    assert any("(UTC)" in text for text in texts(korean))
    assert any("UTC" in text for text in texts(english))
