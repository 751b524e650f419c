"""The command ``traincast``: finds the subcommand, turns errors into messages and exit codes.

A command that is told to stop puts away what it was writing first.
"""

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

import click
from click.shell_completion import CompletionItem

from traincast import __version__
from traincast.cli import shells
from traincast.cli.ending import StoppedError, end, is_stop
from traincast.cli.manner_options import SILENT_ABOUT_ITSELF, with_manner
from traincast.cli.terminal import whole_output
from traincast.names import find_name, known_names

_NEW_OBJECTS = 500_000
"""Objects made and not yet gone before cycles among them are looked for."""

_COMMANDS = {
    "inspect": "What is this file: format, version, contents, totals, problems.",
    "simulate": "Simulate a workload or trace file.",
    "predict": "Forecast from a model, a parallel layout and a cluster.",
    "plan": "The best layouts for a model on a cluster.",
    "sweep": "Forecast many jobs, on this machine or on Ray; resumable.",
    "compare": "Two results, or a result and a measured trace, side by side.",
    "check": "Is this run as fast as it should be: verdict, causes, exit code.",
    "watch": "Follow the log of a running job, and say when it becomes slower.",
    "serve": "The planner in the browser, and the same for programs.",
    "convert": "Write a job, workload, trace or result in another format.",
    "measure": "Time a job's operators, or its collectives, on your own GPUs.",
    "calibrate": "Fit constants to measurements, print residuals, write a profile.",
    "validate": "Error statistics against measured runs, kernels or collectives.",
    "collective": "The cost of one collective, explained.",
    "operator": "The cost of one operator on a GPU, explained.",
    "report": "Render a result again.",
    "init": "Write a commented job file.",
    "recipes": "The published recipes whose settings are known.",
    "models": "The models that are known, with their parameters and FLOPs.",
    "clusters": "The clusters that are known, and where their numbers come from.",
    "schema": "The JSON Schema of a document of --json.",
    "completion": "The script that completes commands, options and names in a shell.",
    "man": "The manual page.",
}

_STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What Ctrl-C, a scheduler, or a terminal that goes away sends.

Not Python's own KeyboardInterrupt: a second Ctrl-C would break off the tidying, and one that comes while a class is
made of text (`exec`) would end the process by the signal, whatever the exit code.
"""


class _LazyGroup(click.Group):
    """Imports a subcommand's module only when it is called; refuses empty arguments for all of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours = args[: args.index("--")] if "--" in args else args
        for before, word in zip(("the command", *ours), ours, strict=False):
            # An empty path would be the working folder, an empty name a default that nobody asked for.
            if not word or (word.startswith("--") and word.endswith("=")):
                what = f"the value after {before!r} is empty" if not word else f"{word} has no value"
                raise click.UsageError(what, ctx)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"traincast.cli.{cmd_name}").command
        return command if cmd_name in SILENT_ABOUT_ITSELF else with_manner(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        found = find_name(args[0], _COMMANDS)
        if found is None and not args[0].startswith("-"):
            ctx.fail(f"{args[0]!r} is not a command; {known_names(args[0], _COMMANDS)}")
        return super().resolve_command(ctx, [found or args[0], *args[1:]])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=text) for name, text in _COMMANDS.items() if name.startswith(incomplete)]
        # Options are completed by click; its list of commands would import them all.
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="traincast", message="%(prog)s %(version)s")
def cli() -> None:
    """Forecast one step of distributed LLM training before anyone rents the GPUs.

    Exit codes: 0 done, 1 an input or run error, 2 wrong usage, 3 the job is infeasible; of
    check also 4 slower than expected, 5 cannot tell.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    Set TRAINCAST_DEBUG=1 to see the traceback of an error.
    """
    # No command gains by more: starting a thread for every core costs more than a short command's own work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What is read and built has few cycles, and looking for them again and again takes time.
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    # The process takes its memory with it; looking for cycles in it once more, at the end, takes time.
    atexit.register(gc.freeze)
    try:
        if shells.VARIABLE in os.environ:
            shells.register()
        with _stoppable(), whole_output():
            code = cli.main(args=arguments, prog_name="traincast", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except BrokenPipeError:
        # The reader of our output has gone; it wants to hear no more.
        sys.exit(1)
    except (click.ClickException, click.Abort, KeyboardInterrupt, StoppedError, Exception) as error:
        if os.environ.get("TRAINCAST_DEBUG") and not is_stop(error):
            raise
        sys.exit(end(error, sys.argv[1:] if arguments is None else arguments))


@contextmanager
def _stoppable() -> Iterator[None]:
    """Raise `StoppedError` in the body when a signal says to stop, so that temporary files are taken away.

    A signal that the process was started to ignore (``nohup``) stays ignored. Outside the main thread nothing is
    changed: Python has no handlers there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in _STOPS}
    kept = {number: each for number, each in kept.items() if each in (signal.SIG_DFL, signal.default_int_handler)}
    for number in kept:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _stop(number: int, _: FrameType | None) -> None:
    # A second signal must not break off the tidying that the first one began.
    for each in _STOPS:
        signal.signal(each, signal.SIG_IGN)
    raise StoppedError(number)
