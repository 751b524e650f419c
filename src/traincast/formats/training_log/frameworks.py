"""How training frameworks print a step, and what they print of the run: ``data/formats/training_log.toml``, compiled.

The table has the sources: file and version of what prints each line.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

from traincast.formats.training_log.table import TABLE, Row

_NUMBER = r"([-+]?[\d.][\d.,]*(?:[eE][-+]?\d+)?|nan|inf)"
"""A number as logs have them, or what damage left of one; torchtitan puts commas between thousands."""


class Quantity(Struct, frozen=True):
    """A number of a step line: the expression that finds it, and what it is multiplied by to be SI."""

    pattern: re.Pattern[str]
    factor: float


class Framework(Struct, frozen=True, kw_only=True):
    """How one framework, or a line of versions of it, prints a step."""

    name: str
    title: str
    """For people."""
    mark: str
    """Text that every such line has, so that others are passed over at once."""
    telling: re.Pattern[str] | None
    """Finds lines with the mark that are of a step even where they have no head, and so are damaged."""
    head: re.Pattern[str]
    """Finds such a line; its groups ``step``, ``steps``, ``epoch`` and ``clock`` may be missing."""
    quantities: Mapping[str, Quantity]
    """Fields of `grammar.Step` that are numbers of the line."""
    first_step: int
    """What it calls the first step."""

    def stands_in(self, text: str) -> bool:
        """Say whether a line that has the mark is one of a step, if perhaps a damaged one."""
        return self.head.search(text) is not None or (self.telling is not None and bool(self.telling.search(text)))


def _framework(row: Row) -> Framework:
    return Framework(
        name=row.name,
        title=row.title,
        mark=row.mark,
        telling=None if row.telling is None else re.compile(row.telling),
        head=re.compile(row.head),
        quantities={
            name: Quantity(re.compile(rf"(?:{found.after})\s?[:=]\s*{_NUMBER}{found.before}"), found.factor)
            for name, found in row.quantities.items()
        },
        first_step=row.first_step,
    )


FRAMEWORKS = tuple(map(_framework, TABLE.framework))
MEGATRON, BRIDGE, *_ = FRAMEWORKS
FACTS = TABLE.facts
"""Name of a fact in the dump of all settings, and the settings that say it."""
SENTENCES = tuple(map(re.compile, TABLE.run.sentences))
GPU_NAME = re.compile(TABLE.run.gpu_name)
MESH = re.compile(TABLE.run.mesh)
INTERRUPTION = re.compile(TABLE.run.interruption)
"""Lines that say that something else than training was done: evaluations and checkpoints."""
