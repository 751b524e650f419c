"""What interrupts a long run and what it costs to go on: failures, restarts, checkpoints."""

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.names import find_name, known_names
from traincast.units import checked_field, parse_time, quoted


class Failures(Struct, frozen=True, kw_only=True):
    """How often a GPU interrupts a run, and what is lost each time."""

    mtbf_s: float = 50_700 * 3600.0
    """Mean time between interruptions of one GPU. Llama 3 405B: 419 unexpected ones in 54 days of 16,384 GPUs
    (arXiv 2407.21783, section 3.3.4)."""
    detection_s: float = 300.0
    """From the failure until the job is stopped. MegaScale detects and diagnoses in less than 10 minutes on average
    (arXiv 2402.15627, section 6.3); half of that is assumed."""
    restart_s: float = 300.0
    """From then until it trains again: other nodes, initialisation, loading the checkpoint; assumed. MegaScale is where
    it was before the failure within 15 minutes, with what is trained again (the same section)."""
    checkpoint_s: float = 5.0
    """How long a checkpoint holds the training up. Copying to host memory takes several seconds (MegaScale, section
    4.4), 5 of which are assumed; a checkpoint written while all wait takes longer: 40 s for 2.3 TB of BLOOM
    (stas00/ml-engineering)."""
    interval_s: float | None = None
    """Training between two checkpoints; None takes the optimal one."""

    def __post_init__(self) -> None:
        """Refuse times out of range."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None and name == "interval_s":
                continue
            checked_field(name, value, f"failures.{name}")
            if value <= 0 and name in ("mtbf_s", "interval_s"):
                raise ConfigError(f"is {value:g} s; it must be above 0", f"failures.{name}")


def parse_failures(text: str) -> Failures:
    """Read ``mtbf=50000h,restart=10min,checkpoint=30s,interval=1h``; ``default`` or nothing takes all defaults.

    Raises
    ------
    ConfigError
        If it is not of that form, or a time is not allowed.
    """
    known = {each.removesuffix("_s"): each for each in Failures.__struct_fields__}
    given: dict[str, float | None] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        if part.lower() == "default":
            continue
        name, equals, value = (word.strip() for word in part.partition("="))
        found = find_name(name, known)
        if not equals or found is None:
            raise ConfigError(f"{quoted(part)} is not NAME=TIME; {known_names(name, sorted(known))}", "goodput")
        if known[found] in given:
            raise ConfigError(f"{found} is given twice", "goodput")
        optimal = found == "interval" and value.lower() == "optimal"
        given[known[found]] = None if optimal else parse_time(value)
    return Failures(**given)  # type: ignore[arg-type]
