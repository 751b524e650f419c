"""Which options of a simulation mean something to SimAI's prices."""

from dataclasses import fields

from traincast.errors import ConfigError
from traincast.estimate.simai.header import SIMAI_OPTIONS
from traincast.job.flags import flag_of
from traincast.job.options import LayoutOptions, SimulateOptions

_FLAGS = {"busbw_bytes_per_s": "busbw", "compute_slowdown": "slow"}
"""Flags that are not named like their fields."""


def refuse_beside_simai(options: SimulateOptions) -> None:
    """Refuse an option that the user set and SimAI has no word for.

    Raises
    ------
    ConfigError
        With the first such flag.
    """
    layout = [each.name for each in fields(LayoutOptions) if each.name not in SIMAI_OPTIONS]
    given = [name for name in layout if getattr(options.layout, name) != getattr(LayoutOptions(), name)]
    pricing = [each.name for each in fields(SimulateOptions) if each.name not in ("layout", "cluster")]
    given += [_FLAGS.get(name, name) for name in pricing if getattr(options, name) != getattr(SimulateOptions(), name)]
    if given:
        raise ConfigError(f"{flag_of(given[0])} has no meaning for SimAI's prices")
