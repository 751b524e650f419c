"""Load a cluster: a preset by its name, a TOML file that may build on a preset, or that of a GPU by its datasheet.

A file has the fields of `traincast.hardware.cluster` under their own names. A value is a
number in SI units, a text with its unit, or either of them with its source::

    base = "h100"                       # everything else is as in this preset

    [inter]
    bandwidth_bytes_per_s = "200Gb/s"
    hop_latency_s = { value = 9e-6, source = "our nccl-tests of May" }

A file that says neither a base nor links describes a GPU in ``[gpu]``, and its links follow from the datasheet.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from traincast.errors import ConfigError, UnknownNameError
from traincast.files import parse_toml, read_toml
from traincast.hardware.cluster import INTER_KINDS, INTRA_KINDS, Cluster, Link, Measured
from traincast.hardware.fabric import fabric_of, fabric_values
from traincast.hardware.from_datasheet import cluster_from_datasheet
from traincast.hardware.gpu import Gpu
from traincast.hardware.gpus import filled, find_datasheet, gpu_names, said_of
from traincast.hardware.measured import measured_tables_from
from traincast.hardware.values import Value, built, read_table
from traincast.names import find_name, known_names
from traincast.registry import known_name
from traincast.units import quoted

_SECTIONS: dict[str, type[Gpu] | type[Link]] = {"gpu": Gpu, "intra": Link, "inter": Link}
_LINK_KINDS = {"intra.kind": INTRA_KINDS, "inter.kind": INTER_KINDS, "gpu.link_kind": INTRA_KINDS}
_OF_DATASHEETS = ("bf16_dense_flops_per_s", "hbm_bytes", "hbm_bytes_per_s", "link_bytes_per_s")
"""What a GPU without a datasheet takes from the GPU of the base that its file builds on."""

_OR_BASE = "give it, or a base"
"""What to do about a number that is missing."""


def cluster_names() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(file.name.removesuffix(".toml") for file in _presets().iterdir() if file.name.endswith(".toml"))


def load_cluster(given: str | PathLike[str] | Cluster) -> Cluster:
    """Return a preset, the cluster that a TOML file describes, or that of a GPU.

    Parameters
    ----------
    given : str, path or Cluster
        A name in `cluster_names`, the path of a TOML file, or the name of a GPU: its preset, or a cluster built from
        its datasheet. A cluster is returned as it is.

    Returns
    -------
    Cluster
        With a source for every number; where the file gives none, it is the file.

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
    name = fspath(given)
    path, preset = Path(name), find_name(name, cluster_names())
    if name != preset and (path.suffix == ".toml" or path.is_file()):
        return _cluster_of(_read(path, name), name)
    return _cluster_of_gpu(name) if preset is None else _preset(preset)


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
    return filled(built(Gpu, "gpu.", _read(path, name), name), name)


def preset_of(gpu: Gpu) -> str | None:
    """Return the name of the preset whose GPU is this very part; None where there is none."""
    return next((name for name in cluster_names() if _preset(name).gpu.name == gpu.name), None)


def cluster_from_table(table: Mapping[str, Any], shown: str) -> Cluster:
    """Return the cluster that a table describes in full, under the names of a cluster file and with its name.

    Parameters
    ----------
    table : mapping
        As a TOML file has it, without a base; a topology file is looked up from the working folder.
    shown : str
        Where it comes from, for messages.

    Raises
    ------
    ConfigError, UnknownNameError
        As `load_cluster`.
    """
    return _cluster_of(_values(dict(table), shown, Path()), shown)


def _cluster_of(values: dict[str, Value], shown: str) -> Cluster:
    """Return the cluster that checked values make up."""
    measured = values.pop("measured", None)
    gpu = filled(built(Gpu, "gpu.", values, shown, _OR_BASE), shown)
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
    links = {level: Value(built(Link, f"{level}.", values, shown, _OR_BASE), None) for level in ("intra", "inter")}
    return built(Cluster, "", {**values, **links, "gpu": Value(gpu, None)}, shown, _OR_BASE)


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
    cluster = _preset(preset)
    return replace(cluster, assumed=(*cluster.assumed, f"{name} is the GPU of the preset {preset}, which is taken"))


def _numbers(gpu: Gpu) -> list[str]:
    return [name for name, value in said_of(gpu).items() if isinstance(value, int | float)]


def _presets() -> Traversable:
    return resources.files("traincast") / "data" / "clusters"


@cache
def _preset(name: str) -> Cluster:
    return _cluster_of(_read(_presets() / f"{name}.toml", name), name)


def _read(file: Traversable, shown: str) -> dict[str, Value]:
    """Return the checked values of a file over those of its base, by field path."""
    document = read_toml(file) if isinstance(file, Path) else parse_toml(file.read_text(encoding="utf-8"), shown)
    base = document.pop("base", None)
    if base is not None:
        base = known_name("base cluster", str(base), cluster_names())
    values = {} if base is None else _read(_presets() / f"{base}.toml", base)
    values["name"] = Value(file.name.removesuffix(".toml"), None)
    found = _values(document, shown, Path(shown).parent, values)
    if base is not None and find_datasheet(str(found["gpu.name"].value)) is None:
        sheet = _preset(base).gpu
        taken = {f"gpu.{name}": Value(getattr(sheet, name), f"as in {base}") for name in _OF_DATASHEETS}
        found = taken | found
    return found


def _values(
    document: dict[str, Any], shown: str, folder: Path, base: Mapping[str, Value] | None = None
) -> dict[str, Value]:
    """Return the checked values of the tables of a file over those of its base, by field path."""
    values = dict(base or {})
    for section, kind in _SECTIONS.items():
        values |= read_table(kind, f"{section}.", document.pop(section, {}), shown)
    for place, kinds in _LINK_KINDS.items():
        if place in values:
            values[place] = values[place]._replace(value=_link_kind(str(values[place].value), kinds, place, shown))
    if "fabric" in document:
        found = fabric_values(document.pop("fabric"), shown, folder)
        values |= {**found, "fabric": Value(fabric_of(found, shown), f"set in {shown}")}
    if "measured" in document:
        values["measured"] = Value(measured_tables_from(document.pop("measured"), shown), None)
    return values | read_table(Cluster, "", document, shown, (*_SECTIONS, "sources"))


def _link_kind(said: str, kinds: tuple[str, ...], place: str, shown: str) -> str:
    found = find_name(said, kinds)
    if found is None:
        listed = known_names(said, kinds)
        raise ConfigError(f"is {quoted(said)}; leave it out, or give one that is {listed} (in {shown})", place)
    return found
