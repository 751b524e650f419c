"""What a stage needs beside one layer's tensors and state: microbatches in flight, what passes, head, frameworks.

Llama 3 70B in sequences of 8,192: a hidden state has 67,108,864 elements, logits 1,050,673,152 (padded as the
framework does). Sources are those of the product's memory page (docs/memory.md) and of each test.
"""

import pytest

from layer import product
from layer.cases import case_of

GIB = 2**30
HIDDEN = 8192 * 8192
LOGITS = 8192 * 128_256
TABLE = 128_256 * 8192

LLAMA = case_of("llama3-70b", "alone")
PIPELINE = {"gpus": 2, "pp": 2, "global_batch": 4}
"""Two stages, four microbatches."""


def of(case, layers=1, stage=0, **changes):
    return product.memory(case, layers, stage, **changes)[0]


def test_one_forward_one_backward_holds_what_is_left_of_the_pipeline():
    """Min(p, m) microbatches on the first stage (Korthikanti et al., arXiv 2205.05198, section 4.2.3)."""
    one, _ = product.memory(LLAMA, 4)
    for stage, flights in ((0, 2), (1, 1)):
        found, counted = product.memory(LLAMA, 4, stage, **PIPELINE)
        assert counted == flights
        assert found["MLP activations"] == flights * one["MLP activations"] / 2
        assert found["layernorm inputs"] == flights * one["layernorm inputs"] / 2


@pytest.mark.parametrize(
    ("case", "backward"),
    [
        # The hidden state's gradient, and the gradients of gate, up and their product.
        (LLAMA, 2 * HIDDEN + 2 * 3 * 8192 * 28672),
        # With sequence parallelism the gathered input, too; of the MLP an eighth.
        (case_of("llama3-70b", "tp 8"), 2 * HIDDEN + 2 * 3 * 8192 * 3584),
        (case_of("llama3-70b", "tp 8 sp"), 2 * 2 * HIDDEN + 2 * 3 * 8192 * 3584),
        # GELU: gradients of its input and output.
        (case_of("gpt3-175b", "alone"), 2 * 2048 * 12288 + 2 * 2 * 2048 * 49152),
        # Keys and values of three other ranks with their gradients are more than the MLP's.
        (case_of("gpt3-175b", "cp 4 all-gather"), 2 * 512 * 12288 + 2 * (3 * 2 * 2 * 512 * 12288)),
        # Of a ring two other ranks' are there at a time: as much as the MLP's, 100,663,296 bytes.
        (case_of("gpt3-175b", "cp 4 ring"), 2 * 512 * 12288 + 2 * (2 * 2 * 2 * 512 * 12288)),
        (case_of("gpt3-175b", "cp 4 Ulysses"), 2 * 512 * 12288 + 2 * 2 * 512 * 49152),
        # The rows of experts come in and go out, with gradients.
        (case_of("mixtral-8x7b", "ep 8"), 2 * 4096 * 4096 + 2 * 3 * 8192 * 14336 + 2 * 2 * 8192 * 4096),
        (
            case_of("mixtral-8x7b", "tp 2 sp, ep 2 etp 2"),
            2 * 2 * 4096 * 4096 + 2 * 3 * 8192 * 7168 + 2 * 2 * 8192 * 4096,
        ),
    ],
)
def test_what_passes_in_the_backward_pass(case, backward):
    """On a stage without head."""
    ranks = {"gpus": 2 * case.fields.get("gpus", 1), "pp": 2}
    assert of(case, 2, **ranks)["passing activations"] == backward


@pytest.mark.parametrize("layers", [1, 2])
def test_a_recomputed_layer_has_all_its_tensors_again(layers):
    """One layer at a time, or a group of two (``uniform``), from the input that was kept."""
    again = {"recompute": "full", "recompute_method": "uniform", "recompute_layers": layers}
    found = of(LLAMA, 4, gpus=2, pp=2, **again)
    assert found["layer inputs"] == 2 * HIDDEN * 2 / layers
    everything = layers * sum(product.saved(LLAMA).values())
    assert found["passing activations"] == 2 * HIDDEN + 2 * 3 * 8192 * 28672 + everything - 2 * HIDDEN


