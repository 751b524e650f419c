"""Flags of a framework on a pasted line: what is known of each, their values, and what becomes of those not read.

The tables are ``data/dialects/*.toml``; one may build on others (``also``). A flag sets a field of a job as it stands
(``[fields]``), is read one by one by the code of its dialect, or has no effect, or a small one, or changes the step but
is not modelled, or makes a job that cannot be described; one that is in no table is unknown. Whatever it is, it is
said.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from traincast.dialects.shell import has_variable, is_variable
from traincast.errors import ConfigError
from traincast.names import find_name, known_names
from traincast.shipped import constant, shipped_toml
from traincast.units import RANGES, Range, brief, checked_field, is_number, parse_tokens, plain_number, quoted

READ, NO_EFFECT, SMALL_EFFECT = "read", "no_effect", "small_effect"
NOT_MODELLED, REFUSED, UNKNOWN = "not_modelled", "refused", "unknown"

_ARITIES = {"switches": "0", "one": "1", "many": "*"}
_NUMBER = re.compile(r"^-[\d.]")
_QUOTED = re.compile(r"^(['\"])(.*)\1$", re.DOTALL)
_ESCAPED = re.compile(r"(?<!\\)\\+([|()*'\"])")
"""What a shell would read by itself, escaped once or, within quotation marks, more often: ``\\|`` in a layout."""
_HINTS = ("tokenizer-model", "tokenizer-type")
"""Flags whose values tell the vocabulary, where they are known; else it is assumed, as where they are not given."""
_TRUTH = {"true": "1", "yes": "1", "1": "1", "false": "", "no": "", "0": ""}


T = TypeVar("T")


class KnownFlag(Struct, frozen=True):
    """One flag of a framework."""

    name: str
    """As the framework spells it, without dashes before it."""
    values: str
    """How many values it takes."""
    effect: str
    """One of the effects above."""
    text: str = ""
    """What is forecast instead, or why it is refused."""
    when: str | None = None
    """Pattern of the values with which it has the effect; with others it says what is forecast anyway."""
    matters: str = ""
    """How much it may matter that it is not modelled, and by what."""

    def effect_of(self, values: str) -> str:
        """Return the effect that it has with these values."""
        if self.when is not None and re.search(self.when, values) is None:
            return READ
        return self.effect


class FlagTable(Struct, frozen=True):
    """The flags of one framework."""

    prefix: str
    """What stands before a flag in messages."""
    says: str
    """Whose flags they are."""
    flags: Mapping[str, KnownFlag]
    """By name, words joined by ``-``; a name that ends in ``*`` stands for all that begin so."""
    spellings: Mapping[str, tuple[str, ...]]
    """Other names to a name, or to a name and a value."""
    scripts: Mapping[str, str]
    """Pattern of a training script to why its jobs are refused."""
    fields: Mapping[str, tuple[str, Mapping[str, Any] | None]]
    """Flag to the field of a job that it sets as it stands, and what its values mean where they are not a number,
    switch or tokens; a meaning of an empty text leaves the field open."""
    usual: Mapping[str, Any]
    """Fields of a job as they are where no flag says otherwise."""
    further: Mapping[str, Any]
    """All of its file, for the tables of one dialect alone."""

    def check_script(self, script: str | None) -> None:
        """Refuse a training script of a kind of model or step that is not described."""
        name = (script or "").rpartition("/")[2]
        why = next((why for pattern, why in self.scripts.items() if re.fullmatch(pattern, name)), None)
        if why is not None:
            raise ConfigError(f"{why}, and the job would be forecast as another one", name)

    def find(self, name: str) -> KnownFlag | None:
        """Return the flag of a name, words joined by ``-``; None where it is unknown."""
        known = self.flags.get(name)
        if known is not None:
            return known
        parts = name.split(".")
        sections = (f"{'.'.join(parts[:count])}.*" for count in range(len(parts) - 1, 0, -1))
        return next((self.flags[each] for each in sections if each in self.flags), None)

    def shown(self, name: str) -> str:
        """Return a flag as the framework spells it."""
        known = self.find(name)
        spelled = known.name if known is not None and not known.name.endswith("*") else name
        return f"{self.prefix}{spelled if self.prefix else spelled.replace('-', '_')}"


def flag_table(dialect: str) -> FlagTable:
    """Return the flags of a framework by the name of its file in ``data/dialects``."""
    return constant(_flag_table, dialect)


def _flag_table(dialect: str) -> FlagTable:
    own = shipped_toml(f"dialects/{dialect}.toml", dict[str, Any])
    tables = [shipped_toml(f"dialects/{name}.toml", dict[str, Any]) for name in ("launchers", *own.get("also", ()))]
    tables.append(own)
    flags = {_plain(flag.name): flag for table in tables for flag in _flags(table)}
    said = [pair for table in tables for pair in table.get("spellings", {}).items()]
    spellings = {_plain(name): tuple(means.split()) for name, means in said}
    to_plain = {name: (_plain(to), *more) for name, (to, *more) in spellings.items()}
    fields = {
        name: (sets, None) if isinstance(sets, str) else (sets["field"], sets["means"])
        for table in tables
        for name, sets in table.get("fields", {}).items()
    }
    return FlagTable(own["prefix"], own["says"], flags, to_plain, own.get("scripts", {}), fields, own["usual"], own)


def _plain(name: str) -> str:
    return name.replace("_", "-")


def _flags(table: Mapping[str, Any]) -> Iterator[KnownFlag]:
    for effect in (READ, NO_EFFECT, SMALL_EFFECT, NOT_MODELLED, REFUSED):
        groups = table.get(effect, [])
        for group in groups if isinstance(groups, list) else [groups]:
            text = group.get("instead", group.get("why", ""))
            for arity, values in _ARITIES.items():
                for name in group.get(arity, "").split():
                    yield KnownFlag(name, values, effect, text, group.get("when"), group.get("matters", ""))


class Pasted(Struct, frozen=True):
    """Flags of one framework with their values."""

    flags: Mapping[str, tuple[str, ...]]
    """Flag without its dashes, words joined by ``-``, to its values in their order."""
    shown: str
    """Whose flags they are, for messages."""
    prefix: str = "--"
    """What stands before a flag in messages."""

    def __contains__(self, flag: str) -> bool:
        return flag in self.flags

    def text(self, flag: str) -> str:
        """Return the only value of a flag.

        Raises
        ------
        ConfigError
            If it has none or several; likewise below, if the value is of another kind or out of range.
        """
        values = self.flags[flag]
        if len(values) != 1:
            raise self.wrong(flag, f"has {len(values)} values; it takes one")
        return values[0]

    def words(self, flag: str) -> str:
        """Return the values of a flag joined by blanks; empty where it is not given."""
        return " ".join(self.flags.get(flag, ()))

    def wrong(self, flag: str, what: str) -> ConfigError:
        """Return the error of a flag."""
        return ConfigError(f"{what} (in {self.shown})", f"{self.prefix}{flag}")

    def count(self, flag: str, least: int = 0, usual: int | None = None) -> int:
        """Return the value of a flag as a whole number; `usual` where it is not given or, being -1, says so itself."""
        if usual is not None and (flag not in self or (usual < 0 and self.text(flag) == str(usual))):
            return usual
        also = ", or -1 for what is left" if usual == -1 else ""
        return int(self._checked(flag, RANGES["degree"], "a whole number", least, also))

    def number(self, flag: str, kind: str = "factor") -> float:
        """Return the value of a flag as a number of some kind (`traincast.units.RANGES`)."""
        return self._checked(flag, RANGES[kind], "a number", None)

    def _checked(self, flag: str, known: Range, what: str, least: float | None, also: str = "") -> float:
        text = self.text(flag).replace("_", "")
        if not is_number(text):
            raise self.wrong(flag, f"is {quoted(text)}; it must be {what}")
        try:
            return known.checked(plain_number(text), least=least)
        except ConfigError as error:
            raise self.wrong(flag, f"{error}{also}") from None

    def choice(self, flag: str, known: Mapping[str, T]) -> T:
        """Return what the value of a flag stands for."""
        text = self.text(flag)
        found = find_name(text, known)
        if found is None:
            raise self.wrong(flag, f"is {quoted(text)}; {known_names(text, known)}")
        return known[found]

    def is_on(self, flag: str, *, usual: bool = False) -> bool:
        """Say whether a switch is set: it stands alone, or with a word for true."""
        if flag not in self:
            return usual
        return not self.flags[flag] or self.choice(flag, _TRUTH) == "1"

    def tokens(self, flag: str) -> int:
        """Return the value of a flag as a number of tokens; ``8k`` is 8,192."""
        try:
            return int(checked_field("seq_length", parse_tokens(self.text(flag))))
        except ConfigError as error:
            raise self.wrong(flag, str(error)) from None

    def fields(self, table: FlagTable) -> dict[str, Any]:
        """Return the fields of a job that flags set as they stand, and the usual ones."""
        found = dict(table.usual)
        for flag, (field, means) in table.fields.items():
            if flag not in self:
                continue
            known = table.find(_plain(flag))
            if means is not None:
                value = self.choice(flag, means)
            elif known is not None and known.values == "0":
                value = self.is_on(flag)
            else:
                value = self.tokens(flag) if field == "seq_length" else self.count(flag, 1)
            found |= {} if value == "" else {field: value}
        return found

    def given(self) -> dict[str, str]:
        """Return the flags with their values joined by blanks; of one that is switched off it is ``false``."""
        return {flag: " ".join(values) for flag, values in self.flags.items()}


def split_flags(words: Sequence[str], shown: str, table: FlagTable) -> Pasted:
    """Split the words that a training script is given into flags and values.

    ``--flag=value`` and ``--flag value`` are the same, and so are ``_`` and ``-`` within a flag. The last of several
    counts. A flag takes as many values as its framework says, an unknown one all words up to the next flag.

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
    """Yield the words that say something, without quotation marks and backslashes that were pasted with them."""
    for word in words:
        bare = _unquoted(_ESCAPED.sub(r"\1", _unquoted(word.strip())))
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
    return has < most or (most == 0 and has == 0 and word.lower() in _TRUTH)


def _matters(known: KnownFlag | None) -> bool:
    """Say whether the value of a flag is needed; an unknown one is warned of as it is; a hint may be missing."""
    return known is not None and known.effect not in (NO_EFFECT, SMALL_EFFECT) and known.name not in _HINTS
