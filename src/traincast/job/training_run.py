"""A whole training run: what is asked of its time, money, energy and emissions."""

from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from traincast.errors import ConfigError
from traincast.job.failures import Failures, parse_failures
from traincast.names import known_names
from traincast.units import RANGES, checked_field, parse_token_count


class RunTerms(Struct, frozen=True, kw_only=True):
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
    failures: Failures | None = None
    """What interrupts a long run, which lasts longer by its goodput. A text is read by `parse_failures`, True takes the
    defaults."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and terms of a run of which nobody says how long it is."""
        if isinstance(self.tokens, str):
            force_setattr(self, "tokens", parse_token_count(self.tokens))
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
            raise ConfigError("needs a price; give gpu_hour_price too", "currency")
        if isinstance(self.failures, str | bool):
            text = self.failures if isinstance(self.failures, str) else ""
            force_setattr(self, "failures", None if self.failures is False else parse_failures(text))
        # Of failures alone the goodput is told.
        names = [each for each in RunTerms.__struct_fields__ if each != "failures"]
        given = [name for name in names if getattr(self, name) is not None]
        if given and self.tokens is None:
            raise ConfigError("belongs to a whole run; give its tokens too, such as 15T", given[0])


def run_terms(values: dict[str, Any]) -> RunTerms:
    """Return the terms of a run that keywords say.

    Raises
    ------
    ConfigError
        If a keyword is not one of them, a value is not allowed, or failures are given and no tokens.
    """
    known = [*RunTerms.__struct_fields__]
    unknown = next((name for name in sorted(values) if name not in known), None)
    if unknown is not None:
        raise ConfigError(f"unknown option {unknown!r}; {known_names(unknown, known)}")
    terms = RunTerms(**values)
    if terms.failures is not None and terms.tokens is None:
        raise ConfigError("belongs to a whole run; give its tokens too, such as 15T", "failures")
    return terms
