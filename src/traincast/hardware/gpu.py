"""The GPU: one class for what its datasheet says and what its generation can do; the datasheets that are known.

The fields have the names of the columns of `data/gpus/gpus.csv` and of the keys of ``[gpu]`` in a cluster file; what a
whole generation shares stands in `data/gpus/generations.csv`. A row of either, with its source, is all that a further
one needs.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from traincast.errors import ConfigError, UnknownNameError
from traincast.hardware.dtypes import PEAK_OF_DTYPE
from traincast.shipped import constant, shipped_rows
from traincast.tables import from_row

_VENDOR_WORDS = re.compile(r"nvidia|tesla|amd|instinct|google|aws|intel|huawei|[^a-z0-9]")

GRACE = "grace"
HOST_CPUS = (GRACE,)
"""Processors of hosts besides those of x86 servers."""


class Generation(Struct, frozen=True, kw_only=True):
    """What all GPUs of one generation share, a row of `data/gpus/generations.csv`."""

    name: str = ""
    """In lower case, as the column ``architecture`` of a GPU names it: ``"hopper"``; empty: not known."""
    title: str = ""
    """As messages write it."""
    vendor: str = ""
    capability: float | None = None
    """Compute capability of its first GPU, by which NVIDIA's libraries choose what runs; None: it has none."""
    nccl_row: str | None = None
    """Row of NCCL's tuning tables that NCCL takes for it; None: NCCL does not run on it. It goes by compute
    capability: below 8.0 Volta, below 9.0 Ampere (Ada is 8.9), below 10.0 Hopper, else Blackwell. Source:
    NVIDIA/nccl, src/graph/tuning.cc."""
    attention: tuple[str, ...] = ()
    """Fused attention kernels that it runs (`traincast.hardware.attention_kernels`)."""
    passed_over: tuple[str, ...] = ()
    """Those of them that frameworks pass over for flash attention."""
    bf16: bool = True
    """Whether its matrix units take bf16."""
    fp8_transposes: bool = False
    """Whether its matrix units read matrices of 8 bits along the reduction alone, so that GEMMs of a backward pass need
    transposed copies."""
    scaled_blocks: tuple[str, ...] = ()
    """Precisions with a scale for each small block that its matrix units take: ``mxfp8``, ``nvfp4``, ``mxfp4``."""
    matrix_width: int | None = None
    """Rows and columns of a matrix unit that holds a block of one matrix while the other passes (systolic array), to
    which heads and widths are filled up; None: it takes small blocks."""
    group_rows: int | None = None
    """Rows of a tile of the kernels that compute the GEMMs of all experts of a chip in one go. Experts' tokens follow
    each other without gaps, and a tile with those of two is computed for both. None: its kernels' timings say what
    tiles cost, or each expert begins with a tile.

    Source: JAX, jax/experimental/pallas/ops/tpu/megablox/gmm.py (make_group_metadata); MaxText, configs/base.yml
    (tile_batch_seq).
    """
    gemm_pj_per_flop: float | None = None
    """Energy of a FLOP of long bf16 GEMMs in pJ, all that a GPU draws counted; in 8 and 4 bits as much less as their
    peak is higher. None: its power limit is taken as enough for the full clock."""
    timed_clock: float = 1.0
    """Share of the full clock that the timings ran at which its kernels' constants were fitted to."""
    loop_slowdown: float = 1.0
    """How much longer a long GEMM takes that runs again and again alone than at the full clock, where the power limit
    holds it back (`traincast.estimate.clocks.loop_slowdown`)."""
    chip_deviation: float = 0.0
    """Standard deviation of the speed of its chips at their power limit; 0 where all run at the same clock.

    Source: Sinha et al. 2022, Not All GPUs Are Created Equal (SC22, arXiv 2208.11035, abstract): applications differ by
    8 % on average among the GPUs of a cluster, NVIDIA's and AMD's. We take that as 5.4 deviations of normal ones.
    """
    source: str = ""


