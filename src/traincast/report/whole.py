"""Write one file whole or not at all."""

import os
from pathlib import Path

from traincast.errors import ConfigError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file through a temporary one beside it; an existing file is replaced in one step.

    A device or pipe, such as ``/dev/null``, is written to as it is: replacing it would take it away.

    Parameters
    ----------
    path : Path
        The file.
    content : bytes
        What it shall hold.

    Raises
    ------
    ConfigError
        If it is a directory or cannot be written; nothing is left behind then.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a file for the output")
    if path.exists() and not path.is_file():
        _write_to_device(path, content)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _write_to_device(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
