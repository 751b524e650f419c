"""A value as it is typed, and a number as it is shown."""

from collections.abc import Mapping

from msgspec import Struct

Value = str | int | float | bool | list[str | int] | None
Words = Mapping[str, Value]
"""Field to its value as typed; what is absent, null or empty is left open."""


class Shown(Struct, frozen=True):
    """A number with its text, which the terminal report would print."""

    value: float
    text: str
