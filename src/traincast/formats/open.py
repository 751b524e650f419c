"""Find the files that are meant, and find out what a file is."""

from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

from traincast.errors import FormatError
from traincast.formats.contract import FORMATS, Format

_HEAD_BYTES = 65536
_SURE_ENOUGH = 0.25


def expand_inputs(paths: Sequence[Path]) -> list[Path]:
    """Replace folders by the files in them, and patterns by what they match.

    Parameters
    ----------
    paths : sequence of Path
        Files; folders (hidden files and folders in them are left out); patterns such as
        ``run/rank*.txt`` or ``runs/**/*.txt``, where no file has that very name.

    Returns
    -------
    list of Path
        In the order given; what a folder or pattern stands for is sorted by path. A file that is
        given and does not exist stays, so that its reader says so.

    Raises
    ------
    FormatError
        If a folder cannot be read or holds no file, or nothing matches a pattern.
    """
    return [file for path in paths for file in _expanded(path)]


def _expanded(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return _files_in(path)
        if path.exists() or not has_magic(str(path)):
            return [path]
        matches = sorted(Path(each) for each in glob(str(path), recursive=True))  # noqa: PTH207 paths may be absolute
        found = [file for match in matches for file in (_files_in(match) if match.is_dir() else [match])]
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", str(path)) from None
    if not found:
        raise FormatError("no file matches this pattern", str(path))
    return found


def _files_in(folder: Path) -> list[Path]:
    files = sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))
    if not files:
        raise FormatError("is a folder without files", str(folder))
    return files


def identify(path: Path) -> Format:
    """Return the format that is surest of a file.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Format

    Raises
    ------
    FormatError
        If the file cannot be read, or no format knows it; the message lists what was tried.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", str(path)) from None
    if not head.strip("\0 \t\r\n\ufeff"):
        raise FormatError("the file is empty", str(path), 1)
    tried = [(form.sniff(path, head), form) for form in FORMATS.entries()]
    best, form = max(tried, key=lambda item: item[0].confidence)
    if best.confidence < _SURE_ENOUGH:
        reasons = "; ".join(f"{form.name}: {sniff.reason}" for sniff, form in tried)
        raise FormatError(f"not a file of a known format (tried {reasons})", str(path), 1)
    return form
