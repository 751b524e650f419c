"""Pack what published recipes set into the table that ``--recipe`` reads: settings alone, nothing that was measured.

Run: ``python studies/pack_recipes.py``. Of every run whose recipe is known (``recipe_settings.csv.gz``) it takes the
job that the studies read from its row: model, GPU, degrees, batch, precision and switches. Names are made as
Megatron-Bridge names its recipes: model, task, GPUs, GPU, precision; what tells two of one release apart is added.
"""

import csv
import gzip
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from datafiles import table_path
from published.reading import read_published
from traincast.calibration.runs import MeasuredRun, read_runs
from traincast.job.recipes import TABLE, as_cell
from traincast.job.request import JOB_FIELDS
from traincast.model.load import find_model, load_model
from traincast.model.model import Model
from traincast.shipped import SHIPPED
from traincast.tables import as_table, flat, is_said

RUNS, SETTINGS = "measured_training_runs.csv", "recipe_settings.csv"

_PRECISIONS = {"fp8_block": "fp8sc", "mxfp8": "fp8mx", "fp8": "fp8"}
_SCALINGS = {"current": "cs", "delayed": "ds", "rowwise": "rw"}
"""How Megatron-Bridge names 8 bits by their scales; rowwise is torchtitan's."""
_TELLING = (
    *("seq_length", "global_batch", "packed_length", "layers", "tp", "pp", "cp", "ep", "zero", "micro_batch", "vpp"),
    *("cuda_graphs", "moe_dispatcher", "moe_routing", "moe_a2a_overlap", "recompute", "overlap_tp", "framework"),
    "capacity",
)
"""What may tell recipes of one name apart, in the order in which it is said."""
_SHORT = {
    **{"seq_length": "seq", "global_batch": "gbs", "micro_batch": "mbs", "packed_length": "packed"},
    **{"moe_a2a_overlap": "a2a_overlap"},
}


class Recipe(NamedTuple):
    """A recipe before it has its name."""

    run: MeasuredRun
    settings: Mapping[str, str]
    """Its row of the table of settings."""
    model: str
    """Built-in model that it is of."""
    changes: Mapping[str, Any]
    """What is otherwise in its model, by dotted path."""

    @property
    def stem(self) -> str:
        """Model, task, GPUs, GPU and precision."""
        request, chip = self.run.request, self.run.groups.chip.lower()
        name = self.run.cells["model"].partition(" (")[0].lower().replace(".", "")
        model = re.sub(r"[^a-z0-9]+", "_", name).strip("_")
        precision = request.precision or "bf16"
        shown = _PRECISIONS.get(precision, precision)
        if shown == "fp8":
            shown += _SCALINGS.get(request.fp8_recipe or "", "")
        return f"{model}_{request.task}_{request.gpus}gpu_{chip}_{shown}"

    @property
    def release(self) -> str:
        """The release that it is of, or the place where it stands."""
        cells = self.run.cells
        framework, place = cells.get("framework", ""), cells.get("source_url_or_repo_path", "")
        tagged = re.match(r"(?:[\w-]+/)?([\w.-]+)@([\w.]+):", place)
        if tagged and tagged[2] != "HEAD":
            return f"{tagged[1]} {tagged[2]}"
        numbered = re.match(r"([\w-]+) (\d{2,4}[.-]\d\d[\d.]*)", framework)
        return f"{numbered[1]} {numbered[2]}" if numbered else place.partition(":")[0].rpartition("/")[2].split("@")[0]

    def telling(self, name: str) -> str:
        """Return what tells it apart from others, in a word."""
        if name == "capacity":
            return "tokendrop" if "experts.capacity_factor" in self.changes else "dropless"
        if name == "layers":
            return f"l{self.changes.get('layers', load_model(self.model).layers)}"
        value = getattr(self.run.request, name)
        if value is None:
            return ""
        if isinstance(value, bool):
            return _SHORT.get(name, name) if value else ""
        return f"{_SHORT.get(name, name)}{value}" if isinstance(value, int) else re.sub(r"[^a-z0-9]+", "_", str(value))

    def fields(self) -> dict[str, str]:
        """Return the fields of its job as cells."""
        request = self.run.request
        said = (name for name, each in JOB_FIELDS.items() if name != "model" and is_said(request, each))
        return {name: as_cell(getattr(request, name)) for name in said}


