"""Words of the web pages, verdicts and units as the report says them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from qualab.model.names import Language
from qualab.report.words import Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An error, for a person."""

    title: str
    """Empty in English: the message says it."""
    message: str
    hint: str
    language: Language
    """The message's; a hint is English."""


class Wording(Words):
    """Fills the texts of pages in one language."""

    table = "pages"

    def notice(self, code: str, message: str, hint: str = "", *, values: Mapping[str, object] | None = None) -> Notice:
        """Word an error by its code; its own message and hint, which are English, where `values` do not say it all."""
        titles, detail = self.texts("errors"), self.texts("details").get(code)
        title = titles.get(code) or titles.get("error", "")
        if values is not None and detail:
            text = self.fill(detail, defaultdict(str, values))
            return Notice(title=title, message=text, hint="", language=self.language)
        return Notice(title=title, message=message, hint=hint, language=Language.ENGLISH)

    def field(self, kind: str, message: str, context: Mapping[str, object]) -> str:
        """Say what a field of a form must be, by pydantic's kind, message and context of the error."""
        text = self.texts("fields").get(kind)
        return self.fill(text, context) if text else message
