"""SimAI's cost of one communication, and the degrees that it reads from the first line."""

from typing import NamedTuple

from msgspec import Struct

from traincast.diagnostics import FileWarnings
from traincast.errors import ConfigError
from traincast.estimate.simai.machine import SimaiGroup, SimaiMachine, bus_bandwidth, efficiency, single, spread
from traincast.formats.aicb.grammar import AicbFile, Cell, Column
from traincast.formats.aicb.meaning import structure
from traincast.job.options import LayoutOptions
from traincast.units import GIGA, counted
from traincast.workload.words import Operation

RAISES_SMALL = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
"""Policy that raises the forward sizes."""
_READS_DEGREES = (RAISES_SMALL, "HYBRID_TRANSFORMER")
_LARGEST_MESSAGE = 2**31 - 1

_SMALL_BYTES = 1 << 20
_SMALL_NS = {2: 10_000, 4: 12_000, 8: 15_000, 16: 66_000, 32: 135_000, 64: 200_000, 128: 320_000}
"""Time below 1 MiB by the size of the group, whatever the size, the operation and the network."""
_GIB = 1 << 30
_LEAST_FORWARD_BYTES = 4096
_OPERATIONS = {
    "ALLREDUCE": Operation.ALL_REDUCE,
    "ALLGATHER": Operation.ALL_GATHER,
    "REDUCESCATTER": Operation.REDUCE_SCATTER,
    "ALLTOALL": Operation.ALL_TO_ALL,
}
_SUFFIXES = {"EP": SimaiGroup.EP, "DP_EP": SimaiGroup.DP_EP}


class SimaiLayout(Struct, frozen=True, kw_only=True):
    """World size, degrees and microbatches per step (``ga``) as SimAI counts them."""

    gpus: int
    tp: int
    ep: int
    pp: int
    vpp: int
    ga: int

    def __post_init__(self) -> None:
        """Refuse degrees below one, by which SimAI would divide."""
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ConfigError(f"is {getattr(self, name)}; it must be at least 1", name)

    @property
    def dp(self) -> int:
        """Data parallel degree; a remainder is dropped, as SimAI does."""
        return self.gpus // (self.tp * self.pp)


def layout_of(file: AicbFile, options: LayoutOptions, warnings: FileWarnings) -> SimaiLayout:
    """Return the degrees: the user's, else those of the header where SimAI reads them.

    FileWarnings take what would make SimAI's total NaN; it is a `ConfigError` if it would divide by a degree that it
    has not read.
    """
    header = file.header
    read = header.policy in _READS_DEGREES
    known = {name: getattr(options, name) or (getattr(header, name) if read else None) for name in ("tp", "ep", "pp")}
    experts = any(row.cell(column).token.endswith("_EP") for row in file.rows for column in Column)
    missing = [name for name in ("tp", "pp", *(["ep"] if experts else [])) if not known[name]]
    if missing:
        why = "its header does not give" if read else f"with policy {header.policy} it does not read"
        words = " and ".join(f"{name}=..." for name in missing)
        raise ConfigError(
            f"{file.path}: SimAI-Analytical divides by zero here, because {why} {', '.join(missing)}; give {words}"
        ).typed(**{name: f"--{name}" for name in missing})
    gpus = options.gpus or header.all_gpus
    if not gpus:
        text = f"{file.path}: SimAI-Analytical is told the world size on its command line; give gpus=..."
        raise ConfigError(text).typed(gpus="--gpus")
    layout = SimaiLayout(
        gpus=gpus,
        tp=known["tp"] or 1,
        ep=known["ep"] or 1,
        pp=known["pp"] or 1,
        vpp=options.vpp or _or_nan("vpp", header.vpp if read else None, 1, warnings),
        ga=options.microbatches or _or_nan("ga", header.ga if read else None, len(structure(file).blocks), warnings),
    )
    if gpus % (layout.tp * layout.pp):
        are = counted(gpus, "GPU is", "GPUs are")
        text = f"{are} not a multiple of tp {layout.tp} x pp {layout.pp}; SimAI takes dp {layout.dp}"
        warnings.add("simai-dp", text, 1)
    return layout


def message_bytes(file: AicbFile, options: LayoutOptions) -> int:
    """Return the size of a pipeline send/recv: the user's, else the header's; a `ConfigError` if it stops SimAI."""
    size = options.pp_message_bytes
    size = (file.header.pp_message_bytes or 0) if size is None else size
    if size > _LARGEST_MESSAGE:
        raise ConfigError(
            f"{file.path}: SimAI-Analytical stops at a pp_comm of {size} bytes, above 2^31 - 1; give pp_comm=..."
        ).typed(pp_comm="--pp-comm")
    return size