def recipes() -> list[Recipe]:
    """Return the recipes of all runs whose model is built in, in the order of their table."""
    settings = {row["id"]: row for row in _rows(SETTINGS)}
    table = read_published(table_path(RUNS), table_path(SETTINGS))
    return [
        Recipe(run, settings[run.id], model, _changes(run.request.model, model))
        for run in read_runs(table).rows
        if run.id in settings
        and (model := find_model(run.cells.get("base_model", run.cells["model"]).partition(" (")[0])) is not None
    ]


def _changes(model: Model, base: str) -> dict[str, Any]:
    """Return what is otherwise in a model than in the built-in one, by dotted path."""
    own, usual = (flat(as_table(each, leave_out=("name", "source", "notes"))) for each in (model, load_model(base)))
    return {key: own.get(key, 0) for key in (*own, *usual) if own.get(key) != usual.get(key)}


def named(found: Iterable[Recipe]) -> Iterator[tuple[str, Recipe]]:
    """Yield each recipe with its name; of those that set the very same only the first."""
    groups: dict[tuple[str, str], list[Recipe]] = {}
    for each in found:
        group = groups.setdefault((each.stem, each.release), [])
        if all((each.fields(), each.changes) != (other.fields(), other.changes) for other in group):
            group.append(each)
    for (stem, _), group in groups.items():
        telling = [name for name in _TELLING if len({each.telling(name) for each in group}) > 1]
        used: list[str] = []
        for name in telling:
            if _told(group, [*used, name]) > _told(group, used):
                used.append(name)
        if _told(group, used) < len(group):
            raise SystemExit(f"{stem}: nothing tells {', '.join(each.run.id for each in group)} apart; add to _TELLING")
        for each in group:
            yield "_".join(filter(None, (stem, *(each.telling(name) for name in used)))), each


def _told(group: Iterable[Recipe], names: Iterable[str]) -> int:
    """Return how many of a group some words tell apart."""
    return len({tuple(each.telling(name) for name in names) for each in group})


def _age(release: str) -> tuple[int, ...]:
    """Return the numbers of a release: years, months, and what is behind them."""
    found = re.search(r"(?:20)?(\d\d)[.-](\d\d)(?:\.(\d+))?$", release)
    return tuple(int(each or 0) for each in found.groups()) if found else (0,)


def packed() -> bytes:
    """Return the table, packed: newest releases of a name first."""
    rows = []
    for name, each in named(recipes()):
        cells = each.run.cells
        head = {
            "name": name,
            "release": each.release,
            "basis": each.settings["basis"],
            "source": f"{each.settings['ref']} {each.settings['recipe']}".strip(),
            "model": each.model,
            "model_changes": ";".join(f"{key}={value}" for key, value in each.changes.items()),
            "gpu": cells["gpu"],
            "gpus_per_node": cells.get("gpus_per_node", ""),
            "nic_gbit_per_gpu": cells.get("nic_gbit_per_gpu", ""),
        }
        rows.append(head | each.fields())
    columns = [*head, *(name for name in JOB_FIELDS if any(name in row for row in rows))]
    rows.sort(key=lambda row: (_age(row["release"]), row["release"]), reverse=True)
    rows.sort(key=lambda row: row["name"])
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return gzip.compress(text.getvalue().encode(), mtime=0)


def _rows(name: str) -> list[dict[str, str]]:
    with gzip.open(table_path(name), "rt", encoding="utf-8", newline="") as stream:
        return [*csv.DictReader(stream)]


def main() -> None:
    """Write the table."""
    path = Path(SHIPPED) / TABLE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(packed())
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
