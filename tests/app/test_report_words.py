"""The report in two languages: whole catalogues, every sentence of an analysis known, no English left in Korean."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from string import Formatter

import pytest
from pydantic import TypeAdapter

import qualab
from qualab.model import engine, names, plan
from qualab.model.canonical import canonical_json
from qualab.model.names import Language, MissingPolicy
from qualab.model.reason import Reason, of
from qualab.report.words import ENGLISH, FORMS, catalogue, shown
from tests.app.report_texts import english_in, texts
from tests.render.samples import report
from tests.said import KOREAN

PACKAGE = Path(qualab.__file__).parent


def places(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


TABLES = ("units", "lists", "texts", "names", "reasons", "pages")


@pytest.mark.parametrize("table", TABLES)
def test_both_languages_have_the_same_keys_with_the_same_values(table: str) -> None:
    english, korean = (catalogue(language)[table] for language in (Language.ENGLISH, Language.KOREAN))
    assert english.keys() == korean.keys()
    assert [key for key in english if places(english[key]) != places(korean[key])] == []


@pytest.mark.parametrize("language", Language)
def test_every_place_has_a_format_that_there_is(language: Language) -> None:
    tables = catalogue(language)
    assert tables.keys() == {*TABLES, "errors", "details", "fields"}
    specs = {spec for table in TABLES for text in tables[table].values() for _, _, spec, _ in Formatter().parse(text)}
    ours = {*FORMS, *tables["lists"], "name", "span"}
    others = [spec for spec in specs if spec and spec not in ours and not spec.startswith("plural:")]
    assert [format(1.0, spec) for spec in others]


def nodes(folder: str) -> Iterator[ast.AST]:
    for path in (PACKAGE / folder).rglob("*.py"):
        yield from ast.walk(ast.parse(path.read_text()))


def patterns(node: ast.expr) -> Iterator[re.Pattern[str]]:
    """What a text may be: a constant, either of two, or an f-string with anything in its places."""
    if isinstance(node, ast.IfExp):
        yield from (*patterns(node.body), *patterns(node.orelse))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.compile(re.escape(node.value))
    elif isinstance(node, ast.JoinedStr):
        parts = (re.escape(str(one.value)) if isinstance(one, ast.Constant) else ".+" for one in node.values)
        yield re.compile("".join(parts))


def asked(folder: str, function: str) -> Iterator[re.Pattern[str]]:
    """What this function is called with first, or a variable `code` holds in a module that calls it."""
    for path in (PACKAGE / folder).rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if f"{function}(" in text else ():
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) == function:
                yield from patterns(node.args[0])
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "code":
                yield from patterns(node.value)


@pytest.mark.parametrize(("table", "folder", "function"), [("texts", "report", "words"), ("reasons", "", "Reason")])
def test_every_text_is_used_and_every_text_that_is_used_is_there(table: str, folder: str, function: str) -> None:
    keys, wanted = ENGLISH.texts(table).keys(), list(asked(folder, function))
    assert [one.pattern for one in wanted if not any(map(one.fullmatch, keys))] == []
    constants = {node.value for node in nodes(folder) if isinstance(node, ast.Constant)}
    vocabularies = (value for module in (engine, names, plan) for value in vars(module).values())
    enums = [kind.__members__ for kind in vocabularies if isinstance(kind, type) and issubclass(kind, Enum)]
    members = {text for kind in enums for name, one in kind.items() for text in (name, name.lower(), one.value)}
    made = [one for node in nodes(folder) if isinstance(node, ast.JoinedStr) for one in patterns(node)]
    named = [*wanted, *(one for one in made if re.match(r"[a-z]{3,}\\ ", one.pattern))]
    unused = [key for key in keys - constants - members if not any(one.fullmatch(key) for one in named)]
    assert unused == []
    assert [key for key in keys if key.startswith("legend ") and key.removeprefix("legend ") not in keys] == []


ABOUT = Reason("about.range", {"n": 751, "low": 548, "high": 1039})
PROVES = Reason("items-prove", {"n": 40, "bounds": Reason("margin.both.proven", {"margin": 0.0722})})
MARGIN = Reason("margin.both", {"margin": 0.02})


@pytest.mark.parametrize(
    ("reason", "english", "korean"),
    [
        (
            of("a/b", Reason("policy-disagrees", {"policy": MissingPolicy.AGAINST_CANDIDATE})),
            "a/b: proven over complete pairs, but not with this policy: worst case against the candidate",
            "a/b: 완전한 쌍으로는 입증되지만, 다음 처리 방식에서는 아님: 후보에게 가장 불리하게 처리",
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
            Reason("unpinned", {"parts": (Reason("no-image"), Reason("no-revision"))}),
            "Unpinned: no image is named, no checkpoint revision is named: not for sign-off.",
            "고정되지 않음: 이미지가 지정되지 않음, 체크포인트 리비전이 지정되지 않음. 승인에 쓸 수 없습니다.",
        ),
        (
            Reason("configuration-closed", {"arms": ("baseline", "candidate")}),
            "The engine's configuration is not open in the baseline and the candidate: names, versions and models "
            "alone were compared.",
            "기준과 후보 엔진의 설정이 공개되어 있지 않아 이름, 버전, 모델만 비교했습니다.",
        ),
        (
            Reason("turn-began", {"seconds": 18_000}),
            "The candidate's turn began 5 h 0 min after the baseline's.",
            "후보 실행은 기준 실행보다 5시간 0분 뒤에 시작했습니다.",
        ),
        (
            Reason("counted", {"n": 0}),
            "no changed answers, counted, not resampled",
            "바뀐 답 없음, 재표집 없이 개수로 계산",
        ),
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


def test_each_language_says_everything_in_its_own_words_and_units() -> None:
    korean, english = report(Language.KOREAN), report(Language.ENGLISH)
    assert english_in(korean) == []
    assert [text for text in texts(english) if re.search("[가-힣]", text)] == []
    assert any("%p" in text for text in texts(korean))
    assert not any(" pp" in text or " %" in text for text in texts(korean))
    for found in (korean, english):
        assert found.subtitle.endswith("2026-03-01")
        assert any(" UTC" in text for text in texts(found))
