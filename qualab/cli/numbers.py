"""Numbers as every table writes them."""

from __future__ import annotations

MINUS = "−"


def signed(fraction: float) -> str:
    """Percentage points with a sign, without the unit."""
    text = f"{100 * fraction:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", MINUS)


def pvalue(p: float) -> str:
    """A p-value as people write it."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
