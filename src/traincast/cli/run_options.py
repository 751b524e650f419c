"""The options of every command that simulates a step: what the network does, who is slow, what comes out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from traincast.cli.numbers import in_range
from traincast.cli.options import (
    Name,
    class_slowdowns,
    gpus_used,
    group_rates,
    once_each,
    rank_factor,
    rates_by_group,
    slowdown_by_class,
)
from traincast.job.options import NETWORKS, OVERLAP_CLASSES

if TYPE_CHECKING:
    from traincast.job.record import RunRecord

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--busbw",
        multiple=True,
        type=group_rates,
        metavar="GROUP[.OP]=RATE|FILE",
        help="Bus bandwidth of a group, such as tp=300GB/s, or of one operation, tp.all_reduce=300GB/s; or SimAI's "
        "busbw.yaml.",
    ),
    click.option(
        "--slow",
        multiple=True,
        type=rank_factor,
        metavar="RANK=FACTOR",
        help="Make one rank's compute slower, such as 7=1.3.",
    ),
    click.option(
        "--network",
        type=Name(NETWORKS),
        default=NETWORKS[0],
        show_default=True,
        help="How groups share links: as flows where they can meet, never, or always as flows.",
    ),
    click.option(
        "--network-seeds",
        type=in_range("network_seeds"),
        default=1,
        metavar="N",
        help="Hash seeds of the fabric to run; min, median and max of the step are told.",
    ),
    click.option(
        "--overlap-slowdown",
        multiple=True,
        type=class_slowdowns,
        metavar="[CLASS=]X[,...]",
        help="What full overlap adds to the time of a class, such as memory=0.1, or of all: "
        f"{', '.join(OVERLAP_CLASSES)}; 0 for none.",
    ),
    click.option(
        "--gpus-used-per-node",
        type=gpus_used,
        metavar="N|all|auto",
        help="GPUs of each node that ranks are placed on (auto: what keeps tp, cp and ep groups in a node).",
    ),
    click.option("--unfold", is_flag=True, help="Simulate every rank, even where ranks are alike."),
)


def run_options(function: F) -> F:
    """Add the options of a simulated step; `run_values` turns their values into fields of `SimulateOptions`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def output_options(function: F) -> F:
    """Add ``--out``, ``--json`` and ``--quiet``."""
    for option in (
        click.option("--quiet", is_flag=True, help="Print nothing but errors."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else."),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Write result.json, ops.csv, trace.json.gz there.",
        ),
    ):
        function = option(function)
    return function


def run_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a command with those of `run_options` as fields of `SimulateOptions`; others stay.

    Raises
    ------
    click.UsageError
        If a group, rank or class is given twice.
    """
    others = {name: value for name, value in values.items() if name not in ("busbw", "slow", "overlap_slowdown")}
    return {
        **others,
        "busbw_bytes_per_s": rates_by_group(values["busbw"], "--busbw"),
        "compute_slowdown": once_each(values["slow"], "--slow"),
        "overlap_slowdown": slowdown_by_class(values["overlap_slowdown"], "--overlap-slowdown"),
    }


def run_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `SimulateOptions` alone that the options of `run_options` set."""
    names = (
        *("busbw_bytes_per_s", "compute_slowdown", "overlap_slowdown", "network", "network_seeds"),
        *("gpus_used_per_node", "unfold"),
    )
    found = run_values(values)
    return {name: found[name] for name in names}


def recorded_run(words: Sequence[str | Path]) -> "RunRecord | None":
    """Return what a result was made from, where it is the only word; None where the words are something else.

    Raises
    ------
    TraincastError
        If it is a result that does not hold that, or is damaged.
    """
    path = Path(words[0]) if len(words) == 1 else Path()
    # Asked of the name first, so that a pipe or device is not opened here.
    if path.suffix != ".json" and not (path / "result.json").is_file():
        return None
    from traincast import api

    return api.load_record(path) if api.is_result(path) else None


def given_fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the fields of `run_values` or `run_fields` that stand on the command line.

    They win over those of a recorded run, the others do not.
    """
    context = click.get_current_context()
    option = {"busbw_bytes_per_s": "busbw", "compute_slowdown": "slow"}
    return {
        name: value
        for name, value in found.items()
        if context.get_parameter_source(option.get(name, name)) is ParameterSource.COMMANDLINE
    }
