"""What paired answers can and cannot prove: pure functions on counts and arrays.

Baseline is the drafter off, candidate the drafter on; a difference is candidate − baseline, a fraction. No function
here reads a file, a clock or a global random state; heavy parts of scipy load at their first use.
"""

from __future__ import annotations

from qualab.stats.adjustment import benjamini_hochberg, benjamini_yekutieli, holm
from qualab.stats.counts import PairedCounts, tally
from qualab.stats.difference import (
    McNemarResult,
    TwoProportionResult,
    UnconditionalResult,
    mcnemar,
    mcnemar_unconditional,
    two_proportion_z,
)
from qualab.stats.equivalence import (
    EquivalenceResult,
    NonInferiorityResult,
    ProvableMargin,
    equivalence,
    non_inferiority,
    provable_margin,
)
from qualab.stats.interval import (
    INTERVALS,
    ConfidenceInterval,
    IntervalMethod,
    fay_lumbard,
    newcombe,
    newcombe_uncorrected,
    tango,
)
from qualab.stats.power import McNemarMethod, power_equivalence, power_mcnemar, power_non_inferiority
from qualab.stats.sizing import (
    items_connor,
    items_miettinen,
    items_needed,
    items_needed_mcnemar,
    items_wald,
    items_wald_equivalence,
    mde,
    mde_beyond_noise,
    smallest_margin,
)

__all__ = [
    "INTERVALS",
    "ConfidenceInterval",
    "EquivalenceResult",
    "IntervalMethod",
    "McNemarMethod",
    "McNemarResult",
    "NonInferiorityResult",
    "PairedCounts",
    "ProvableMargin",
    "TwoProportionResult",
    "UnconditionalResult",
    "benjamini_hochberg",
    "benjamini_yekutieli",
    "equivalence",
    "fay_lumbard",
    "holm",
    "items_connor",
    "items_miettinen",
    "items_needed",
    "items_needed_mcnemar",
    "items_wald",
    "items_wald_equivalence",
    "mcnemar",
    "mcnemar_unconditional",
    "mde",
    "mde_beyond_noise",
    "newcombe",
    "newcombe_uncorrected",
    "non_inferiority",
    "power_equivalence",
    "power_mcnemar",
    "power_non_inferiority",
    "provable_margin",
    "smallest_margin",
    "tally",
    "tango",
    "two_proportion_z",
]
