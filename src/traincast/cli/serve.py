"""``traincast serve``."""

import click

from traincast.cli.terminal import flush, print_line
from traincast.errors import ConfigError


@click.command(name="serve")
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
def command(port: int, host: str, token: bool, browser: bool) -> None:  # noqa: FBT001
    """Serve the planner as a page on this machine, and as JSON for programs.

    Needs the extra serve: pip install 'traincast[serve]'.
    """
    from importlib.util import find_spec

    if find_spec("litestar") is None or find_spec("uvicorn") is None:
        raise ConfigError("serve needs litestar and uvicorn; install them with pip install 'traincast[serve]'")
    from traincast.serve.run import serve

    def tell(url: str) -> None:
        print_line(f"serving {url} (Ctrl-C ends it)")
        flush()

    serve(host, port, token=token, browser=browser, tell=tell)
