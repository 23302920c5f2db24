"""The report's words in each language."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from string import Formatter
from typing import Any

from pydantic import TypeAdapter

from qualab.model import wording
from qualab.model.canonical import plain
from qualab.model.names import Language
from qualab.model.reason import Reason
from qualab.report.words import en, ko

NAMES: Mapping[Language, Mapping[str, str]] = {Language.ENGLISH: en.NAMES, Language.KOREAN: ko.NAMES}
CATALOGUES: Mapping[Language, Mapping[str, str]] = {
    Language.ENGLISH: {key: key for key in (*ko.NAMES, *ko.TEXTS)} | en.NAMES | en.TEXTS,
    Language.KOREAN: ko.NAMES | ko.TEXTS,
}
"""English has no text where it says what the key is."""
REASONS: Mapping[Language, Mapping[str, str]] = {Language.ENGLISH: en.REASONS, Language.KOREAN: ko.REASONS}
FORMS: Mapping[str, Callable[[Any], str]] = {
    "points": wording.points,
    "proven": wording.proven,
    "signed": wording.signed,
    "pp": wording.pp,
    "percent": wording.percent,
    "share": wording.share,
    "share.2": lambda fraction: wording.share(fraction, 2),
    "whole": lambda fraction: f"{100 * fraction:.0f} %",
    "count": wording.count,
    "place": lambda place: f"{place:,.0f}",
    "tokens": wording.tokens,
    "pvalue": wording.pvalue,
    "score": wording.score,
    "limit": lambda fraction: f"{100 * fraction:.2f}".replace("-", wording.MINUS),
    "raw": str,
}
"""How a template or a cell writes a number, beside Python's own formats."""
BETWEEN: Mapping[str, tuple[str, str]] = {
    "list": (", ", ", "),
    "semicolons": ("; ", "; "),
    "sentences": (" ", " "),
    "and": (" and ", ", "),
    "and-the": (" and the ", "과 "),
}
"""What stands between the parts of a list, in English and in Korean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Fills the templates of one language."""

    language: Language

    def __call__(self, key: str, /, **values: object) -> str:
        """Return the text of a key with these values in their places."""
        return self._fill(CATALOGUES[self.language][key], values)

    def has(self, key: str) -> bool:
        """Tell whether there is a text for this key."""
        return key in CATALOGUES[self.language]

    def note(self, column: str) -> str:
        """Return what explains a column of a table; empty where nothing has to."""
        return CATALOGUES[self.language].get(f"legend {column}", "")

    def name(self, value: str) -> str:
        """Name a value of a vocabulary, as a verdict."""
        return NAMES[self.language].get(value, str(value))

    def units(self, text: str) -> str:
        """Write percent and percentage points as the language does: in Korean without a space, points as %p."""
        return text if self.language is Language.ENGLISH else text.replace(" pp", "%p").replace(" %", "%")

    def reason(self, reason: Reason) -> str:
        """Word a reason; one of a code that only a later version knows, by its code and values."""
        if template := REASONS[self.language].get(reason.code):
            return self._fill(template, reason.values)
        return f"{reason.code}: {', '.join(f'{name} {value}' for name, value in reason.values.items())}"

    def reasons(self, reasons: Iterable[Reason]) -> tuple[str, ...]:
        """Word each reason."""
        return tuple(map(self.reason, reasons))

    def interval(self, low: float, high: float) -> str:
        """Write limits in percentage points, without the unit."""
        return self("from to", low=wording.signed(low), high=wording.signed(high))

    def moment(self, moment: datetime) -> str:
        """Write a moment, in UTC."""
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"

    def span(self, duration_s: float) -> str:
        """Write a duration."""
        hour, minute, second = ("시간", "분", "초") if self.language is Language.KOREAN else (" h", " min", " s")
        whole = round(duration_s)
        if whole >= 3600:
            return f"{whole // 3600}{hour} {whole % 3600 // 60}{minute}"
        return f"{whole // 60}{minute} {whole % 60}{second}" if whole >= 60 else f"{whole}{second}"

    def _fill(self, template: str, values: Mapping[str, object]) -> str:
        return self.units(_WordsFormatter(self).vformat(template, (), values))


class _WordsFormatter(Formatter):
    """Adds the formats of `FORMS` and `BETWEEN`, `name`, `span`, and `plural` with % for the number."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Reason):
            return self._words.reason(value)
        form, _, rest = format_spec.partition(":")
        if form == "plural":
            *none, one, many = rest.split("|")
            return (none[0] if none and value == 0 else one if value == 1 else many).replace("%", wording.count(value))
        if form in BETWEEN:
            between = BETWEEN[form][self._words.language is Language.KOREAN]
            return between.join(
                self._words.name(part) if isinstance(part, str) else self._words.reason(part) for part in value
            )
        if form in ("name", "span"):
            return str(getattr(self._words, form)(value))
        return FORMS[form](value) if form in FORMS else format(value, format_spec)


ENGLISH = Words(language=Language.ENGLISH)


def shown(value: Any) -> Any:
    """Return a value as JSON shows it: as it is stored, each reason with its English sentence beside it."""
    return _with_sentences(plain(value))


def _with_sentences(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_sentences(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"code", "values"} and value["code"] in en.REASONS:
        return {**value, "text": ENGLISH.reason(_reasons().validate_python(value))}
    return {name: _with_sentences(one) for name, one in value.items()}


@cache
def _reasons() -> TypeAdapter[Reason]:
    return TypeAdapter(Reason)
