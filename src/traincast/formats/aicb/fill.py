"""Fill the compute times of an AICB file that has none, as AICB writes it without a GPU, with those of a job.

Each row gets the times of what it stands for in the layer: rows of attention and MLP, the first row of experts, the
embedding, the LM head and the update of the parameters. Communications and sizes stay as they are.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traincast.diagnostics import Note
from traincast.errors import FormatError
from traincast.files import read_unpacked
from traincast.formats.aicb.conventions import Conventions, has_experts, row_of
from traincast.formats.aicb.grammar import AicbFile, Column, parse
from traincast.formats.aicb.meaning import Structure, group_of, is_once, structure
from traincast.formats.aicb.rewrite import edited
from traincast.formats.aicb.times import PLACEHOLDER_NS, ComputeTimes, Times
from traincast.formats.writer import Run, Written
from traincast.job.share import rank_share
from traincast.model.model import Model
from traincast.model.structure import Blocks, last_blocks, layer_blocks, parts_of
from traincast.units import GIGA, counted
from traincast.workload.words import Group, Operation
from traincast.workload.workload import Workload

_ELEMENT_BYTES = 2
_SPLIT = ("attention_column", "attention_row", "attention_o_row")
"""Rows of sequence parallelism."""


def filled(run: Run, file_of: Workload, conventions: Conventions, times: ComputeTimes) -> Written:
    """Return a file with the compute times of a job.

    Raises
    ------
    FormatError
        If the file has compute times, or rows that stand for nothing of the job's model.
    """
    (source,) = file_of.inputs
    text = read_unpacked(Path(source.path)).decode("latin-1")
    file = parse(source.path, text)
    longest_s = max(row.cell(column).compute_s for row in file.rows for column in Column)
    if longest_s > PLACEHOLDER_NS / GIGA:
        row = next(row for row in file.rows if any(row.cell(c).compute_s == longest_s for c in Column))
        raise FormatError("has compute times already; only a file of placeholders is filled", file.path, row.line)
    cells = dict(_cells(file, structure(file), conventions, times))
    written = edited(file, text, Run(name=run.name, workload=file_of, cluster=run.cluster), cells)
    return Written([(Path(source.path).name, [written.encode("latin-1")])], tuple(_lost(run, file, conventions)))


def _cells(
    file: AicbFile, parts: Structure, conventions: Conventions, times: ComputeTimes
) -> Iterator[tuple[tuple[int, Column], float]]:
    """Yield the time in seconds of each cell, by line and column."""
    model = conventions.job.model
    kinds = [layer_blocks(model, layer) for layer in range(model.layers)]
    dense = next((layer for layer in kinds if not has_experts(layer)), kinds[0])
    routed = next((layer for layer in kinds if has_experts(layer)), kinds[0])
    head = last_blocks(model, with_embedding=True)

    def cells(index: int, found: Times) -> Iterator[tuple[tuple[int, Column], float]]:
        for column, time_ns in zip(Column, found, strict=True):
            yield (file.rows[index].line, column), time_ns / GIGA

    before: str | None = None
    for block in parts.blocks:
        for index in block.embedding:
            yield from cells(index, times.embedding(before))
        before = file.rows[block.rows[-1]].name
        for layer in block.layers:
            names = [file.rows[index].name for index in layer]
            blocks = routed if "mlp_moelayer" in names else dense
            for place, index in enumerate(layer):
                if names[place] != "mlp_moelayer" or place == names.index("mlp_moelayer"):
                    yield from cells(index, _times(file, index, conventions, blocks, times))
        for index in block.final:
            yield from cells(index, times.row_times(file.rows[index].name, head))
    for index in (*parts.leading, *parts.trailing):
        if file.rows[index].name == "grad_param_compute":
            yield (file.rows[index].line, Column.INPUT_GRAD), times.update_ns() / GIGA


def _times(file: AicbFile, index: int, conventions: Conventions, layer: Blocks, times: ComputeTimes) -> Times:
    """Return the times of a row of a layer."""
    row = file.rows[index]
    share = rank_share(conventions.job)
    known = {row_of(part.name, conventions, layer) for part in parts_of(layer, share)}
    if row.name not in known:
        said = f"{row.name!r} does not correspond to any part of {conventions.job.model.name}"
        text = f"{said}, whose rows are {', '.join(sorted(known))}; give the model or job that the file describes"
        raise FormatError(text, file.path, row.line)
    return times.row_times(row.name, layer)


def _lost(run: Run, file: AicbFile, conventions: Conventions) -> Iterator[Note]:
    job = conventions.job
    yield Note("aicb-filled", f"compute times are estimates for {job.model.name} on {run.cluster.name}, not measured")
    yield Note("aicb-host", "host time of a step and of launches has no row; computations are those of the GPU")
    blocks = structure(file).blocks
    layers, own = len(blocks[0].layers) if blocks else 0, job.model.layers / job.parallel.pp
    if layers != own:
        text = f"the file has {counted(layers, 'layer')} in a stage, {job.model.name} {own:g}; the file's are filled"
        yield Note("aicb-layers", text)


def implied_fields(workload: Workload, model: Model) -> dict[str, Any]:
    """Return the fields of the job that a file is of, for a model that it does not name.

    Raises
    ------
    FormatError
        If no row shows the size of an activation, which tells the tokens of a microbatch.
    """
    (source,) = workload.inputs
    file, parallel = parse(source.path, read_unpacked(Path(source.path)).decode("latin-1")), workload.parallel
    split = any(row.name in _SPLIT for row in file.rows)
    activation = _activation_bytes(file)
    if not activation and file.header.pp_message_bytes:
        activation = file.header.pp_message_bytes * (parallel.tp if split else 1)
    tokens = activation // (_ELEMENT_BYTES * model.hidden)
    if not tokens:
        text = f"no row shows the size of an activation of {model.name}, which tells its tokens; give a job file"
        raise FormatError(text, source.path)
    experts = {"etp": parallel.tp} if model.experts is not None else {}
    return {
        **{name: getattr(parallel, name) for name in ("tp", "pp", "ep")},
        **experts,
        "gpus": parallel.world_size,
        "vpp": 1,
        "micro_batch": 1,
        "seq_length": tokens,
        "global_batch": parallel.dp * parallel.microbatches,
        "sequence_parallel": split and parallel.tp > 1,
    }


def _activation_bytes(file: AicbFile) -> int:
    """Return the bytes of the activation that a row of attention gathers or reduces over tp; 0 for none."""
    of_rows = (row for row in file.rows if not is_once(row.name) and "attention" in row.name)
    for row in of_rows:
        cell = row.forward
        if cell.operation is not Operation.NONE and group_of(row.name, Column.FORWARD, cell) is Group.TP:
            return cell.size_bytes
    return 0
