"""The accelerators that are known: datasheet values, each row with its source (`data/gpus/gpus.csv`)."""

import csv
import io
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from traincast.errors import ConfigError, UnknownNameError
from traincast.hardware.cluster import Gpu

PEAK_OF_DTYPE = {
    "bf16": "bf16",
    "fp16": "fp16",
    "tf32": "tf32",
    "fp32": "fp32",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "mxfp8": "fp8",
    "int8": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "fp4": "fp4",
}
"""Element type of a matrix product to the peak that limits it."""

_VENDOR_WORDS = re.compile(r"nvidia|tesla|amd|instinct|google|aws|intel|huawei|[^a-z0-9]")
_NUMBERS = ("bf16", "fp16", "tf32", "fp32", "fp8", "fp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One accelerator by its datasheet; None where no sheet says it.

    Parameters
    ----------
    name : str
        Name in `gpu_names`.
    aliases : tuple of str
        Other spellings that files use.
    vendor, architecture : str
        Maker, and generation in lower case: ``"hopper"``.
    sms : int or None
        Streaming multiprocessors (AMD: compute units).
    l2_bytes : int or None
        Last-level cache on the chip.
    peaks_flops_per_s : tuple of (str, float)
        Dense peak by element type: ``bf16 fp16 tf32 fp32 fp8 fp4``; fp32 is that of the vector
        units, or of the matrix units where these take fp32 (AMD).
    hbm_bytes, hbm_bytes_per_s : float
        Size and peak rate of its memory.
    link : str
        Its scale-up link.
    link_bytes_per_s : float or None
        Rate of all scale-up links together, per direction.
    domain : int
        GPUs that usual systems connect by it.
    nic_bytes_per_s : float or None
        Usual share of a network card.
    tdp_w : float or None
        Power limit.
    kin : tuple of str
        Parts with the same chip or the next to it, whose measured efficiencies hold where this one has
        none; the nearest first.
    confidence : str
        ``high``, ``medium`` or ``low``: how sure the datasheet values are.
    source : str
        Where they are from.
    """

    name: str
    aliases: tuple[str, ...] = ()
    vendor: str = ""
    architecture: str = ""
    sms: int | None = None
    l2_bytes: int | None = None
    peaks_flops_per_s: tuple[tuple[str, float], ...] = ()
    hbm_bytes: float
    hbm_bytes_per_s: float
    link: str = ""
    link_bytes_per_s: float | None = None
    domain: int = 1
    nic_bytes_per_s: float | None = None
    tdp_w: float | None = None
    kin: tuple[str, ...] = ()
    confidence: str = "low"
    source: str = ""

    def peak_flops_per_s(self, dtype: str) -> float:
        """Return the dense peak for matrix products of an element type.

        Parameters
        ----------
        dtype : str
            Key of `PEAK_OF_DTYPE`.

        Returns
        -------
        float
            FLOP per second.

        Raises
        ------
        UnknownNameError
            If there is no such type.
        ConfigError
            If the accelerator has none for it; the message lists those it has.
        """
        if dtype not in PEAK_OF_DTYPE:
            raise UnknownNameError("dtype of a matrix product", dtype, PEAK_OF_DTYPE)
        peaks = dict(self.peaks_flops_per_s)
        if PEAK_OF_DTYPE[dtype] not in peaks:
            known = ", ".join(name for name in PEAK_OF_DTYPE if PEAK_OF_DTYPE[name] in peaks)
            raise ConfigError(f"{self.name} has no known peak for {dtype}; it has one for {known}", "dtype")
        return peaks[PEAK_OF_DTYPE[dtype]]

    def has_peak(self, dtype: str) -> bool:
        """Say whether a dense peak of that element type is known."""
        return PEAK_OF_DTYPE.get(dtype) in dict(self.peaks_flops_per_s)


def gpu_names() -> list[str]:
    """Return the names of the known accelerators, in the order of the data file."""
    return [spec.name for spec in _specs()]


def load_gpu(name: str) -> GpuSpec:
    """Return an accelerator by its name, or by any spelling that files and drivers use.

    Parameters
    ----------
    name : str
        ``H100-SXM-80GB``, ``h100``, ``NVIDIA_H100_80GB_HBM3``, ``a100_sxm``.

    Returns
    -------
    GpuSpec

    Raises
    ------
    UnknownNameError
        If nothing is known of it; the message lists the known names.
    """
    spec = find_gpu(name)
    if spec is None:
        raise UnknownNameError("GPU", name, gpu_names())
    return spec


def find_gpu(name: str) -> GpuSpec | None:
    """Return what `load_gpu` returns, None where nothing is known of the name."""
    return _by_key().get(_key(name))


def with_architecture(gpu: Gpu, shown: str) -> Gpu:
    """Return the GPU of a cluster file with the architecture that its datasheet says.

    Parameters
    ----------
    gpu : Gpu
        As the file gives it; of a GPU without a datasheet the file may say the architecture.
    shown : str
        The file, for messages.

    Raises
    ------
    ConfigError
        If the file says another architecture than the datasheet.
    UnknownNameError
        If it says one that is not known.
    """
    said, sheet = gpu.architecture, find_gpu(gpu.name)
    known = sorted({spec.architecture for spec in _specs()})
    if said is not None and said not in known:
        raise UnknownNameError(f"gpu.architecture (in {shown})", said, known)
    if sheet is None:
        return gpu
    if said not in (None, sheet.architecture):
        raise ConfigError(
            f"is {said!r}, but by its datasheet {sheet.name} is {sheet.architecture!r}: leave it out (in {shown})",
            "gpu.architecture",
        )
    return replace(gpu, architecture=sheet.architecture)


def gpu_of_cluster(gpu: Gpu) -> GpuSpec:
    """Return the accelerator of a cluster: what the cluster says, the rest from the datasheets.

    Parameters
    ----------
    gpu : Gpu
        Of a cluster file.

    Returns
    -------
    GpuSpec

    Raises
    ------
    ConfigError
        If the GPU is not known and the cluster does not give its bf16 peak and its memory.
    """
    base = find_gpu(gpu.name)
    if base is None:
        missing = [
            field for field in ("bf16_dense_flops_per_s", "hbm_bytes", "hbm_bytes_per_s") if getattr(gpu, field) is None
        ]
        if missing:
            known = ", ".join(gpu_names())
            raise ConfigError(
                f"nothing is known of {gpu.name!r}; give gpu.{missing[0]}, or one of these names: {known}", "gpu.name"
            )
        base = GpuSpec(name=gpu.name, hbm_bytes=0, hbm_bytes_per_s=0, source="the cluster file")
    peaks = dict(base.peaks_flops_per_s)
    said = gpu.bf16_dense_flops_per_s
    if said is not None and peaks.get("bf16") != said:
        peaks = {
            "bf16": said,
            **{"fp16": said},
            **{name: rate for name, rate in peaks.items() if name not in ("bf16", "fp16")},
        }
    return replace(
        base,
        architecture=base.architecture or gpu.architecture or "",
        peaks_flops_per_s=tuple(peaks.items()),
        hbm_bytes=gpu.hbm_bytes or base.hbm_bytes,
        hbm_bytes_per_s=gpu.hbm_bytes_per_s or base.hbm_bytes_per_s,
        link_bytes_per_s=gpu.link_bytes_per_s or base.link_bytes_per_s,
    )


def _key(name: str) -> str:
    return _VENDOR_WORDS.sub("", name.lower()).replace("sxm5", "sxm").replace("sxm4", "sxm").replace("sxm2", "sxm")


@cache
def _by_key() -> dict[str, GpuSpec]:
    return {_key(name): spec for spec in reversed(_specs()) for name in (*spec.aliases, spec.name)}


@cache
def _specs() -> tuple[GpuSpec, ...]:
    file = resources.files("traincast") / "data" / "gpus" / "gpus.csv"
    rows = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
    return tuple(_spec(row) for row in rows)


def _spec(row: dict[str, str]) -> GpuSpec:
    def number(column: str) -> float | None:
        return float(row[column]) if row[column] else None

    def whole(column: str) -> int | None:
        return round(float(row[column])) if row[column] else None

    peaks = ((name, number(f"{name}_flops_per_s")) for name in _NUMBERS)
    return GpuSpec(
        name=row["name"],
        aliases=tuple(filter(None, row["aliases"].split(";"))),
        vendor=row["vendor"],
        architecture=row["architecture"],
        sms=whole("sms"),
        l2_bytes=whole("l2_bytes"),
        peaks_flops_per_s=tuple((name, peak) for name, peak in peaks if peak is not None),
        hbm_bytes=float(row["hbm_bytes"]),
        hbm_bytes_per_s=float(row["hbm_bytes_per_s"]),
        link=row["link"],
        link_bytes_per_s=number("link_bytes_per_s"),
        domain=int(row["domain"]),
        nic_bytes_per_s=number("nic_bytes_per_s"),
        tdp_w=number("tdp_w"),
        kin=tuple(filter(None, row["kin"].split(";"))),
        confidence=row["confidence"],
        source=row["source"],
    )
