"""What there is to try: jobs, and files that come with traincast."""

import zipfile
from pathlib import Path

from traincast.errors import UnknownNameError
from traincast.serve.answers.bench import Workbench
from traincast.serve.records.forms import Examples, Nothing
from traincast.shipped import SHIPPED, shipped_toml

EXAMPLES = SHIPPED / "serve" / "examples.zip"
"""Some of the files of the folder examples."""


def examples(asked: Nothing, bench: Workbench) -> Examples:  # noqa: ARG001
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
