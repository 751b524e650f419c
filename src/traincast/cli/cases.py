"""Options of commands that take several cases at once: numbers of GPUs, and a price for each cluster."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from traincast.cli.completion import one_of
from traincast.cli.options import GOODPUT, PRICE, RUN_OPTIONS, in_range, usage, with_options
from traincast.cli.sections import WHOLE_RUN, in_section
from traincast.errors import ConfigError
from traincast.units import checked_field, is_number, parse_amount, plain_number, quoted

F = TypeVar("F", bound=Callable[..., Any])

_MOST_COUNTS = 256
"""Most numbers of GPUs that are planned at once."""


@usage
def gpu_counts(text: str) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
    """Read ``256``, ``256,512``, ``256:2048`` (doubled as long as that is not above the end) or ``256:2048:256``.

    Each may be of one cluster alone, ``h100=256,b200=128:512``; then numbers go by its name, others by an empty one.
    """
    found: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        name, equals, numbers = part.rpartition("=")
        if equals and not name.strip():
            raise ConfigError(f"{quoted(text)} names no cluster; write it like h100=256,b200=128")
        of = name.strip()
        found[of] = tuple(dict.fromkeys((*found.get(of, ()), *_count_range(numbers, text))))
    return found[""] if found.keys() == {""} else found


def names_between_commas(_: click.Context, __: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """Return names that are given once each or several between commas; the path of a file is one."""
    split = ((text,) if Path(text).exists() else text.split(",") for text in values)
    return tuple(dict.fromkeys(name for each in split for part in each if (name := part.strip())))


@usage
def money(text: str) -> float:
    """Read ``250000`` or ``1M``."""
    return parse_amount(text)


def _count_range(part: str, text: str) -> Iterator[int]:
    first, *more = (_gpu_count(each, text) for each in part.split(":"))
    if len(more) > 2 or (more and more[0] < first):
        raise ConfigError(f"{quoted(text)} is not a number of GPUs; write it like 256,512 or 256:2048 or 256:2048:256")
    count, last, step = first, more[0] if more else first, more[1] if len(more) > 1 else 0
    if step and (last - count) // step >= _MOST_COUNTS:
        raise ConfigError(f"{quoted(text)} is more than {_MOST_COUNTS} numbers of GPUs; take larger steps")
    while count <= last:
        yield count
        count = count + step if step else 2 * count


def _gpu_count(text: str, of: str) -> int:
    if not is_number(text.strip()):
        raise ConfigError(f"{quoted(of)} is not a number of GPUs; write it like 256,512 or 256:2048 or 256:2048:256")
    return int(checked_field("gpus", plain_number(text), least=1))


@usage
def cluster_price(text: str) -> tuple[str, float]:
    """Read ``2.5``, or ``h100=2.5`` of one cluster alone."""
    name, equals, price = text.rpartition("=")
    if not is_number(price) or (equals and not name):
        raise ConfigError(f"{quoted(text)} is not a price; write it like 2.5 or h100=2.5")
    return name, checked_field("gpu_hour_price", plain_number(price))


_PRICES = click.option(
    "--gpu-hour-price",
    type=cluster_price,
    multiple=True,
    metavar="[CLUSTER=]X",
    help="What a GPU-hour costs; repeatable, a price for each cluster.",
)


_GOALS = (
    click.option(
        "--tokens-per-parameter",
        type=in_range("tokens_per_parameter"),
        metavar="X",
        help="Tokens of the whole run for each parameter of the model, such as 20.",
    ),
    click.option(
        "--days",
        type=click.FloatRange(0, min_open=True),
        metavar="X",
        help="Days that the run may take: says which models do, and on how many GPUs.",
    ),
    click.option("--budget", type=money, metavar="X", help="Money that the run may take, such as 1M; needs a price."),
    click.option(
        "--rank-by",
        metavar="NAME",
        shell_complete=one_of("tokens-per-s", "days", "cost", "energy"),
        help="Order of several cases: tokens-per-s (default), days, cost or energy.",
    ),
)


def runs_options(function: F) -> F:
    """Add the options of a whole run, with prices that may differ by cluster: pairs of its name and a price."""
    options = [*(_PRICES if each is PRICE else each for each in (*RUN_OPTIONS, GOODPUT)), *_GOALS]
    return with_options(in_section(WHOLE_RUN, options), function)
