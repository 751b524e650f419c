"""Options that several commands share, made from the tables of `traincast.job`."""

from collections.abc import Callable, Iterable
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from traincast.cli.numbers import in_range
from traincast.errors import ConfigError
from traincast.job.flags import LAYOUT_FLAGS
from traincast.job.options import OVERLAP_CLASSES, SimaiOverlap, check_gpus_used, parse_overlap
from traincast.names import find_name, known_names
from traincast.units import RANGES, checked_field, count_of, parse_rate, parse_size, parse_tokens, quoted

if TYPE_CHECKING:
    _ChoiceType = click.Choice[str]
else:
    # Generic in the stubs of click 8.2 and later only.
    _ChoiceType = click.Choice

F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K")

ALL_CLASSES = "all classes"


class Name(_ChoiceType):
    """One of several names, whatever its case and spelling; a wrong one is told those near it."""

    def __init__(self, known: Iterable[str]) -> None:
        super().__init__(list(known))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name that is meant, or complain as wrong usage."""
        names = list(self.choices)
        found = find_name(value, names)
        if found is None:
            self.fail(f"{value!r} is not one of them; {known_names(value, names)}", param, ctx)
        return found


def tokens(text: str) -> int:
    """Read ``8192``, ``8k`` or ``1M`` tokens, or complain as wrong usage."""
    try:
        return int(checked_field("seq_length", parse_tokens(text)))
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def layout_options(function: F) -> F:
    """Add a flag for every layout degree, under its own name and Megatron-LM's."""
    for flag in reversed(LAYOUT_FLAGS):
        function = click.option(*flag.names, flag.field, type=in_range(flag.field, 1), metavar="N", help=flag.help)(
            function
        )
    return function


def size(text: str) -> int:
    """Read a number of bytes with a unit, or complain as wrong usage."""
    try:
        return parse_size(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def size_range(text: str | tuple[int, int]) -> tuple[int, int]:
    """Read ``64MiB`` or ``1KiB..8GiB`` as its first and last size, or complain as wrong usage."""
    if not isinstance(text, str):
        return text
    first, dots, last = text.partition("..")
    sizes = size(first), size(last if dots else first)
    if not 0 < sizes[0] <= sizes[1]:
        raise click.BadParameter(f"{quoted(text)} is no range of sizes above 0; write it like 1KiB..8GiB")
    return sizes


def group_name(text: str) -> str:
    """Read the name of a group, or complain as wrong usage: an option in its place was meant as one."""
    if text.startswith("-"):
        raise click.BadParameter(f"{quoted(text)} is an option; say what is left out, such as ranks or gpu")
    return text


class GroupRates(NamedTuple):
    """What one ``--busbw`` says."""

    rates: tuple[tuple[str, float], ...]
    """Group, or group and operation, with its bus bandwidth in bytes/s."""
    from_file: bool


def group_rates(text: str) -> GroupRates:
    """Read ``tp=300GB/s``, ``tp.all_reduce=300GB/s``, or a file of SimAI's that holds several; else wrong usage."""
    if "=" not in text and Path(text).is_file():
        from traincast import api

        return GroupRates(tuple(api.bus_bandwidths(text).items()), from_file=True)
    try:
        group, rate = _pair(text, "GROUP=RATE, nor a file of bus bandwidths")
        return GroupRates(((group, parse_rate(rate)),), from_file=False)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def rates_by_group(given: tuple[GroupRates, ...], name: str) -> dict[str, float]:
    """Return the bus bandwidth of each group; a typed one goes before a file's, for all operations of its group."""
    typed, filed = (
        once_each(tuple(pair for each in given if each.from_file is from_file for pair in each.rates), name)
        for from_file in (False, True)
    )
    replaced = {key.casefold() for key in typed}
    kept = {
        key: rate for key, rate in filed.items() if not replaced & {key.casefold(), key.partition(".")[0].casefold()}
    }
    return {**kept, **typed}


def rank_factor(text: str) -> tuple[int, float]:
    """Read ``7=1.3``, or complain as wrong usage."""
    try:
        rank, factor = _pair(text, "RANK=FACTOR")
        return int(RANGES["rank"].parsed(rank)), RANGES["factor"].parsed(factor)
    except ConfigError as error:
        raise click.BadParameter(f"{quoted(text)} is not a rank and a factor, such as 7=1.3: {error}") from None


def class_slowdowns(text: str) -> tuple[tuple[str, float], ...]:
    """Read ``memory=0.1``, several of them between commas, or ``0.1`` for all classes, or complain as wrong usage."""
    return tuple(_class_slowdown(part) for part in text.split(","))


def _class_slowdown(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        return name.strip() or ALL_CLASSES, RANGES["added share"].parsed(number)
    except ConfigError as error:
        raise click.BadParameter(f"{quoted(text)} is not a class and a slowdown, such as memory=0.1: {error}") from None


def slowdown_by_class(given: tuple[tuple[tuple[str, float], ...], ...], name: str) -> dict[str, float]:
    """Return the slowdown of each class; one that is named goes before one for all."""
    by_class = once_each(tuple(pair for pairs in given for pair in pairs), name)
    of_all = {} if ALL_CLASSES not in by_class else dict.fromkeys(OVERLAP_CLASSES, by_class.pop(ALL_CLASSES))
    return {**of_all, **by_class}


def gpus_used(text: str | int) -> str | int:
    """Read ``64``, ``all`` or ``auto``, or complain as wrong usage."""
    value = count_of(str(text)) or text
    try:
        check_gpus_used(value)
    except ConfigError as error:
        raise click.BadParameter(str(error).removeprefix("gpus_used_per_node: ")) from None
    return value


def expert_loads(text: str) -> tuple[float, ...] | Path:
    """Read ``1,0.8,1.2``, or a path of traces whose loads are meant, or complain as wrong usage."""
    try:
        return tuple(RANGES["load"].parsed(load) for load in text.split(","))
    except ConfigError as error:
        if has_magic(text) or Path(text).exists():
            return Path(text)
        raise click.BadParameter(
            f"{quoted(text)} is not a list of numbers, such as 1.0,0.8,1.2, nor a path of rank traces: {error}"
        ) from None


def simai_overlap(text: str) -> SimaiOverlap:
    """Read ``tp=0.5,dp=1``, or complain as wrong usage."""
    try:
        return parse_overlap(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def once_each(pairs: tuple[tuple[K, float], ...], name: str) -> dict[K, float]:
    """Return pairs by their key, or complain as wrong usage about a key that is given twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise click.UsageError(f"{name} is given twice for {twice}; give it once")
    return values


def _pair(text: str, form: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not equals:
        raise ConfigError(f"{quoted(text)} is not of the form {form}")
    return left.strip(), right.strip()
