"""What is known of a framework's flags: how many values each takes, and what it does to the time of a step.

The tables are ``data/dialects/*.toml``. A flag is read one by one by the code of its dialect, or has no effect, or a
small one, or changes the step but is not modelled, or makes a job that cannot be described; one that is in no table
is unknown. Whatever it is, it is said.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from traincast.diagnostics import Note
from traincast.errors import ConfigError
from traincast.names import nearest
from traincast.units import brief, quoted

READ, NO_EFFECT, SMALL_EFFECT = "read", "no_effect", "small_effect"
NOT_MODELLED, REFUSED, UNKNOWN = "not_modelled", "refused", "unknown"

_ARITIES = {"switches": "0", "one": "1", "many": "*"}


@dataclass(frozen=True, slots=True)
class KnownFlag:
    """One flag of a framework.

    Parameters
    ----------
    name : str
        As the framework spells it, without dashes before it.
    values : {"0", "1", "*"}
        How many values it takes.
    effect : str
        One of the effects above.
    text : str
        What is forecast instead, or why it is refused.
    when : str or None
        Pattern of the values with which it has the effect; with others it says what is forecast anyway.
    """

    name: str
    values: str
    effect: str
    text: str = ""
    when: str | None = None

    def effect_of(self, values: str) -> str:
        """Return the effect that it has with these values."""
        if self.when is not None and re.search(self.when, values) is None:
            return READ
        return self.effect


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The flags of one framework.

    Parameters
    ----------
    prefix : str
        What stands before a flag in messages.
    says : str
        Whose flags they are.
    flags : mapping
        By name, words joined by ``-``; a name that ends in ``*`` stands for all that begin so.
    spellings : mapping
        Other names to a name, or to a name and a value.
    scripts : mapping
        Pattern of a training script to why its jobs are refused.
    """

    prefix: str
    says: str
    flags: Mapping[str, KnownFlag]
    spellings: Mapping[str, tuple[str, ...]]
    scripts: Mapping[str, str]

    def check_script(self, script: str | None) -> None:
        """Refuse a training script of a kind of model or step that is not described.

        Raises
        ------
        ConfigError
            If the script is one of these.
        """
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


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is said of flags that the code of a dialect does not read.

    Parameters
    ----------
    notes : tuple of Note
        Flags without effect and with a small one.
    warnings : tuple of Note
        Flags that are unknown or change the step but are not modelled, one by one.
    """

    notes: tuple[Note, ...]
    warnings: tuple[Note, ...]


@cache
def flag_table(dialect: str) -> FlagTable:
    """Return the flags of a framework.

    Parameters
    ----------
    dialect : str
        Name of a file in ``data/dialects``.
    """
    folder = resources.files("traincast") / "data" / "dialects"
    own = tomllib.loads((folder / f"{dialect}.toml").read_text(encoding="utf-8"))
    launcher = tomllib.loads((folder / "launchers.toml").read_text(encoding="utf-8"))
    flags = {_plain(flag.name): flag for table in (launcher, own) for flag in _flags(table)}
    spellings = {_plain(name): tuple(means.split()) for name, means in own.get("spellings", {}).items()}
    to_plain = {name: (_plain(to), *more) for name, (to, *more) in spellings.items()}
    return FlagTable(own["prefix"], own["says"], flags, to_plain, own.get("scripts", {}))


def _plain(name: str) -> str:
    return name.replace("_", "-")


def _flags(table: Mapping[str, Any]) -> Iterator[KnownFlag]:
    for effect in (READ, NO_EFFECT, SMALL_EFFECT, NOT_MODELLED, REFUSED):
        groups = table.get(effect, [])
        for group in groups if isinstance(groups, list) else [groups]:
            text = group.get("instead", group.get("why", ""))
            for arity, values in _ARITIES.items():
                for name in group.get(arity, "").split():
                    yield KnownFlag(name, values, effect, text, group.get("when"))


def judge(flags: Mapping[str, str], table: FlagTable, *, strict: bool = False) -> Judgement:
    """Say what becomes of every flag that is not read.

    Parameters
    ----------
    flags : mapping
        Flag, words joined by ``-``, to its values joined by blanks; those that are off are left out.
    table : FlagTable
        What is known of them.
    strict : bool, default False
        Refuse unknown flags instead of warning of them.

    Returns
    -------
    Judgement

    Raises
    ------
    ConfigError
        If a flag makes a job that cannot be described, or some are unknown and `strict` is set; all of them are named.
    """
    by_effect: dict[str, list[str]] = {}
    warnings = []
    unknown = []
    for name, values in flags.items():
        known, shown = table.find(name), table.shown(name)
        effect = UNKNOWN if known is None else known.effect_of(values)
        by_effect.setdefault(effect, []).append(brief(shown))
        # A setting of a file is written as the file has it, a flag as the command line has it.
        value = f" {values}" if table.prefix else f" = {quoted(values)}"
        written = brief(f"{shown}{value if values else ''}")
        if known is not None and effect == REFUSED:
            text = f"{known.text}, and the job would be forecast as another one (in {table.says} flags)"
            raise ConfigError(text, written)
        if known is not None and effect == NOT_MODELLED:
            warnings.append(Note("flag-not-modelled", f"{written} is not modelled: {known.text}"))
        elif effect == UNKNOWN:
            text = f"is not a known {'flag' if table.prefix else 'setting'} of {table.says}"
            near = nearest(name, [each for each in table.flags if not each.endswith("*")])
            meant = f"; did you mean {table.shown(near[0])}?" if near else ""
            unknown.append((written, f"{text}{meant}"))
            warnings.append(Note("flag-unknown", f"{written} {text} and is not modelled{meant}"))
    if strict and unknown:
        (first, text), *others = unknown
        more = "".join(f"; {written} {each}" for written, each in others)
        raise ConfigError(f"{text}{more}; leave {'them' if others else 'it'} out, or leave out --strict", first)
    return Judgement(tuple(_grouped(by_effect)), tuple(warnings))


def _grouped(by_effect: Mapping[str, list[str]]) -> Iterator[Note]:
    if by_effect.get(NO_EFFECT):
        text = f"no effect on the time of a step: {', '.join(by_effect[NO_EFFECT])}"
        yield Note("flags-without-effect", text)
    if by_effect.get(SMALL_EFFECT):
        text = f"a small effect on the time of a step, not modelled: {', '.join(by_effect[SMALL_EFFECT])}"
        yield Note("flags-of-small-effect", text)
