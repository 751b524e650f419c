"""One thing that may be wrong with a run, as a change of its forecast.

::

    overlap_grad_reduce=false        a field of the job
    tp*2                             a number of the job, of what was decided
    compute*1.25                     how long some work takes (`traincast.job.changes`)
    nic_bandwidth*0.5                the rate of every network card, or of the links inside nodes (nvlink_bandwidth)
    straggler*1.3                    the computations of one rank
    tp_across_nodes=true             as many GPUs of each node as half a tensor parallel group

Several are separated by semicolons.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traincast.checking.base import BaseForecast
from traincast.errors import ConfigError
from traincast.hardware.cluster import Cluster
from traincast.hardware.clusters import with_field
from traincast.job.changes import WorkEdit, parse_change
from traincast.job.fields import FIELDS, JOB, going_with
from traincast.job.job import DECIDED
from traincast.job.switches import read_setting
from traincast.simulation.step import Setting
from traincast.units import is_number, quoted

_ACROSS = "tp_across_nodes"
_STRAGGLER = "straggler"
_OF_REPLICAS = ("shard", "etp")
"""What was right for the old number of ranks that share a model's state."""


class Fault(Struct, frozen=True, kw_only=True):
    """What is otherwise."""

    text: str
    """As it was written."""
    fields: tuple[tuple[str, Any], ...] = ()
    """Fields of the job with their values."""
    factors: tuple[tuple[str, float], ...] = ()
    """Fields of the job that are multiplied."""
    work: tuple[WorkEdit, ...] = ()
    rates: tuple[tuple[str, float], ...] = ()
    """Rates of the cluster (`_RATES`) that are multiplied."""
    straggler: float = 1.0
    """What one rank's computations are multiplied with."""
    across_nodes: bool = False
    """Whether tensor parallel groups lie across nodes."""

    def applied(self, base: BaseForecast) -> BaseForecast:
        """Return the forecast with the change.

        Raises
        ------
        TraincastError
            If there is nothing to change, or what comes out cannot run.
        """
        fields = dict(self.fields)
        for name, factor in self.factors:
            fields[name] = _multiplied(name, base.job.decided(name), factor)
        for name in tuple(fields):
            fields |= {other: None for other in _following(name) if other not in fields}
        return base.again(fields, self._setting(base))

    def _setting(self, base: BaseForecast) -> Setting:
        setting = base.setting
        for name, factor in self.rates:
            setting = replace(setting, cluster=_RATES[name](setting.cluster, factor))
        if self.across_nodes:
            setting = replace(setting, gpus_used_per_node=_half_a_group(base.job.parallel.tp))
        if self.straggler != 1:
            # In the middle of the pipeline, which waits for it from both sides.
            rank = base.job.parallel.world_size // 2
            setting = replace(setting, compute_slowdown={**setting.compute_slowdown, rank: self.straggler})
        return replace(setting, edits=(*setting.edits, *self.work))


def _following(name: str) -> tuple[str, ...]:
    """Return the fields that are decided anew with another one; virtual stages stay in a longer pipeline."""
    of_replicas = _OF_REPLICAS if name in ("tp", "cp") else ()
    return (*of_replicas, *(each for each in going_with(name) if each != "vpp"))


def read_change(text: str) -> Fault:
    """Return a change as a table of causes has it.

    Raises
    ------
    ConfigError
        If it names no field, work or rate, or a value that is not allowed.
    """
    found = Fault(text=text)
    for each in filter(None, (part.strip() for part in text.split(";"))):
        name, star, factor = each.partition("*")
        if not star:
            found = _with_value(found, each)
        elif not is_number(factor) or not float(factor) > 0:
            raise ConfigError(f"is {quoted(each)}; what stands after * must be a number above zero", "change")
        elif name in _RATES:
            found = replace(found, rates=(*found.rates, (name, float(factor))))
        elif name == _STRAGGLER:
            found = replace(found, straggler=float(factor))
        elif name in FIELDS and JOB in FIELDS[name].of and name in DECIDED:
            found = replace(found, factors=(*found.factors, (name, float(factor))))
        else:
            found = replace(found, work=(*found.work, _work_of(each)))
    return found


def _work_of(text: str) -> WorkEdit:
    edit = parse_change(text)
    if isinstance(edit, WorkEdit):
        return edit
    raise ConfigError(f"is {quoted(text)}; what is multiplied must be work, a rate or a number of the job", "change")


def _with_value(change: Fault, text: str) -> Fault:
    if text == f"{_ACROSS}=true":
        return replace(change, across_nodes=True)
    return replace(change, fields=(*change.fields, read_setting(text)))


def _multiplied(name: str, value: object, factor: float) -> int:
    if not isinstance(value, int) or value * factor != int(value * factor):
        raise ConfigError(f"is {value}, which cannot be multiplied by {factor:g}", name)
    return int(value * factor)


def _half_a_group(tp: int) -> int:
    if tp < 2:
        raise ConfigError("is 1: no group of it can lie across nodes", "tp")
    return tp // 2


def _other_nic(cluster: Cluster, factor: float) -> Cluster:
    if cluster.fabric is not None:
        raise ConfigError("is told link by link, so that it has no network cards of one rate", "fabric")
    rate, shown = cluster.gpu.nic_bytes_per_s, f"network cards at {factor:g} x"
    if rate:
        return with_field(cluster, "gpu.nic_bytes_per_s", factor * rate, shown)
    return with_field(cluster, "inter.bandwidth_bytes_per_s", factor * cluster.inter.bandwidth_bytes_per_s, shown)


def _other_links(cluster: Cluster, factor: float) -> Cluster:
    shown = f"links inside nodes at {factor:g} x"
    if cluster.gpu.link_bytes_per_s:
        return with_field(cluster, "gpu.link_bytes_per_s", factor * cluster.gpu.link_bytes_per_s, shown)
    return with_field(cluster, "intra.bandwidth_bytes_per_s", factor * cluster.intra.bandwidth_bytes_per_s, shown)


_RATES: Mapping[str, Callable[[Cluster, float], Cluster]] = {
    "nic_bandwidth": _other_nic,
    "nvlink_bandwidth": _other_links,
}
"""Rates of a cluster that a change may multiply."""
