"""Errors by their codes: each has a title in the reader's language."""

from __future__ import annotations

import pytest

from qualab import errors
from qualab.errors import QualabError
from qualab.model.names import Language
from qualab.service.viewing.listing import trouble
from qualab.service.words import Wording

ENGLISH, KOREAN = (Wording(language=language) for language in Language)


def codes() -> list[str]:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, QualabError)]
    return sorted({kind.code for kind in kinds})


@pytest.mark.parametrize("words", [ENGLISH, KOREAN], ids=["en", "ko"])
def test_every_code_has_a_title_of_its_own(words: Wording) -> None:
    titles = [trouble(code, "x", "", words).title for code in codes()]
    assert len(set(titles)) == len(codes())
    assert trouble("of a later version", "x", "", words).title == trouble("error", "x", "", words).title


def test_a_title_is_in_the_readers_language_and_what_exactly_in_english() -> None:
    found = trouble("pair-differs", "Something else", "Do that", KOREAN)
    assert (found.message.text, found.message.language) == ("Something else", Language.ENGLISH)
    assert found.hint is not None
    assert found.hint.language is Language.ENGLISH
    assert found.title == "두 서버를 비교할 수 없습니다"
    assert trouble("pair-differs", "Something else", "", KOREAN).hint is None