def _or_nan(key: str, value: int | None, default: int, warnings: FileWarnings) -> int:
    if value:
        return value
    flag = "--microbatches" if key == "ga" else f"--{key}"
    taken = max(1, default)
    text = f"the header does not give {key}, so SimAI's bubble and total are NaN; taken as {taken} ({flag})"
    warnings.add(f"simai-{key}", text, 1)
    return taken


class CellCost(NamedTuple):
    """A time in whole nanoseconds, and what is wrong where SimAI gives none (code, text)."""

    time_ns: int
    doubt: tuple[str, str] | None = None


def group_of(column: Column, token: str) -> SimaiGroup:
    """Return the group of a token: by its suffix, else by its column."""
    _, _, suffix = token.partition("_")
    if suffix or token.endswith("_"):
        return _SUFFIXES.get(suffix, SimaiGroup.NONE)
    return SimaiGroup.DP if column is Column.WEIGHT_GRAD else SimaiGroup.TP


def cell_cost(column: Column, cell: Cell, layout: SimaiLayout, machine: SimaiMachine, raise_small: bool) -> CellCost:
    """Return SimAI's cost of a cell's communication, with a doubt where SimAI silently takes no time for it.

    The column decides on the group. `raise_small` says whether the policy raises sizes of the forward column to 4096
    bytes. Source: SimAI, ``Layer.cc``, ``Layer::compute_time``. Bandwidths are GB/s, but sizes are divided by GiB, so
    that every time is 6.9 % short.
    """
    operation = _OPERATIONS.get(cell.token.partition("_")[0])
    if operation is None:
        return _nothing(cell, "simai-no-communication", "SimAI does not know such a communication")
    group, size = group_of(column, cell.token), counted_bytes(column, cell, raise_small)
    ranks = _ranks(column, group, layout)
    if 1 < size < _SMALL_BYTES:
        return _small(ranks, cell)
    if group is SimaiGroup.NONE:
        return _nothing(cell, "simai-no-group", "SimAI does not know such a group")
    if ranks <= 1 or not size:
        return CellCost(0)
    bus = bus_bandwidth(operation, spread(group, ranks, layout.tp, layout.ep, machine), machine)
    share = efficiency(operation, group, ranks, layout.tp, size, bus.by_nvlink, machine)
    if not bus.gb_per_s:
        text = f"SimAI finds no bandwidth for {group} of {ranks} on {machine.nics_per_server} NICs per server"
        return CellCost(0, ("simai-no-bandwidth", f"{text}; it takes no time"))
    passes = 2 if operation is Operation.ALL_REDUCE else 1
    return CellCost(int(size / _GIB / single(share * bus.gb_per_s) * GIGA * passes * (ranks - 1) / ranks))


def counted_bytes(column: Column, cell: Cell, raise_small: bool) -> int:
    """Return the size that SimAI takes a cell's communication to have (`raise_small` as in `cell_cost`)."""
    small = raise_small and column is Column.FORWARD and 0 < cell.size_bytes < _LEAST_FORWARD_BYTES
    return _LEAST_FORWARD_BYTES if small else cell.size_bytes


def bus_factor(column: Column, cell: Cell, layout: SimaiLayout) -> float:
    """Return bus over algorithm bandwidth of a cell's communication as SimAI prints them, 0 for none.

    Source: SimAI, ``Layer.cc``, ``Layer::compute_busbw``.
    """
    operation = _OPERATIONS.get(cell.token.partition("_")[0])
    ranks = max(1, _ranks(column, group_of(column, cell.token), layout))
    if operation is None:
        return 0.0
    return (2 if operation is Operation.ALL_REDUCE else 1) * (ranks - 1) / ranks


def _ranks(column: Column, group: SimaiGroup, layout: SimaiLayout) -> int:
    """Return the size of a group: of DP_EP in a forward column that of TP, of EP in the last column that of DP."""
    if column is Column.WEIGHT_GRAD:
        return layout.dp // layout.ep if group is SimaiGroup.DP_EP else layout.dp
    return layout.ep if group is SimaiGroup.EP else layout.tp


def _small(ranks: int, cell: Cell) -> CellCost:
    if ranks <= 1 or ranks in _SMALL_NS:
        return CellCost(_SMALL_NS.get(ranks, 0))
    known = ", ".join(map(str, _SMALL_NS))
    return _nothing(cell, "simai-small-group", f"below 1 MiB SimAI has times for groups of {known}, not of {ranks}")


def _nothing(cell: Cell, code: str, why: str) -> CellCost:
    """Return no time, and say so where there was something to communicate."""
    if cell.operation is Operation.NONE or not cell.size_bytes:
        return CellCost(0)
    return CellCost(0, (code, f"{cell.token}: {why}; it takes no time"))
