"""A number with its text, which the terminal report would print."""

from msgspec import Struct


class Shown(Struct, frozen=True):
    """A number and how it is shown."""

    value: float
    text: str
