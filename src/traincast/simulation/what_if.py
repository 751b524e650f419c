"""Run a step again with changes: each alone, and all together.

A change is of how long work takes (`traincast.simulation.edits`), of the cluster, of how a step is simulated, or of a
field of the job or of the layout of files. The step is simulated again from where the change has its effect, so that
what overlaps and who waits is found anew.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import fields, replace

from traincast.errors import ConfigError, TraincastError
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import load_cluster, with_field
from traincast.job.changes import FieldEdit, WorkEdit, parse_change
from traincast.job.options import LayoutOptions
from traincast.job.request import JOB_FIELDS
from traincast.names import find_name, known_names
from traincast.simulation.differences import Doubts, ratio_of
from traincast.simulation.result_records import WhatIfResult
from traincast.simulation.step import Setting
from traincast.tables import decoded
from traincast.units import is_number, parse_rate, plain_number

TOGETHER = "all together"
"""Name of the last line, of all changes at once."""

_NIC, _NVLINK = "nic_bandwidth", "nvlink_bandwidth"
_OF_STEP = ("network", "network_seeds", "gpus_used_per_node", "overlap_slowdown", "unfold")
"""Fields of `StepOptions` that one plain value says."""
_OF_CLUSTER = tuple(
    each
    for each in Cluster.__struct_fields__
    if each not in ("name", "description", "gpu", "intra", "inter", "fabric", "measured", "sources", "assumed")
)
_SECTIONS = ("gpu", "intra", "inter", "fabric")
_TYPES: Mapping[str, Any] = {
    each.name: each.type for of in (JOB_FIELDS.values(), fields(LayoutOptions)) for each in of if each.name != "model"
}
"""Fields of what is laid out; of one that a job and a file both have the type of files."""
_KNOWN = (_NIC, _NVLINK, "cluster", "model", *_TYPES, *_OF_STEP, *_OF_CLUSTER)


class Changed(Struct, frozen=True):
    """A run with some changes."""

    setting: Setting
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the job, or of the layout of files, that are other than they were."""


class Again(Struct, frozen=True):
    """A run that was simulated again."""

    step_s: float
    doubts: Doubts | None = None
    """What it may be off by, where it was forecast."""


Rerun = Callable[[Changed], Again]
"""Simulates a changed run."""


def what_ifs(texts: Sequence[str], setting: Setting, start: Again, rerun: Rerun) -> tuple[WhatIfResult, ...]:
    """Return the step with each of some changes, and with all of them where there are several.

    `start` is the run as it is; of forecasts a saving has the interval of the ratio of both.

    Raises
    ------
    TraincastError
        If a change cannot be made, or the run cannot run with it; the message names the change.
    """
    tries = [(text, [text]) for text in texts]
    if len(texts) > 1:
        tries.append((TOGETHER, list(texts)))
    found = []
    for name, changes in tries:
        try:
            after = rerun(changed(replace(setting, what_if=()), changes))
        except TraincastError as error:
            error.add_note(f"with the what-if {' and '.join(changes)}")
            raise
        found.append(_result(name, start, after))
    return tuple(found)


def _result(name: str, start: Again, after: Again) -> WhatIfResult:
    found = WhatIfResult(change=name, iteration_time_s=after.step_s, saving_s=start.step_s - after.step_s)
    if start.doubts is None or after.doubts is None:
        return found
    ratio = ratio_of(start.step_s, start.doubts, after.step_s, after.doubts)
    low_s, high_s = (start.step_s * (1 - end) for end in (ratio.high, ratio.low))
    return replace(found, saving_low_s=low_s, saving_high_s=high_s)


def check_what_ifs(setting: Setting) -> None:
    """Refuse what-ifs of a setting that name no known field or say no allowed value, before anything is simulated.

    Raises
    ------
    TraincastError
        As `what_ifs`.
    """
    for text in setting.what_if:
        changed(setting, [text])


