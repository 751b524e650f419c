"""Hold NeuSight's operator graphs, estimated with our kernels, against what it measured, next to its own forecasts.

    python studies/neusight_labels.py --graphs DIR [--data DIR] [--by gpu|model|mode|option]

DIR of `--graphs` is ``scripts/asplos/results/opgraph`` of github.com/sitar-lab/NeuSight; that of `--data` holds
`neusight_e2e_labels.csv` (`studies/data` by default): what NeuSight (arXiv 2407.13853) measured on 12 GPUs, with what
it forecast. Each graph runs as `traincast simulate` runs it: on the label's GPU in fp32, its one listed layer as often
as the model has layers. Nothing was fitted to these rows by this study; the corrections of kernels were fitted to
measurements of kernels on some of the same GPUs.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import traincast
from datafiles import DATA, table_path
from traincast.errors import TraincastError
from traincast.files import read_unpacked

LAYERS = {"bert_large": 24, "gpt2_large": 36, "gpt3_xl": 24, "gpt3_27": 32, "opt_13": 24, "switchxl4": 24}
"""Layers of the models. Source: ``num_layer`` of NeuSight's predictions."""
DEGREES: Mapping[str, Mapping[str, int | str]] = {
    "dp": {"dp": 4},
    "tp": {"tp": 4},
    "pp": {"pp": 4, "schedule": "gpipe"},
}
"""What the names of distributed runs say: all were of 4 GPUs."""
GROUPS = ("gpu", "model", "mode", "option")


class Held(NamedTuple):
    """A label with both forecasts."""

    label: Mapping[str, str]
    ours_ms: float

    @property
    def our_error(self) -> float:
        """Our forecast over the measurement, less 1."""
        return self.ours_ms / float(self.label["measured_ms"]) - 1

    @property
    def their_error(self) -> float:
        """NeuSight's forecast over the measurement, less 1."""
        return float(self.label["neusight_ms"]) / float(self.label["measured_ms"]) - 1


def graph_of(label: Mapping[str, str], graphs: Path) -> Path:
    """Return the graph of a label, as NeuSight names it."""
    option = f"-{label['option']}" if label["option"] else ""
    return graphs / f"{label['model']}-{label['mode']}-{label['seq']}-{label['batch']}{option}.csv"


def forecast_ms(label: Mapping[str, str], graph: Path) -> float:
    """Return the step of a label's graph in ms.

    Raises
    ------
    TraincastError
        If the GPU is not known, or the graph cannot run.
    """
    kind, _, microbatches = label["option"].partition("_")
    fields: dict[str, Any] = {**DEGREES.get(kind[:2], {}), "layers": LAYERS[label["model"]], "dtype": label["dtype"]}
    if microbatches:
        fields["microbatches"] = int(microbatches)
    step = traincast.simulate(graph, cluster=label["gpu"], **fields)
    return 1e3 * step.iteration_time_s


def held(labels: Sequence[Mapping[str, str]], graphs: Path) -> tuple[list[Held], dict[str, int]]:
    """Return the labels that can be forecast with their forecasts, and how many others there are, by reason."""
    found: list[Held] = []
    left: dict[str, int] = {}
    for label in labels:
        path = graph_of(label, graphs)
        try:
            if not path.is_file():
                raise TraincastError("NeuSight publishes no graph")
            if not label["neusight_ms"]:
                raise TraincastError("NeuSight forecasts nothing")
            found.append(Held(label, forecast_ms(label, path)))
        except TraincastError as error:
            left[str(error)] = left.get(str(error), 0) + 1
    return found, left


def rows_of(found: Sequence[Held], by: str) -> Iterator[tuple[str, list[Held]]]:
    """Yield all labels, then those of each group."""
    yield "all", list(found)
    for mode in sorted({each.label["gpus"] for each in found}):
        of_mode = [each for each in found if each.label["gpus"] == mode]
        yield f"{mode} GPU{'s' if mode != '1' else ''}", of_mode
    if by:
        for name in sorted({each.label[by] for each in found}):
            yield name or "none", [each for each in found if each.label[by] == name]


def figures(errors: Sequence[float]) -> list[str]:
    """Return median and 90th percentile of absolute errors, and their bias, in per cent."""
    sizes = np.abs(errors)
    shown = (float(np.median(sizes)), float(np.percentile(sizes, 90)), float(np.median(errors)))
    return [f"{100 * shown[0]:.1f}", f"{100 * shown[1]:.1f}", f"{100 * shown[2]:+.1f}"]


def print_table(found: Sequence[Held], left: Mapping[str, int], by: str, console: Console) -> None:
    """Print the errors of both, in per cent, and what was left out."""
    table = Table("rows", "", "median", "90 % below", "bias", "NeuSight: median", "90 % below", "bias", box=None)
    for name, rows in rows_of(found, by):
        ours, theirs = (figures([getattr(each, of) for each in rows]) for of in ("our_error", "their_error"))
        table.add_row(str(len(rows)), name, *ours, *theirs)
    console.print(table)
    for reason, count in left.items():
        console.print(f"{count} left out: {reason}", highlight=False)


def main() -> int:
    """Forecast every label and print the errors; return the exit code."""
    parser = argparse.ArgumentParser(description="hold NeuSight's graphs against its labels")
    parser.add_argument("--graphs", type=Path, required=True, help="scripts/asplos/results/opgraph of NeuSight")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with neusight_e2e_labels.csv")
    parser.add_argument("--by", default="", choices=("", *GROUPS), help="groups to show")
    given = parser.parse_args()
    try:
        path = table_path("neusight_e2e_labels.csv", given.data)
        labels = list(csv.DictReader(read_unpacked(path).decode("utf-8").splitlines()))
        if not given.graphs.is_dir():
            raise FileNotFoundError(f"{given.graphs} is not a folder; it holds NeuSight's graphs")
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found, left = held(labels, given.graphs)
    if not found:
        print(f"error: {given.graphs} has a graph of no label", file=sys.stderr)
        return 1
    print_table(found, left, given.by, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
