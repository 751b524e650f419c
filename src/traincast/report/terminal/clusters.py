"""The known clusters, for people."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from traincast.report.terminal.parts import heading, indented, notes, table, text
from traincast.spec.cluster import Cluster, Link
from traincast.spec.notes import Note
from traincast.units import GIGA, format_rate, format_size, format_time

_KILO = 1000


def view(clusters: Sequence[Cluster]) -> Iterator[RenderableType]:
    """Yield a block per cluster: its GPU and its links; the sources where there is only one."""
    for position, cluster in enumerate(clusters):
        title = f"{cluster.name}: {cluster.description}" if cluster.description else cluster.name
        yield heading(title) if position else text(title, "bold")
        yield indented(text(f"{cluster.gpus_per_node} x {_gpu(cluster)} per node"))
        if cluster.ideal:
            yield indented(text("communication takes no time"))
            continue
        rows = [("inside a node", *_link(cluster.intra)), ("between nodes", *_link(cluster.inter))]
        yield table(("links", "rate per GPU", "start", "per hop"), rows, labels=("links",))
    if len(clusters) == 1:
        sources = [Note(what, f"{what}: {source}") for what, source in clusters[0].sources]
        yield from notes("Sources", sources)


def _gpu(cluster: Cluster) -> str:
    gpu = cluster.gpu
    known = []
    if gpu.bf16_dense_flops_per_s is not None:
        known.append(f"{gpu.bf16_dense_flops_per_s / GIGA / _KILO:,.0f} TFLOP/s bf16")
    if gpu.hbm_bytes is not None:
        known.append(format_size(gpu.hbm_bytes))
    if gpu.hbm_bytes_per_s is not None:
        known.append(format_rate(gpu.hbm_bytes_per_s))
    return f"{gpu.name} ({', '.join(known)})" if known else gpu.name


def _link(link: Link) -> tuple[str, str, str]:
    return (
        format_rate(link.bandwidth_bytes_per_s),
        format_time(link.base_latency_s),
        format_time(link.hop_latency_s),
    )
