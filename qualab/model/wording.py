"""Numbers as everything that people read writes them: terminal, JSON, Markdown, HTML and PDF show the same digits.

Fractions come in; percent and percentage points (pp) go out.
"""

from __future__ import annotations

import math
from itertools import accumulate
from unicodedata import bidirectional, category

MINUS = "−"


def percent(fraction: float) -> str:
    """An assumed share in percent, as short as it is exact."""
    return f"{100 * fraction:.6g} %"


def share(fraction: float, decimals: int = 1) -> str:
    """A computed share in percent, rounded; what is not quite 0 or all is never rounded to it."""
    least = 10.0**-decimals
    if 0.0 < 100 * fraction < least / 2:
        return f"<{least:g} %"
    if 100 - least / 2 <= 100 * fraction < 100:
        return f">{100 - least:g} %"
    return f"{100 * fraction:.{decimals}f} %"


def pp(fraction: float) -> str:
    """A size in percentage points, as short as it is exact."""
    return f"{100 * fraction:.6g} pp"


def points(fraction: float) -> str:
    """A size in percentage points, rounded."""
    return f"{100 * fraction:.2f} pp"


def proven(margin: float) -> str:
    """A margin that is proven, in percentage points, rounded up: a narrower one would not be."""
    return f"{math.ceil(1e4 * margin - 1e-6) / 100:.2f} pp"


def signed(fraction: float) -> str:
    """Percentage points with a sign, without the unit."""
    text = f"{100 * fraction:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", MINUS)


def pvalue(p: float) -> str:
    """A p-value as people write it."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def count(number: int) -> str:
    """A whole number, in groups of three digits."""
    return f"{number:,}"


def one_in(fraction: float, *, at_most: bool = False) -> str:
    """The N of "1 in N", to two digits; `at_most` rounds down, so that the share is not said smaller than it is."""
    number = 1.0 / fraction
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    digits = number / unit
    return f"{(math.floor(digits + 1e-9) if at_most else round(digits)) * unit:,.10g}"


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
    """Name unprintable characters, line ends and tabs, so that the text stays on one line."""
    return visible_text(text).replace("\n", "\\n").replace("\t", "\\t")


def cut_text(text: str, most: int, *, keeps_end: bool = False) -> str:
    """The text on one line, of at most so many characters from its start, or before its end, and … where it is cut.

    Marks keep a text that is read from the right from turning what stands beside it.
    """
    parts = [line_text(character) for character in (reversed(text) if keeps_end else text)]
    kept = parts[: sum(length <= most for length in accumulate(map(len, parts)))]
    line = "".join(reversed(kept) if keeps_end else kept)
    mark = "\u200e" if any(bidirectional(character) in ("R", "AL") for character in line) else ""
    cut = "…" if len(kept) < len(parts) else ""
    return f"{mark}{cut}{line}{mark}" if keeps_end else f"{mark}{line}{cut}{mark}"


def token_text(token: str) -> str:
    """The token on one line, cut, its spaces visible where it has nothing else."""
    return cut_text(token if token.strip(" ") else token.replace(" ", "␣"), 20)


def is_one_line(text: str) -> bool:
    """Tell whether every character has a shape and none begins another line."""
    return line_text(text) == text


_KEPT = "\n\t\u200d\ufe0f"
_SHAPELESS = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


def _has_shape(character: str) -> bool:
    return (
        (character.isascii() and character.isprintable()) or character in _KEPT or category(character) not in _SHAPELESS
    )
