"""Load a cluster: a preset by its name, a TOML file that may build on a preset, or that of a GPU by its datasheet.

A file has the fields of `traincast.hardware.cluster` under their own names. A value is a
number in SI units, a text with its unit, or either of them with its source::

    base = "h100"                       # everything else is as in this preset

    [inter]
    bandwidth_bytes_per_s = "200Gb/s"
    hop_latency_s = { value = 9e-6, source = "our nccl-tests of May" }

What was made from a number that is said follows it, unless it is said too (`traincast.hardware.overrides`).
A file that says neither a base nor links describes a GPU in ``[gpu]``, and its links follow from the datasheet.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec.structs import replace

from traincast.errors import ConfigError, UnknownNameError
from traincast.hardware.cluster import (
    INTER_KINDS,
    INTRA_KINDS,
    OPERATIONS,
    Cluster,
    Link,
    Measured,
    MeasuredTable,
    RunFactor,
)
from traincast.hardware.fabric import fabric_of, fabric_values
from traincast.hardware.from_datasheet import cluster_from_datasheet, with_domain, with_nic
from traincast.hardware.gpu import HOST_CPUS, Gpu, filled, find_datasheet, gpu_names, load_gpu, said_of
from traincast.hardware.overrides import described, followed
from traincast.shipped import constant
from traincast.tables import Shelf, Value, as_table, built, read_table

T = TypeVar("T", MeasuredTable, RunFactor)

_SHELF = Shelf("cluster", "clusters")
_SECTIONS: dict[str, tuple[type[Gpu] | type[Link], dict[str, tuple[str, ...]]]] = {
    "gpu": (Gpu, {"link_kind": INTRA_KINDS, "host_cpu": HOST_CPUS}),
    "intra": (Link, {"kind": INTRA_KINDS}),
    "inter": (Link, {"kind": INTER_KINDS}),
}
"""Tables of a file: what each describes, and the names that a field may have."""

_OF_DATASHEETS = ("bf16_dense_flops_per_s", "hbm_bytes", "hbm_bytes_per_s", "link_bytes_per_s")
"""What a GPU without a datasheet takes from the GPU of the base that its file builds on."""

_OR_BASE = "give it, or a base"
"""What to do about a number that is missing."""


def cluster_names() -> list[str]:
    """Return the names of the presets, sorted."""
    return _SHELF.names()


def load_cluster(given: str | PathLike[str] | Cluster) -> Cluster:
    """Return a cluster with a source for every number; one that is given as it is.

    It is given by a name in `cluster_names`, the path of a TOML file, or the name of a GPU, which stands for its preset
    or a cluster built from its datasheet.

    Raises
    ------
    FormatError
        If the file cannot be read or is not TOML.
    ConfigError
        If a key is unknown or missing, a value of the wrong type or not a positive number, or
        the architecture of the GPU not that of its datasheet.
    UnknownNameError
        If it is neither a file nor the name of a preset or a GPU, or its architecture is not known.
    """
    if isinstance(given, Cluster):
        return given
    found = _SHELF.find(fspath(given))
    if found is None:
        return _cluster_of_gpu(fspath(given))
    return constant(_preset, found) if isinstance(found, str) else _cluster_of(_read(found), fspath(given))


def gpu_named(given: str | PathLike[str] | Gpu) -> Gpu:
    """Return a GPU by any spelling of its name, or that of a cluster file, which needs to say nothing but ``[gpu]``.

    Raises
    ------
    FormatError, ConfigError
        As `load_cluster`, of a file.
    UnknownNameError
        If nothing is known of it; the message lists the known names.
    """
    if isinstance(given, Gpu):
        return given
    name = fspath(given)
    sheet, path = find_datasheet(name), Path(name)
    if sheet is not None:
        return sheet.gpu
    if path.suffix != ".toml" and not path.is_file():
        raise UnknownNameError("GPU", name, gpu_names())
    return filled(built(Gpu, _read(path), name, "gpu."), name)


def preset_of(gpu: Gpu) -> str | None:
    """Return the name of the preset whose GPU is this very part; None where there is none."""
    return next((name for name in cluster_names() if constant(_preset, name).gpu.name == gpu.name), None)


def cluster_for(
    gpu_name: str, gpus_per_node: int | None = None, nic_bytes_per_s: float | None = None, gpus: int | None = None
) -> Cluster:
    """Return the cluster that a GPU usually stands in, with another node size or network card.

    Parameters
    ----------
    gpu_name : str
        Any spelling that `traincast.hardware.gpu.load_gpu` knows.
    gpus_per_node : int, optional
        GPUs in one machine; where the part's scale-up domain spans machines (GB200 NVL72), the
        domain counts, not the machine.
    nic_bytes_per_s : float, optional
        Line rate of each GPU's share of the network cards, per direction; the preset's or the
        datasheet's by default.
    gpus : int, optional
        GPUs of the job: more than an NVL72 rack, in multiples of 64, are taken as 64 of each rack.

    Raises
    ------
    UnknownNameError
        If nothing is known of the GPU.
    ConfigError
        If its datasheet does not say its link.
    """
    gpu = load_gpu(gpu_name)
    cluster = with_domain(load_cluster(preset_of(gpu) or gpu.name), gpu.domain or 1, gpus_per_node, gpus)
    return cluster if nic_bytes_per_s is None else with_nic(cluster, nic_bytes_per_s)


def cluster_from_table(table: Mapping[str, Any], shown: str) -> Cluster:
    """Return the cluster that a table describes in full, under the names of a cluster file and with its name.

    A topology file is looked up from the working folder.

    Raises
    ------
    ConfigError, UnknownNameError
        As `load_cluster`.
    """
    return _cluster_of(_values(dict(table), shown, Path()), shown)


def cluster_table(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as `cluster_from_table` takes it, without sources."""
    table: dict[str, Any] = as_table(cluster, leave_out=("sources", "measured"))
    return table if cluster.measured is None else table | {"measured": as_table(cluster.measured.tables)}


