"""Which text can be kept: databases refuse what UTF-8 cannot say."""

from __future__ import annotations


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
