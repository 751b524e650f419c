"""Find out what a file is."""

from pathlib import Path

from traincast.errors import FormatError
from traincast.formats.contract import FORMATS, Format

_HEAD_BYTES = 65536
_SURE_ENOUGH = 0.25


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
