"""Settings of recipes (Megatron-Bridge, NeMo) as flags of Megatron-LM, and what becomes of each of them."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.dialects.flags import NO_EFFECT, NOT_MODELLED, READ, REFUSED, UNKNOWN, flag_table
from traincast.dialects.judge import grouped, reason_of
from traincast.dialects.references import refers
from traincast.errors import ConfigError
from traincast.job.draft import Setting
from traincast.names import find_name, known_names
from traincast.units import quoted

_VALUE = re.compile(r"[^\s\[\]',\"]+")
PRECISION_FLAGS = ("bf16", "fp16", "fp8-format", "fp8-recipe", "fp4-format")
"""Flags of Megatron-LM that a named precision sets."""
_PRECISION = ("mixed_precision", "trainer.plugins", "trainer.precision")
_NOTHING = ("", "None", "null", "[]", "none", "~")
_TYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16", "uint8": "fp8"}
_NAMES = ("gpus", "gpu", "model", "model_size", "model_family")
"""Options that name what is run and where, and set nothing."""
_OF_LAUNCH = ("num_nodes", "num_gpus", "gpus")


class RecipeFlags(Struct, frozen=True):
    """Settings as flags."""

    words: Sequence[str]
    """The flags with their values."""
    became: Mapping[str, str]
    """Setting to the flag that it sets or takes back; empty where it is read without one."""
    left: Sequence[str]
    """Settings that are not flags."""
    dependent: Mapping[str, Setting]
    """Those of them whose fate another setting, or their own value, decides."""

    def typed(self, flag: str) -> str | None:
        """Return the setting that a flag comes from, the last of several; None where none was given."""
        return next((name for name, each in reversed([*self.became.items()]) if each and each == flag), None)


def recipe_flags(
    settings: Mapping[str, str], table: Mapping[str, Any], shown: str, *, usual: Set[str] = frozenset()
) -> RecipeFlags:
    """Return settings as flags.

    Parameters
    ----------
    settings : mapping of str to str
        Dotted name to value; that of a switch that is on is empty, of one that is off ``false``.
    table : mapping
        Of ``data/dialects/bridge.toml`` or ``nemo.toml``.
    shown : str
        Whose settings they are, for messages.
    usual : set of str, optional
        Those that the recipe sets and nobody typed: they go where what they need is switched off.

    Raises
    ------
    ConfigError
        If a precision has no known name, or a value that is needed refers to what is not there.
    """
    flags: dict[str, list[str]] = {}
    became: dict[str, str] = {}
    left = []
    dependent = dict(_dependent(settings, table))
    for name in sorted(settings, key=lambda each: each not in _PRECISION):
        value, to = settings[name], table["paths"].get(name)
        if name in _PRECISION:
            _add_precision(flags, value, table, shown, name)
            became[name] = ""
        elif to in _OF_LAUNCH or name in _NAMES or (name, value) == ("peft", "None"):
            became[name] = ""
        elif name in dependent or (flag := _set(flags, name, value, table, shown)) is None:
            left.append(name)
        else:
            became[name] = flag
    for flag, needs in table.get("follows", {}).items():
        if flag in flags and needs not in flags and {name for name, to in became.items() if to == flag} <= usual:
            del flags[flag]
    words = [word for name, values in flags.items() for word in (f"--{name}", *values)]
    return RecipeFlags(words, became, left, dependent)


def _set(flags: dict[str, list[str]], name: str, value: str, table: Mapping[str, Any], shown: str) -> str | None:
    """Set what a setting stands for; return the flag, empty where it needs none, or None where it is not a flag."""
    to, meant = table["paths"].get(name), table.get("values", {}).get(name)
    if meant is not None and value not in _NOTHING:
        known = find_name(value, meant)
        if known is None:
            return None
        stands_for: str = meant[known]
        flag, *preset = stands_for.split() or [""]
        flags |= {flag: preset} if flag else {}
        return flag
    flag, *preset = (to or _last_part(name)).split() or [""]
    if to == "" or not _is_flag(flag, table, name, of_path=to is not None):
        return None
    if refers(value) and _reads(flag):
        what = f"refers to what is not given or not known here: {quoted(value)}; write its value (in {shown})"
        raise ConfigError(what, name)
    return _add(flags, flag, value, preset, table)


def flag_of_setting(name: str, table: Mapping[str, Any]) -> str:
    """Return the flag of Megatron-LM that a setting is, under its usual name."""
    flag: str = table["paths"].get(name) or _last_part(name)
    return flag_table("megatron").spellings.get(flag, (flag,))[0]


def _last_part(name: str) -> str:
    return name.rpartition(".")[2].replace("_", "-")


def _dependent(settings: Mapping[str, str], table: Mapping[str, Any]) -> Iterator[tuple[str, Setting]]:
    """Yield the settings whose fate is decided by the value of another one, or by their own; the first rule counts."""
    decided: set[str] = set()
    for rule in table.get("dependent", ()):
        for name, value in settings.items():
            under = any(name == each or name.startswith(f"{each}.") for each in rule["names"].split())
            if not under or name in decided:
                continue
            deciding = settings.get(rule["of"], "none") if "of" in rule else value
            if re.search(rule.get("when", ""), (deciding or "true").lower()) is not None:
                decided.add(name)
                yield name, Setting(name, value, rule["effect"], rule["why"], rule.get("matters", ""))


def _is_flag(flag: str, table: Mapping[str, Any], name: str, *, of_path: bool) -> bool:
    """Say whether a setting is a flag of Megatron-LM: one of a section of flags, or one that changes the step."""
    megatron = flag_table("megatron")
    known = megatron.find(megatron.spellings.get(flag, (flag,))[0])
    if known is None:
        return flag in table["off"]
    if of_path or section_of(name, table["sections"]) == "flags":
        return True
    return known.effect in (NOT_MODELLED, REFUSED) and name not in table["whys"]


def _reads(flag: str) -> bool:
    megatron = flag_table("megatron")
    known = megatron.find(megatron.spellings.get(flag, (flag,))[0])
    return known is not None and known.effect == READ


def section_of(name: str, table: Mapping[str, str], otherwise: str = UNKNOWN) -> str:
    """Return what a table says of a setting or its section: the longest name in it that fits."""
    parts = name.split(".")
    sections = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((table[each] for each in sections if each in table), otherwise)


def fates_of(
    settings: Mapping[str, str], found: RecipeFlags, judged: Sequence[Setting], table: Mapping[str, Any]
) -> tuple[Setting, ...]:
    """Return what became of each setting: what its flag became, or that it has no effect and why, or is unknown."""
    of_flag = {each.name.lstrip("-"): each for each in judged}
    fates = []
    for name, value in settings.items():
        flag = found.became.get(name)
        if name in found.dependent:
            fate = found.dependent[name]
        elif name.startswith("peft."):
            fate = Setting(name, value, NOT_MODELLED, "all weights are trained", "much: give --task lora")
        elif flag is None:
            why = section_of(name, table["whys"], reason_of(name.replace("_", "-")) or "")
            of_none = name in table["paths"] or section_of(name, table["sections"]) == "none" or name in table["whys"]
            # A name that Megatron-LM reads is not harmless because of the section that it stands in.
            twin = _reads(name.rpartition(".")[2].replace("_", "-")) and name not in {*table["whys"], *table["paths"]}
            known = bool(why) and of_none and not twin
            fate = Setting(name, value, NO_EFFECT if known else UNKNOWN, why if known else "is not a known setting")
        elif (judgement := of_flag.get(flag)) is not None:
            fate = Setting(name, value, judgement.effect, judgement.why, judgement.matters)
        else:
            known_flag = flag_table("megatron").find(flag) if flag else None
            read = not flag or flag in table["off"] or known_flag is None or known_flag.effect == READ
            fate = Setting(name, value, READ if read else NO_EFFECT, "" if read else "is off")
        fates.append(fate)
    return tuple(fates)


def notes_of(fates: Sequence[Setting], found: RecipeFlags) -> Iterator[Note]:
    """Yield the notes on settings that are not flags and have no effect, or a small one."""
    left = set(found.left)
    by_effect: dict[str, list[tuple[str, str]]] = {}
    for each in fates:
        if each.name in left:
            by_effect.setdefault(each.effect, []).append((each.name, each.why))
    yield from grouped(by_effect)


def warnings_of(fates: Sequence[Setting], found: RecipeFlags, like: str) -> Iterator[Note]:
    """Yield the warnings on settings that are not flags and that are not modelled."""
    left = set(found.left)
    for each in fates:
        value = f" = {quoted(each.value)}" if each.value else ""
        if each.effect == NOT_MODELLED and each.name in left:
            matters = f"; it may matter {each.matters}" if each.matters else ""
            yield Note("flag-not-modelled", f"{each.name}{value} is not modelled: {each.why}{matters}")
        elif each.effect == UNKNOWN and each.name in left:
            yield Note("flag-unknown", f"{each.name}{value} is not a known setting of {like} and is not modelled")


def _add(flags: dict[str, list[str]], flag: str, value: str, preset: list[str], table: Mapping[str, Any]) -> str:
    """Add a flag with its values, take it back where it is off, or say in its own way that it is; return it."""
    megatron = flag_table("megatron")
    flag, *more = megatron.spellings.get(flag, (flag,))
    preset = preset or more
    if value.lower() == "false":
        if not preset or flags.get(flag) == preset:
            flags.pop(flag, None)
        if flag in table["off"]:
            flags[table["off"][flag]] = []
        off: dict[str, str] = table["off"]
        return off.get(flag, flag)
    if flag in table["off"] and value.lower() in ("", "true"):
        flags.pop(table["off"][flag], None)
        return flag
    if value in _NOTHING and value != "":
        flags.pop(flag, None)
        return flag
    known = megatron.find(flag)
    if known is not None and known.values == "0":
        flags[flag] = []
    elif preset or value:
        flags[flag] = preset or _words(value)
    return flag


def _words(value: str) -> list[str]:
    """Return a value as the words of a flag, names of types as flags have them; a reference is one word."""
    if refers(value):
        return ["".join(value.split())]
    return [_TYPES.get(each.removeprefix("torch."), each) for each in _VALUE.findall(value)]


def _add_precision(flags: dict[str, list[str]], value: str, table: Mapping[str, Any], shown: str, name: str) -> None:
    """Add the flags that a named precision stands for; it replaces another one."""
    plain = value.removeprefix("torch.").split("(")[0].rpartition(".")[2]
    known = find_name(plain, table["precisions"])
    if known is None:
        raise ConfigError(f"is {quoted(value)}; {known_names(plain, table['precisions'])} (in {shown})", name)
    for each in PRECISION_FLAGS:
        flags.pop(each, None)
    found = flags_of_precision(table["precisions"][known])
    flags |= {flag: [] if value is True else [value] for flag, value in found.items()}


def flags_of_precision(text: str) -> dict[str, Any]:
    """Return the flags that a named precision stands for, with their values; True for switches."""
    words = text.split()
    found: dict[str, Any] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word[2:]] = True if following.startswith("--") else following
    return found