def test_what_a_module_recomputes_is_there_again_beside_its_gradients():
    plain = of(LLAMA, 2, gpus=2, pp=2)
    found = of(LLAMA, 2, gpus=2, pp=2, recompute="selective", recompute_modules=("mlp",))
    kept = [sum(size for name, size in each.items() if name in product.saved(LLAMA)) for each in (plain, found)]
    assert found["passing activations"] - plain["passing activations"] == kept[0] - kept[1] > 0


def test_of_layers_that_are_recomputed_whole_the_largest_passes():
    """A stage of a dense layer and one with experts, in DeepSeek-V3: that with experts has more to keep."""
    fields = {"gpus": 2, "pp": 2, "recompute": "full"}
    dense, experts = (of(case_of("deepseek-v3", name), 2, **fields) for name in ("dense alone", "alone"))
    both = of(case_of("deepseek-v3", "alone"), 3, mixed=True, **fields)
    assert both["layer inputs"] == 2 * experts["layer inputs"]
    assert both["passing activations"] == experts["passing activations"] > dense["passing activations"]


@pytest.mark.parametrize(
    ("case", "forward"),
    [
        (LLAMA, 2 * HIDDEN),
        (case_of("llama3-70b", "tp 8 sp"), 2 * 2 * HIDDEN),
        (case_of("gpt3-175b", "cp 4 Ulysses"), 2 * 512 * 12288),
        # Keys and values of three other ranks, or of two on a ring.
        (case_of("gpt3-175b", "cp 4 all-gather"), 2 * 512 * 12288 + 3 * 2 * 2 * 512 * 12288),
        (case_of("gpt3-175b", "cp 4 ring"), 2 * 512 * 12288 + 2 * 2 * 2 * 512 * 12288),
        (case_of("llama3-70b", "cp 4 ring"), 2 * 2048 * 8192 + 2 * 2 * 2 * 2048 * 8 * 128),
        (case_of("llama3-70b", "cp 4 all-gather"), 2 * 2048 * 8192 + 3 * 2 * 2 * 2048 * 8 * 128),
        # Of two ranks there is one other.
        (LLAMA._replace(fields={**LLAMA.fields, "gpus": 2, "cp": 2}), 2 * 4096 * 8192 + 2 * 2 * 4096 * 8 * 128),
    ],
)
def test_what_passes_in_the_forward_pass(case, forward):
    """Where a head's logits, which are gone before the layers' backward passes, are more than these need."""
    assert of(case, framework="megatron-core-2025")["passing activations"] == forward


@pytest.mark.parametrize(
    ("framework", "logit_bytes", "padded"),
    [
        # Logits and their gradient in 16 bits: Transformer Engine's fused cross-entropy.
        ("megatron-core-2025", 4, 128_256),
        # Logits in 16 bits, an fp32 copy that becomes the softmax: megatron/core/tensor_parallel/cross_entropy.py.
        ("megatron-core-2024", 6, 128_256),
        # nanotron: logits in 16 bits, in fp32, and a shifted fp32 copy.
        ("nanotron-2024", 10, 128_256),
        # torchtitan, train.py: in fp32 the log-softmax, its gradient and the logits' gradient; the 16-bit logits are
        # gone before the backward pass (del pred). Where they are not, PyTorch's cross-entropy takes 14.
        ("torchtitan-2025", 12, 128_256),
        ("transformers-2024", 12, 128_256),
    ],
)
def test_logits(framework, logit_bytes, padded):
    found = of(LLAMA, framework=framework)
    assert found["logits"] == 4 * 8192 * padded
    assert found["logits"] + found["passing activations"] == max(logit_bytes * 8192 * padded, 4 * LOGITS + 2 * HIDDEN)
    if framework == "megatron-core-2024":
        # In full precision the logits' gradient, made from the softmax that is kept, has 4 bytes.
        whole = of(LLAMA, framework=framework, precision="fp32")
        assert (whole["logits"], whole["passing activations"]) == (4 * LOGITS, 4 * LOGITS)


def test_a_fused_loss_has_freed_the_logits_when_the_layers_run_backward():
    """Of Mixtral's experts more passes than the logits took: rows of 8,192 copies in and out, and 32,000 entries."""
    case = case_of("mixtral-8x7b", "ep 8")
    layers = 2 * 4096 * 4096 + 2 * 3 * 8192 * 14336 + 2 * 2 * 8192 * 4096
    assert of(case)["passing activations"] == layers - 4 * 4096 * 32_000


