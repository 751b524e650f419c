"""What there is to try: jobs, and files that come with traincast."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from traincast.errors import UnknownNameError
from traincast.serve.about import Nothing
from traincast.serve.words import Value
from traincast.shipped import SHIPPED, shipped_toml

if TYPE_CHECKING:
    from traincast.serve.bench import Workbench

EXAMPLES = SHIPPED / "serve" / "examples.zip"
"""Some of the files of the folder examples."""


class Example(Struct, frozen=True, kw_only=True):
    """Something to try."""

    name: str
    title: str
    text: str
    """What it is."""
    view: str
    """``forecast``, ``plan``, or ``explain``."""
    job: dict[str, Value] = {}
    plan: dict[str, Value] = {}


class Examples(Struct, frozen=True, kw_only=True):
    """What there is to try."""

    examples: tuple[Example, ...]


def examples(asked: Nothing, bench: "Workbench") -> Examples:  # noqa: ARG001
    """List what there is to try."""
    return _listed()


def _listed() -> Examples:
    return shipped_toml("serve/examples.toml", Examples)


def unpacked(name: str, folder: Path) -> tuple[str, ...]:
    """Unpack a bundled example into a folder."""
    known = [each.name for each in _listed().examples if each.view == "explain"]
    if name not in known:
        raise UnknownNameError("example", name, known)
    folder.mkdir(mode=0o700, exist_ok=True)
    with zipfile.ZipFile(EXAMPLES) as archive:
        found = [each for each in archive.namelist() if name in each.split("/")]
        archive.extractall(folder, found)
    # A file of a folder of examples stands by itself.
    if any(name == each.rpartition("/")[2] for each in found):
        (folder / found[0]).rename(folder / name)
        found = [name]
    return tuple(found)
