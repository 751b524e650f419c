"""Pairs of measured runs that differ in one setting, as two jobs each (``single_changes.csv.gz``).

A pair says what both runs share (``common``) and what changes (``change``: ``name: one -> other``) in the words of its
page. Where it names two rows of the other tables, these are the runs, with all that is known of them. Else both are
made of its words, in the columns of the common schema; what these leave out is assumed (`ASSUMED`), alike for both.
"""

import csv
import gzip
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from msgspec.structs import replace

from datafiles import table_path
from forecasts import MLPERF, PUBLISHED, timed_rows
from published.reading import common_row
from traincast.calibration.runs import MeasuredRun, run_of
from traincast.calibration.tables import Row
from traincast.errors import TraincastError

TABLE = "single_changes.csv"
ASSUMED = {"seq_len": "4096", "micro_batch": "1", "global_batch": "32", "precision": "bf16", "pp": "1", "tp": "1"}
"""Of jobs whose page does not say it: the defaults of Megatron-Bridge's recipes (src/megatron/bridge/recipes)."""
_SAME = ("iter_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct")
"""Metrics that tell how long a step takes; all but the first are larger when it is shorter."""
_COLUMNS = {
    **{name: name for name in ("tp", "pp", "vpp", "cp", "ep")},
    **{"gpus": "num_gpus", "seq": "seq_len", "gbs": "global_batch", "mbs": "micro_batch", "local_batch": "micro_batch"},
    **{"dispatcher": "moe_dispatcher", "routing": "moe_routing", "task": "x_task", "sp": "sequence_parallel"},
    **{"moe_permute_fusion": "fused_permute", "delay_wgrad": "delay_wgrad"},
    **{"ep_a2a_overlap": "moe_a2a_overlap", "overlap_cpu_optimizer_d2h_h2d": "overlap_offload"},
    **{"async_tp": "overlap_tp", "data parallel": "zero_or_fsdp", "linear precision": "precision"},
}
"""Word of a page to the column that it fills."""
_VALUES: Mapping[str, Mapping[str, str]] = {
    "moe_dispatcher": {"flex-hybridep": "hybridep", "flex-deepep": "deepep"},
    "moe_routing": {"forced-balanced": "balanced"},
    "zero_or_fsdp": {"distributed optimizer recipe": "zero1", "Megatron-FSDP recipe": "fsdp"},
}
_PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "fp8_current": {"precision": "fp8", "fp8_recipe": "current"},
    "float8": {"precision": "fp8", "fp8_recipe": "current"},
    "float8 tensorwise": {"precision": "fp8", "fp8_recipe": "current"},
    "float8 rowwise": {"precision": "fp8", "fp8_recipe": "rowwise"},
    "fp8_full": {"precision": "fp8", "fp8_recipe": "delayed"},
    "mxfp8_cublas": {"precision": "mxfp8"},
    "mxfp8 (grouped GEMM and most linears)": {"precision": "mxfp8"},
}
_FRAMEWORKS = {"Megatron-Bridge": "Megatron-Bridge 26.06", "torchtitan": "torchtitan 2025-06"}
_EAGER = "torchtitan-eager-2024"


class Pair(NamedTuple):
    """Two runs that differ in one setting."""

    id: str
    change: str
    before: MeasuredRun
    after: MeasuredRun
    ratio: float
    """Measured step after over that before."""

    @property
    def slower(self) -> MeasuredRun:
        """The side whose step is longer."""
        return self.before if self.ratio < 1 else self.after

    @property
    def faster(self) -> MeasuredRun:
        """The other side."""
        return self.after if self.ratio < 1 else self.before


def pairs() -> Iterator[Pair]:
    """Yield the pairs whose change is a setting of a job, each once, whatever was measured of it."""
    with gzip.open(table_path(TABLE), "rt", encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["metric"] in _SAME]
    # A pair of which two metrics were printed is told by its step.
    known = {(row["model"], row["common"].removesuffix(";gbs=small"), row["change"]): row for row in reversed(rows)}
    for row in sorted(known.values(), key=lambda row: row["pair"]):
        one, other = float(row["a_value"]), float(row["b_value"])
        ratio = other / one if row["metric"] == _SAME[0] else one / other
        sides = _linked(row) or _made(row, ratio)
        if sides is not None and sides[0].request != replace(sides[1].request, model=sides[0].request.model):
            yield Pair(row["pair"], row["change"], *sides, ratio)


def _linked(row: Mapping[str, str]) -> tuple[MeasuredRun, MeasuredRun] | None:
    """Return the rows of other tables that a pair names, or that printed both of its values."""
    named = re.findall(r"[\w.]+(?:-[\w.]+)*-\d{3}\b", row["notes"])
    found = [run for run in map(_by_id().get, named) if run is not None]
    if len(found) != 2 and row["metric"] == _SAME[0] and row["num_gpus"].isdecimal():
        steps = (float(row["a_value"]), float(row["b_value"]))
        found = [run for step in steps for run in _by_id().values() if _printed(run, row, step)]
    return (found[0], found[1]) if len(found) == 2 else None


