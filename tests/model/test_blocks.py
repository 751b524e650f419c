"""Blocks are the one description of a model: every count is a sum over them, of numbers as of arrays."""

import math
from collections import Counter

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

from job_parts import TINY_EXPERTS, job_of
from model_counts import layer_parameters
from traincast.estimate.memory.states import rank_parameters
from traincast.job.share import rank_share
from traincast.lowering.held import held_by_stages
from traincast.lowering.plans import plan_of_job
from traincast.lowering.stage import stages_of
from traincast.model.blocks.ends import Embedding
from traincast.model.blocks.experts import MoeMlp
from traincast.model.blocks.share import Adapters, Execution, Sequences, Share
from traincast.model.counts import parameters
from traincast.model.dispatch import Dispatch
from traincast.model.load import load_model, model_names
from traincast.model.numbers import Number
from traincast.model.structure import (
    FIRST_BLOCKS,
    RankParts,
    last_blocks,
    layer_blocks,
    layer_kinds,
    mtp_layer,
    parts_of,
)

KINDS = (
    "llama3-70b",
    "gpt3-175b",
    "mixtral-8x7b",
    "deepseek-v3",
    "gpt-oss-20b",
    "gemma2-9b",
    "qwen1.5-moe-a2.7b",
    "nemotron-3-super",
    "gemma4-26b",
    "gemma4-e4b",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "kimi-linear-48b-a3b",
    "lfm2-8b-a1b",
    "jamba-52b",
    "falcon-h1-34b",
    "minimax-m1",
)
"""Models that have every block and every part of it among them."""

