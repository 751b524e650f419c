"""What becomes of flags and settings that a dialect does not read: exactly one of five things, which is said."""

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from traincast.diagnostics import Note, in_brief
from traincast.dialects.flags import (
    NO_EFFECT,
    NOT_MODELLED,
    READ,
    REFUSED,
    SMALL_EFFECT,
    UNKNOWN,
    FlagTable,
    KnownFlag,
)
from traincast.errors import ConfigError
from traincast.job.draft import Setting
from traincast.names import nearest
from traincast.shipped import constant, shipped_toml
from traincast.units import brief, quoted

_OFF = "is off"


class Judgement(Struct, frozen=True):
    """What is said of flags that the code of a dialect does not read."""

    settings: tuple[Setting, ...]
    """What became of each flag, those that are read among them."""
    notes: tuple[Note, ...]
    """Flags without effect and with a small one."""
    warnings: tuple[Note, ...]
    """Flags that are unknown or change the step but are not modelled, one by one."""


class _Reason(Struct, frozen=True):
    """Why settings of some names have no effect, as ``data/dialects/reasons.toml`` has it."""

    why: str
    names: str


class _Reasons(Struct, frozen=True):
    reason: tuple[_Reason, ...]


def _reasons() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((each.why, re.compile(each.names)) for each in shipped_toml("dialects/reasons.toml", _Reasons).reason)


def reason_of(name: str) -> str | None:
    """Return why a setting (words joined by ``-``) has no effect; None where no reason names it."""
    return next((why for why, names in constant(_reasons) if names.search(name)), None)


def judge(flags: Mapping[str, str], table: FlagTable, *, strict: bool = False) -> Judgement:
    """Say what becomes of flags (words joined by ``-``, to their values joined by blanks) that are not read.

    One that is switched off (``false``) is as if it were not there, unless its table says otherwise of that value.

    Raises
    ------
    ConfigError
        If a flag makes a job that cannot be described, or some are unknown and `strict` is set; all of them are named.
    """
    by_effect: dict[str, list[tuple[str, str]]] = {}
    settings, warnings, unknown = [], [], []
    for name, values in flags.items():
        known, shown = table.find(name), table.shown(name)
        effect, why = _effect(name, values, known)
        matters = known.matters if known is not None and effect == NOT_MODELLED else ""
        settings.append(Setting(shown, values, effect, why, matters))
        if why == _OFF:
            continue
        by_effect.setdefault(effect, []).append((brief(shown), why))
        # A setting of a file is written as the file has it, a flag as the command line has it.
        value = f" {values}" if table.prefix else f" = {quoted(values)}"
        written = brief(f"{shown}{value if values else ''}")
        if known is not None and effect == REFUSED:
            text = f"{known.text}, and the job would be forecast as another one (in {table.says} flags)"
            raise ConfigError(text, written)
        if known is not None and effect == NOT_MODELLED:
            much = f"; it may matter {matters}" if matters else ""
            warnings.append(Note("flag-not-modelled", f"{written} is not modelled: {known.text}{much}"))
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
    return Judgement(tuple(settings), tuple(grouped(by_effect)), tuple(warnings))


def _effect(name: str, values: str, known: KnownFlag | None) -> tuple[str, str]:
    """Return the effect of a flag with these values, and why."""
    off = values.lower() == "false"
    if off and known is not None and known.effect in (NOT_MODELLED, REFUSED) and known.when is None:
        return NO_EFFECT, _OFF
    if known is None:
        return UNKNOWN, "is not a known setting"
    effect = known.effect_of(values)
    if effect == NO_EFFECT:
        why = reason_of(name)
        return (UNKNOWN, "is not known to have no effect") if why is None else (NO_EFFECT, why)
    return effect, known.text if effect in (NOT_MODELLED, REFUSED) else ""


def less_unused(settings: Sequence[Setting], unused: Mapping[str, str]) -> tuple[Setting, ...]:
    """Return settings; those that mean nothing given the others have no effect, for the reason in `unused`."""
    return tuple(
        replace(each, effect=NO_EFFECT, why=unused[each.name]) if each.effect == READ and each.name in unused else each
        for each in settings
    )


def without_effect(names: Sequence[tuple[str, str]]) -> Note:
    """Return the note on settings without effect, each with why, those with the same reason together."""
    what = "no effect on the time and memory of a step"
    by_why: dict[str, list[str]] = {}
    for name, why in names:
        by_why.setdefault(why, []).append(name)
    groups = "; ".join(f"{', '.join(each)} ({why})" for why, each in by_why.items())
    return Note("flags-without-effect", f"{what}: {groups}", brief=in_brief(what, [name for name, _ in names]))


def grouped(by_effect: Mapping[str, list[tuple[str, str]]]) -> Iterator[Note]:
    """Yield the notes on settings, each with why, that have no effect or a small one."""
    if by_effect.get(NO_EFFECT):
        yield without_effect(by_effect[NO_EFFECT])
    if by_effect.get(SMALL_EFFECT):
        names = [name for name, _ in by_effect[SMALL_EFFECT]]
        small = "a small effect on the time of a step, not modelled"
        yield Note("flags-of-small-effect", f"{small}: {', '.join(names)}", brief=in_brief(small, names))
