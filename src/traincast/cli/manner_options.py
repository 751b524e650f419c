"""The options ``--plain``, ``--verbose`` and ``--quiet``, which every command that prints has."""

import sys
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import click

from traincast.cli.manner import KEY, Manner
from traincast.cli.terminal import complain

SILENT_ABOUT_ITSELF = ("schema", "completion", "man")
"""Commands whose output is a document for another program."""


def with_manner(command: click.Command) -> click.Command:
    """Add the options of `Manner` to a command that lacks them, and let those it has say it too."""
    there = {option: each for each in command.params for option in each.opts}
    for name, text in _HELP.items():
        known = there.get(f"--{name}")
        if known is None:
            say = partial(_say, name=name, then=None)
            option = click.Option(
                [f"--{name}"], is_flag=True, expose_value=False, callback=say, help=text, **_MORE[name]
            )
            command.params.append(option)
        elif not isinstance(known.callback, partial):
            known.callback = partial(_say, name=name, then=known.callback)
    return command


def _say(context: click.Context, option: click.Parameter, value: Any, *, name: str, then: Any) -> Any:  # noqa: ANN401
    found: Manner = context.find_root().meta.setdefault(KEY, Manner())
    setattr(found, name, bool(value))
    if name == "verbose" and value:
        context.call_on_close(_timing(found, monotonic()))
    return value if then is None else then(context, option, value)


def _timing(how: Manner, begin_s: float) -> Callable[[], None]:
    """Return what says on stderr how long a command took, and how much memory."""

    def tell() -> None:
        if not how.quiet:
            complain(f"took {monotonic() - begin_s:.2f} s{_memory()}")

    return tell


def _memory() -> str:
    try:
        import resource
    except ImportError:  # not on Windows
        return ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS says bytes, all others KiB (getrusage(2)).
    return f", at most {peak / (2**20 if sys.platform == 'darwin' else 2**10):,.0f} MiB of memory"


_HELP = {
    "plain": "Print lines of words, for screen readers: no columns, bars, drawings or colour.",
    "verbose": "Print in full what is told in brief, and how long it took.",
    "quiet": "Print nothing but errors.",
}
_MORE: dict[str, dict[str, Any]] = {
    "plain": {"envvar": "TRAINCAST_PLAIN", "show_envvar": True},
    "verbose": {},
    "quiet": {},
}