def test_head_inputs_and_logits_are_divided():
    assert of(LLAMA)["LM head inputs"] == 2 * 2 * HIDDEN
    split = of(case_of("llama3-70b", "tp 8 sp"))
    assert split["LM head inputs"] == 2 * 2 * HIDDEN / 8
    assert split["logits"] == 4 * 8192 * 129_024 / 8
    whole = of(case_of("llama3-70b", "tp 8"))
    assert whole["LM head inputs"] == 2 * 2 * HIDDEN
    first, last = (of(LLAMA, 4, stage, **PIPELINE) for stage in (0, 1))
    assert (first["logits"], first["LM head inputs"]) == (0, 0)
    assert (last["logits"], last["LM head inputs"]) == (4 * LOGITS, 2 * 2 * HIDDEN)


def test_a_layer_that_predicts_a_further_token_keeps_a_layer_and_a_head():
    case = case_of("deepseek-v3", "ep 8")
    plain = of(case)
    found = of(case, further=1)
    assert found["logits"] == 2 * plain["logits"] == 2 * 4 * 4096 * 129_280
    assert found["LM head inputs"] == 2 * plain["LM head inputs"]
    assert found["MTP layers"] == sum(product.saved(case).values())
    # Of two norms and of the projection.
    assert found["MTP inputs"] == 2 * (2 + 2) * 4096 * 7168
    again = of(case, further=1, recompute="full")
    assert again["MTP layers"] == 2 * 4096 * 7168


def test_outside_the_allocator():
    """CUDA context, and a communicator for each kind of group; of two or more one of all ranks, one for the norm.

    Of 16 channels each receives in a ring and from two in a tree, with a buffer of each protocol (NCCL, device.h).
    """
    communicator = 16 * 3 * (4 * 2**20 + 120 * 640 * 8 * 8 + 0.5 * 2**20)
    assert of(LLAMA)["cuda context"] == 0.75 * GIB
    assert of(LLAMA)["nccl buffers"] == 0
    for fields, groups in (
        ({"gpus": 2}, 1),
        ({"gpus": 2, "tp": 2}, 1),
        ({"gpus": 4, "tp": 2}, 2 + 2),
        ({"gpus": 8, "tp": 2, "pp": 2}, 3 + 2),
        ({"gpus": 16, "tp": 2, "pp": 2, "cp": 2}, 4 + 2),
    ):
        found = of(LLAMA, 2, **fields)
        assert found["nccl buffers"] == pytest.approx(groups * communicator, rel=0.01)
    experts = of(case_of("mixtral-8x7b", "tp 2 sp, ep 4 etp 1"))
    assert experts["nccl buffers"] == pytest.approx((3 + 2) * communicator, rel=0.01)


def test_messages_between_stages():
    """Two each way: the one that is used and the one on its way."""
    assert of(LLAMA, 2)["pipeline messages"] == 0
    assert of(LLAMA, 2, **PIPELINE)["pipeline messages"] == 4 * 2 * HIDDEN
    for case, share in ((case_of("llama3-70b", "tp 8 sp"), 8), (case_of("llama3-70b", "tp 8"), 1)):
        assert of(case, 2, gpus=16, pp=2)["pipeline messages"] == 4 * 2 * HIDDEN / share
    assert of(case_of("llama3-70b", "cp 4 ring"), 2, gpus=8, pp=2)["pipeline messages"] == 4 * 2 * HIDDEN / 4


def test_buckets_and_waiting_outputs_of_deepspeed():
    """Two buckets of 5e8 elements; outputs wait in ``pipe_buffers`` (DeepSpeed, runtime/pipe/engine.py)."""
    found = of(LLAMA, 2, **PIPELINE, framework="megatron-deepspeed-2022")
    assert found["communication buckets"] == 2 * 5e8 * 2
    assert found["stage outputs"] == 2 * 2 * HIDDEN
    last = of(LLAMA, 2, 1, **PIPELINE, framework="megatron-deepspeed-2022")
    assert (last["stage outputs"], last["communication buckets"]) == (0, 2e9)
    plain = of(LLAMA, 2, **PIPELINE)
    assert (plain["communication buckets"], plain["stage outputs"]) == (0, 0)


