"""Split a pasted command line into flags and their values, as argparse would."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from traincast.dialects.dialect_flags import NO_EFFECT, SMALL_EFFECT, FlagTable, KnownFlag
from traincast.dialects.shell import has_variable, is_variable
from traincast.errors import ConfigError
from traincast.names import find_name, known_names
from traincast.units import RANGES, Range, brief, checked_field, is_number, parse_tokens, plain_number, quoted

_NUMBER = re.compile(r"^-[\d.]")
_QUOTED = re.compile(r"^(['\"])(.*)\1$", re.DOTALL)
_PATHS = ("tokenizer-model",)
_TRUTH = {"true": "1", "True": "1", "1": "1", "false": "", "False": "", "0": ""}


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
            If it is none, too small, or out of range.
        """
        return int(self._checked(flag, RANGES["degree"], "a whole number", least=least))

    def number(self, flag: str) -> float:
        """Return the value of a flag as a number.

        Raises
        ------
        ConfigError
            If it is none, or out of range.
        """
        return self._checked(flag, RANGES["factor"], "a number", least=None)

    def _checked(self, flag: str, known: Range, what: str, least: float | None) -> float:
        text = self.text(flag).replace("_", "")
        if not is_number(text):
            raise ConfigError(f"is {quoted(text)}; it must be {what} (in {self.shown})", f"--{flag}")
        try:
            return known.checked(plain_number(text), least=least)
        except ConfigError as error:
            raise ConfigError(f"{error} (in {self.shown})", f"--{flag}") from None

    def choice(self, flag: str, known: Mapping[str, str]) -> str:
        """Return what the value of a flag stands for.

        Raises
        ------
        ConfigError
            If it is no key of `known`.
        """
        text = self.text(flag)
        found = find_name(text, known)
        if found is None:
            raise ConfigError(f"is {quoted(text)}; {known_names(text, known)} (in {self.shown})", f"--{flag}")
        return known[found]

    def is_on(self, flag: str) -> bool:
        """Say whether a switch is set: it stands alone, or with a word for true."""
        values = self.flags.get(flag)
        if values is None:
            return False
        if not values:
            return True
        return self.choice(flag, _TRUTH) == "1"

    def tokens(self, flag: str) -> int:
        """Return the value of a flag as a number of tokens; ``8k`` is 8,192.

        Raises
        ------
        ConfigError
            If it is none.
        """
        try:
            return int(checked_field("seq_length", parse_tokens(self.text(flag))))
        except ConfigError as error:
            raise ConfigError(f"{error} (in {self.shown})", f"--{flag}") from None

    def given(self) -> dict[str, str]:
        """Return the flags that are not switched off, with their values joined by blanks."""
        return {flag: " ".join(values) for flag, values in self.flags.items() if values not in (("false",), ("False",))}


def split_flags(words: Sequence[str], shown: str, table: FlagTable) -> Pasted:
    """Split the words that a training script is given into flags and values.

    ``--flag=value`` and ``--flag value`` are the same, and so are ``_`` and ``-`` within a flag. The last of several
    counts. A flag takes as many values as its framework says, an unknown one all words up to the next flag.

    Parameters
    ----------
    words : sequence of str
        The words.
    shown : str
        Whose flags they are, for messages.
    table : FlagTable
        What is known of them.

    Returns
    -------
    Pasted

    Raises
    ------
    ConfigError
        If a word belongs to no flag, or a shell variable stands where its value is needed.
    """
    flags: dict[str, tuple[str, ...]] = {}
    full: dict[str, int] = {}
    name: str | None = None
    lost = []
    for word in _bare(words):
        if word.startswith("-") and not _NUMBER.match(word):
            head, equals, value = word.partition("=")
            name, preset = _spelled(head.lstrip("-").replace("_", "-"), table)
            flags[name] = (*preset, *((_unquoted(value),) if equals else ()))
            full[name] = _most(table.find(name), preset)
        elif name is not None and _takes(word, len(flags[name]), full[name]):
            flags[name] = (*flags[name], word)
        elif is_variable(word):
            lost.append(brief(word))
        else:
            after = "" if name is None else f"; {table.shown(name)} takes {full[name] or 'none'}"
            raise ConfigError(f"{quoted(word)} belongs to no flag{after} (in {shown})")
    lost += [
        brief(f"{table.shown(flag)} {' '.join(values)}")
        for flag, values in flags.items()
        if any(map(has_variable, values)) and _matters(table.find(flag))
    ]
    if lost:
        raise ConfigError(
            f"shell variables have no value here: {', '.join(lost)}; write their values, or set them before the "
            f"command (TP=8 torchrun ...) (in {shown})"
        )
    return Pasted(flags, shown)


def _bare(words: Sequence[str]) -> Iterator[str]:
    """Yield the words that say something, without quotation marks that were pasted with them."""
    for word in words:
        bare = _unquoted(word.strip())
        if bare.strip("-\\"):
            yield bare


def _unquoted(word: str) -> str:
    inside = _QUOTED.match(word)
    return inside[2] if inside else word


def _spelled(name: str, table: FlagTable) -> tuple[str, tuple[str, ...]]:
    """Return the usual name of a flag, and the value that another name of it stands for."""
    to, *preset = table.spellings.get(name, (name,))
    if table.find(to) is not None:
        return to, tuple(preset)
    # A switch with a section before it is turned off by no- before its last part, or before the whole.
    section, dot, last = to.rpartition(".")
    off = f"{section}{dot}{last.removeprefix('no-')}" if dot and last.startswith("no-") else to.removeprefix("no-")
    known = table.find(off) if off != to and "." in off else None
    return (off, ("false",)) if known is not None and known.values == "0" else (to, tuple(preset))


def _most(known: KnownFlag | None, preset: Sequence[str]) -> int:
    """Return how many values a flag takes at most."""
    if known is None or known.values == "*" or known.name.endswith("*"):
        return 1 << 16
    return len(preset) or int(known.values)


def _takes(word: str, has: int, most: int) -> bool:
    return has < most or (most == 0 and has == 0 and word in _TRUTH)


def _matters(known: KnownFlag | None) -> bool:
    """Say whether the value of a flag is needed; an unknown one is warned of as it is, and a path is only a hint."""
    return known is not None and known.effect not in (NO_EFFECT, SMALL_EFFECT) and known.name not in _PATHS
