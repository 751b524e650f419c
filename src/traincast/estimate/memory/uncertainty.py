"""How sure the memory model is: from what a GPU needs to the chance that it does not fit.

The logarithm of measured over predicted memory is taken as normal around 0 with the deviation that published runs
show (`data/memory/error.toml`). All stages of a job share the model's error, so that the stage that needs most decides.
"""

import math
import tomllib
from functools import cache
from importlib import resources

REFUSED_ABOVE = 0.9
"""Chance of not fitting beyond which a job is refused: fitting is then very unlikely (below 10 %) in the words that
the IPCC gives to chances (Mastrandrea et al. 2010, Guidance note on treatment of uncertainties, table 1)."""

WARNED_ABOVE = 0.1
"""Chance of not fitting beyond which a job runs with a warning: below it, not fitting is very unlikely."""


@cache
def memory_deviation() -> float:
    """Return the standard deviation of the logarithm of measured over predicted memory."""
    text = (resources.files("traincast") / "data" / "memory" / "error.toml").read_text(encoding="utf-8")
    return float(tomllib.loads(text)["error"]["deviation"])


def chance_of_oom(peak_bytes: float, usable_bytes: float) -> float:
    """Return the chance that a GPU runs out of memory.

    Parameters
    ----------
    peak_bytes : float
        What it is predicted to need.
    usable_bytes : float
        What programs can use of it; above 0.

    Returns
    -------
    float
        From 0 to 1; 0.5 where both are equal.
    """
    if peak_bytes <= 0:
        return 0.0
    deviations = math.log(peak_bytes / usable_bytes) / memory_deviation()
    return 0.5 * math.erfc(-deviations / math.sqrt(2))
