"""A step of a Llama-like model as MaxText writes it, compiled by JAX for chips that are not there.

Source: AI-Hypercomputer/maxtext at e591f30cbb: layers/decoders.py (scanned layers, named outputs, get_remat_policy),
max_utils.py (cross_entropy_with_logits), train.py (value_and_grad, clipping, Adam over donated state), and
configs/base.yml (axes: weights and batch over fsdp, heads and MLP over tensor; fp32 parameters, bf16 work). A stand-in
without scores has the shapes of a flash kernel.
"""

import sys
from collections.abc import Callable
from functools import partial
from json import loads
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WORK = jnp.bfloat16
POLICIES = {
    "full": (),
    "save_qkv_proj": ("query", "key", "value"),
    "minimal": ("query", "key", "value", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo"),
}
"""Outputs that are kept where a layer is recomputed."""


Layer: TypeAlias = Callable[[jax.Array, dict[str, jax.Array]], tuple[jax.Array, None]]
Loss: TypeAlias = Callable[[dict[str, jax.Array], jax.Array, jax.Array], jax.Array]


class Program:
    """The program of a row of ``xla_programs.csv``."""

    def __init__(self, row: dict[str, str]) -> None:
        self.row = {name: int(text) for name, text in row.items() if text.isdigit()}
        self.policy, self.scan = row["policy"], row["scan"] == "true"
        chips = np.array(topologies.get_topology_desc(platform="tpu", topology_name=row["topology"]).devices)
        self.mesh = Mesh(chips.reshape(-1, self.row["tp"]), ("fsdp", "tensor"))
        self.sequences = self.row["batch"] * chips.size

    def on(self, *axes: str | None) -> NamedSharding:
        """Return a sharding over axes of the mesh."""
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def held(self, value: jax.Array, *axes: str | None) -> jax.Array:
        """Return a value that lies over axes of the mesh."""
        return jax.lax.with_sharding_constraint(value, self.on(*axes))

    def weights(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the parameters: those of layers stacked."""
        row, of = self.row, self.row["layers"]
        hidden, inner, width = row["hidden"], row["ffn_hidden"], row["head_dim"]
        enter, leave = ("fsdp", "tensor"), ("tensor", "fsdp")
        shapes = {
            "query": (hidden, row["heads"] * width, enter),
            "key": (hidden, row["kv_heads"] * width, enter),
            "value": (hidden, row["kv_heads"] * width, enter),
            "out": (row["heads"] * width, hidden, leave),
            "wi_0": (hidden, inner, enter),
            "wi_1": (hidden, inner, enter),
            "wo": (inner, hidden, leave),
        }
        found = {
            name: jax.ShapeDtypeStruct((of, rows, columns), jnp.float32, sharding=self.on(None, *axes))
            for name, (rows, columns, axes) in shapes.items()
        }
        found |= {
            each: jax.ShapeDtypeStruct((of, hidden), jnp.float32, sharding=self.on()) for each in ("norm_1", "norm_2")
        }
        found["embedding"] = jax.ShapeDtypeStruct((row["vocab"], hidden), jnp.float32, sharding=self.on(*leave))
        found["head"] = jax.ShapeDtypeStruct((hidden, row["vocab"]), jnp.float32, sharding=self.on(*enter))
        found["norm"] = jax.ShapeDtypeStruct((hidden,), jnp.float32, sharding=self.on())
        return found

    def layer(self, x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        """Run one layer."""
        heads = self.row["heads"] // self.row["kv_heads"]
        x = checkpoint_name(self.held(x, "fsdp", None, "tensor"), "decoder_layer_input")
        y = _normed(x, w["norm_1"])
        query, key, value = (self._named(y, w[each], each) for each in ("query", "key", "value"))
        # As wide as attention's output, which is all that a flash kernel writes but for sums of its softmax.
        mixed = query * jnp.tile(key, heads) + jnp.tile(value, heads)
        x = x + self._named(checkpoint_name(mixed, "context"), w["out"], "out_proj")
        y = _normed(x, w["norm_2"])
        gate, up = self._named(y, w["wi_0"], "mlpwi_0"), self._named(y, w["wi_1"], "mlpwi_1")
        return self.held(x + self._named(jax.nn.silu(gate) * up, w["wo"], "mlpwo"), "fsdp", None, "tensor"), None

    def _named(self, x: jax.Array, weight: jax.Array, name: str) -> jax.Array:
        return checkpoint_name(self.held(x @ weight.astype(WORK), "fsdp", None, "tensor"), name)

    def recomputed(self) -> Layer:
        """Return a layer with what of it is recomputed."""
        policies = jax.checkpoint_policies
        if self.policy == "none":
            return self.layer
        if self.policy == "offload":
            policy = policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=["decoder_layer_input"],
                offload_src="device",
                offload_dst="pinned_host",
            )
        else:
            policy = policies.save_only_these_names(*POLICIES[self.policy])
        made: Layer = jax.checkpoint(self.layer, policy=policy, prevent_cse=not self.scan)
        return made

    def loss(self, w: dict[str, jax.Array], tokens: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the mean loss of a batch."""
        layers = {name: value for name, value in w.items() if name not in ("embedding", "head", "norm")}
        x = self.held(jnp.take(w["embedding"].astype(WORK), tokens, axis=0), "fsdp", None, "tensor")
        run = self.recomputed()
        if self.scan:
            x, _ = jax.lax.scan(run, x, layers)
        else:
            for place in range(self.row["layers"]):
                x, _ = run(x, {name: value[place] for name, value in layers.items()})
        x = _normed(x, w["norm"])

        def of_part(part: jax.Array, wanted: jax.Array) -> jax.Array:
            part = self.held(part, "fsdp", None, "tensor")
            logits = self.held(part @ w["head"].astype(WORK), "fsdp", None, "tensor").astype(jnp.float32)
            return jnp.sum(_cross_entropy(logits, jax.nn.one_hot(wanted, logits.shape[-1])))

        tiles, (count, length, hidden) = self.row["tiles"], x.shape
        if tiles == 1:
            return of_part(x, targets) / (count * length)
        parts = x.reshape(count, tiles, length // tiles, hidden).swapaxes(0, 1)
        wanted = targets.reshape(count, tiles, length // tiles).swapaxes(0, 1)
        again = jax.checkpoint(of_part)
        return jax.lax.scan(lambda total, of: (total + again(*of), None), jnp.float32(0), (parts, wanted))[0]

    def compile(self) -> None:
        """Compile the step."""
        weights = self.weights()
        state = {"parameters": weights, "first": dict(weights), "second": dict(weights)}
        shape = (self.sequences, self.row["seq_length"])
        tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self.on("fsdp", None))
        kept = jax.tree.map(lambda each: each.sharding, state)
        step = jax.jit(partial(_step, self.loss), donate_argnums=0, out_shardings=(kept, self.on()))
        with jax.set_mesh(self.mesh):
            step.lower(state, tokens, tokens).compile()


def _normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(WORK) * scale.astype(WORK)


def _of_targets(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return -jnp.sum(targets * (logits - jax.scipy.special.logsumexp(logits, -1, keepdims=True)), -1)


def _forward(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    shifted = logits - logits.max(-1, keepdims=True)
    powers = jnp.exp(shifted)
    total = powers.sum(-1, keepdims=True)
    return -jnp.sum(targets * (shifted - jnp.log(total)), -1), (logits, targets, powers, total)


def _backward(kept: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, None]:
    logits, targets, powers, total = kept
    return jnp.asarray(gradient[..., None] * (powers / total - targets), logits.dtype), None


_cross_entropy = jax.custom_vjp(_of_targets)
_cross_entropy.defvjp(_forward, _backward)


def _step(loss: Loss, state: dict[str, Any], tokens: jax.Array, targets: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """Return the state after a step of Adam with clipped gradients."""
    found, gradients = jax.value_and_grad(loss)(state["parameters"], tokens, targets)
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(each)) for each in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda each: each * jnp.minimum(1.0, 1.0 / norm), gradients)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * jnp.square(g), state["second"], gradients)
    update = jax.tree.map(
        lambda p, m, v: p - 1e-4 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), state["parameters"], first, second
    )
    return {"parameters": update, "first": first, "second": second}, found


if __name__ == "__main__":
    Program(loads(sys.argv[1])).compile()
