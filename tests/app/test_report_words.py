"""The report in two languages: whole catalogues, every sentence of an analysis known, no English left in Korean."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest
from pydantic import TypeAdapter

import qualab
from qualab.model.canonical import canonical_json
from qualab.model.names import Language, MissingPolicy
from qualab.model.reason import Reason, of
from qualab.report.words import CATALOGUES, ENGLISH, NAMES, REASONS, shown
from tests.app.report_texts import english_in, texts
from tests.render.samples import report
from tests.said import KOREAN

PACKAGE = Path(qualab.__file__).parent


def places(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def constants(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


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


def test_both_languages_have_the_same_reasons_with_the_same_values() -> None:
    english, korean = (REASONS[language] for language in (Language.ENGLISH, Language.KOREAN))
    assert english.keys() == korean.keys()
    assert [code for code in english if places(english[code]) != places(korean[code])] == []
    assert NAMES[Language.ENGLISH].keys() == NAMES[Language.KOREAN].keys()


def codes_made(path: Path) -> Iterator[re.Pattern[str]]:
    """What a module calls reasons by: literal codes, f-strings as patterns, and what it assigns to `code`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reason" and node.args:
            yield from _codes(node.args[0])
        elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name) and target.id == "code":
            yield from _codes(node.value)


def _codes(node: ast.expr) -> Iterator[re.Pattern[str]]:
    if isinstance(node, ast.IfExp):
        yield from (*_codes(node.body), *_codes(node.orelse))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.compile(re.escape(node.value))
    elif isinstance(node, ast.JoinedStr):
        parts = (re.escape(str(one.value)) if isinstance(one, ast.Constant) else ".+" for one in node.values)
        yield re.compile("".join(parts))


def test_every_code_that_is_made_has_words() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if "import Reason" in path.read_text()]
    made = {code.pattern: code for path in paths for code in codes_made(path)}
    known = REASONS[Language.ENGLISH]
    assert [pattern for pattern, code in made.items() if not any(map(code.fullmatch, known))] == []
    tabled = {text for path in paths for text in constants(path)}
    assert [
        code for code in known if code not in tabled and not any(one.fullmatch(code) for one in made.values())
    ] == []


ABOUT = Reason("about.range", {"n": 751, "low": 548, "high": 1039})
PROVES = Reason("items-prove", {"n": 40, "bounds": Reason("margin.both.proven", {"margin": 0.0722})})
MARGIN = Reason("margin.both", {"margin": 0.02})
COST = Reason("missing-cost", {"n": 13, "bounds": Reason("margin.both", {"margin": 0.00985})})