EXECUTIONS = (
    Execution(),
    Execution(
        precision="fp8",
        cp_kind="all_gather",
        dispatch=Dispatch(dispatcher="deepep", dtype="fp8"),
        fused_expert_bias=True,
    ),
    Execution(
        precision="fp16",
        attention_kernel="unfused",
        cp_kind="all_to_all",
        dispatch=Dispatch(imbalance=1.37),
        fused_elementwise=False,
        recasts_norms=True,
        gradient_sum="autograd",
        dropout=True,
        activation_copy=True,
        core_output_copy=True,
        expert_output_copy=True,
    ),
    Execution(precision="fp32", adapters=Adapters(rank=16)),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", model_names())
def test_every_count_of_parameters_is_the_same(name):
    """What is printed of a model, what memory holds, and what is exchanged and updated: on one rank all is there."""
    model = load_model(name)
    job = job_of(model, framework="megatron-core-2025", seq_length=512)
    counted = parameters(model, job.kernels.padded_vocab)
    (stage,) = stages_of(job, 8)
    built = stage.weights()
    held = rank_parameters(job, held_by_stages(job, plan_of_job(job)), RankParts(rank_share(job))).total
    assert built.total == built.trained_dense + built.trained_experts == counted.trained
    assert held.total == held.trained == counted.trained
    experts = counted.layers.experts + counted.mtp.experts
    assert built.experts == held.experts == experts


def all_parts(share):
    """Return the parts of all blocks of a model, each kind of layer once."""
    model = share.model
    blocks = [*FIRST_BLOCKS, *last_blocks(model, with_embedding=False)]
    for kind in layer_kinds(model, range(model.layers)):
        blocks += kind
    blocks += mtp_layer(model) if model.mtp_layers else ()
    return parts_of(tuple(blocks), share)


def numbers_of(value, path=""):
    """Yield every number of a part, with where it is."""
    if isinstance(value, Struct):
        for name in value.__struct_fields__:
            yield from numbers_of(getattr(value, name), f"{path}.{name}")
        for name in ("elements", "flops"):
            if hasattr(value, name):
                yield f"{path}.{name}", getattr(value, name)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from numbers_of(each, f"{path}[{name}]")
    elif isinstance(value, tuple | list):
        for index, each in enumerate(value):
            # An exchange that does not take place is left out of numbers, and of no bytes in arrays.
            yield from numbers_of(each, f"{path}[{index}]")
    elif isinstance(value, int | float | bool | np.ndarray | np.generic):
        yield path, value


def exchanges_of(part):
    """Return the bytes of every exchange of both passes, by group and operation."""
    found = {}
    for way in ("forward", "backward"):
        for each in getattr(part, way):
            key = way, each.group, each.operation
            found[key] = found.get(key, 0) + each.size_bytes * each.count
    return found


def ran(part, index):
    """Return the kernels of a part that run: others are left out of numbers, and run 0 times in arrays."""
    return tuple(each for each in part.kernels if at(each.count, index))


def layouts(model, count, seed):
    """Return random layouts of a model: degrees that may not divide anything, too."""
    draw = np.random.default_rng(seed)
    experts = model.experts.experts if model.experts else 1
    return [
        {
            "seq_length": int(draw.choice([512, 1024, 4096, 5000])),
            "micro_batch": int(draw.choice([1, 2, 3])),
            "tp": int(draw.choice([1, 2, 4, 8, 16])),
            "cp": int(draw.choice([1, 2, 4])),
            "ep": int(draw.choice([each for each in (1, 2, 4, 8, 16) if experts % each == 0])),
            "etp": int(draw.choice([1, 2, 4])),
            "sequence_parallel": bool(draw.integers(2)),
        }
        for _ in range(count)
    ]


def share_of(model, execution, *, seq_length, micro_batch, **degrees):
    sequences = Sequences(length=seq_length, count=micro_batch)
    return Share(model=model, sequences=sequences, execution=execution, **degrees)


@pytest.mark.slow
@pytest.mark.parametrize("execution", EXECUTIONS, ids=lambda each: f"{each.precision} {each.cp_kind}")
@pytest.mark.parametrize("name", KINDS)
def test_arrays_of_layouts_give_what_each_layout_gives(name, execution):
    model = load_model(name)
    drawn = layouts(model, 24, KINDS.index(name))
    whole = share_of(model, execution, **{key: np.array([layout[key] for layout in drawn]) for key in drawn[0]})
    together = all_parts(whole)
    for index, layout in enumerate(drawn):
        alone = all_parts(share_of(model, execution, **layout))
        assert [part.name for part in together] == [part.name for part in alone]
        for many, one in zip(together, alone, strict=True):
            without = [replace(part, forward=(), backward=(), kernels=ran(part, index)) for part in (many, one)]
            found, expected = (dict(numbers_of(part)) for part in without)
            assert found.keys() == expected.keys()
            for path, value in expected.items():
                assert equal(at(found[path], index), value), (many.name, path, layout)
            exchanged, right = exchanges_of(many), exchanges_of(one)
            for key in exchanged | right:
                assert equal(at(exchanged.get(key, 0), index), right.get(key, 0)), (key, layout)


def equal(one: float, other: float) -> bool:
    """Return whether two numbers are the same but for rounding: what `pytest.approx` says of many takes longer."""
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12)


def at(value: Number, index: int) -> Number:
    """Return the element of an array, or the number that all layouts share."""
    return value[index] if isinstance(value, np.ndarray) and value.ndim else value


def test_arrays_broadcast():
    """A table of layouts against sequences: the shape of the result is that of both together."""
    share = Share(
        model=load_model("llama3-8b"),
        sequences=Sequences(length=np.array([2048, 4096, 8192])),
        tp=np.array([[1], [2], [4], [8]]),
    )
    flops = sum(part.flops for part in all_parts(share))
    assert flops.shape == (4, 3)
    assert np.all(np.diff(flops, axis=0) < 0)
    assert np.all(np.diff(flops, axis=1) > 0)


@pytest.mark.parametrize("name", KINDS)
def test_work_of_a_rank_is_a_share_of_the_model(name):
    """Splitting heads, widths and experts splits GEMMs evenly: what is on every rank is narrow."""
    model = load_model(name)
    whole = Share(model=model, sequences=Sequences(length=4096), vocab=2 * model.vocab)
    split = replace(whole, tp=2, sequence_parallel=True, etp=2)
    for one, part in zip(all_parts(whole), all_parts(split), strict=True):
        if ".indexer" in one.name:
            # Its GEMMs are the same on every rank, which all choose the same keys; keys of compressed tokens are split.
            assert one.flops / 2 < part.flops <= one.flops
            continue
        assert part.flops == pytest.approx(one.flops / 2, rel=1e-12), one.name
        assert one.elements / 2 <= part.elements <= one.elements, one.name


