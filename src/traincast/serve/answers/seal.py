"""A worker opens no file of this machine that a request names: what Python opens is looked at before it is opened.

Names are checked where they are read (`traincast.serve.answers.words`); this is the wall behind that, for what a pasted
script, recipe or description of a cluster names in turn. Source: PEP 578, runtime audit hooks, which cannot be taken
away.
"""

import os
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import traincast

FOLDER = "TRAINCAST_SERVE_FOLDER"
"""Variable with the folder that the server made for its workers."""
_PACKAGE = Path(traincast.__file__).parent
_OPENS = ("open", "os.listdir", "os.scandir")
_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")
_SYSTEM = (
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/dev/null",
    "/dev/urandom",
    "/sys/devices/system",
    "/sys/fs/cgroup",
)
"""What libraries look at to know the machine."""


class Seal:
    """Which folders may be read; all of them until it is closed."""

    def __init__(self) -> None:
        self._allowed: tuple[str, ...] = ()
        self._closed = False

    def close(self, *folders: Path) -> None:
        """Allow the code of Python and of this package, and some folders, from now on and for good."""
        kept = [*_code(), *_SYSTEM, *map(str, folders)]
        self._allowed = tuple(dict.fromkeys(os.path.realpath(each) for each in kept))
        if not self._closed:
            self._closed = True
            sys.addaudithook(self._look)

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse what is opened elsewhere, and every process and connection."""
        if event in _STARTS:
            raise PermissionError(13, "nothing is started for a page")
        if event not in _OPENS or not arguments or isinstance(arguments[0], int):
            return
        path = os.path.realpath(os.fsdecode(arguments[0] or "."))
        if not any(path == each or path.startswith(each + os.sep) for each in self._allowed):
            raise PermissionError(13, "files of this machine are not opened for a page", "")


def _code() -> list[str]:
    """Return the folders of code, and those where what is compiled is kept."""
    found = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [
        str(_PACKAGE),
        *(each for each in sys.path if each.endswith((".zip", "site-packages"))),
    ]
    found.append(os.environ.get("NUMBA_CACHE_DIR", ""))
    with suppress(RuntimeError):
        found.append(str(Path.home() / ".cache" / "numba"))
    if "site-packages" not in __file__:
        # A clone: what is installed in place is found by its source folder.
        found.append(str(_PACKAGE.parent))
    return [each for each in found if each]


def scratch() -> Path:
    """Return a folder of this process alone, in the one that the server made for its workers."""
    return Path(tempfile.mkdtemp(prefix="worker-", dir=os.environ.get(FOLDER)))


def shared(own: Path) -> Path:
    """Return the folder of what workers keep for each other; below its own where there is no server."""
    return Path(os.environ.get(FOLDER, own)) / "kept"
