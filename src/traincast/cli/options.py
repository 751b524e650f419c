"""Options that several commands share, made from the tables of `traincast.spec`."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from traincast.errors import ConfigError
from traincast.spec.flags import LAYOUT_FLAGS
from traincast.units import parse_rate, parse_size

F = TypeVar("F", bound=Callable[..., Any])


def layout_options(function: F) -> F:
    """Add a flag for every layout degree, under its own name and Megatron-LM's."""
    for flag in reversed(LAYOUT_FLAGS):
        function = click.option(
            *flag.names, flag.field, type=click.IntRange(min=1), metavar="N", help=flag.help
        )(function)
    return function


class Size(click.ParamType):
    """A number of bytes with a unit."""

    name = "SIZE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it, or complain as wrong usage."""
        try:
            return value if isinstance(value, int) else parse_size(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Pair(click.ParamType):
    """A ``key=value`` with a checked key and value."""

    def __init__(self, name: str, key: Callable[[str], Any], value: Callable[[str], Any]) -> None:
        self.name, self._key, self._value = name, key, value

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, Any]:
        """Read it, or complain as wrong usage."""
        if isinstance(value, tuple):
            return value
        left, equals, right = str(value).partition("=")
        try:
            if not equals:
                raise ConfigError(f"{value!r} is not of the form {self.name}")
            return self._key(left.strip()), self._value(right.strip())
        except (ConfigError, ValueError) as error:
            self.fail(str(error), param, ctx)


BUSBW = Pair("GROUP=RATE", str, parse_rate)
SLOW = Pair("RANK=FACTOR", int, float)
