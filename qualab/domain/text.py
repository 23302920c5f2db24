"""Which text can be kept: databases refuse what UTF-8 cannot say."""

from __future__ import annotations

from unicodedata import category


def valid_text(text: str) -> str:
    """The text with every lone surrogate replaced by U+FFFD, so that UTF-8 can say it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def storable_text(text: str) -> str:
    """Valid text without NUL, which PostgreSQL's text cannot hold: U+FFFD stands in its place."""
    return valid_text(text).replace("\x00", "\ufffd")


def visible_text(text: str) -> str:
    """The text with everything that has no shape of its own, or turns the direction of others, named by its code.

    Tabs, line ends, and what joins emoji stay.
    """
    return "".join(character if _has_shape(character) else f"‹U+{ord(character):04X}›" for character in text)


def line_text(text: str) -> str:
    """The same on one line: line ends and tabs are named, too."""
    return visible_text(text).replace("\n", "\\n").replace("\t", "\\t")


def is_one_line(text: str) -> bool:
    """Whether every character has a shape, and none begins another line: what lists and terminals can show."""
    return line_text(text) == text


_KEPT = "\n\t\u200d\ufe0f"
_SHAPELESS = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


def _has_shape(character: str) -> bool:
    return (
        (character.isascii() and character.isprintable()) or character in _KEPT or category(character) not in _SHAPELESS
    )
