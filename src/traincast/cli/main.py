"""The command ``traincast``: finds the subcommand, turns errors into messages and exit codes."""

import os
import sys
from importlib import import_module

import click

from traincast import __version__
from traincast.errors import TraincastError

_COMMANDS = {
    "inspect": "What is this file: format, version, contents, totals, problems.",
    "simulate": "Simulate a workload or trace file.",
    "predict": "Forecast from a model, a parallel layout and a cluster.",
    "compare": "Two results, or a result and a measured trace, side by side.",
    "calibrate": "Fit constants to measurements, print residuals, write a profile.",
    "validate": "Error statistics against measured runs, kernels or collectives.",
    "collective": "The price of one collective, explained.",
    "operator": "The price of one operator on a GPU, explained.",
    "report": "Render a result again.",
    "init": "Write a commented job file.",
    "models": "The models that are known, with their parameters and FLOPs.",
    "clusters": "The clusters that are known, and where their numbers come from.",
}


class _LazyGroup(click.Group):
    """Imports a subcommand's module only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"traincast.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="traincast", message="%(prog)s %(version)s")
def cli() -> None:
    """Forecast one step of distributed LLM training before anyone rents the GPUs.

    Exit codes: 0 done, 1 an input or run error, 2 wrong usage, 3 the job is infeasible.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    Set TRAINCAST_DEBUG=1 to see the traceback of an error.
    """
    try:
        cli.main(args=arguments, prog_name="traincast", standalone_mode=False)
        # What cannot be written must fail here, not in the interpreter's shutdown.
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except TraincastError as error:
        _fail(str(error), error.exit_code)
    except (MemoryError, OSError) as error:
        _fail(f"{type(error).__name__}: {error}", 1)
    except Exception as error:
        _fail(f"internal error, please report it with the input: {type(error).__name__}: {error}", 1)


def _fail(message: str, code: int) -> None:
    if os.environ.get("TRAINCAST_DEBUG"):
        raise  # noqa: PLE0704 - called from an except clause
    click.echo(f"error: {message}", err=True)
    sys.exit(code)
