"""The GPUs that are known: datasheet values, each row with its source (`data/gpus/gpus.csv`)."""

import re
from dataclasses import fields, replace
from functools import cache
from typing import Any, NamedTuple

from traincast.errors import ConfigError, UnknownNameError
from traincast.hardware.gpu import Gpu, data_rows, from_row, generations

_VENDOR_WORDS = re.compile(r"nvidia|tesla|amd|instinct|google|aws|intel|huawei|[^a-z0-9]")


class Datasheet(NamedTuple):
    """A row of the data file.

    Parameters
    ----------
    gpu : Gpu
        Its values.
    aliases : tuple of str
        Other spellings of the name that files use.
    confidence : str
        ``high``, ``medium`` or ``low``: how sure the values are.
    source : str
        Where they are from.
    """

    gpu: Gpu
    aliases: tuple[str, ...]
    confidence: str
    source: str

    @property
    def shown(self) -> str:
        """The source as those of a cluster name it."""
        return f"datasheet of {self.gpu.name}: {self.source}"


def gpu_names() -> list[str]:
    """Return the names of the known GPUs, in the order of the data file."""
    return [sheet.gpu.name for sheet in _sheets()]


def find_datasheet(name: str) -> Datasheet | None:
    """Return the datasheet of a GPU by its name, or by any spelling that files and drivers use; None: there is none.

    Parameters
    ----------
    name : str
        ``H100-SXM-80GB``, ``h100``, ``NVIDIA_H100_80GB_HBM3``, ``a100_sxm``.
    """
    return _by_key().get(_key(name))


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


def said_of(gpu: Gpu) -> dict[str, Any]:
    """Return the fields of a GPU that are not as their default."""
    return {each.name: getattr(gpu, each.name) for each in fields(Gpu) if getattr(gpu, each.name) != each.default}


def filled(gpu: Gpu, shown: str | None = None) -> Gpu:
    """Return a GPU with what the datasheet of its name says where it says nothing itself.

    Parameters
    ----------
    gpu : Gpu
        As a cluster file, or code, gives it.
    shown : str, optional
        The file, for messages.

    Returns
    -------
    Gpu
        Under the name of its datasheet. A 16-bit peak other than the datasheet's counts for bf16 and fp16.

    Raises
    ------
    ConfigError
        If it says another architecture than the datasheet.
    UnknownNameError
        If it says an architecture that is not known.
    """
    sheet, place = find_gpu(gpu.name), "" if shown is None else f" (in {shown})"
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


def _key(name: str) -> str:
    return _VENDOR_WORDS.sub("", name.lower()).replace("sxm5", "sxm").replace("sxm4", "sxm").replace("sxm2", "sxm")


@cache
def _by_key() -> dict[str, Datasheet]:
    return {_key(name): sheet for sheet in reversed(_sheets()) for name in (*sheet.aliases, sheet.gpu.name)}


@cache
def _sheets() -> tuple[Datasheet, ...]:
    return tuple(
        Datasheet(
            gpu=from_row(row, Gpu),
            aliases=tuple(filter(None, row["aliases"].split(";"))),
            confidence=row["confidence"],
            source=row["source"],
        )
        for row in data_rows("gpus.csv")
    )
