"""What an unpaired comparison of two proportions would need: closed forms, for comparison with older reports only.

Two arms that answer the same items are paired. These figures show what ignoring the pairs costs; nothing in qualab
decides by them.
"""

from __future__ import annotations

import math

from qualab.errors import InsufficientData, InvalidValue
from qualab.stats.checks import check_alpha, check_items, check_margin, check_power
from qualab.stats.distributions import bisect, normal_cdf, normal_quantile


def power_unpaired(*, n_items: int, baseline: float, difference: float, alpha: float = 0.05) -> float:
    """Probability that the pooled two-proportion z-test sees a difference, with `n_items` in each arm.

    Normal approximation with the pooled variance under "no difference" and the arms' own otherwise (Fleiss, Levin &
    Paik 2003, chapter 4); the chance of rejecting on the wrong side is left out.

    Raises:
        InsufficientData: there is no item.
        InvalidValue: a proportion is outside 0..1, or alpha is not between 0 and 0.5.
    """
    z = normal_quantile(1.0 - check_alpha(alpha) / 2.0)
    candidate = _proportion(baseline + difference)
    pooled = (_proportion(baseline) + candidate) / 2.0
    of_none = math.sqrt(2.0 * pooled * (1.0 - pooled) / check_items(n_items))
    of_arms = math.sqrt((baseline * (1.0 - baseline) + candidate * (1.0 - candidate)) / n_items)
    if of_arms == 0.0:  # both arms constant: seen for certain where they differ, never where they do not
        return float(difference != 0.0)
    return normal_cdf((abs(difference) - z * of_none) / of_arms)


def mde_unpaired(*, n_items: int, baseline: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest loss that the pooled two-proportion z-test sees with this power, with `n_items` in each arm.

    Raises:
        InsufficientData: there is no item, or not even a fall to 0 is seen with this power.
        InvalidValue: an argument cannot be.
    """
    check_power(power)

    def is_seen(loss: float) -> bool:
        return power_unpaired(n_items=n_items, baseline=baseline, difference=-loss, alpha=alpha) >= power

    if not is_seen(_proportion(baseline)):
        raise InsufficientData(
            f"{n_items} items an arm find no loss with a power of {power:g} without pairing", hint="Add items."
        )
    return bisect(is_seen, 0.0, baseline)


def items_unpaired_equivalence(*, baseline: float, margin: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Items in each arm at which two one-sided z-tests prove ±margin, both arms at `baseline`, not rounded up.

    2 p (1 − p) (z₁₋α + z₍₁₊power₎/₂)² / margin² (Chow, Shao & Wang 2008, section 4.2).

    Raises:
        InvalidValue: an argument cannot be.
    """
    z = normal_quantile(1.0 - check_alpha(alpha)) + normal_quantile((1.0 + check_power(power)) / 2.0)
    return 2.0 * _proportion(baseline) * (1.0 - baseline) * (z / check_margin(margin)) ** 2


def _proportion(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise InvalidValue(f"A share of right answers must lie between 0 and 1, not {value:g}", hint="Give a fraction.")
    return value