def with_field(cluster: Cluster, path: str, value: object, shown: str) -> Cluster:
    """Return a cluster with another value of one field, as a cluster file would say it of one that it builds on.

    Raises
    ------
    ConfigError, UnknownNameError
        As `load_cluster`.
    """
    section, dot, key = path.partition(".")
    table: dict[str, Any] = as_table(cluster, leave_out=("sources", "measured"))
    table[section] = {**table.get(section, {}), key: value} if dot else value
    values = _values(table, shown, Path())
    if path in values and section != "fabric":
        values |= followed(cluster, {path: values[path]})
    # Measured times are of the links that they were measured on.
    return replace(_cluster_of(values, shown), measured=cluster.measured)


def _cluster_of(values: dict[str, Value], shown: str) -> Cluster:
    """Return the cluster that checked values make up."""
    measured = values.pop("measured", None)
    gpu = filled(built(Gpu, values, shown, "gpu.", _OR_BASE), shown)
    said = {path: value.source for path, value in values.items() if value.source}
    links = any(path.startswith(("intra.", "inter.")) for path in values)
    described = links or not gpu.link_bytes_per_s
    cluster = _described(gpu, values, shown) if described else _unlinked(gpu, values, shown)
    if measured is not None:
        cluster = replace(cluster, measured=Measured(tables=measured.value, intra=cluster.intra, inter=cluster.inter))
    sheet = find_datasheet(gpu.name)
    sources = {} if sheet is None else {f"gpu.{name}": sheet.shown for name in _numbers(sheet.gpu)}
    return replace(cluster, sources=tuple(({**sources, **dict(cluster.sources), **said}).items()))


def _described(gpu: Gpu, values: Mapping[str, Value], shown: str) -> Cluster:
    """Return the cluster of a file that says its links, or whose GPU says none."""
    links = {level: Value(built(Link, values, shown, f"{level}.", _OR_BASE)) for level in ("intra", "inter")}
    return built(Cluster, {**values, **links, "gpu": Value(gpu)}, shown, remedy=_OR_BASE)


def _unlinked(gpu: Gpu, values: Mapping[str, Value], shown: str) -> Cluster:
    """Return the cluster of a file that says a GPU and no links."""
    own = {path: value.value for path, value in values.items() if "." not in path}
    cluster = cluster_from_datasheet(gpu, f"datasheet in {shown}", _preset, own.get("gpus_per_node"))
    return replace(cluster, **own)


