"""Intervals found in older reports, only to recompute them there. Nothing in qualab decides by them.

Wald intervals are far too short at the low discordance that a drafter causes, and [0, 0] where no item changed.
"""

from __future__ import annotations

import math

from qualab.stats.checks import check_confidence_level, check_items
from qualab.stats.counts import PairedCounts
from qualab.stats.distributions import normal_quantile
from qualab.stats.interval import ConfidenceInterval


def wald(counts: PairedCounts, *, confidence_level: float = 0.95) -> ConfidenceInterval:
    """Wald interval of the paired difference (Fagerland, Lydersen & Laake 2014, section 4.1)."""
    return _wald(counts.gains, counts.losses, counts.n_items, confidence_level)


def bonett_price(counts: PairedCounts, *, confidence_level: float = 0.95) -> ConfidenceInterval:
    """Wald interval after adding one gain and one loss (Bonett & Price 2012)."""
    return _wald(counts.gains + 1, counts.losses + 1, counts.n_items + 2, confidence_level)


def agresti_min(counts: PairedCounts, *, confidence_level: float = 0.95) -> ConfidenceInterval:
    """Wald interval after adding half an item to each of the four cells (Agresti & Min 2005)."""
    return _wald(counts.gains + 0.5, counts.losses + 0.5, counts.n_items + 2, confidence_level)


def _wald(gains: float, losses: float, n_items: int, confidence_level: float) -> ConfidenceInterval:
    check_items(n_items)
    z = normal_quantile(0.5 + check_confidence_level(confidence_level) / 2.0)
    difference = (gains - losses) / n_items
    half = z * math.sqrt(gains + losses - (gains - losses) ** 2 / n_items) / n_items
    return ConfidenceInterval(low=difference - half, high=difference + half, confidence_level=confidence_level)
