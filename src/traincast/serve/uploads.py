"""Files that a page brings: stored as they come, under the names that it gives them, up to what is allowed.

What they are is told by the same readers as on the command line, in a worker.
"""

from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from msgspec import Struct
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from traincast.errors import ConfigError
from traincast.serve.wire import FILES

MOST_BYTES, MOST_FILES, MOST_DEPTH, LONGEST_NAME = 512 * 2**20, 2_048, 8, 200
"""Of all files of an upload, their number, the folders that they lie in, and the letters of a part of a name."""
_MOST_WORDS = 2**20
"""Bytes of what is said besides the files."""


class Upload(Struct):
    """What a page brought."""

    files: list[str]
    """Paths below the folder, as the page names them."""
    words: dict[str, str]
    """What was said besides, by name."""


async def stored(chunks: AsyncIterator[bytes], boundary: str, folder: Path) -> Upload:
    """Store the files of a multipart body in a folder.

    Raises
    ------
    ConfigError
        If there are too many, they are too large, or a name is not a path below the folder.
    """
    found, size, name, out = Upload([], {}), 0, "", _Part(None)
    root = folder / FILES
    root.mkdir(mode=0o700)
    try:
        with PushMultipartParser(boundary, max_segment_count=MOST_FILES + 1) as parser:
            async for chunk in chunks:
                size += len(chunk)
                if size > MOST_BYTES:
                    raise ConfigError(f"are more than {MOST_BYTES // 2**20} MB in all; use the command line", "files")
                for piece in parser.parse(chunk):
                    if isinstance(piece, MultipartSegment):
                        name = piece.name
                        out = _Part(_file(piece, root, found))
                    elif piece:
                        out.write(piece)
                    else:
                        said = out.close()
                        if not out.is_file:
                            found.words[name] = said.decode("utf-8", "replace")
    except MultipartError as error:
        raise ConfigError(f"cannot be read ({error}); send them as multipart/form-data", "files") from None
    finally:
        out.close()
    if not found.files:
        raise ConfigError("are none; choose a file", "files")
    return found


class _Part:
    """A part of the body as it comes: into a file, or where it is none kept."""

    def __init__(self, file: BinaryIO | None) -> None:
        self._file, self._words = file, bytearray()

    @property
    def is_file(self) -> bool:
        return self._file is not None

    def write(self, piece: bytes | bytearray) -> None:
        if self._file is not None:
            self._file.write(piece)
            return
        self._words.extend(piece)
        if len(self._words) > _MOST_WORDS:
            raise ConfigError("is too long", "words")

    def close(self) -> bytes:
        """Return what was kept."""
        if self._file is not None:
            self._file.close()
        return bytes(self._words)


def _file(segment: MultipartSegment, root: Path, found: Upload) -> BinaryIO | None:
    """Return where a part is written to; None of what is not a file."""
    if segment.filename is None:
        return None
    name = safe_name(segment.filename)
    if name in found.files:
        raise ConfigError(f"has two files {name!r}; give each its own name", "files")
    if len(found.files) >= MOST_FILES:
        raise ConfigError(f"are more than {MOST_FILES:,}; use the command line", "files")
    found.files.append(name)
    path = root / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path.open("xb")
    except OSError:
        raise ConfigError(f"has a file {name!r} that cannot be stored; give it another name", "files") from None


def safe_name(given: str) -> str:
    """Return the name of a file as a path below a folder.

    Raises
    ------
    ConfigError
        If it leads elsewhere, is too deep or too long, or has letters that no name needs.

    Examples
    --------
    >>> safe_name("run/rank0.json")
    'run/rank0.json'
    """
    parts = PurePosixPath(given.replace("\\", "/")).parts
    wrong = [each for each in parts if each in ("..", "/") or not each.isprintable() or len(each) > LONGEST_NAME]
    if wrong or not parts or len(parts) > MOST_DEPTH:
        shown = given[:80].encode("ascii", "backslashreplace").decode()
        what = f"at most {MOST_DEPTH} folders deep, without .. and control characters"
        raise ConfigError(f"has a file {shown!r}; names must be paths {what}", "files")
    return "/".join(parts)
