"""Texts of reports and pages in each language, from en.json and ko.json beside this file.

A catalogue's tables: "units" as the language writes them, "lists" (what stands between the parts of a list), "texts" of
reports, "names" of values, "reasons" by code, "pages" of the web. Of errors "errors" are titles by code, "details" what
is said beyond that, "fields" what a form's field must be; English shows an error's own message instead. `FORMS` and
`Words.format_field` are the formats that a place in a text may have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from pydantic import TypeAdapter

from qualab.model import wording
from qualab.model.canonical import plain
from qualab.model.names import Language
from qualab.model.reason import Reason

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
    "tokens": "{:.2f}".format,
    "over": lambda length: f"{length:+.2f}".replace("-", wording.MINUS),
    "pvalue": wording.pvalue,
    "seconds": "{:.2f} s".format,
    "score": "{:.4f}".format,
    "times": "×{:.2f}".format,
    "ratio": lambda ratio: f"{ratio:.{1 if ratio >= 2.0 else 2}f}",
    "rate": "{:.1f}".format,
    "limit": lambda fraction: f"{100 * fraction:.2f}".replace("-", wording.MINUS),
    "raw": str,
    "per": wording.one_in,
    "per.most": lambda fraction: wording.one_in(fraction, at_most=True),
    "before": lambda text: wording.cut_text(text, 24, keeps_end=True),
    "token": wording.token_text,
    "after": lambda text: wording.cut_text(text, 24),
    "choice": lambda token: f"“{wording.token_text(token)}”" if token else "?",
}
"""How a text or a cell writes a number or a token, beside Python's own formats."""


@cache
def catalogue(language: Language) -> dict[str, dict[str, str]]:
    """Read a language's texts, by table and key."""
    tables: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / f"{language}.json").read_bytes())
    tables["texts"] |= tables["names"]
    tables["pages"] = tables["texts"] | tables["pages"]
    return tables


class Words(Formatter):
    """Fills the texts of one language."""

    table = "texts"

    def __init__(self, *, language: Language) -> None:
        self.language = language

    def __call__(self, key: str, /, **values: object) -> str:
        """Return the text of a key with these values in their places."""
        return self.fill(self.texts(self.table)[key], values)

    def optional(self, key: str, /, **values: object) -> str:
        """Return the text of a key; empty where there is none."""
        return self.fill(self.texts(self.table).get(key, ""), values)

    def texts(self, table: str) -> Mapping[str, str]:
        """Return a table of the catalogue."""
        return catalogue(self.language)[table]

    def fill(self, text: str, values: Mapping[str, object]) -> str:
        """Put values into their places."""
        return self.units(self.vformat(text, (), values))

    def name(self, value: str) -> str:
        """Name a value of a vocabulary, as a verdict."""
        return self.texts("names").get(value, str(value))

    def units(self, text: str) -> str:
        """Write percent and percentage points as the language does."""
        for english, own in self.texts("units").items():
            text = text.replace(english, own)
        return text

    def reason(self, reason: Reason) -> str:
        """Word a reason; one of a code that only a later version knows, by its code and values."""
        if text := self.texts("reasons").get(reason.code):
            return self.fill(text, reason.values)
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
        """Write a duration in its two largest units."""
        minutes, seconds = divmod(round(duration_s), 60)
        hours, left = divmod(minutes, 60)
        key = "hours" if hours else "minutes" if minutes else "seconds"
        return self(key, hours=hours, minutes=left, seconds=seconds)

    def format_field(self, value: Any, format_spec: str) -> str:
        """Write a value by `FORMS`, the lists, `name`, `span`, and `plural` ("none|one|many", % for the number)."""
        if isinstance(value, Reason):
            return self.reason(value)
        form, _, rest = format_spec.partition(":")
        if form == "plural":
            *none, one, many = rest.split("|")
            return (none[0] if none and value == 0 else one if value == 1 else many).replace("%", wording.count(value))
        if form in (lists := self.texts("lists")):
            return lists[form].join(self.name(part) if isinstance(part, str) else self.reason(part) for part in value)
        if form in ("name", "span"):
            return str(getattr(self, form)(value))
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
    if value.keys() == {"code", "values"} and value["code"] in ENGLISH.texts("reasons"):
        return {**value, "text": ENGLISH.reason(_reasons().validate_python(value))}
    return {name: _with_sentences(part) for name, part in value.items()}


@cache
def _reasons() -> TypeAdapter[Reason]:
    return TypeAdapter(Reason)