def _printed(run: MeasuredRun, row: Mapping[str, str], step_s: float) -> bool:
    same = run.cells.get("model") == row["model"] and run.cells.get("gpu") == row["gpu"]
    return same and abs((run.measured_s or 0.0) / step_s - 1) < 1e-4


@cache
def _by_id() -> dict[str, MeasuredRun]:
    return {run.id: run for name in (PUBLISHED, MLPERF) for run in timed_rows(name)}


def _made(row: Mapping[str, str], ratio: float) -> tuple[MeasuredRun, MeasuredRun] | None:
    """Return the two runs that a pair's words describe; None where they tell no two jobs."""
    name, _, values = row["change"].partition(": ")
    one, arrow, other = values.partition(" -> ")
    before, after = _cells(name.strip(), one.strip()), _cells(name.strip(), other.strip())
    if not arrow or not before or not after:
        return None
    # Of steps only the ratio counts, which is all that some metrics tell.
    sides = (_run(row, {**before, "x_iter_time_s": "1"}), _run(row, {**after, "x_iter_time_s": f"{ratio:.6g}"}))
    return None if sides[0] is None or sides[1] is None else (sides[0], sides[1])


def _run(row: Mapping[str, str], side: Mapping[str, str]) -> MeasuredRun | None:
    """Return one side of a pair as a run."""
    page = row["source_url_or_repo_path"]
    framework = next((name for repository, name in _FRAMEWORKS.items() if repository in page), "")
    cells = {"id": row["pair"], "source": "single-changes", "model": row["model"].partition(" (")[0]}
    cells |= {"gpu": row["gpu"], "num_gpus": row["num_gpus"], "framework": framework, **ASSUMED, "mtp_layers": "0"}
    for word in filter(None, row["common"].split(";")):
        cells |= _said(word.strip())
    cells |= side
    cells.setdefault("recompute", "selective" if cells.get("recompute_modules") else "none")
    if "local_batch" in row["common"] and "gbs" not in row["common"]:
        ranks = int(cells["num_gpus"]) // (int(cells["tp"]) * int(cells["pp"]))
        cells["global_batch"] = str(int(cells["micro_batch"]) * ranks)
    try:
        found = run_of(common_row(Row(TABLE, 0, {key: text for key, text in cells.items() if text})))
    except TraincastError:
        return None
    return found if isinstance(found, MeasuredRun) else None


def _said(word: str) -> dict[str, str]:
    """Return the cells that a word of what both sides share fills: ``tp=2``, ``cuda_graph=te:moe_router``, ``lora``."""
    name, _, value = word.partition("=")
    if name in ("lora", "sft"):
        return {"x_task": name}
    if name in ("bf16", "fp8", "mxfp8"):
        return {"precision": name}
    return _cells(name, value) if value and value != "small" else {}


def _cells(name: str, value: str) -> dict[str, str]:
    """Return the cells that a setting of a page fills; none where it is not one of a job."""
    if name in _SPECIAL:
        return _SPECIAL[name](value)
    column = _COLUMNS.get(name)
    if column is None:
        return {}
    known = _VALUES.get(column, {}).get(value, value)
    number = re.match(r"\d+(?!\.)\b", known)
    return {column: number[0] if number else known}


def _compiled(value: str) -> dict[str, str]:
    return {"framework": _FRAMEWORKS["torchtitan"] if value in ("on", "1") else _EAGER}


def _recomputed(value: str) -> dict[str, str]:
    is_none = value == "none"
    return {"recompute": "none" if is_none else "selective", "recompute_modules": "" if is_none else value}


def _offloaded(value: str) -> dict[str, str]:
    share = float(value.rstrip("%")) / (100 if "%" in value else 1)
    return {"offload_optimizer": f"{share:g}" if share else ""}


def _graphs(value: str) -> dict[str, str]:
    if value in ("off", "none"):
        return {"cuda_graph_impl": "none"}
    scope = re.sub(r"^(te-scoped|te)[ :]", "", value).replace("attention", "attn")
    return {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": scope}


_SPECIAL: Mapping[str, Callable[[str], dict[str, str]]] = {
    "compile": _compiled,
    "cuda_graph": _graphs,
    "cuda_graphs": _graphs,
    "ac": lambda value: {"recompute": value.rpartition(" ")[2]},
    "fsdp": lambda value: {"zero_or_fsdp": f"fsdp-{value.partition(' ')[0]}"},
    "recompute_modules": _recomputed,
    "optimizer_cpu_offload": _offloaded,
    "optimizer_cpu_offload fraction": _offloaded,
    "precision": lambda value: dict(_PRECISIONS.get(value, {"precision": value})),
}
"""Words of pages whose values say more than one cell, or none."""
