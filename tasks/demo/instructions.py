"""Scoring of `demo_instructions` by lm-eval's IFEval checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch


def process_results(doc: dict[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """IFEval's four values of one answer, keyed by metric."""
    # Importing lm-eval's IFEval downloads sentence data that no check of these items reads.
    with patch("nltk.data.find", return_value=""):
        from lm_eval.tasks.ifeval import utils

    return utils.process_results(doc, results)


def agg_inst_level_acc(items: Sequence[Sequence[bool]]) -> float:
    """Share of followed instructions over all items."""
    followed = [value for item in items for value in item]
    return sum(followed) / len(followed)
