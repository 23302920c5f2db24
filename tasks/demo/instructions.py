"""Scoring of `demo_instructions` by lm-eval's IFEval checks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any
from unittest.mock import patch


def process_results(doc: dict[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """IFEval's four values of one answer, keyed by metric."""
    # Importing lm-eval's IFEval downloads sentence data that no check of these items reads.
    with patch("nltk.data.find", return_value=""):
        ifeval = import_module("lm_eval.tasks.ifeval.utils")
    scored: dict[str, Any] = ifeval.process_results(doc, results)
    return scored


def agg_inst_level_acc(items: Sequence[Sequence[bool]]) -> float:
    """Share of followed instructions over all items."""
    followed = [value for item in items for value in item]
    return sum(followed) / len(followed)
