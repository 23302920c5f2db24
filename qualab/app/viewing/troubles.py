"""What went wrong, for a person: what kind of thing by its code, what exactly, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from qualab.app.viewing.words import Wording
from qualab.app.viewing.words.troubles import in_korean
from qualab.domain.names import Language
from qualab.errors import QualabError


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A sentence, and the language that it is in."""

    text: str
    language: Language


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One error."""

    title: str
    message: Said
    hint: Said | None


def trouble(code: str, message: str, hint: str, words: Wording) -> Trouble:
    """In the reader's language, as far as the sentences are known; a code that is not known is any error's."""
    known = f"error {code}" if words.has(f"error {code}") else f"error {QualabError.code}"
    return Trouble(title=words(known), message=said(message, words), hint=said(hint, words) if hint else None)


def said(text: str, words: Wording) -> Said:
    """In the reader's language where the sentence is known."""
    korean = in_korean(text) if words.language is Language.KOREAN else None
    return Said(text=korean or text, language=Language.KOREAN if korean else Language.ENGLISH)
