"""Paired 0/1 outcomes, counted: the sufficient statistics of every test on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import finite


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedCounts:
    """How many items changed between the arms.

    Raises:
        InvalidValue: a count is negative, or the counts exceed the items.
    """

    n_items: int
    gains: int
    """Items that the baseline got wrong and the candidate right."""
    losses: int
    """Items that the baseline got right and the candidate wrong."""
    both_right: int | None = None
    """Items right in both arms; None where it was not recorded. Only few methods need it."""

    def __post_init__(self) -> None:
        if min(self.n_items, self.gains, self.losses, self.both_right or 0) < 0:
            raise InvalidValue("A count cannot be negative", hint="Give counts of items.", counts=repr(self))
        if self.gains + self.losses + (self.both_right or 0) > self.n_items:
            raise InvalidValue(
                f"{self.gains} gains and {self.losses} losses do not fit into {self.n_items} items",
                hint="Gains, losses and items right in both arms are disjoint parts of the items.",
                counts=repr(self),
            )

    @property
    def n_discordant(self) -> int:
        """Items right in exactly one arm."""
        return self.gains + self.losses

    @property
    def difference(self) -> float:
        """Candidate − baseline: (gains − losses) / items, a fraction.

        Raises:
            InsufficientData: there is no item.
        """
        return (self.gains - self.losses) / self._items()

    @property
    def discordance(self) -> float:
        """Share of items right in exactly one arm.

        Raises:
            InsufficientData: there is no item.
        """
        return self.n_discordant / self._items()

    @property
    def both_wrong(self) -> int | None:
        """Items wrong in both arms; None where it was not recorded."""
        return None if self.both_right is None else self.n_items - self.n_discordant - self.both_right

    @property
    def accuracies(self) -> tuple[float, float]:
        """Shares right of baseline and candidate.

        Raises:
            InsufficientData: there is no item, or the items right in both arms were not counted.
        """
        if self.both_right is None:
            raise InsufficientData(
                "The items right in both arms were not counted",
                hint="Give both_right, or count with tally().",
            )
        n_items = self._items()
        return (self.both_right + self.losses) / n_items, (self.both_right + self.gains) / n_items

    def swapped(self) -> PairedCounts:
        """The same items with the arms exchanged."""
        return PairedCounts(n_items=self.n_items, gains=self.losses, losses=self.gains, both_right=self.both_right)

    def _items(self) -> int:
        if self.n_items == 0:
            raise InsufficientData(
                "There is no item to compare", hint="Compare at least one item that both arms answered."
            )
        return self.n_items


def tally(baseline: Sequence[float] | npt.ArrayLike, candidate: Sequence[float] | npt.ArrayLike) -> PairedCounts:
    """Count gains and losses of two equally long sequences of 0/1 scores, item by item.

    Raises:
        InvalidValue: the sequences differ in length, are not one-dimensional, or hold anything but 0 and 1.
    """
    before, after = finite(baseline, name="Baseline scores"), finite(candidate, name="Candidate scores")
    if before.ndim != 1 or before.shape != after.shape:
        raise InvalidValue(
            f"The arms are not paired: {before.size} baseline and {after.size} candidate scores",
            hint="Give one score an item and arm, in the same order of items.",
        )
    if not np.all(((before == 0) | (before == 1)) & ((after == 0) | (after == 1))):
        raise InvalidValue(
            "Scores other than 0 and 1 cannot be counted as gains and losses",
            hint="Use the tests of paired differences for scores between 0 and 1.",
        )
    return PairedCounts(
        n_items=before.size,
        gains=int(np.sum(after > before)),
        losses=int(np.sum(before > after)),
        both_right=int(np.sum((before == 1) & (after == 1))),
    )
