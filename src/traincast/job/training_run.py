"""A whole training run: what is asked of its time, money, energy and emissions."""

from dataclasses import dataclass, fields
from typing import Any

from traincast.errors import ConfigError
from traincast.names import known_names
from traincast.units import RANGES, checked_field, parse_token_count


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """How long a run is, and what an hour of it costs and needs; without `tokens` nothing is asked."""

    tokens: float | None = None
    """Tokens of the whole run; a text such as ``15T`` is decimal."""
    gpu_hour_price: float | None = None
    """What an hour of a GPU costs, in `currency`."""
    currency: str | None = None
    """Name of the currency; None: not specified."""
    gpu_power_w: float | None = None
    """What a GPU draws with its share of the node; None: its thermal design power, the most that it draws itself."""
    pue: float | None = None
    """Power usage effectiveness: energy of the whole site over that of the computers (ISO/IEC 30134-2); None is 1."""
    grid_intensity: float | None = None
    """Emissions of the electricity, in grams of CO2 equivalent per kWh."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and terms of a run of which nobody says how long it is."""
        if isinstance(self.tokens, str):
            object.__setattr__(self, "tokens", parse_token_count(self.tokens))
        if self.tokens is not None:
            RANGES["training tokens"].checked(self.tokens, "tokens")
        if self.currency is not None and not self.currency.strip():
            raise ConfigError("is empty; give the name of a currency, such as USD", "currency")
        for name in ("gpu_hour_price", "gpu_power_w", "pue", "grid_intensity"):
            value = getattr(self, name)
            if value is not None:
                checked_field(name, value, name)
        if self.gpu_hour_price == 0:
            raise ConfigError("is 0; it must be above 0", "gpu_hour_price")
        if self.currency is not None and self.gpu_hour_price is None:
            raise ConfigError("is of a price; give gpu_hour_price too", "currency")
        given = [each.name for each in fields(RunTerms) if getattr(self, each.name) is not None]
        if given and self.tokens is None:
            raise ConfigError("is of a whole run; give its tokens too, such as 15T", given[0])


def run_terms(values: dict[str, Any]) -> RunTerms:
    """Return the terms that keywords say.

    Raises
    ------
    ConfigError
        If a keyword is none of them, or a value is not allowed.
    """
    known = [each.name for each in fields(RunTerms)]
    unknown = next((name for name in sorted(values) if name not in known), None)
    if unknown is not None:
        raise ConfigError(f"unknown option {unknown!r}; {known_names(unknown, known)}")
    return RunTerms(**values)
