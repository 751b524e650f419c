"""Start the server: workers first, which take longest, then the page."""

import asyncio
import secrets
import shutil
import socket
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp

from msgspec import Struct

from traincast.errors import ConfigError
from traincast.serve.guard import Guard
from traincast.serve.opening import fragment_of
from traincast.serve.tasks import LongTasks
from traincast.serve.workers import Workers

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine reaches."""


class Address(Struct, frozen=True, kw_only=True):
    """Where a server listens, and who may come."""

    host: str = LOOPBACK[0]
    port: int = 0
    """0: any that is free."""
    token: str | None = None
    """What who comes must know; None: nothing."""

    @property
    def names(self) -> list[str]:
        """Names that the server goes under, with its port."""
        machine = [] if self.host in LOOPBACK else [socket.gethostname(), socket.getfqdn(), self.host]
        names = [f"[{each}]" if ":" in each else each for each in (*LOOPBACK, *machine)]
        return [
            each
            for name in names
            for each in ((name, f"{name}:{self.port}") if self.port == 80 else (f"{name}:{self.port}",))
        ]

    @property
    def url(self) -> str:
        """What to open in a browser."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/{f'?token={self.token}' if self.token else ''}"


def serve_pages(
    host: str,
    port: int,
    *,
    token: bool = False,
    files: Sequence[Path] = (),
    tell: Callable[[str], None],
    browser: bool = True,
) -> None:
    """Serve until somebody says stop; `tell` is told the address once it can be opened.

    Parameters
    ----------
    host, port
        Where to listen; a port of 0 is any that is free.
    token : bool
        Whether a token is asked for on this machine, too; from elsewhere it always is.
    files : sequence of Path
        What the page opens with: a job file, a result, or files of a run.
    tell
        Takes the address.
    browser : bool
        Whether to open a browser.

    Raises
    ------
    ConfigError
        If nothing can listen there.
    """
    asyncio.run(_serve(host, port, token or host not in LOOPBACK, files, tell, browser))


async def _serve(
    host: str,
    port: int,
    token: bool,
    files: Sequence[Path],
    tell: Callable[[str], None],
    browser: bool,
) -> None:
    # No other user can read what is in it.
    root = Path(mkdtemp(prefix="traincast-"))
    workers = Workers(root)
    await workers.start()
    try:
        listener = _listener(host, port)
        address = Address(host=host, port=listener.getsockname()[1], token=secrets.token_urlsafe(24) if token else None)
        # While workers load what they need.
        from traincast.serve.app import application, server_of

        tasks = LongTasks(workers)
        app = Guard(application(workers, tasks), address.names, address.token, any_address=host not in LOOPBACK)

        async def stop() -> None:
            await workers.close()
            await tasks.close()

        server = server_of(app, stop)
        opening = asyncio.create_task(
            _announce(server, address.url + await fragment_of(files, workers, tasks), tell, browser)
        )
        try:
            await server.serve([listener])
            await opening
        finally:
            await stop()
    finally:
        await workers.close()
        shutil.rmtree(root, ignore_errors=True)


async def _announce(server: object, url: str, tell: Callable[[str], None], browser: bool) -> None:
    while not (getattr(server, "started", False) or getattr(server, "should_exit", False)):
        await asyncio.sleep(0.01)
    tell(url)
    if browser:
        await asyncio.to_thread(webbrowser.open, url)


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if sys.platform != "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}); choose another port or host") from None
    listener.listen(128)
    return listener
