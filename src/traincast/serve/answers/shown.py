"""Numbers with the texts that the terminal report prints."""

from traincast.serve.records.values import Shown
from traincast.units import format_share, format_size, format_time


def time_shown(time_s: float) -> Shown:
    """Return a time with its text."""
    return Shown(time_s, format_time(time_s))


def size_shown(size_bytes: float) -> Shown:
    """Return a size with its text."""
    return Shown(size_bytes, format_size(size_bytes))


def share_shown(share: float) -> Shown:
    """Return a share with its text."""
    return Shown(share, format_share(share))
