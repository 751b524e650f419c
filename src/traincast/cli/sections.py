"""Help by subject: the options of a command in sections, those of a job as `data/job/fields.csv` has them."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

READING, SIMULATION, TRIED, WHOLE_RUN, OUTPUT = "Reading", "Simulation", "What is tried", "Whole run", "Output"
_OWN = "Options"
"""Section of what is in no other."""
_ATTRIBUTE = "traincast_section"


def in_section(section: str, options: Iterable[Callable[[F], F]]) -> tuple[Callable[[F], F], ...]:
    """Return options of a command that its help shows in a section."""

    def placed(option: Callable[[F], F]) -> Callable[[F], F]:
        def decorate(function: F) -> F:
            decorated = option(function)
            setattr(vars(decorated)["__click_params__"][-1], _ATTRIBUTE, section)
            return decorated

        return decorate

    return tuple(map(placed, options))


class SectionedCommand(click.Command):
    """A command of many options, whose help has them by subject: its own first, those of output last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a section for each subject."""
        found: dict[str, list[tuple[str, str]]] = {_OWN: []}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                found.setdefault(_section(option), []).append(record)
        found[OUTPUT] = found.pop(OUTPUT, [])
        for section, records in found.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


_OF_OUTPUT = ("--plain", "--verbose", "--quiet", "--json", "--out", "--help")
"""What every command has of output, wherever it is added."""


def _section(option: click.Parameter) -> str:
    section: str | None = getattr(option, _ATTRIBUTE, None)
    return section or (OUTPUT if any(name in _OF_OUTPUT for name in option.opts) else _OWN)
