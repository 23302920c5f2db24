"""The pages' words in each language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qualab.model.names import Language
from qualab.report.words import Words
from qualab.service.words import english, korean

CATALOGUES: Mapping[Language, Mapping[str, str]] = {Language.ENGLISH: english.TEXTS, Language.KOREAN: korean.TEXTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """Says things on pages in one language."""

    language: Language

    def __call__(self, key: str, **values: object) -> str:
        """The catalogue's text with these values in their places."""
        return self.report.units(CATALOGUES[self.language][key].format(**values))

    def has(self, key: str) -> bool:
        """Whether the catalogue knows it."""
        return key in CATALOGUES[self.language]

    @property
    def report(self) -> Words:
        """What the report says in this language."""
        return Words(language=self.language)
