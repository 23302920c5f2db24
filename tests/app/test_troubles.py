"""Errors in the reader's language: every code has a title, and the forms of sentences are those that the code makes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import qualab
from qualab import errors
from qualab.errors import QualabError
from qualab.model.names import Language
from qualab.service.viewing.listing import trouble
from qualab.service.words import Wording
from qualab.service.words.korean import FORMS, in_korean

ENGLISH, KOREAN = (Wording(language=language) for language in Language)
PLACE = re.compile(r"\{\w+\}")


def codes() -> list[str]:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, QualabError)]
    return sorted({kind.code for kind in kinds})


def constants() -> Iterator[str]:
    for path in Path(qualab.__file__).parent.rglob("*.py"):
        if "words" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.parametrize("words", [ENGLISH, KOREAN], ids=["en", "ko"])
def test_every_code_has_a_title_of_its_own(words: Wording) -> None:
    titles = [trouble(code, "x", "", words).title for code in codes()]
    assert len(set(titles)) == len(codes())
    assert trouble("of a later version", "x", "", words).title == trouble("error", "x", "", words).title


def test_forms_are_those_of_the_code() -> None:
    """Every piece of a form, but for those that the code puts together of words, stands in some text of the code."""
    texts = set(constants())
    joined = "\0".join(texts)
    composed = {"the {arm}'s engine has no drafter any more", "the {arm}'s engine has a drafter now"}
    for form in FORMS.keys() - composed:
        longest = max(PLACE.split(form), key=len).strip()
        assert longest in joined, form


def test_places_of_both_languages_are_the_same() -> None:
    unsaid = {"{status}"}
    for form, korean in FORMS.items():
        assert set(PLACE.findall(korean)) == set(PLACE.findall(form)) - unsaid, form


@pytest.mark.parametrize(
    ("english", "korean"),
    [
        (
            "The candidate at http://h/v1 fails: the last 20 requests got no answer; the last error was: HTTP 500",
            "후보 서버(http://h/v1)에서 요청이 계속 실패합니다. "
            "마지막 요청 20건이 연달아 답을 받지 못했습니다. 마지막 오류: HTTP 500",
        ),
        (
            "http://h:1/v1/models cannot be reached: the connection was refused, nothing listens there",
            "http://h:1/v1/models에 연결할 수 없습니다: 연결이 거부됨. 그 포트에서 실행 중인 서버가 없음",
        ),
        (
            "The pair cannot be compared: dtype is a in the baseline and b in the candidate; something new",
            "두 서버를 비교할 수 없습니다: dtype: 기준은 a, 후보는 b; something new",
        ),
        (
            "Everything answered so far is stored. Go on with: qualab resume c-1 --retry-failed",
            "지금까지 받은 답은 저장되어 있습니다. 이어서 실행: qualab resume c-1 --retry-failed",
        ),
        (
            "Start the server, or correct host and port. Go on with: qualab resume c-1",
            "서버를 시작하거나 호스트와 포트를 고치세요. 이어서 실행: qualab resume c-1",
        ),
        ("There is no comparison 'none'", "'none': 비교를 찾을 수 없습니다"),
    ],
)
def test_known_sentences_are_said_with_their_values(english: str, korean: str) -> None:
    assert in_korean(english) == korean
    assert trouble("run-stopped", english, "", ENGLISH).message.text == english


def test_what_is_not_known_stays_and_says_its_language() -> None:
    found = trouble("pair-differs", "Something else", "Do that", KOREAN)
    assert (found.message.text, found.message.language) == ("Something else", Language.ENGLISH)
    assert found.hint is not None
    assert found.hint.language is Language.ENGLISH
    assert found.title == "두 서버를 비교할 수 없습니다"
    assert trouble("pair-differs", "Something else", "", KOREAN).hint is None


def test_an_evil_sentence_takes_no_time() -> None:
    assert in_korean("The pair cannot be compared: " + "a; " * 5_000) is not None
    assert in_korean("x is " * 3_000) is None
