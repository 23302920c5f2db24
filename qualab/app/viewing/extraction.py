"""What the filters took out of both answers: loading their task takes a moment, so that it is asked for apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qualab.app.service.desk import Desk
from qualab.app.service.extracting import Extracted, extracted_of
from qualab.app.viewing.troubles import Trouble, trouble
from qualab.app.viewing.words import Wording
from qualab.domain.comparison import Comparison
from qualab.domain.items import Answer, Item
from qualab.domain.names import ArmName
from qualab.domain.text import visible_text
from qualab.errors import QualabError, StillLoading, TooManyRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedLine:
    """One filter of one repeat. Texts are a model's: never markup."""

    filter: str
    repeat: int
    baseline: str
    candidate: str
    is_same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """What is known of it by now."""

    lines: tuple[ExtractedLine, ...] = ()
    is_awaited: bool = False
    """Whether it is still to come: asking again will tell."""
    trouble: Trouble | None = None
    """Why it cannot be had."""


def extraction(desk: Desk, comparison: Comparison, item: Item, answers: Sequence[Answer], words: Wording) -> Extraction:
    """Never raises for what stands in the way: that is said on the page."""
    try:
        found = extracted_of(desk, comparison, item, answers)
    except (StillLoading, TooManyRequests):
        return Extraction(is_awaited=True)
    except QualabError as error:
        return Extraction(trouble=trouble(error.code, error.message, error.hint, words))
    texts = {(answer.arm, answer.repeat): answer.reply.text for answer in answers}
    return Extraction(lines=tuple(_line(one, texts, words) for one in found))


def _line(one: Extracted, texts: dict[tuple[ArmName, int], str | None], words: Wording) -> ExtractedLine:
    off, on = (_shown(one, arm, texts[arm, one.repeat], words) if arm in one.texts else "–" for arm in ArmName)
    return ExtractedLine(filter=one.filter, repeat=one.repeat, baseline=off, candidate=on, is_same=_is_same(one))


def _is_same(one: Extracted) -> bool:
    return len(one.texts) == len(ArmName) and len(set(one.texts.values())) == 1


def _shown(one: Extracted, arm: ArmName, answer: str | None, words: Wording) -> str:
    text = one.texts[arm]
    if text == answer and text.strip():
        return words("whole answer")
    return visible_text(text) if text else words("empty answer")
