"""The known clusters, for people."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields

from rich.console import RenderableType

from traincast.hardware.cluster import Cluster, Link
from traincast.hardware.fabric import FabricSpec
from traincast.hardware.gpu import Gpu, gpu_names
from traincast.report.terminal.parts import hanging, heading, indented, table, text
from traincast.units import GIGA, format_decimal_size, format_rate, format_size, format_time

_KILO = 1000


def view(clusters: Sequence[Cluster]) -> Iterator[RenderableType]:
    """Yield a block per cluster: its GPU and its links."""
    for position, cluster in enumerate(clusters):
        title = f"{cluster.name}: {cluster.description}" if cluster.description else cluster.name
        yield heading(title) if position else text(title, "bold")
        yield indented(text(f"{cluster.gpus_per_node} x {_gpu(cluster)} per node"))
        if cluster.ideal:
            yield indented(text("communication takes no time"))
            continue
        rows = [("inside a node", *_link(cluster.intra)), ("between nodes", *_link(cluster.inter))]
        yield table(("links", "rate per GPU", "start", "per hop"), rows, labels=("links",))
    known = {cluster.gpu.name for cluster in clusters}
    others = ", ".join(name for name in gpu_names() if name not in known)
    yield text(f"\nAlso clusters, built from the datasheet of their GPU: {others}")
    yield text("\ntraincast clusters NAME... shows every number with its source", "dim")


def numbers(clusters: Sequence[Cluster]) -> Iterator[RenderableType]:
    """Yield a table per cluster of every number with its unit and the number of its source, then the sources."""
    for position, cluster in enumerate(clusters):
        title = f"{cluster.name}: {cluster.description}" if cluster.description else cluster.name
        yield heading(title) if position else text(title, "bold")
        sources = dict(cluster.sources)
        places: list[str] = []
        rows = []
        for name, value in _fields(cluster):
            # A whole table of a file, such as the fabric, has one source.
            source = sources.get(name, sources.get(name.partition(".")[0]))
            if source is not None and source not in places:
                places.append(source)
            mark = "-" if source is None else f"[{1 + places.index(source)}]"
            rows.append((name, _quantity(name, value), mark))
        yield table(("number", "value", "source"), rows, labels=("number", "value"))
        yield text("")
        for index, place in enumerate(places, 1):
            yield indented(hanging(f"[{index}]", place))


def _fields(cluster: Cluster) -> Iterator[tuple[str, object]]:
    """Yield what is known of a cluster under the names that a cluster file has for it."""
    yield "gpus_per_node", cluster.gpus_per_node
    if cluster.gpus_used_per_node is not None:
        yield "gpus_used_per_node", cluster.gpus_used_per_node
    if cluster.nccl is not None:
        yield "nccl", cluster.nccl
    parts: list[tuple[str, Gpu | Link | FabricSpec | None]] = [("gpu", cluster.gpu), ("fabric", cluster.fabric)]
    if cluster.ideal:
        yield "ideal", True
    else:
        parts += [("intra", cluster.intra), ("inter", cluster.inter)]
    for name, part in parts:
        for each in fields(part) if part is not None else ():
            value = getattr(part, each.name)
            if value is not None and not (name in ("gpu", "fabric") and value == each.default):
                yield f"{name}.{each.name}", value
    for known in cluster.measured.tables if cluster.measured else ():
        first, last = (format_size(known.size_bytes[end]) for end in (0, -1))
        yield f"measured.{known.op}.{known.ranks}.{known.nodes}", f"{len(known.size_bytes)} times, {first} to {last}"


def _quantity(name: str, value: object) -> str:
    """Return a value with its unit, which the ending of its name tells."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(each if isinstance(each, str) else f"{each:g}" for each in value)
    if not isinstance(value, int | float):
        return str(value)
    for ending, form in _FORMS:
        if name.endswith(ending):
            return form(value)
    return f"{value:,}"


def _gpu(cluster: Cluster) -> str:
    gpu = cluster.gpu
    known = []
    if gpu.bf16_dense_flops_per_s is not None:
        known.append(f"{_flops(gpu.bf16_dense_flops_per_s)} bf16")
    if gpu.hbm_bytes is not None:
        known.append(format_decimal_size(gpu.hbm_bytes))
    if gpu.hbm_bytes_per_s is not None:
        known.append(format_rate(gpu.hbm_bytes_per_s))
    return f"{gpu.name} ({', '.join(known)})" if known else gpu.name


def _flops(flops_per_s: float) -> str:
    return f"{flops_per_s / GIGA / _KILO:,.0f} TFLOP/s"


def _link(link: Link) -> tuple[str, str, str]:
    return (
        format_rate(link.bandwidth_bytes_per_s),
        format_time(link.base_latency_s),
        format_time(link.hop_latency_s),
    )


_FORMS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_flops_per_s", _flops),
    ("_bytes_per_s", format_rate),
    ("_bytes", format_decimal_size),
    ("_latency_s", format_time),
)
"""How a number is written, by the first ending of its name that fits."""
