"""Settings of recipes (Megatron-Bridge, NeMo) as flags of Megatron-LM, and what becomes of each of them."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from msgspec import Struct

from traincast.diagnostics import Note
from traincast.dialects.flags import NO_EFFECT, NOT_MODELLED, READ, UNKNOWN, flag_table
from traincast.dialects.judge import reason_of
from traincast.errors import ConfigError
from traincast.job.draft import Setting
from traincast.names import find_name, known_names
from traincast.units import quoted

_VALUE = re.compile(r"[^\s\[\]',\"]+")
_PRECISION = ("mixed_precision", "trainer.plugins", "trainer.precision")
_NOTHING = ("", "None", "null", "[]", "none", "~")
_TYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16", "uint8": "fp8"}
_OF_LAUNCH = ("num_nodes", "num_gpus", "gpus")


class RecipeFlags(Struct, frozen=True):
    """Settings as flags."""

    words: Sequence[str]
    """The flags with their values."""
    became: Mapping[str, str]
    """Setting to the flag that it sets or takes back; empty where it is read without one."""
    left: Sequence[str]
    """Settings that are no flags."""

    def typed(self, flag: str) -> str | None:
        """Return the setting that a flag comes from, the last of several; None where none was given."""
        return next((name for name, each in reversed(self.became.items()) if each and each == flag), None)


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
        If a precision has no known name.
    """
    flags: dict[str, list[str]] = {}
    became: dict[str, str] = {}
    left = []
    dependent = {
        each for switch, names in table.get("switched", {}).items() if not _on(settings, switch) for each in names
    }
    for name in sorted(settings, key=lambda each: each not in _PRECISION):
        value, to = settings[name], table["paths"].get(name)
        meant = table.get("values", {}).get(name)
        if name in _PRECISION:
            _add_precision(flags, value, table, shown, name)
            became[name] = ""
        elif name in dependent or to in _OF_LAUNCH or name in ("gpus", "model") or (name, value) == ("peft", "None"):
            became[name] = ""
        elif meant is not None and value not in _NOTHING:
            known = find_name(value, meant)
            if known is None:
                left.append(name)
            else:
                became[name] = meant[known]
                flags |= {meant[known]: []} if meant[known] else {}
        elif to == "" or (to is None and section_of(name, table["sections"]) != "flags"):
            left.append(name)
        else:
            flag, *preset = (to or name.rpartition(".")[2].replace("_", "-")).split()
            became[name] = _add(flags, flag, value, preset, table)
    for flag, needs in table.get("follows", {}).items():
        if flag in flags and needs not in flags and {name for name, to in became.items() if to == flag} <= usual:
            del flags[flag]
    return RecipeFlags([word for name, values in flags.items() for word in (f"--{name}", *values)], became, left)


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
        if name.startswith("peft."):
            fate = Setting(name, value, NOT_MODELLED, "all weights are trained")
        elif flag is None:
            why = section_of(name, table["whys"], reason_of(name.replace("_", "-")) or "")
            of_none = name in table["paths"] or section_of(name, table["sections"]) == "none" or name in table["whys"]
            known = bool(why) and of_none
            fate = Setting(name, value, NO_EFFECT if known else UNKNOWN, why if known else "is not a known setting")
        elif (judgement := of_flag.get(flag)) is not None:
            fate = Setting(name, value, judgement.effect, judgement.why)
        else:
            known_flag = flag_table("megatron").find(flag) if flag else None
            read = not flag or known_flag is None or known_flag.effect == READ
            fate = Setting(name, value, READ if read else NO_EFFECT, "" if read else "is off")
        fates.append(fate)
    return tuple(fates)


def warnings_of(fates: Sequence[Setting], found: RecipeFlags, like: str) -> Iterator[Note]:
    """Yield the warnings on settings that are no flags and that are not modelled."""
    for each in fates:
        if each.effect == NOT_MODELLED and each.name in found.left:
            text = f"{each.name} is not modelled: {each.why}; it may matter much: give --task lora"
            yield Note("flag-not-modelled", text)
        elif each.effect == UNKNOWN and each.name in found.left:
            value = f" = {quoted(each.value)}" if each.value else ""
            yield Note("flag-unknown", f"{each.name}{value} is not a known setting of {like} and is not modelled")


def _on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "false").lower() in ("", "true")


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
        return table["off"].get(flag, flag)
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
        flags[flag] = preset or [_TYPES.get(each.removeprefix("torch."), each) for each in _VALUE.findall(value)]
    elif known is None:
        flags[flag] = []
    return flag


def _add_precision(flags: dict[str, list[str]], value: str, table: Mapping[str, Any], shown: str, name: str) -> None:
    """Add the flags that a named precision stands for; it replaces another one."""
    plain = value.removeprefix("torch.").split("(")[0].rpartition(".")[2]
    known = find_name(plain, table["precisions"])
    if known is None:
        raise ConfigError(f"is {quoted(value)}; {known_names(plain, table['precisions'])} (in {shown})", name)
    for each in ("bf16", "fp16", "fp8-format", "fp8-recipe", "fp4-format"):
        flags.pop(each, None)
    words = table["precisions"][known].split()
    for place, word in enumerate(words):
        if word.startswith("--"):
            following = words[place + 1 : place + 2]
            flags[word[2:]] = following if following and not following[0].startswith("--") else []