@pytest.mark.parametrize(
    ("reason", "english", "korean"),
    [
        (
            of("a/b", Reason("policy-disagrees.cost", {
                "policy": MissingPolicy.AGAINST_CANDIDATE,
                "cost": Reason("remedy", {
                    "reason": Reason("holds-unless", {"reason": COST, "most": 7, "n": 13}),
                    "command": "qualab resume 2026-a --retry-failed",
                }),
            })),
            "a/b: proven over complete pairs, but not with this policy: worst case against the candidate; 13 pairs "
            "without an answer alone cost ±0.98 pp (holds unless more than 7 of these 13 were lost): `qualab resume "
            "2026-a --retry-failed`",
            "a/b: 완전한 쌍으로는 입증되지만, 다음 처리 방식에서는 아님: 후보에게 가장 불리하게 처리. 답이 없는 "
            "13쌍만으로도 ±0.98%p의 여유를 잃음 (이 13쌍 중 오답이 된 것이 7쌍 이하라면 판정이 유지됨): "
            "`qualab resume 2026-a --retry-failed`",
        ),
        (
            Reason("status-differs", {"status": "timeout", "n_baseline": 0, "n_candidate": 10, "p": 0.002}),
            "The arms differ in how often the status is timeout: 0 items in the baseline alone, 10 in the candidate "
            "alone (p 0.002).",
            "두 서버의 ‘시간 초과’ 빈도가 다릅니다: 기준만 문항 0개, 후보만 10개 (p 0.002).",
        ),
        (
            of("gsm8k/em,none", Reason("needs.observed", {
                "proven": PROVES, "bounds": MARGIN, "needed": ABOUT, "circumstances": Reason("at-discordance"),
                "difference": -0.0083, "observed": Reason("about.open", {"n": 1582, "low": 1148, "most": 200_000}),
            })),
            "gsm8k/em,none: these 40 items prove ±7.22 pp; ±2.00 pp needs about 751 (548 to 1,039) items at this "
            "discordance and no true difference, about 1,582 (1,148 to more than 200,000) if the difference of "
            "−0.83 pp is real",
            "gsm8k/em,none: 문항 40개로 ±7.22%p까지 입증. 지금의 불일치율 기준으로 "
            "±2.00%p를 입증하려면, 실제 차이가 없을 때 "
            "약 751개(548 ~ 1,039개), −0.83%p의 차이가 실제일 때 약 1,582개(1,148개 ~ 200,000개 초과) 필요",
        ),
        (
            of("gsm8k/em,none", Reason("needs.out-of-reach", {
                "proven": Reason("items-prove.nothing", {"n": 1}), "bounds": Reason("margin.loss", {"margin": 0.02}),
                "needed": Reason("more-than", {"most": 200_000}), "circumstances": Reason("at-spread"),
                "difference": -0.05,
            })),
            "gsm8k/em,none: this 1 item proves no margin; −2.00 pp needs more than 200,000 items at this spread and no "
            "true difference; more items will not prove it if the difference of −5.00 pp is real",
            "gsm8k/em,none: 문항 1개로는 어떤 한계도 입증되지 않음. 지금의 산포 기준으로 −2.00%p를 입증하려면, "
            "실제 차이가 없을 때 200,000개 넘게 필요. −5.00%p의 차이가 실제라면 문항을 늘려도 입증할 수 없음",
        ),
        (
            Reason("unpinned", {"parts": (Reason("no-image"), Reason("no-revision"))}),
            "Unpinned: no image is named, no checkpoint revision is named: not for sign-off.",
            "고정되지 않음: 이미지가 지정되지 않음, 체크포인트 리비전이 지정되지 않음. 승인에 쓸 수 없습니다.",
        ),
        (
            Reason("finding.allowed", {"what": of("a", Reason("differ.generation", {
                "n": 9, "total": 10, "baseline": '{"temperature":0}', "candidate": '{"temperature":0.7}',
            }))}),
            'Allowed: a: the generation settings differ in 9 of 10 answers: {"temperature":0} and {"temperature":0.7}.',
            '허용함: a: 답변 10개 중 9개의 생성 설정이 다름: {"temperature":0} / {"temperature":0.7}.',
        ),
        (
            Reason("finding", {"what": Reason("not-compared", {
                "arms": ("baseline", "candidate"),
                "parts": (Reason("part.task-versions"), Reason("part.chat-template")),
            })}),
            "not compared, since the log of the baseline and the candidate does not tell: task versions, "
            "the chat template.",
            "기준과 후보 로그에 없어 비교하지 못한 것: 과제 버전, 채팅 템플릿.",
        ),
        (
            Reason("configuration-closed", {"arms": ("baseline", "candidate")}),
            "The engine's configuration is not open in the baseline and the candidate: names, versions and models "
            "alone were compared.",
            "기준과 후보 엔진의 설정이 공개되어 있지 않아 이름, 버전, 모델만 비교했습니다.",
        ),
        (
            Reason("turn-began", {"seconds": 18_000}),
            "The candidate's turn began 5.0 h after the baseline's.",
            "후보 실행은 기준 실행보다 5.0시간 뒤에 시작했습니다.",
        ),
        (
            Reason("counted", {"n": 0}),
            "no changed answers, counted, not resampled",
            "바뀐 답 없음, 재표집 없이 개수로 계산",
        ),
        (Reason.text("as an old analysis has it"), "as an old analysis has it", "as an old analysis has it"),
        (Reason("of-a-later-version", {"n": 3}), "of-a-later-version: n 3", "of-a-later-version: n 3"),
    ],
)  # fmt: skip
def test_a_reason_is_worded_in_both_languages(reason: Reason, english: str, korean: str) -> None:
    assert (ENGLISH.reason(reason), KOREAN.reason(reason)) == (english, korean)


def test_a_reason_is_stored_as_code_and_values_and_shown_with_its_sentence() -> None:
    reason = Reason("unpinned", {"parts": (Reason("no-image"), Reason("revision-floats", {"revision": "main"}))})
    body = '{"code":"unpinned","values":{"parts":[{"code":"no-image","values":{}},'
    body += '{"code":"revision-floats","values":{"revision":"main"}}]}}'
    assert canonical_json(reason) == body
    assert TypeAdapter(Reason).validate_json(body) == reason
    assert shown(reason)["text"] == ENGLISH.reason(reason)
    assert TypeAdapter(Reason).validate_python(shown(reason)) == reason
    old = TypeAdapter(Reason).validate_json('"as an old analysis has it"')
    assert (old, canonical_json(old)) == (Reason.text("as an old analysis has it"), '"as an old analysis has it"')


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
