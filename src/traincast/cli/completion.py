"""``traincast completion``, and what shells complete where an option takes a known name.

Names are read when they are asked for; to complete one takes no numpy, except for sizes of ``operator``, which its
families say.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import PurePath

import click
from click.shell_completion import CompletionItem

from traincast.cli.main import cli
from traincast.cli.shells import SHELLS, VARIABLE
from traincast.cli.terminal import print_document
from traincast.errors import TraincastError
from traincast.hardware.clusters import cluster_names
from traincast.hardware.gpu import gpu_names
from traincast.job.frameworks import framework_names
from traincast.job.recipes import recipe_names
from traincast.model.load import model_names
from traincast.schedules.schedule import SCHEDULES

WRITTEN_FORMATS = ("aicb", "aicb-physical", "busbw", "chakra", "echo", "neusight")
FURTHER_REPORTS = ("picture", "picture-dark", "endtoend")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")
"""Names that only modules with arrays register, so that they stand here, too; a test sees that none is missing."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


_NAMES: dict[str, Callable[[], Sequence[str]]] = {
    "model": model_names,
    "cluster": cluster_names,
    "gpu": gpu_names,
    "framework": framework_names,
    "recipe": recipe_names,
    "schedule": SCHEDULES.names,
}


def known(*kinds: str, files: bool = True) -> Complete:
    """Return what completes the names of some kinds (``model``, ``cluster``, ...), and files where nothing fits."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            names = [name for kind in kinds for name in _NAMES[kind]()]
        except TraincastError:
            # A damaged plug-in is told of when a command runs, not while somebody types.
            names = []
        typed = incomplete.casefold()
        found = [CompletionItem(name) for name in names if name.casefold().startswith(typed)]
        return [CompletionItem(incomplete, type="file")] if files and not found else found

    return complete


def one_of(*names: str) -> Complete:
    """Return what completes a few names that stand in the help of an option."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


_SETUP = """\b
bash: traincast completion bash > ~/.local/share/bash-completion/completions/traincast
zsh:  traincast completion zsh > ~/.traincast.zsh, and in ~/.zshrc: source ~/.traincast.zsh
fish: traincast completion fish > ~/.config/fish/completions/traincast.fish
"""


@click.command(name="completion", epilog=_SETUP)
@click.argument("shell", required=False, type=click.Choice([*SHELLS]))
def command(shell: str | None) -> None:
    """Print the script that lets a shell complete commands, options and names.

    SHELL is bash, zsh or fish (default: the one of $SHELL).
    """
    shell = shell or PurePath(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise click.UsageError(f"which shell? Give one of {', '.join(SHELLS)}")
    print_document(SHELLS[shell](cli, {}, "traincast", VARIABLE).source())