def test_slack_is_a_share_of_the_activations():
    stage = product.peak(LLAMA, 2, **PIPELINE)
    found = of(LLAMA, 2, **PIPELINE)
    outside = found["cuda context"] + found["nccl buffers"]
    assert found["allocator slack"] == pytest.approx(0.13 * stage.activations)
    assert stage.peak == pytest.approx(sum(found.values()))
    assert stage.reserved == pytest.approx(stage.peak - outside)
    assert stage.allocated == pytest.approx(stage.reserved - found["allocator slack"])


def test_whole_layers_of_sharded_parameters():
    """Two layers, and embedding and head with the root (FSDP2); gradients of the larger of a layer and the root."""
    layer, ends = 855_654_400, 2 * TABLE + 8192
    for grad_bytes in (2, 4):
        found = of(LLAMA, 4, gpus=8, zero=3, grad_reduce_bytes=grad_bytes)
        assert found["gathered layers"] == 2 * (2 * layer + ends) + grad_bytes * max(layer, ends)
    for layers in (2, 3):
        kept = of(LLAMA, layers, gpus=8, zero=3, reshard_after_forward=False, grad_reduce_bytes=4)
        assert kept["gathered layers"] == 2 * (layers * layer + ends) + 4 * max(layer, ends)


def test_whole_stages_under_the_pipeline_schedules_of_pytorch():
    """Parameters and their gradients are whole from the first to the last pass (FSDPParam, PipelineStage)."""
    layer = 855_654_400
    fields = {"gpus": 8, "pp": 2, "global_batch": 16, "zero": 3, "framework": "torchtitan-2025", "grad_reduce_bytes": 4}
    found = of(LLAMA, 4, **fields)
    held = 2 * layer + TABLE
    assert found["gathered layers"] == 2 * held
    assert found["gradients"] == 4 * held
    assert found["parameters"] == 4 * held / 4
    assert found["optimizer"] == 8 * held / 4


@pytest.mark.parametrize(("precision", "copy"), [("fp8", 2), ("fp8_block", 2), ("mxfp8", 2), ("nvfp4", 1.125)])
def test_8_bit_copies_of_weights_outlive_a_microbatch_in_transformer_engine_alone(precision, copy):
    """One for each of the two GEMMs that read a weight, with scales; FSDP2 casts what it gathered and frees it."""
    cluster = {"precision": precision, "cluster": "b200", "gpus": 8}
    found = of(LLAMA, 3, zero=1, **cluster)
    assert found["8-bit copies of weights"] == copy * 3 * 855_654_400
    for zero, framework in ((3, "torchtitan-2025"), (1, "torchtitan-2025"), (0, "fms-fsdp-2024")):
        assert of(LLAMA, 3, zero=zero, framework=framework, **cluster)["8-bit copies of weights"] == 0
    assert of(LLAMA, 3, zero=1, gpus=8)["8-bit copies of weights"] == 0


@pytest.mark.parametrize("precision", ["fp8_block", "mxfp8", "nvfp4"])
def test_the_output_projection_reads_what_attention_keeps_but_for_delayed_scaling(precision):
    """Megatron-LM, megatron/core/transformer/attention.py: set_save_original_input where the recipe is not delayed."""
    found = product.saved(LLAMA, precision=precision, cluster="b200")
    delayed = product.saved(LLAMA, precision="fp8", cluster="b200")
    assert found["attention outputs"] == product.saved(LLAMA)["attention outputs"] == 2 * HIDDEN
    assert delayed["attention outputs"] == (2 + 1) * HIDDEN
    assert found["MLP inputs"] == found["attention inputs"] == HIDDEN


