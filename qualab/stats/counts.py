"""Paired 0/1 outcomes, counted: the sufficient statistics of every test on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import check_items, zeros_and_ones


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedCounts:
    """How many items changed between the arms."""

    n_items: int
    gains: int
    """Items that the baseline got wrong and the candidate right."""
    losses: int
    """Items that the baseline got right and the candidate wrong."""
    both_right: int | None = None
    """None where it was not recorded; few methods need it."""

    def __post_init__(self) -> None:
        if min(self.n_items, self.gains, self.losses, self.both_right or 0) < 0:
            raise InvalidValue("A count cannot be negative", hint="Give counts of items.")
        if self.gains + self.losses + (self.both_right or 0) > self.n_items:
            raise InvalidValue(
                f"{self.gains} gains and {self.losses} losses do not fit into {self.n_items} items",
                hint="Gains, losses and items right in both arms are disjoint parts of the items.",
            )

    @property
    def n_discordant(self) -> int:
        return self.gains + self.losses

    @property
    def difference(self) -> float:
        """Candidate − baseline: (gains − losses) / items, a fraction."""
        return (self.gains - self.losses) / check_items(self.n_items)

    @property
    def discordance(self) -> float:
        return self.n_discordant / check_items(self.n_items)

    @property
    def accuracies(self) -> tuple[float, float]:
        """Shares right of baseline and candidate. InsufficientData without `both_right`."""
        if self.both_right is None:
            raise InsufficientData("The items right in both arms were not counted", hint="Give both_right.")
        n_items = check_items(self.n_items)
        return (self.both_right + self.losses) / n_items, (self.both_right + self.gains) / n_items

    def swapped(self) -> PairedCounts:
        """Exchange the arms."""
        return replace(self, gains=self.losses, losses=self.gains)


def tally(baseline: Sequence[float] | npt.ArrayLike, candidate: Sequence[float] | npt.ArrayLike) -> PairedCounts:
    """Count gains and losses of two equally long sequences of 0/1 scores, item by item.

    >>> tally([1, 1, 0, 0], [1, 0, 1, 1])
    PairedCounts(n_items=4, gains=2, losses=1, both_right=1)
    """
    before, after = zeros_and_ones(baseline, candidate)
    return PairedCounts(
        n_items=before.size,
        gains=int(np.sum(after > before)),
        losses=int(np.sum(before > after)),
        both_right=int(np.sum((before == 1) & (after == 1))),
    )
