"""What better hardware would do for a layout: links, memory or computation 10 % faster."""

from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from traincast.hardware.cluster import Cluster
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.planning.layout import Layout
from traincast.simulation.forecast import forecast
from traincast.simulation.step import Setting
from traincast.simulation.study import Study

_BETTER = 1.1
"""How much better hardware is for the sensitivities."""


class Sensitivity(Struct, frozen=True, kw_only=True):
    """What a better piece of hardware would do."""

    better: str
    step_s: float
    saving_s: float


def sensitivities(
    request: JobRequest, layout: Layout, setting: Setting, step_s: float, study: Study
) -> Iterator[Callable[[], Sensitivity]]:
    """Yield what works out the step with links, memory or computation of the hardware 10 % faster, one at a time."""
    laid_out = replace(request, **layout.request())

    def with_better(name: str, cluster: Cluster) -> Sensitivity:
        job = resolve_job(laid_out, cluster)
        again_s = forecast(job, replace(setting, cluster=cluster), allow_oom=True, study=study).iteration_time_s
        return Sensitivity(better=name, step_s=again_s, saving_s=step_s - again_s)

    for name, cluster in _better(setting.cluster):
        yield partial(with_better, name, cluster)


def _better(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    gpu, inter, intra = cluster.gpu, cluster.inter, cluster.intra
    peaks = [each for each in gpu.__struct_fields__ if each.endswith("_flops_per_s")]
    faster = {name: value * _BETTER for name in peaks if (value := getattr(gpu, name)) is not None}
    yield "computation (FLOP/s) 10 % faster", replace(cluster, gpu=replace(gpu, **faster))
    memory = gpu.memory_bytes_per_s * _BETTER
    yield "memory (HBM) 10 % faster", replace(cluster, gpu=replace(gpu, hbm_bytes_per_s=memory))
    inside = intra.bandwidth_bytes_per_s * _BETTER
    yield "links inside a node 10 % faster", replace(cluster, intra=replace(intra, bandwidth_bytes_per_s=inside))
    limit = inter.node_bandwidth_bytes_per_s
    between = replace(
        inter,
        bandwidth_bytes_per_s=inter.bandwidth_bytes_per_s * _BETTER,
        node_bandwidth_bytes_per_s=None if limit is None else limit * _BETTER,
    )
    yield "links between nodes 10 % faster", replace(cluster, inter=between)