def changed(setting: Setting, texts: Sequence[str]) -> Changed:
    """Return a run with some changes, made in their order.

    Raises
    ------
    TraincastError
        If a field is not known, or its value is not allowed.
    """
    said: dict[str, Any] = {}
    for text in texts:
        change = parse_change(text)
        if isinstance(change, WorkEdit):
            setting = replace(setting, edits=(*setting.edits, change))
            continue
        found = _of_setting(setting, change)
        if found is None:
            said |= _of_fields(change)
        else:
            setting = found
    return Changed(setting, said)


def _of_setting(setting: Setting, change: FieldEdit) -> Setting | None:
    """Return a setting with a change of its cluster or its options; None where it is of neither."""
    section, dot, key = change.name.partition(".")
    if section == "busbw" and dot:
        rates = {**setting.busbw_bytes_per_s, key: parse_rate(change.value)}
        return replace(setting, busbw_bytes_per_s=rates)
    name = find_name(change.name, _OF_STEP)
    if name is not None:
        return replace(setting, **{name: _plain(change.value)})
    cluster = _other_cluster(setting.cluster, change)
    return None if cluster is None else replace(setting, cluster=cluster)


def _other_cluster(cluster: Cluster, change: FieldEdit) -> Cluster | None:
    """Return a cluster with a change; None where it is of something else."""
    section, dot, _ = change.name.partition(".")
    if change.name == "cluster":
        return load_cluster(change.value)
    rate_of = find_name(change.name, (_NIC, _NVLINK))
    if rate_of is not None:
        make = _other_nic if rate_of == _NIC else _other_links
        return make(cluster, parse_rate(change.value))
    of_cluster = section in _SECTIONS if dot else section in _OF_CLUSTER
    return _other_field(cluster, change.name, _plain(change.value)) if of_cluster else None


def _of_fields(change: FieldEdit) -> dict[str, Any]:
    """Return a field of a job or of the layout of files, with its value."""
    if change.name == "model":
        return {"model": change.value}
    name = find_name(change.name, _TYPES)
    if name is None:
        raise ConfigError(f"unknown field {change.name!r}; {known_names(change.name, sorted(set(_KNOWN)))}", "what_if")
    kind, raw = _TYPES[name], _plain(change.value)
    if "tuple" in str(kind) and isinstance(raw, str):
        raw = [_plain(each.strip()) for each in raw.split(",")]
    try:
        return {name: decoded(name, kind, raw)}
    except ConfigError as error:
        raise ConfigError(f"{name} {error}", "what_if") from None


def _plain(text: str) -> Any:  # noqa: ANN401
    """Return a value as TOML would have it: a truth, a number, else the text."""
    switches = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    if text.lower() in switches:
        return switches[text.lower()]
    return plain_number(text) if is_number(text) else text


def _other_nic(cluster: Cluster, rate: float) -> Cluster:
    """Return a cluster with network cards of another line rate; a network that is told link by link keeps its own."""
    if cluster.fabric is None:
        return _other_field(cluster, "gpu.nic_bytes_per_s", rate)
    raise ConfigError(
        f"the network of {cluster.name} is described by [fabric]; change a field of it, such as "
        "fabric.link_bytes_per_s=...",
        "what_if",
    )


def _other_links(cluster: Cluster, rate: float) -> Cluster:
    """Return a cluster whose links inside a node have another rate, with the share of it that is reached now."""
    if cluster.gpu.link_bytes_per_s:
        return _other_field(cluster, "gpu.link_bytes_per_s", rate)
    text = f"the link rate of {cluster.gpu.name} is not known; change intra.bandwidth_bytes_per_s"
    raise ConfigError(text, "what_if")


def _other_field(cluster: Cluster, path: str, value: object) -> Cluster:
    """Return a cluster with another value of one field, and what follows from it."""
    return with_field(cluster, path, value, f"--what-if {path}={value}")