def test_gradients_are_copied_to_fp32_for_the_step():
    """The larger of the activations and the copy counts; sharded with the optimizer; not where it reads 16 bits."""
    short = {"seq_length": 64, "gpus": 8, "grad_reduce_bytes": 2}
    everything = 3 * 855_654_400 + 2 * TABLE + 8192
    for zero, ranks in ((0, 1), (1, 8)):
        found = of(LLAMA, 3, **short, zero=zero)
        names = ("logits", "LM head inputs", "passing activations", "stage outputs")
        activations = sum(found[name] for name in names) + sum(product.saved(LLAMA, **short).values()) * 3
        assert found["fp32 gradients of the step"] == pytest.approx(4 * everything / ranks - activations)
    assert of(LLAMA, 3, **short, zero=1, exp_avg_dtype="bf16")["fp32 gradients of the step"] == 0
    assert of(LLAMA, 3, **short | {"grad_reduce_bytes": 4}, zero=1)["fp32 gradients of the step"] == 0
    assert of(LLAMA, 3, **short, zero=3)["fp32 gradients of the step"] == 0
    # FSDP2 reduces into the gradients that its optimizer reads; nanotron has its fp32 accumulator.
    for framework in ("torchtitan-2025", "nanotron-2024"):
        assert of(LLAMA, 3, **short, zero=1, framework=framework)["fp32 gradients of the step"] == 0
    assert of(LLAMA, 3, gpus=8, zero=1, grad_reduce_bytes=2)["fp32 gradients of the step"] == 0


def test_gradients_of_nanotron_are_there_twice():
    """An fp32 accumulator beside the 16-bit buckets of DDP (optim/gradient_accumulator.py)."""
    found = of(LLAMA, 2, framework="nanotron-2024")
    assert found["gradients"] == (4 + 2) * (2 * 855_654_400 + 2 * TABLE + 8192)


def test_unused_weight_gradients_of_transformer_engine():
    """One 16-bit tensor of each shape of weight (get_dummy_wgrad, pytorch/module/base.py); embedding, router none."""
    assert of(LLAMA, 3)["unused weight gradients"] == 2 * (855_638_016 + TABLE)
    split = of(case_of("llama3-70b", "tp 8 sp"), 3)
    assert split["unused weight gradients"] == 2 * (855_638_016 + 129_024 * 8192) / 8
    experts = of(case_of("mixtral-8x7b", "tp 2 sp, ep 2 etp 2"), 3)
    # Attention and head over tp, one expert's two shapes over etp. Output and 16-bit LM head are no shape of others.
    attention, expert, head = 25_165_824 + 16_777_216, 3 * 4096 * 14336, 32_000 * 4096
    assert experts["unused weight gradients"] == 2 * (attention + expert + head) / 2
    for fields in ({"zero": 3, "gpus": 2}, {"framework": "megatron-core-2024"}, {"task": "lora"}):
        assert of(LLAMA, 3, **fields)["unused weight gradients"] == 0


def test_capacity_and_imbalance_of_experts():
    """Rows of the busiest expert rank: the mean times the imbalance, at most its capacity."""
    case = case_of("mixtral-8x7b", "ep 8")
    rows = 2 * 8192 * 14336
    for capacity, imbalance, factor in (
        (None, 1.0, 1.0),
        (None, 1.5, 1.5),
        (2.0, 1.0, 2.0),
        (0.5, 1.0, 0.5),
        (2.0, 1.5, 1.5),
        (1.25, 1.5, 1.25),
    ):
        found = product.saved(case, capacity=capacity, expert_imbalance=imbalance)
        assert found["expert activations"] == pytest.approx(factor * rows)
        assert found["routing"] == 2 * 4 * 4096 * 8


def test_layers_of_both_kinds():
    """The first three layers of DeepSeek-V3 are dense: a stage keeps each layer's own tensors."""
    dense, experts = (product.saved(case_of("deepseek-v3", name)) for name in ("dense alone", "alone"))
    found = of(case_of("deepseek-v3", "alone"), 4, mixed=True)
    for part in set(dense) | set(experts):
        assert found[part] == dense.get(part, 0) + 4 * experts.get(part, 0)


def parameters(case, layers=1, stage=0, **changes):
    """Return the elements that a rank of a stage keeps in 16 bits."""
    return of(case, layers, stage, zero=0, **changes)["parameters"] / 2


def beside(case, layers, stage=0, **changes):
    """Return those of them beside its layers."""
    stages = changes.get("pp", 1)
    return parameters(case, layers, stage, **changes) - layers // stages * product.held_in_memory(case)


