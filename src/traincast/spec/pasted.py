"""Split a pasted command line into flags and their values, as argparse would."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traincast.errors import ConfigError

_NUMBER = re.compile(r"^-\d")
_LAUNCHERS = ("torchrun", "python", "python3", "srun", "deepspeed", "mpirun")


@dataclass(frozen=True, slots=True)
class Pasted:
    """Flags of one framework with their values.

    Parameters
    ----------
    flags : mapping
        Flag without its dashes, words joined by ``-``, to its values in their order.
    shown : str
        Whose flags they are, for messages.
    """

    flags: Mapping[str, tuple[str, ...]]
    shown: str

    def __contains__(self, flag: str) -> bool:
        return flag in self.flags

    def text(self, flag: str) -> str:
        """Return the only value of a flag.

        Raises
        ------
        ConfigError
            If it has none or several.
        """
        values = self.flags[flag]
        if len(values) != 1:
            raise ConfigError(f"has {len(values)} values; it takes one (in {self.shown})", f"--{flag}")
        return values[0]

    def count(self, flag: str, least: int = 0) -> int:
        """Return the value of a flag as a whole number.

        Raises
        ------
        ConfigError
            If it is none, or too small.
        """
        text = self.text(flag)
        try:
            value = int(text.replace("_", ""))
        except ValueError:
            raise ConfigError(f"is {text!r}; it must be a whole number (in {self.shown})", f"--{flag}") from None
        if value < least:
            raise ConfigError(f"is {value}; it must be at least {least} (in {self.shown})", f"--{flag}")
        return value

    def number(self, flag: str) -> float:
        """Return the value of a flag as a number.

        Raises
        ------
        ConfigError
            If it is none.
        """
        text = self.text(flag)
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"is {text!r}; it must be a number (in {self.shown})", f"--{flag}") from None

    def choice(self, flag: str, known: Mapping[str, str]) -> str:
        """Return what the value of a flag stands for.

        Raises
        ------
        ConfigError
            If it is no key of `known`.
        """
        text = self.text(flag)
        if text not in known:
            raise ConfigError(f"is {text!r}; known: {', '.join(known)} (in {self.shown})", f"--{flag}")
        return known[text]

    def is_on(self, flag: str) -> bool:
        """Say whether a switch is set: it stands alone, or with a word for true."""
        values = self.flags.get(flag)
        if values is None:
            return False
        if not values:
            return True
        return self.choice(flag, {"true": "1", "True": "1", "1": "1", "false": "", "False": "", "0": ""}) == "1"


def split_flags(words: Sequence[str], shown: str) -> Pasted:
    """Split words into flags and values.

    What stands before the first flag of the training script is taken as its launcher. ``--flag=value`` and
    ``--flag value`` are the same, and so are ``_`` and ``-`` within a flag. The last of several counts.

    Parameters
    ----------
    words : sequence of str
        The words of a command line, line-continuation signs and quotes among them or not.
    shown : str
        Whose flags they are, for messages.

    Returns
    -------
    Pasted

    Raises
    ------
    ConfigError
        If a word belongs to no flag.
    """
    flags: dict[str, tuple[str, ...]] = {}
    name: str | None = None
    for word in (word.strip() for word in words):
        if not word or word == "\\":
            continue
        if word.startswith("-") and not _NUMBER.match(word) and word.lstrip("-"):
            head, equals, value = word.partition("=")
            name = head.lstrip("-").replace("_", "-")
            flags[name] = (value,) if equals else ()
        elif word.endswith(".py") or word.rpartition("/")[2] in _LAUNCHERS or (name is None and "=" in word):
            name = None
        elif name is None:
            raise ConfigError(f"{word!r} belongs to no flag (in {shown})")
        else:
            flags[name] = (*flags[name], word)
    return Pasted(flags, shown)
