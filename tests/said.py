"""What reasons say in English and in Korean, for tests of what a reader is shown."""

from __future__ import annotations

from typing import Any

from qualab.model.names import Language
from qualab.model.reason import Reason
from qualab.report.words import ENGLISH, Words

KOREAN = Words(language=Language.KOREAN)


def english(value: Any) -> Any:
    """One reason's English sentence, or those of several; "" for None, and a text or a shown reason as it reads."""
    if value is None:
        return ""
    if isinstance(value, Reason):
        return ENGLISH.reason(value)
    if isinstance(value, dict):
        return value["text"]
    return value if isinstance(value, str) else tuple(map(english, value))


CLOSED = english(Reason("metrics-closed"))
UNTOLD = english(Reason("metrics-silent"))