class Gpu(Struct, frozen=True, kw_only=True):
    """One accelerator: the values of its datasheet; None or empty where nothing says them.

    A `traincast.hardware.cluster.Cluster` fills in what the datasheet of that name says (`traincast.hardware.gpu`).
    """

    name: str
    """Name of its datasheet, or of its own."""
    architecture: str = ""
    """Name of its `Generation`."""
    chip: str = ""
    """GPU with the same chip, where they differ in memory or links alone; empty: itself."""
    kin: tuple[str, ...] = ()
    """GPUs with the same chip or the next to it, whose measured kernel efficiencies hold where this one has none; the
    nearest first."""
    sms: int | None = None
    """Streaming multiprocessors (AMD: compute units)."""
    l2_bytes: int | None = None
    """Last-level cache on the chip."""
    bf16_dense_flops_per_s: float | None = None
    """Dense bf16 peak, FLOP per second; of the same form the next ones."""
    fp16_dense_flops_per_s: float | None = None
    tf32_dense_flops_per_s: float | None = None
    fp32_dense_flops_per_s: float | None = None
    """Of the vector units, or of the matrix units where these take fp32 (AMD)."""
    fp8_dense_flops_per_s: float | None = None
    fp4_dense_flops_per_s: float | None = None
    hbm_bytes: int | None = None
    """Size of its memory."""
    hbm_bytes_per_s: float | None = None
    """Peak rate of its memory."""
    link: str = ""
    """Its scale-up link, in words."""
    link_kind: str = ""
    """What the links inside a node are made of, of `traincast.hardware.cluster.INTRA_KINDS`; empty: none of them."""
    link_bytes_per_s: float | None = None
    """Rate of all its scale-up links together, per direction."""
    domain: int | None = None
    """GPUs that usual systems connect by these links."""
    host_bytes_per_s: float | None = None
    """Rate of its link to the host, per direction: PCIe, or NVLink-C2C."""
    host_gpus: int | None = None
    """GPUs that usual systems attach to one host: two sockets, or one Grace; they share its memory."""
    host_memory_bytes: int | None = None
    """Memory of that host."""
    host_memory_bytes_per_s: float | None = None
    """Peak rate of that memory."""
    nic_bytes_per_s: float | None = None
    """Usual share of a network card."""
    host_cpu: str = ""
    """Processor of its host, one of `HOST_CPUS`; empty: that of an x86 server."""
    host_slowdown: float = 1.0
    """Time of what its host launches over that of an x86 server: the speed of one core. Of Grace at most 1.5, as
    Qwen3-30B runs 11.8 ms a layer on GB300 (Megatron-Bridge 25.11) whose launches take 8 ms on x86; builds before
    autumn 2025 took longer there (`Framework.grace_slowdown`)."""
    tdp_w: float | None = None
    """Power limit."""
    copy_bytes_per_s: float | None = None
    """Rate at which a collective puts a rank's own share in its place; None: at no cost."""

    @property
    def generation(self) -> Generation:
        """What its generation can do; where the architecture is not known, an empty one."""
        return generations().get(self.architecture, _UNKNOWN)

    @property
    def vendor(self) -> str:
        """Its maker; empty where the architecture is not known."""
        return self.generation.vendor

    @property
    def nccl_row(self) -> str | None:
        """Row of NCCL's tuning tables that NCCL takes for it; None: NCCL does not run on it."""
        return self.generation.nccl_row

    @property
    def memory_bytes(self) -> int:
        """Size of its memory; a `ConfigError` where nothing says it."""
        if self.hbm_bytes is None:
            raise self._unknown("hbm_bytes")
        return self.hbm_bytes

    @property
    def memory_bytes_per_s(self) -> float:
        """Peak rate of its memory; a `ConfigError` where nothing says it."""
        if self.hbm_bytes_per_s is None:
            raise self._unknown("hbm_bytes_per_s")
        return self.hbm_bytes_per_s

    def peak_flops_per_s(self, dtype: str) -> float:
        """Return the dense peak for GEMMs of an element type, a key of `PEAK_OF_DTYPE`, in FLOP per second.

        Raises
        ------
        UnknownNameError
            If there is no such type.
        ConfigError
            If the accelerator has none for it; the message lists those it has.
        """
        if dtype not in PEAK_OF_DTYPE:
            raise UnknownNameError("dtype of a GEMM", dtype, PEAK_OF_DTYPE)
        peak = self._peak(dtype)
        if peak is None:
            known = ", ".join(name for name in PEAK_OF_DTYPE if self.has_peak(name))
            if not known:
                raise self._unknown("bf16_dense_flops_per_s")
            raise ConfigError(f"{self.name} has no known peak for {dtype}; it has one for {known}", "dtype")
        return peak

    def has_peak(self, dtype: str) -> bool:
        """Say whether a dense peak of that element type is known."""
        return dtype in PEAK_OF_DTYPE and self._peak(dtype) is not None

    def _peak(self, dtype: str) -> float | None:
        peak: float | None = getattr(self, f"{PEAK_OF_DTYPE[dtype]}_dense_flops_per_s")
        return peak

    def _unknown(self, field: str) -> ConfigError:
        return ConfigError(
            f"is not known of {self.name!r}; give it in [gpu] of the cluster file, or a gpu.name with a datasheet",
            f"gpu.{field}",
        )