@pytest.mark.parametrize("name", KINDS)
def test_a_microbatch_of_three_sequences_has_three_times_the_flops(name):
    """Experts apart, whose copies are rounded; attention meets the keys of its own sequence only."""
    model = load_model(name)
    one, three = (all_parts(Share(model=model, sequences=Sequences(length=1000, count=count))) for count in (1, 3))
    for alone, together in zip(one, three, strict=True):
        assert together.flops == pytest.approx(3 * alone.flops, rel=1e-3), alone.name
        assert sum(kernel.flops for kernel in together.kernels) == 3 * sum(kernel.flops for kernel in alone.kernels)


@pytest.mark.parametrize(("capacity", "kept"), [(None, 1.0), (1.25, 1.0), (1.0, 1.0), (0.5, 0.5)])
def test_tokens_beyond_the_capacity_of_experts_are_dropped(capacity, kept):
    """Of 4,096 tokens a rank of two routes 2,048 to two experts each; below the mean, the rest of them is dropped.

    Source: Fedus et al. 2021, arXiv 2101.03961, section 2.2 (capacity = tokens per expert x capacity factor).
    """
    model = load_model("mixtral-8x7b")
    experts = replace(model.experts, capacity_factor=capacity)
    share = Share(model=replace(model, experts=experts), sequences=Sequences(length=4096), tp=2)
    assert MoeMlp(experts).copies(share) == 2048 * 2 * kept


def test_shared_experts_have_the_biases_of_the_model():
    """Qwen1.5-MoE's shared experts are 5,632 wide: biases of gate and up, of the output, and a gate's weights."""
    plain = load_model("qwen1.5-moe-a2.7b")
    biased = replace(plain, linear_bias=True)
    counted = [layer_parameters(model, 0).shared_experts for model in (plain, biased)]
    assert counted[0] == 3 * 5632 * 2048 + 2048
    assert counted[1] - counted[0] == 2 * 5632 + 2048


@pytest.mark.parametrize(
    ("dispatcher", "forward_bytes", "backward_bytes"), [("alltoall", 12, 16), ("hybridep", 28, 40)]
)
def test_biases_of_experts_are_added_by_operations_of_pytorch(dispatcher, forward_bytes, backward_bytes):
    """Counted for an element of what FC2 writes, in 16 bits or by fp32 weights of the router, expert by expert.

    Forward a product (written), a sum (2 or 3 tensors), a join (2) and a cast; backward two products (2 each) that sums
    read again, casts and a join.
    """
    model = load_model("gpt-oss-20b")
    share = Share(
        model=model, sequences=Sequences(length=4096), execution=Execution(dispatch=Dispatch(dispatcher=dispatcher))
    )
    (fc2,) = (part for part in MoeMlp(model.experts).parts(share) if part.name == "mlp.experts.linear_fc2")
    moved = Counter()
    for kernel in fc2.kernels:
        width = 4 if kernel.dtype == "fp32" else 2
        tensors = sum(float(dict(kernel.options)[name]) for name in ("inputs", "outputs"))
        each = math.prod(kernel.shape) * kernel.count * width * tensors
        moved.update({"forward": each * kernel.has_forward, "backward": each * kernel.has_backward})
    elements = 4096 * model.experts.topk * model.hidden
    assert (moved["forward"] / elements, moved["backward"] / elements) == (forward_bytes, backward_bytes)
    fused = replace(share, execution=replace(share.execution, fused_expert_bias=True))
    assert not any(part.kernels for part in MoeMlp(model.experts).parts(fused) if part.name == fc2.name)


