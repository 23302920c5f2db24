"""What a terminal shows of the tokens at which texts begin to differ: the report's numbers and notes."""

from __future__ import annotations

from collections.abc import Iterator

from qualab.app.reporting.tokens import TokenRow, token_notes, token_rows
from qualab.app.reporting.words import ENGLISH
from qualab.domain.comparison import Analysis
from qualab.domain.plan import Plan


def token_lines(plan: Plan, analysis: Analysis) -> Iterator[str]:
    """All tasks, then each where there are several; then whose tokens they are, or why there are none."""
    texts = [*map(_said, token_rows(analysis.tokens, ENGLISH)), *token_notes(plan, analysis, ENGLISH)]
    yield from (f"{'' if number else 'tokens':<9} {text}" for number, text in enumerate(texts))


def _said(row: TokenRow) -> str:
    arms = f"{row.label}: {row.candidate.text} between the arms"
    return arms if row.baseline is None else f"{arms}, {row.baseline.text} between runs of the baseline"
