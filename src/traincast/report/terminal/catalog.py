"""The known clusters and models, for people."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from msgspec.structs import fields
from rich.console import RenderableType

from traincast.hardware.cluster import Cluster, Link
from traincast.hardware.fabric import FabricSpec
from traincast.hardware.gpu import Gpu, gpu_names
from traincast.job.recipes import PublishedRecipe
from traincast.model.counts import further_blocks, model_flops_per_token, parameters, token_flops
from traincast.model.model import Attention, Model
from traincast.report.terminal import layout as ui
from traincast.units import GIGA, counted, format_decimal_size, format_rate, format_share, format_size, format_time

_MEGA, _TERA = 1e6, 1e12

_LINKS: tuple[ui.Column[tuple[str, Link]], ...] = (
    ui.Column("links", itemgetter(0), words=True),
    ui.Column("rate per GPU", lambda line: format_rate(line[1].bandwidth_bytes_per_s)),
    ui.Column("base latency", lambda line: format_time(line[1].base_latency_s)),
    ui.Column("hop latency", lambda line: format_time(line[1].hop_latency_s)),
)


@ui.printed
def print_clusters(clusters: Sequence[Cluster], *, every: bool = True) -> ui.View:
    """Print a block per cluster: its GPU and its links; after every one the GPUs that have none."""
    for position, cluster in enumerate(clusters):
        yield _title(cluster, position)
        yield ui.indented(f"{cluster.gpus_per_node} x {_gpu(cluster.gpu)} per node")
        if cluster.ideal:
            yield ui.indented("communication takes no time")
        else:
            yield ui.table(_LINKS, (("inside a node", cluster.intra), ("between nodes", cluster.inter)))
    if every:
        known = {cluster.gpu.name for cluster in clusters}
        others = ", ".join(name for name in gpu_names() if name not in known)
        yield ui.text(f"\nAlso clusters, built from the datasheet of their GPU: {others}")
    yield ui.text("\ntraincast clusters NAME... shows every number with its source", "dim")


@ui.printed
def print_cluster_numbers(clusters: Sequence[Cluster]) -> ui.View:
    """Print every number of each cluster with its unit and the number of its source, then the sources."""
    for position, cluster in enumerate(clusters):
        sources = dict(cluster.sources)
        # A whole table of a file, such as the fabric, has one source.
        lines = [
            (name, _quantity(name, value), sources.get(name, sources.get(name.partition(".")[0])))
            for name, value in _fields(cluster)
        ]
        places = list(dict.fromkeys(source for *_, source in lines if source is not None))
        yield _title(cluster, position)
        yield ui.table(_numbers(places), lines)
        yield ui.text("")
        for index, place in enumerate(places, 1):
            yield ui.indented(ui.hanging(f"[{index}]", place))


def _numbers(places: Sequence[str]) -> tuple[ui.Column[tuple[str, str, str | None]], ...]:
    return (
        ui.Column("number", itemgetter(0), words=True),
        ui.Column("value", itemgetter(1), words=True),
        ui.Column("source", lambda line: "-" if line[2] is None else f"[{1 + places.index(line[2])}]"),
    )


def _title(cluster: Cluster, position: int) -> RenderableType:
    title = f"{cluster.name}: {cluster.description}" if cluster.description else cluster.name
    return ui.heading(title) if position else ui.text(title, "bold")


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
    return next((form(value) for ending, form in _FORMS if name.endswith(ending)), f"{value:,}")


def _gpu(gpu: Gpu) -> str:
    known = []
    if gpu.bf16_dense_flops_per_s is not None:
        known.append(f"{_flops(gpu.bf16_dense_flops_per_s)} bf16")
    if gpu.hbm_bytes is not None:
        known.append(format_decimal_size(gpu.hbm_bytes))
    if gpu.hbm_bytes_per_s is not None:
        known.append(format_rate(gpu.hbm_bytes_per_s))
    return f"{gpu.name} ({', '.join(known)})" if known else gpu.name


def _flops(flops_per_s: float) -> str:
    return f"{flops_per_s / _TERA:,.0f} TFLOP/s"


_FORMS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_flops_per_s", _flops),
    ("_bytes_per_s", format_rate),
    ("_bytes", format_decimal_size),
    ("_latency_s", format_time),
)
"""How a number is written, by the first ending of its name that fits."""


def _heads(attention: Attention) -> str:
    if attention.latent is not None or attention.kv_heads == attention.heads:
        return str(attention.heads)
    return f"{attention.heads}/{attention.kv_heads}"


_MODELS: tuple[ui.Column[Model], ...] = (
    ui.column("model", "name", words=True),
    ui.Column("params", lambda model: _count(parameters(model).total)),
    ui.Column("active", lambda model: _count(parameters(model).active) if model.experts else ""),
    ui.column("layers", "layers"),
    ui.column("hidden", "hidden", spare=2),
    ui.column("heads", "attention", _heads, spare=3),
    ui.Column("experts", lambda model: f"{model.experts.experts} top-{model.experts.topk}" if model.experts else ""),
    ui.column("vocab", "vocab", spare=1),
)


@ui.printed
def print_models(models: Sequence[Model]) -> ui.View:
    """Print a line on each model."""
    yield ui.table(_MODELS, models)
    yield ui.text("\ntraincast models NAME... shows parameters and FLOPs by part, and the source", "dim")


_RECIPES: tuple[ui.Column[PublishedRecipe], ...] = (
    ui.column("recipe", "full_name", words=True),
    ui.column("release", "release", words=True, spare=1),
    ui.column("settings", "basis", spare=2),
)


@ui.printed
def print_recipes(recipes: Sequence[PublishedRecipe]) -> ui.View:
    """Print a line on each published recipe."""
    yield ui.table(_RECIPES, recipes)
    yield ui.text(
        "\ntraincast predict --recipe NAME forecasts one, traincast plan --recipe NAME looks for a better one; "
        "without @RELEASE it is the newest",
        "dim",
    )


_Part = tuple[str, str, str]


def _by_part(what: str, amount: str) -> tuple[ui.Column[_Part], ...]:
    return (
        ui.Column(what, itemgetter(0), words=True),
        ui.Column(amount, itemgetter(1)),
        ui.Column("share", itemgetter(2)),
    )


@ui.printed
def print_model_counts(models: Sequence[Model], seq_length: int) -> ui.View:
    """Print the shape, the parameters and the FLOPs of each model by part, and where its numbers come from."""
    for position, model in enumerate(models):
        yield ui.heading(model.name) if position else ui.text(model.name, "bold")
        yield from map(ui.indented, _shape(model))
        yield ui.text("")
        yield ui.table(_by_part("parameters", "count"), _parameter_lines(model))
        yield ui.text("")
        yield ui.table(_by_part("FLOPs per token", "forward"), _flop_lines(model, seq_length))
        training = model_flops_per_token(model, seq_length)
        lora = model_flops_per_token(model, seq_length, "lora")
        yield ui.text("")
        yield ui.indented(
            f"training {training / GIGA:,.4g} GFLOP per token at {seq_length} tokens a sequence (causal half); "
            f"with low-rank adapters {lora / GIGA:,.4g}"
        )
        yield ui.indented(f"source: {model.source or 'not given'}")
        yield from ui.diagnostics("Assumptions", model.notes)


def _shape(model: Model) -> Iterator[str]:
    attention, experts = model.attention, model.experts
    layers = Counter(map(model.names_of, range(model.layers)))
    has = {name.partition(":")[0] for names in layers for name in names}
    yield f"{counted(model.layers, 'layer')}, hidden {model.hidden}, {model.vocab} tokens" + (
        ", LM head tied to the embedding" if model.tied_embeddings else ""
    )
    if model.residual_streams > 1:
        yield f"{model.residual_streams} residual streams"
    if len(layers) > 1 or not has <= {"attention", "latent_attention", "mlp", "experts"}:
        yield "layers: " + ", ".join(f"{count} {' + '.join(names)}" for names, count in layers.items())
    if model.mtp_layers:
        names = model.mtp_blocks or model.names_of(model.layers - 1)
        yield f"MTP layers: {model.mtp_layers} {' + '.join(names)}"
    heads = f"attention: {_heads(attention)} heads of {attention.head_dim}"
    if attention.latent is not None:
        heads += f", latent (kv rank {attention.latent.kv_rank})"
    if attention.window and attention.window_layers:
        which = "" if attention.window_period == 1 else f" in {attention.window_layers} of {attention.window_period}"
        heads += f", window {attention.window}{which}"
    if any("attention" in name and name != "linear_attention" for name in has):
        yield heads + ("" if attention.causal else ", not causal")
    kind = "gated as with SwiGLU" if model.gated else "not gated, as with GELU"
    if experts is None:
        if "mlp" in has:
            yield f"MLP: {model.ffn_hidden}, {kind}"
        return
    shared = f", shared {experts.shared_ffn_hidden}" if experts.shared_ffn_hidden else ""
    yield f"experts: {experts.experts} of {experts.ffn_hidden}, top-{experts.topk}{shared}, {kind}"
    dense = sum(count for names, count in layers.items() if any(name.partition(":")[0] == "mlp" for name in names))
    if dense:
        yield f"MLP of {counted(dense, 'dense layer')}: {model.ffn_hidden}"


def _parameter_lines(model: Model) -> list[_Part]:
    counts = parameters(model)
    layers = counts.layers
    parts = {
        "embedding": counts.embedding,
        "positions": counts.positions,
        "attention": layers.attention,
        "MLP": layers.mlp,
        "router": layers.router,
        "experts": layers.experts,
        "shared experts": layers.shared_experts,
        "tables of layers": layers.tables,
        **{ui.spaced(each.kind): each.parameters for each in further_blocks(model, 1)},
        "norms": layers.norms + counts.final_norm,
        "LM head": counts.head,
        "other": counts.other,
    }
    lines = [(name, _count(count), format_share(count / counts.total)) for name, count in parts.items() if count]
    lines.append(("total", _count(counts.total), ""))
    if model.experts:
        lines.append(("active per token", _count(counts.active), format_share(counts.active / counts.total)))
        lines.append(
            ("without embedding lookup", _count(counts.computed), format_share(counts.computed / counts.total))
        )
    if model.mtp_layers:
        lines.append(("MTP layers", _count(counts.trained - counts.total), "not in total"))
    return lines


def _flop_lines(model: Model, seq_length: int) -> list[_Part]:
    flops = token_flops(model, seq_length)
    parts = {
        "attention projections": flops.attention_projections,
        "attention core": flops.attention_core,
        "scan": flops.scan,
        "MLP": flops.mlp,
        "router": flops.router,
        "experts": flops.experts,
        "shared experts": flops.shared_experts,
        **{
            ui.spaced(each.kind): each.forward_flops for each in further_blocks(model, seq_length) if each.forward_flops
        },
        "LM head": flops.head,
        "MTP projections": flops.mtp_projections,
    }
    lines = [
        (name, f"{part / GIGA:,.4g} G", format_share(part / flops.forward)) for name, part in parts.items() if part
    ]
    return [*lines, ("total", f"{flops.forward / GIGA:,.4g} G", "")]


def _count(count: int) -> str:
    """Return a number of parameters as papers print it: 8.03 B, 405.85 B, 124.4 M."""
    return f"{count / GIGA:,.2f} B" if count >= GIGA else f"{count / _MEGA:.4g} M"
