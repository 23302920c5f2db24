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

CATALOGUES: Mapping[Language, Mapping[str, str]] = {Language.ENGLISH: en.TEXTS, Language.KOREAN: ko.TEXTS}
REASONS: Mapping[Language, Mapping[str, str]] = {Language.ENGLISH: en.REASONS, Language.KOREAN: ko.REASONS}
NAMES: Mapping[Language, Mapping[str, str]] = {Language.ENGLISH: en.NAMES, Language.KOREAN: ko.NAMES}
FORMS: Mapping[str, Callable[[Any], str]] = {
    "points": wording.points,
    "proven": wording.proven,
    "signed": wording.signed,
    "percent": wording.percent,
    "share": wording.share,
    "whole": lambda fraction: f"{100 * fraction:.0f} %",
    "count": wording.count,
    "limit": lambda fraction: f"{100 * fraction:.2f}".replace("-", wording.MINUS),
    "raw": str,
}
"""How a template writes a value, beside Python's own formats."""
BETWEEN: Mapping[str, tuple[str, str]] = {
    "list": (", ", ", "),
    "semicolons": ("; ", "; "),
    "and": (" and ", ", "),
    "and-the": (" and the ", "과 "),
}
"""What stands between the parts of a list, in English and in Korean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Says things in one language."""

    language: Language

    def __call__(self, key: str, **values: object) -> str:
        """The catalogue's text with these values in their places."""
        return self.units(CATALOGUES[self.language][key].format(**values))

    def units(self, text: str) -> str:
        """Korean writes percent and percentage points without a space, and points as %p."""
        return text if self.language is Language.ENGLISH else text.replace(" pp", "%p").replace(" %", "%")

    def reason(self, reason: Reason) -> str:
        """Words a reason; one of a code that only a later version knows, by its code and values."""
        if reason.code == "text":
            return str(reason.values["text"])
        if template := REASONS[self.language].get(reason.code):
            return self.units(_ReasonFormatter(self).vformat(template, (), reason.values))
        return f"{reason.code}: {', '.join(f'{name} {value}' for name, value in reason.values.items())}"

    def reasons(self, reasons: Iterable[Reason]) -> tuple[str, ...]:
        """Words each reason."""
        return tuple(map(self.reason, reasons))

    def interval(self, low: float, high: float) -> str:
        """Limits in percentage points, without the unit."""
        return self("interval of", low=wording.signed(low), high=wording.signed(high))

    def date(self, moment: datetime) -> str:
        """A day of UTC."""
        return self("date", **self._parts(moment))

    def moment(self, moment: datetime) -> str:
        """A day and time of UTC, which is said."""
        return self("moment", time=f"{moment.astimezone(UTC):%H:%M}", **self._parts(moment))

    def _parts(self, moment: datetime) -> dict[str, object]:
        utc = moment.astimezone(UTC)
        month = CATALOGUES[self.language]["months"].split()[utc.month - 1]
        return {"day": utc.day, "month": month, "number": utc.month, "year": utc.year}

    def duration(self, duration_s: float) -> str:
        """As people say it."""
        whole = round(duration_s)
        if whole >= 3600:
            return self("hours", hours=whole // 3600, minutes=whole % 3600 // 60)
        if whole >= 60:
            return self("minutes", minutes=whole // 60, seconds=whole % 60)
        return self("seconds", seconds=whole)


class _ReasonFormatter(Formatter):
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
            names = NAMES[self._words.language]
            return between.join(
                names.get(one, one) if isinstance(one, str) else self._words.reason(one) for one in value
            )
        if form == "name":
            return NAMES[self._words.language].get(value, str(value))
        if form == "span":
            return self._span(value)
        return FORMS[form](value) if form in FORMS else format(value, format_spec)

    def _span(self, seconds: float) -> str:
        second, minute, hour = ("초", "분", "시간") if self._words.language is Language.KOREAN else (" s", " min", " h")
        minutes = round(seconds / 60)
        if minutes < 2:
            return f"{seconds:.0f}{second}"
        return f"{minutes}{minute}" if minutes < 120 else f"{minutes / 60:.1f}{hour}"


ENGLISH = Words(language=Language.ENGLISH)


def shown(value: Any) -> Any:
    """A value as JSON shows it: as it is stored, each reason with its English sentence beside code and values."""
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