_UNKNOWN = Generation()


def generations() -> Mapping[str, Generation]:
    """Return the known generations by name, in the order of the data file."""
    return constant(_generations)


def _generations() -> Mapping[str, Generation]:
    return {each.name: each for each in (from_row(row, Generation) for row in shipped_rows("gpus/generations.csv"))}


class Datasheet(NamedTuple):
    """A row of the data file."""

    gpu: Gpu
    aliases: tuple[str, ...]
    """Other spellings of the name that files use."""
    confidence: str
    """``high``, ``medium`` or ``low``: how sure the values are."""
    source: str

    @property
    def shown(self) -> str:
        """The source as those of a cluster name it."""
        return f"datasheet of {self.gpu.name}: {self.source}"


def gpu_names() -> list[str]:
    """Return the names of the known GPUs, in the order of the data file."""
    return [sheet.gpu.name for sheet in constant(_sheets)]


def find_datasheet(name: str) -> Datasheet | None:
    """Return the datasheet of a GPU by any spelling (``h100``, ``NVIDIA_H100_80GB_HBM3``); None: there is none."""
    return constant(_by_key).get(_key(name)) or constant(_by_key).get(_key(_titled(name)))


def find_gpu(name: str) -> Gpu | None:
    """Return a GPU by any spelling of its name; None where nothing is known of it."""
    sheet = find_datasheet(name)
    return None if sheet is None else sheet.gpu


def load_gpu(name: str) -> Gpu:
    """Return a GPU by any spelling of its name.

    Raises
    ------
    UnknownNameError
        If nothing is known of it; the message lists the known names.
    """
    gpu = find_gpu(name)
    if gpu is None:
        raise UnknownNameError("GPU", name, gpu_names())
    return gpu


_UNSAID = dict(zip(reversed(Gpu.__struct_fields__), reversed(Gpu.__struct_defaults__), strict=False))
"""What fields of a GPU that it says nothing of have; the name has no such value."""


def said_of(gpu: Gpu) -> dict[str, Any]:
    """Return the fields of a GPU that differ from their default."""
    return {name: said for name in Gpu.__struct_fields__ if (said := getattr(gpu, name)) != _UNSAID.get(name)}


def filled(gpu: Gpu, shown: str | None = None) -> Gpu:
    """Return a GPU under the name of its datasheet, with what that says where the GPU says nothing itself.

    A 16-bit peak other than the datasheet's counts for bf16 and fp16.

    Raises
    ------
    ConfigError
        If it says another architecture than the datasheet.
    UnknownNameError
        If it says an architecture that is not known.
    """
    sheet = find_gpu(gpu.name)
    if gpu == sheet:
        return gpu
    place = "" if shown is None else f" (in {shown})"
    if gpu.architecture and gpu.architecture not in generations():
        raise UnknownNameError(f"gpu.architecture{place}", gpu.architecture, sorted(generations()))
    if sheet is not None and gpu.architecture not in ("", sheet.architecture):
        raise ConfigError(
            f"is {gpu.architecture!r}, but by its datasheet {sheet.name} is "
            f"{sheet.architecture!r}: leave it out{place}",
            "gpu.architecture",
        )
    said = said_of(gpu)
    both = "bf16_dense_flops_per_s"
    if both in said and (sheet is None or said[both] != sheet.bf16_dense_flops_per_s):
        said.setdefault("fp16_dense_flops_per_s", said[both])
    base = sheet or gpu
    return replace(base, **(said | {"name": base.name}))


def _titled(name: str) -> str:
    """Return a name without the generation that tables write behind it: ``A100-SXM (Ampere)``."""
    plain, bracket, title = name.rpartition("(")
    known = {each.title.lower() for each in generations().values()} | set(generations())
    return plain if bracket and title.strip(" )").lower() in known else name


def _key(name: str) -> str:
    return _VENDOR_WORDS.sub("", name.lower()).replace("sxm5", "sxm").replace("sxm4", "sxm").replace("sxm2", "sxm")


def _by_key() -> dict[str, Datasheet]:
    return {_key(name): sheet for sheet in reversed(constant(_sheets)) for name in (*sheet.aliases, sheet.gpu.name)}


def _sheets() -> tuple[Datasheet, ...]:
    return tuple(
        Datasheet(
            gpu=from_row(row, Gpu),
            aliases=tuple(filter(None, row["aliases"].split(";"))),
            confidence=row["confidence"],
            source=row["source"],
        )
        for row in shipped_rows("gpus/gpus.csv")
    )