def test_parameters_of_embedding_and_head():
    """Tables over tp; norms and positions on every rank; what is tied is a copy on another stage."""
    assert beside(LLAMA, 2) == 2 * TABLE + 8192
    assert [beside(LLAMA, 4, stage, **PIPELINE) for stage in (0, 1)] == [TABLE, TABLE + 8192]
    assert beside(case_of("llama3-70b", "tp 8"), 2) == 2 * 129_024 * 8192 / 8 + 8192
    gpt3 = case_of("gpt3-175b", "tp 8")
    # 50,257 tokens are padded to 51,200, a multiple of 128 x 8; a LayerNorm has weights and biases.
    table, positions, norm = 51_200 * 12_288 / 8, 2048 * 12_288, 2 * 12_288
    assert beside(gpt3, 2) == table + positions + norm
    stages = [beside(gpt3, 4, stage, gpus=16, pp=2) for stage in (0, 1)]
    assert stages == [table + positions, table + norm]


def test_parameters_of_a_layer_that_predicts_a_further_token():
    """One layer with experts, a projection of two hidden states, and three norms (arXiv 2412.19437, section 2.2)."""
    case = case_of("deepseek-v3", "ep 8")
    more = of(case, further=1, zero=0)["parameters"] / 2 - parameters(case)
    assert more == product.held_in_memory(case) + 2 * 7168**2 + 3 * 7168
    # On another stage than the embedding it has a copy of that (gpt_model.py, mtp_process).
    pipeline = {"gpus": 16, "pp": 2, "zero": 0}
    last = [of(case, 2, 1, further=each, **pipeline)["parameters"] / 2 for each in (1, 0)]
    assert last[0] - last[1] == more + 129_280 * 7168


def test_whole_layers_of_experts():
    """The largest layer counts: one with experts, where a model has dense ones, too."""
    moe, dense, ends = 11_507_286_016, 583_483_392, 2 * 129_280 * 7168 + 7168
    case = case_of("deepseek-v3", "alone")
    for fields in ({}, {"mixed": True}):
        found = of(case, 2, gpus=8, zero=3, grad_reduce_bytes=4, **fields)
        assert found["gathered layers"] == 2 * (2 * moe + ends) + 4 * moe
    assert of(case_of("deepseek-v3", "dense alone"), 2, gpus=8, zero=3, grad_reduce_bytes=4)["gathered layers"] == (
        2 * (2 * dense + ends) + 4 * ends
    )


def test_whole_parameters_of_8_bits():
    """FSDP2 gathers linear layers alone in 8 bits, and keeps them so between the passes."""
    fields = {"gpus": 8, "zero": 3, "precision": "fp8", "param_gather_bytes": 1, "reshard_after_forward": False}
    found = of(LLAMA, 3, **fields, framework="torchtitan-2025")
    assert found["gathered layers"] == 3 * 855_654_400 + 2 * (2 * TABLE + 8192) + 4 * (2 * TABLE + 8192)


def test_parameters_of_8_bits_are_one_of_the_two_copies():
    """Layers' weights are kept in 8 bits themselves, and cast for the other GEMM (Transformer Engine's primary FP8
    weights, Megatron-LM ``--fp8-param-gather``); embedding, head and final norm in 16."""
    found = of(LLAMA, 3, gpus=8, zero=1, precision="fp8", param_gather_bytes=1)
    assert found["parameters"] == 3 * 855_654_400 + 2 * (2 * TABLE + 8192)
    assert found["8-bit copies of weights"] == 3 * 855_654_400


def test_experts_of_hybrid_shards():
    """Two copies of the state on eight ranks: of an expert's two ranks each has a whole one."""
    case = case_of("mixtral-8x7b", "ep 4")
    dense, experts = 41_984_000, 1_409_286_144 / 4
    found = product.states(case, gpus=8, zero=1, shard=4, grad_reduce_bytes=4, global_batch=8)
    assert found["optimizer"] == 12 * (dense / 4 + experts)
    found = product.states(case, gpus=8, zero=1, shard=8, grad_reduce_bytes=4, global_batch=8)
    assert found["optimizer"] == 12 * (dense / 8 + experts / 2)
    # Context parallel ranks hold copies, too.
    found = product.states(case, gpus=8, cp=2, zero=1, shard=8, grad_reduce_bytes=4, global_batch=8)
    assert found["optimizer"] == 12 * (dense / 8 + experts / 2)
