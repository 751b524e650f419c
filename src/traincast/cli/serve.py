"""``traincast serve``."""

from importlib.util import find_spec
from pathlib import Path

import click

from traincast import serve
from traincast.cli.completion import known
from traincast.cli.terminal import flush, print_line
from traincast.errors import ConfigError

_NEEDED = ("litestar", "uvicorn")


@click.command(name="serve")
@click.argument(
    "files", nargs=-1, type=click.Path(path_type=Path), metavar="[JOB | RESULT | FILES...]", shell_complete=known()
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port (default: any that is free).")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on; one that other machines reach needs a token, which is printed.",
)
@click.option("--token", is_flag=True, help="Ask for a token on this machine, too.")
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open the page in a browser.")
@click.option(
    "--mcp", is_flag=True, help="Instead of a page answer a program, such as an assistant in an editor, on stdin."
)
def command(files: tuple[Path, ...], port: int, host: str, *, token: bool, browser: bool, mcp: bool) -> None:
    """Serve the planner as a page on this machine, and as JSON for programs.

    The page opens with a job file, a result.json, or the traces, workload or log that is given. Needs the extra serve:
    pip install 'traincast[serve]'.
    """
    if mcp:
        if files or port or token:
            raise click.UsageError("--mcp serves no page; give it alone")
        _serve_programs()
        return
    serve_page(files, port, host, token=token, browser=browser)


def _serve_programs() -> None:
    if find_spec("mcp") is None:
        raise ConfigError("serve --mcp needs mcp, which is not installed; pip install 'traincast[serve]' does")
    serve.serve_programs()


def serve_page(
    files: tuple[Path, ...], port: int = 0, host: str = "127.0.0.1", *, token: bool = False, browser: bool = True
) -> None:
    """Serve until somebody says stop.

    Raises
    ------
    ConfigError
        If the extra is not installed, a file is not there, or nothing can listen there.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        needed = " and ".join(missing)
        raise ConfigError(f"serve needs {needed}, which is not installed; pip install 'traincast[serve]' does")
    absent = next((each for each in files if not each.exists()), None)
    if absent is not None:
        raise ConfigError(f"{absent} is not there; name a job file, a result.json, traces, a workload or a log")

    def tell(url: str) -> None:
        print_line(f"serving {url} (Ctrl-C ends it)")
        flush()

    serve.serve_pages(host, port, files=files, token=token, browser=browser, tell=tell)
