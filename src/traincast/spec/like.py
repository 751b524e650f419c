"""Frameworks whose own flags are read as they are."""

from collections.abc import Callable

from traincast.errors import UnknownNameError
from traincast.spec.draft import Draft
from traincast.spec.megatron_flags import draft_of_megatron
from traincast.spec.torchtitan_flags import draft_of_torchtitan

LIKES: dict[str, Callable[[list[str]], Draft]] = {
    "megatron": draft_of_megatron,
    "torchtitan": draft_of_torchtitan,
}
"""Name to the reader of its command line."""


def draft_like(name: str, words: list[str]) -> Draft:
    """Read pasted flags of a framework.

    Parameters
    ----------
    name : str
        One of `LIKES`.
    words : list of str
        The words of its command line.

    Raises
    ------
    UnknownNameError
        If its flags are not known here.
    ConfigError
        If a flag is unknown or has a wrong value.
    """
    if name not in LIKES:
        raise UnknownNameError("framework", name, LIKES)
    return LIKES[name](words)