def _cluster_of_gpu(name: str) -> Cluster:
    """Return the preset of a GPU by any spelling of its name, or else a cluster built from its datasheet."""
    sheet = find_datasheet(name)
    if sheet is None:
        raise UnknownNameError("cluster", name, cluster_names())
    preset = preset_of(sheet.gpu)
    if preset is None:
        cluster = cluster_from_datasheet(
            sheet.gpu, f"datasheet of {sheet.gpu.name} ({sheet.confidence} confidence)", _preset
        )
        sources = {f"gpu.{each}": sheet.shown for each in _numbers(sheet.gpu)} | dict(cluster.sources)
        return replace(cluster, sources=tuple(sources.items()))
    cluster = constant(_preset, preset)
    return replace(cluster, assumed=(*cluster.assumed, f"{name} is the GPU of the preset {preset}, which is taken"))


def _numbers(gpu: Gpu) -> list[str]:
    return [name for name, value in said_of(gpu).items() if isinstance(value, int | float)]


def _preset(name: str) -> Cluster:
    return _cluster_of(_read(name), name)


def _read(given: str | Path) -> dict[str, Value]:
    """Return the checked values of a file over those of its base, by field path."""
    table, base = _SHELF.read(given)
    shown = str(given)
    values = {} if base is None else _read(base)
    values["name"] = Value(given.stem if isinstance(given, Path) else given)
    own = _values(table, shown, Path(shown).parent)
    if base is not None:
        values |= followed(constant(_preset, base), own)
        text = described(constant(_preset, base), own)
        values |= {"description": Value(text)} if text else {}
    values |= own
    if base is not None and find_datasheet(str(values["gpu.name"].value)) is None:
        sheet = constant(_preset, base).gpu
        taken = {f"gpu.{name}": Value(getattr(sheet, name), f"as in {base}") for name in _OF_DATASHEETS}
        values = taken | values
    return values


def _values(document: dict[str, Any], shown: str, folder: Path) -> dict[str, Value]:
    """Return the checked values of the tables of a file, by field path."""
    values: dict[str, Value] = {}
    for section, (kind, choices) in _SECTIONS.items():
        values |= read_table(kind, document.pop(section, {}), shown, f"{section}.", choices=choices)
    if "fabric" in document:
        found = fabric_values(document.pop("fabric"), shown, folder)
        values |= {**found, "fabric": Value(fabric_of(found, shown), f"set in {shown}")}
    if "run_factors" in document:
        factors = _each(RunFactor, document.pop("run_factors"), "run_factors", shown)
        values["run_factors"] = Value(tuple(factor for _, factor in factors))
    if "measured" in document:
        values["measured"] = Value(measured_tables_from(document.pop("measured"), shown))
    return values | read_table(
        Cluster, document, shown, without=(*_SECTIONS, "sources", "run_factors"), also=("base", *_SECTIONS)
    )


def measured_tables_from(raw: object, shown: str) -> tuple[MeasuredTable, ...]:
    """Return the tables that stand under ``measured`` in a cluster file.

    Raises
    ------
    ConfigError
        If it is not a list of tables, one lacks a key, or sizes do not rise or times fall.
    """
    tables = []
    for path, table in _each(MeasuredTable, raw, "measured", shown, {"op": OPERATIONS}):
        _check_measured(table, path, shown)
        tables.append(table)
    keys = [(table.op, table.ranks, table.nodes) for table in tables]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{twice[0]} over {twice[1]} ranks on {twice[2]} nodes is given twice (in {shown})", "measured"
        )
    return tuple(tables)


def _each(
    kind: type[T], raw: object, name: str, shown: str, choices: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> Iterator[tuple[str, T]]:
    """Yield the record of each table of a list, with its path; one that names no source is of this file."""
    if not isinstance(raw, list):
        raise ConfigError(f"must be a list of tables, each under [[{name}]] (in {shown})", name)
    for index, each in enumerate(raw):
        path = f"{name}[{index}]"
        values = read_table(kind, each, shown, f"{path}.", choices=choices)
        values.setdefault(f"{path}.source", Value(f"set in {shown}"))
        yield path, built(kind, values, shown, f"{path}.")


def _check_measured(table: MeasuredTable, path: str, shown: str) -> None:
    if not 1 <= table.nodes <= table.ranks or table.ranks < 2:
        text = f"{table.ranks} ranks cannot sit on {table.nodes} nodes and communicate (in {shown})"
        raise ConfigError(text, path)
    rising = all(one < two for one, two in pairwise(table.size_bytes))
    never_falling = all(one <= two for one, two in pairwise(table.time_s))
    if len(table.size_bytes) != len(table.time_s) or not table.size_bytes or not rising or not never_falling:
        raise ConfigError(f"needs one time for each size, rising sizes, and times that never fall (in {shown})", path)