@pytest.mark.parametrize(("name", "tensors"), [("qwen3-30b-a3b", 3), ("nemotron-3-super", 2)])
def test_gradients_of_the_routers_weights_read_what_the_activation_reads_backward(name, tensors):
    """Two inputs of a gate, or one, and the gradient of its output; none where what comes back is multiplied."""
    model = load_model(name)
    share = Share(model=model, sequences=Sequences(length=4096))
    weighted = replace(share, execution=Execution(dispatch=Dispatch(router_weights=True)))
    (alone,), (act, sums) = (
        part.kernels
        for each in (share, weighted)
        for part in MoeMlp(model.experts).parts(each)
        if part.name == "mlp.experts.activation_func"
    )
    assert alone == act
    assert (sums.shape, sums.has_forward, sums.has_backward) == (act.shape, False, True)
    assert {name: float(value) for name, value in sums.options[:2]} == {"inputs": tensors, "outputs": 0}
    frozen = replace(weighted, execution=replace(weighted.execution, adapters=Adapters(rank=8)))
    # The same kernel, which the autograd function runs whatever is trained.
    assert all(
        part.kernels == (act, sums)
        for part in MoeMlp(model.experts).parts(frozen)
        if part.name == "mlp.experts.activation_func"
    )


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3-30b-a3b", "gpt3-175b"])
def test_a_bias_is_added_apart_from_the_residual_sum_where_experts_have_biases(name, fused):
    """Of attention's output: a tensor read and one written, and its gradient read; experts add their own.

    Where nothing is fused, the sum has a kernel for it in any model.
    """
    model = load_model(name)
    share = Share(model=model, sequences=Sequences(length=4096), execution=Execution(fused_elementwise=fused))
    sums = {part.name: part.kernels for part in parts_of(layer_blocks(model, 0), share) if part.name.endswith("_bda")}
    assert len(sums["mlp_bda"]) == 1
    whole, *added = sums["self_attn_bda"]
    assert whole.count == (1 if fused else 2)
    moved = [(each.has_forward, each.has_backward, dict(each.options)) for each in added]
    expected = [
        (True, False, {"inputs": "1", "outputs": "1"}),
        (False, True, {"inputs": "1", "outputs": "0"}),
    ]
    assert moved == (expected if name == "gpt-oss-20b" and fused else [])


def test_a_token_is_sent_to_nodes_by_where_the_members_of_a_group_are():
    """To each of 8 expert ranks on one node; where replicas of two ranks are shared out, once to each of two nodes."""
    model = replace(TINY_EXPERTS, experts=replace(TINY_EXPERTS.experts, experts=8, topk=8))

    def sent(folded, cp=2, ep=8):
        execution = Execution(dispatch=Dispatch(dispatcher="deepep"), folded_experts=folded, ranks_per_node=8)
        share = Share(model=model, sequences=Sequences(length=4096), cp=cp, ep=ep, execution=execution)
        (dispatch,) = (part for part in MoeMlp(model.experts).parts(share) if part.name == "mlp.token_dispatcher")
        return sum(each.size_bytes for each in dispatch.forward if each.group == "ep")

    assert sent(folded=True) == pytest.approx(4 * sent(folded=False))
    both = np.array([2, 1])
    assert sent(folded=False, cp=both, ep=8 * both // both) == pytest.approx(
        [sent(folded=False), sent(folded=False, cp=1)]
    )


@pytest.mark.parametrize("tp", [1, 2])
def test_a_one_hot_embedding_is_a_gemm_with_its_table_and_one_of_its_gradient(tp):
    gathered, one_hot = (
        Embedding().parts(rank_share(job_of(gpus=tp, tp=tp, one_hot_embedding=on)))[0] for on in (False, True)
    )
    lookup, *sums = gathered.kernels
    tokens, hidden, _ = lookup.shape
    rows = one_hot.vectors // hidden
    assert (lookup.family, rows) == ("embedding", 32768 // tp)
    forward, backward, *same_sums = one_hot.kernels
    assert same_sums == sums
    assert (forward.family, forward.shape, forward.has_backward) == ("gemm", (tokens, hidden, rows), False)
    assert (backward.family, backward.shape, backward.has_forward) == ("gemm", (rows, hidden, tokens), False)
    assert one_hot.vectors == gathered.vectors


def test_a_frozen_one_hot_embedding_has_no_gradient():
    job = job_of(gpus=1, one_hot_embedding=True, task="lora", lora_rank=8)
    assert [each.has_forward for each in Embedding().parts(rank_share(job))[0].kernels] == [True]
