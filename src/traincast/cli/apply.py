"""``--apply``: the job with its advice, written into a file."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import click

from traincast.cli.options import usage
from traincast.errors import ConfigError
from traincast.names import find_name, known_names
from traincast.units import quoted

ADVISED = "advised.job.toml"
"""The file in the folder of ``--out``."""
_ADVICE = {"advice": False, "all-advice": True}
"""What may be applied, and whether that is also what changes the numbers that a model learns from."""


class Applied(NamedTuple):
    """Advice that a command writes into a job file."""

    numbers: bool
    """Whether also what changes the numbers that a model learns from."""
    path: Path | None
    """The file; None: `ADVISED` in the folder of ``--out``."""

    def check(self, out: Path | None) -> None:
        """Refuse to write nowhere."""
        if self.path is None and out is None:
            raise click.UsageError("--apply needs --out DIR, or a file: --apply advice=job.toml")

    def written(self, out: Path | None, text: str) -> tuple[Path, list[tuple[str, Iterable[bytes]]]]:
        """Return the folder and the file of a text there."""
        path = Path(out or ".", ADVISED) if self.path is None else self.path
        return path.parent, [(path.name, [text.encode()])]


@usage
def applied(text: str) -> Applied:
    """Return what ``--apply`` says: which advice, and perhaps the file to write."""
    kind, _, path = text.partition("=")
    found = find_name(kind, _ADVICE)
    if found is None:
        raise ConfigError(f"is {quoted(kind)}; {known_names(kind, _ADVICE)}", "apply")
    return Applied(_ADVICE[found], Path(path) if path else None)


apply_option = click.option(
    "--apply",
    "applied",
    type=applied,
    metavar="advice[=FILE]",
    help=f"Write the job with what advice changes ({ADVISED} in --out, or FILE); all-advice: also what changes the "
    "numbers that the model learns from.",
)
