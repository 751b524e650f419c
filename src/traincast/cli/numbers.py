"""Types of options whose values have a range of `traincast.units`."""

from typing import TYPE_CHECKING

import click

from traincast.errors import ConfigError
from traincast.units import RANGES, Range, is_number, plain_number, quoted, range_of

if TYPE_CHECKING:
    _NumberType = click.ParamType[float]
else:
    # Generic in the stubs of click 8.2 and later only.
    _NumberType = click.ParamType


class InRange(_NumberType):
    """A number in the range of a kind of quantity; outside it the usage is wrong.

    Parameters
    ----------
    known : Range
        The range.
    least : float, optional
        A lowest value of this option alone; the highest below.
    """

    def __init__(self, known: Range, least: float | None = None, most: float | None = None) -> None:
        self.name = "integer" if known.whole else "float"
        lowest, highest = known.lowest if least is None else least, known.highest if most is None else most
        self.known = Range(known.kind, lowest, highest, known.unit, known.whole, known.of)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or complain as wrong usage."""
        if isinstance(value, str):
            if not is_number(value.strip()):
                self.fail(f"{quoted(value)} is not a valid {self.name}; it must be {self.known}", param, ctx)
            value = plain_number(value)
        try:
            return self.known.checked(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def in_range(field: str, least: float | None = None, most: float | None = None) -> InRange:
    """Return the type of an option that sets a field of that name."""
    return InRange(range_of(field) or RANGES["figure"], least, most)
