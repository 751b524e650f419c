"""The models that are known, for people."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from traincast.model.counts import model_flops_per_token, parameters, token_flops
from traincast.model.model import Attention, Model
from traincast.report.terminal.parts import heading, indented, notes, table, text
from traincast.units import GIGA, counted

_MEGA = 1e6


def view(models: Sequence[Model]) -> Iterator[RenderableType]:
    """Yield a table with a line per model."""
    rows = []
    for model in models:
        counts = parameters(model)
        experts = model.experts
        rows.append(
            (
                model.name,
                _count(counts.total),
                _count(counts.active) if experts else "",
                str(model.layers),
                str(model.hidden),
                _heads(model.attention),
                f"{experts.experts} top-{experts.topk}" if experts else "",
                str(model.vocab),
            )
        )
    headings = ("model", "params", "active", "layers", "hidden", "heads", "experts", "vocab")
    yield table(headings, rows, labels=("model",), spare=("vocab", "hidden", "heads"))
    yield text("\ntraincast models NAME... shows parameters and FLOPs by part, and the source", "dim")


def details(models: Sequence[Model], seq_length: int) -> Iterator[RenderableType]:
    """Yield the shape, the parameters and the FLOPs of each model, and where they come from."""
    for position, model in enumerate(models):
        yield heading(model.name) if position else text(model.name, "bold")
        for line in _shape(model):
            yield indented(text(line))
        yield text("")
        yield table(("parameters", "count", "share"), _parameter_rows(model), labels=("parameters",))
        yield text("")
        yield table(("FLOPs per token", "forward", "share"), _flop_rows(model, seq_length), labels=("FLOPs per token",))
        training = model_flops_per_token(model, seq_length)
        lora = model_flops_per_token(model, seq_length, "lora")
        yield text("")
        yield indented(
            text(
                f"training {training / GIGA:,.4g} GFLOP per token at {seq_length} tokens a sequence (causal half); "
                f"with low-rank adapters {lora / GIGA:,.4g}"
            )
        )
        yield indented(text(f"source: {model.source or 'not given'}"))
        yield from notes("Notes", model.notes)


def _shape(model: Model) -> Iterator[str]:
    attention, experts = model.attention, model.experts
    yield f"{counted(model.layers, 'layer')}, hidden {model.hidden}, {model.vocab} tokens" + (
        ", head tied to the embedding" if model.tied_embeddings else ""
    )
    heads = f"attention: {_heads(attention)} heads of {attention.head_dim}"
    if attention.latent is not None:
        heads += f", latent (kv rank {attention.latent.kv_rank})"
    if attention.window and attention.window_layers:
        which = "" if attention.window_period == 1 else f" in {attention.window_layers} of {attention.window_period}"
        heads += f", window {attention.window}{which}"
    yield heads + ("" if attention.causal else ", not causal")
    kind = "gated" if model.gated else "plain"
    if experts is None:
        yield f"feed-forward: {model.ffn_hidden}, {kind}"
        return
    shared = f", shared {experts.shared_ffn_hidden}" if experts.shared_ffn_hidden else ""
    yield f"experts: {experts.experts} of {experts.ffn_hidden}, top-{experts.topk}{shared}, {kind}"
    dense = sum(not model.has_experts(layer) for layer in range(model.layers))
    if dense:
        yield f"feed-forward of {counted(dense, 'layer')} without experts: {model.ffn_hidden}"


def _parameter_rows(model: Model) -> list[tuple[str, str, str]]:
    counts = parameters(model)
    layers = counts.layers
    parts = {
        "embedding": counts.embedding,
        "positions": counts.positions,
        "attention": layers.attention,
        "feed-forward": layers.mlp,
        "router": layers.router,
        "experts": layers.experts,
        "shared experts": layers.shared_experts,
        "norms": layers.norms + counts.final_norm,
        "head": counts.head,
        "other": counts.other,
    }
    rows = [(name, _count(count), f"{count / counts.total:.1%}") for name, count in parts.items() if count]
    rows.append(("total", _count(counts.total), ""))
    if model.experts:
        rows.append(("active per token", _count(counts.active), f"{counts.active / counts.total:.1%}"))
        rows.append(("without look-ups", _count(counts.computed), f"{counts.computed / counts.total:.1%}"))
    if model.mtp_layers:
        rows.append(("further-token layers", _count(counts.trained - counts.total), "not in total"))
    return rows


def _flop_rows(model: Model, seq_length: int) -> list[tuple[str, str, str]]:
    flops = token_flops(model, seq_length)
    parts = {
        "attention projections": flops.attention_projections,
        "attention core": flops.attention_core,
        "feed-forward": flops.mlp,
        "router": flops.router,
        "experts": flops.experts,
        "shared experts": flops.shared_experts,
        "head": flops.head,
        "further-token projections": flops.mtp_projections,
    }
    rows = [(name, f"{part / GIGA:,.4g} G", f"{part / flops.forward:.1%}") for name, part in parts.items() if part]
    return [*rows, ("total", f"{flops.forward / GIGA:,.4g} G", "")]


def _heads(attention: Attention) -> str:
    if attention.latent is not None or attention.kv_heads == attention.heads:
        return str(attention.heads)
    return f"{attention.heads}/{attention.kv_heads}"


def _count(count: int) -> str:
    """Return a number of parameters as papers print it: 8.03 B, 405.85 B, 124.4 M."""
    return f"{count / GIGA:,.2f} B" if count >= GIGA else f"{count / _MEGA:.4g} M"
