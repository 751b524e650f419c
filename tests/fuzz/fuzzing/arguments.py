"""Mutations of a command line: the options of every command are those that the command itself declares."""

import random
from functools import cache

import click

from fuzzing.values import PATHS, number, value
from traincast.cli.main import cli

COMMANDS = tuple(name for name in cli.list_commands(click.Context(cli)) if name != "serve")
"""Every subcommand but the server, which runs until it is stopped."""
_WRITES = ("--out", "--script", "--openmetrics", "--junit")
"""Options that name what is written: they stay inside the folder of the case."""
_LEFT = ("init", "convert", "watch")
"""Commands of which no word is changed: they write to a path among them, or follow a file for ever without one."""
_RUNS = "--on-alarm"
"""What runs a command of the user's."""
FORMS = {
    "GROUP[.OP]=RATE|FILE": ("tp={}GB/s", "dp={}", "dp.all_reduce={}", "{}=300GB/s", "{}"),
    "RANK=FACTOR": ("0={}", "{}=1.5", "{}"),
    "[CLASS=]X[,...]": ("{}", "memory={}", "{}=0.1"),
    "GROUP=SHARE,...": ("tp={}", "{}=0.5"),
    "X,X,...|TRACES": ("1,{}", "{}"),
    "N|all|auto": ("{}",),
    "A,B": ("mlp,{}", "{}"),
    "SIZE": ("{}", "{}MiB", "{}TiB"),
    "SIZE|FROM..TO": ("{}", "{}MiB", "1KiB..{}MiB", "{}..{}"),
    "FIRST:LAST": ("{}:{}", "a:{}"),
    "NAME=VALUE": ("kernel={}", "{}=fa2"),
    "FILE.csv": ("nowhere.csv", "{}"),
}
"""How the values of some options are written, by what the help calls them."""
_NAMES = ("h100", "ideal", "a100", "gb200", "h100", "mi300x", "1f1b", "interleaved", "gpipe", "megatron-core-2025")


@cache
def options_of(command: str) -> tuple[click.Option, ...]:
    """Return the options of a command."""
    found = cli.get_command(click.Context(cli), command)
    return tuple(each for each in (found.params if found else ()) if isinstance(each, click.Option))


def takes_value(command: str, word: str) -> bool:
    """Say whether a word is an option of the command that takes the next word as its value."""
    return any(word in (*each.opts, *each.secondary_opts) and not each.is_flag for each in options_of(command))


def with_option(arguments: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    """Return a command line with one more option of its command, of any value."""
    options = [each for each in options_of(arguments[0]) if _RUNS not in each.opts]
    if not options:
        return arguments
    option = rng.choice(options)
    name = rng.choice((*option.opts, *option.secondary_opts))
    if name in _WRITES:
        return _ahead(arguments, (name, rng.choice(("out", "", "a/b/c", "."))))
    if option.is_flag:
        return _ahead(arguments, (name,))
    return _ahead(arguments, (name, _value_of(option, rng)))


def changed(arguments: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    """Return a command line with one of its words changed, dropped or doubled."""
    at = rng.randrange(1, len(arguments)) if len(arguments) > 1 else 0
    if at == 0 or arguments[at - 1] in _WRITES or arguments[at] in _WRITES or arguments[0] in _LEFT:
        return arguments
    words = list(arguments)
    match rng.randrange(5):
        case 0:
            del words[at]
        case 1:
            words.insert(at, words[at])
        case _:
            words[at] = rng.choice(PATHS) if rng.random() < 0.2 else value(rng)
    # The first word stays the command, and a null byte cannot be given to a command.
    return tuple(word.replace("\x00", "") for word in words)


def _ahead(arguments: tuple[str, ...], given: tuple[str, ...]) -> tuple[str, ...]:
    """Put options behind the command: what follows ``--`` belongs to somebody else."""
    return (arguments[0], *given, *arguments[1:])


def _value_of(option: click.Option, rng: random.Random) -> str:
    if isinstance(option.type, click.Choice) and rng.random() < 0.8:
        return str(rng.choice(list(option.type.choices)))
    forms = FORMS.get(str(option.metavar), ("{}",))
    if str(option.metavar).startswith("NAME") and rng.random() < 0.5:
        return rng.choice(_NAMES)
    numeric = option.metavar in ("N", "X", "K") or forms != ("{}",)
    given = number(rng) if numeric and rng.random() < 0.85 else value(rng)
    return rng.choice(forms).replace("{}", given).replace("\x00", "")
