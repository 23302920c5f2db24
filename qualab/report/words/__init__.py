"""The report's words in each language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from qualab.model.names import Language
from qualab.model.wording import signed
from qualab.report.words import english, korean
from qualab.report.words.sentences import in_korean

CATALOGUES: Mapping[Language, Mapping[str, str]] = {Language.ENGLISH: english.TEXTS, Language.KOREAN: korean.TEXTS}


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

    def sentence(self, stored: str) -> str:
        """What an analysis says, which is stored in English; marked as the original where it is not known."""
        if self.language is Language.ENGLISH:
            return stored
        found = in_korean(stored)
        return self("original", text=stored) if found is None else self.units(found)

    def sentences(self, stored: Iterable[str]) -> tuple[str, ...]:
        """Each as a sentence of its own."""
        return tuple(map(self.sentence, stored))

    def interval(self, low: float, high: float) -> str:
        """Limits in percentage points, without the unit."""
        return self("interval of", low=signed(low), high=signed(high))

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


ENGLISH = Words(language=Language.ENGLISH)
