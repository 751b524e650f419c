"""In which order a rank runs the parts of a step, and what it launches without waiting for it.

Sources: gradients are reduced while the backward pass of the last microbatch runs, all but those of the layer that is
computed last; updated parameters are gathered while the forward pass of the first microbatch runs, all but those of
its first layer, and of each following virtual stage while the one before it runs: Megatron-LM,
megatron/core/distributed (overlap_grad_reduce, overlap_param_gather) and pipeline_parallel/schedules.py
(``param_sync_func``). ZeRO 2 reduces after every microbatch: arXiv 1910.02054, section 7. FSDP gathers in each pass and
reduces after it (arXiv 2304.11277, section 3); under PyTorch's pipeline schedules it keeps parameters and gradients
whole and reduces after the last microbatch (torch/distributed/pipelining/stage.py). The shares that no framework hides
are those of its table (``unhidden_*``).
"""

import pytest

from layer import product
from layer.cases import case_of

LLAMA = case_of("llama3-70b", "alone")
SPLIT = case_of("llama3-70b", "tp 8 sp")
MOE = case_of("deepseek-v3", "tp 2 sp, ep 8 etp 1")

# Two layers of 19.5 launches, and of 29.5, of 40 us each.
FORWARD = ["embedding", "launch host 1560", "layers", "wait host", "head"]
BACKWARD = ["head", "launch host 2360", "layers", "weight gradients", "wait host", "embedding"]
# 10 ms on 256 GPUs: two of nine parts of it, and three.
START = ["host 2222"]
START_OF_FOUR = ["host 3333"]
# Three operations of 0.12 launches for each tensor, six of each layer, the table, the head and the last norm.
END = ["world all_reduce 1", "launch host 216", "optimizer", "wait host"]
FIRST_END, LAST_END = (["launch host 187.2", *END[2:]], ["launch host 201.6", *END[2:]])


def reduced(operation, often=0.5):
    """The backward pass that reduces half of the gradients of two layers beside it, and half after it."""
    exchange = f"launch dp {operation} {often:g}"
    return [BACKWARD[0], exchange, *BACKWARD[1:], exchange]


STEPS = {
    "nothing sharded, nothing overlapped": (
        {"zero": 0, "overlap_grad_reduce": False},
        {
            "start": [START],
            "forward": [[FORWARD] * 3],
            "backward": [[BACKWARD] * 3],
            "end": [["wait dp", "dp all_reduce 1", *END]],
        },
    ),
    "nothing sharded": (
        {"zero": 0},
        {
            "start": [START],
            "forward": [[FORWARD] * 3],
            "backward": [[BACKWARD, BACKWARD, reduced("all_reduce")]],
            "end": [["wait dp", *END]],
        },
    ),
    "the optimizer sharded": (
        {"zero": 1},
        {
            "start": [[*START, "dp all_gather 0.5", "launch dp all_gather 0.5"]],
            "forward": [[[*FORWARD[:-1], "wait dp", "head"], FORWARD, FORWARD]],
            "backward": [[BACKWARD, BACKWARD, reduced("reduce_scatter")]],
            "end": [["wait dp", *END]],
        },
    ),
    "the optimizer sharded, parameters gathered after the update": (
        {"zero": 1, "overlap_param_gather": False},
        {
            "start": [START],
            "forward": [[FORWARD] * 3],
            "backward": [[BACKWARD, BACKWARD, reduced("reduce_scatter")]],
            "end": [["wait dp", *END, "dp all_gather 1"]],
        },
    ),
    "the optimizer sharded, nothing overlapped": (
        {"zero": 1, "overlap_param_gather": False, "overlap_grad_reduce": False},
        {
            "start": [START],
            "forward": [[FORWARD] * 3],
            "backward": [[BACKWARD] * 3],
            "end": [["wait dp", "dp reduce_scatter 1", *END, "dp all_gather 1"]],
        },
    ),
    "gradients sharded": (
        {"zero": 2},
        {
            "start": [[*START, "dp all_gather 0.5", "launch dp all_gather 0.5"]],
            "forward": [[[*FORWARD[:-1], "wait dp", "head"], FORWARD, FORWARD]],
            "backward": [[reduced("reduce_scatter")] * 3],
            "end": [["wait dp", *END]],
        },
    ),
    "parameters sharded": (
        {"zero": 3},
        {
            "start": [START],
            "forward": [
                [
                    [
                        *("embedding", "launch host 1560", "launch dp all_gather 0.65", "layers", "wait dp"),
                        *("dp all_gather 0.35", "wait host", "head"),
                    ]
                ]
                * 3
            ],
            "backward": [
                [
                    [
                        *("head", "launch dp all_gather 0.65", "launch dp reduce_scatter 0.65", "launch host 2360"),
                        *("layers", "weight gradients", "wait host", "wait dp"),
                        *("dp all_gather 0.35", "dp reduce_scatter 0.35", "embedding"),
                    ]
                ]
                * 3
            ],
            "end": [["wait dp", *END]],
        },
    ),
}


@pytest.mark.parametrize("name", list(STEPS))
def test_steps_of_two_replicas(name):
    """Two layers on each of two ranks, and three microbatches."""
    fields, expected = STEPS[name]
    found = product.program(LLAMA, gpus=2, global_batch=6, **fields)
    assert {part: found[part] for part in expected} == expected
    assert found["before a message"] == ["host 20"]


def test_hybrid_shards_sum_over_their_copies_in_the_last_backward_pass():
    found = product.program(LLAMA, gpus=8, zero=3, shard=4, global_batch=16)
    usual, last = found["backward"][0]
    sums = "launch replica all_reduce 0.5"
    assert [word for word in usual if "replica" in word] == []
    assert [word for word in last if word != sums] == usual
    assert last.index(sums) < last.index("layers")
    assert last[-1] == sums
    assert found["end"] == [["wait shard", "wait replica", *END]]
    one = product.program(LLAMA, gpus=8, zero=1, shard=4, global_batch=8)["backward"][0][0]
    assert [word for word in one if "launch" in word and "host" not in word] == [
        "launch shard reduce_scatter 0.5",
        "launch replica all_reduce 0.5",
    ] * 2


def test_virtual_stages_gather_updated_parameters_one_ahead():
    found = product.program(LLAMA, 4, gpus=4, pp=2, vpp=2, zero=1, global_batch=8)
    # Ten launches of the messages, too.
    layers = ["launch host 1180", "layers", "wait host"]
    assert found["start"] == [[*START_OF_FOUR, "dp all_gather 1"]] * 2
    ahead, arrived = ["wait dp", "launch dp all_gather 1"], ["wait dp"]
    assert found["forward"] == [
        [["embedding", *layers, *ahead], *[["embedding", *layers]] * 3],
        [[*layers, *ahead], *[layers] * 3],
        [[*arrived, *layers], *[layers] * 3],
        [[*arrived, *layers, "head"], *[[*layers, "head"]] * 3],
    ]
    passed = ["launch host 1580", "layers", "weight gradients", "wait host"]
    reduced_last = "launch dp reduce_scatter 1"
    assert found["backward"] == [
        [*[[*passed, "embedding"]] * 3, [*passed, "embedding", reduced_last]],
        [*[passed] * 3, [*passed, reduced_last]],
        [*[passed] * 3, [*passed, reduced_last]],
        [*[["head", *passed]] * 3, ["head", *passed, reduced_last]],
    ]
    assert found["end"] == [["wait dp", END[0], *end] for end in (FIRST_END, LAST_END)]
    assert found["before a message"] == []


def test_pipelined_fsdp_gathers_first_and_reduces_last():
    fields = {"gpus": 4, "pp": 2, "vpp": 2, "zero": 3, "global_batch": 8, "framework": "torchtitan-2025"}
    found = product.program(LLAMA, 4, **fields)
    gathers = [[sum("all_gather" in word for word in words) for words in row] for row in found["forward"]]
    # A share is launched, the rest not hidden.
    assert gathers == [[2, 0, 0, 0]] * 4
    assert not [word for row in found["backward"] for words in row for word in words if "all_gather" in word]
    reduces = [[words.count("dp reduce_scatter 1") for words in row] for row in found["backward"]]
    # What a rank computes last is reduced when the step ends.
    assert reduces == [[0] * 4, [0] * 4, [0, 0, 0, 1], [0, 0, 0, 1]]
    ends = [[word for word in end if "launch host" not in word] for end in found["end"]]
    assert ends == [["wait dp", "dp reduce_scatter 1", END[0], *END[2:]]] * 2


def test_tensor_parallel_transfers_are_hidden_but_for_a_share():
    """0.34 of four exchanges of two layers, and of eight and four in the backward pass; the ends' are not hidden."""
    found = product.program(SPLIT, recompute="full")
    forward = [
        *("launch tp all_gather 2.64", "launch tp reduce_scatter 2.64", "layers", "wait tp"),
        *("tp all_gather 1.36", "tp reduce_scatter 1.36", "wait host"),
    ]
    again = ["launch host 1880", *forward[:2], "recompute", *forward[3:]]
    assert found["forward"][0][0] == [
        *("embedding", "tp reduce_scatter 1", "launch host 1880", *forward, "head"),
        *("tp all_gather 1", "tp all_reduce 3"),
    ]
    backward = found["backward"][0][0]
    head = [
        "launch tp all_gather 1",
        "head",
        "wait tp",
        "launch tp reduce_scatter 1",
        "LM head weight gradient",
        "wait tp",
    ]
    # Inputs of column-parallel layers are gathered alongside the gradients of their inputs, whose own exchange runs
    # alongside those of the weights; what row-parallel layers exchange is hidden but for its share.
    column = [
        "launch tp all_gather 2",
        "layers",
        "wait tp",
        "launch tp reduce_scatter 2",
        "weight gradients",
        "wait tp",
    ]
    row = ["launch tp all_gather 2.64", "layers", "weight gradients", "wait tp", "tp all_gather 1.36"]
    ends = ["wait host", "tp all_gather 1", "embedding"]
    assert backward == [*head, "head", *again, "launch host 2840", *column, *column, *row, *ends]
    plain = product.program(SPLIT, overlap_tp=False)["forward"][0][0]
    assert plain[2:6] == ["launch host 1880", "layers", "tp all_gather 4", "tp reduce_scatter 4"]


def test_experts_are_waited_for_and_the_host_waits_for_their_tokens():
    """Tokens go out and come back once in each of two layers, and nothing hides that."""
    (forward,) = product.program(MOE)["forward"][0]
    assert [word for word in forward if "ep " in word] == ["ep all_to_all 2", "ep all_to_all 2"]
    # Of a layer 100.2 launches (below) and 6 exchanges over tp; of these 10.4 of the dispatcher, 31.2 of the experts
    # and the sum behind them follow the wait.
    assert [word for word in forward if "host" in word] == [
        *("launch host 5088", "wait host", "launch host 3408", "idle host 160", "wait host"),
    ]
    assert forward.index("experts forward") > forward.index("launch host 3408") > forward.index("layers")
    (backward,) = product.program(MOE)["backward"][0]
    assert not [word for word in backward if "idle" in word]


def test_context_parallel_transfers_are_hidden_but_for_a_share():
    """0.28 x 2/4 of one exchange in each of two layers: a ring of four has one step of four in sight."""
    case = case_of("llama3-70b", "cp 4 ring")
    (forward,) = product.program(case)["forward"][0]
    assert [word for word in forward if "cp" in word] == ["launch cp all_gather 1.72", "wait cp", "cp all_gather 0.28"]


MOE_LAYER = 136 + 10 * 1.7 - (25 + 15 + 12) * 0.3 - 2 * 0.6 * 31


@pytest.mark.parametrize(
    ("fields", "host"),
    [
        # Of a layer: 11 launches of latent attention, 26 of the router, 15 to prepare, 2 exchanges, 12 to permute, two
        # GEMMs of 32 experts, activation, 3 of shared experts, norm and sum. Ten modules take 1.7 more, operations of
        # the router and the dispatcher 0.3 less, and of the 32 experts of a GEMM all but one 0.6 less.
        ({}, 2 * MOE_LAYER * 40.0),
        # One graph of a layer: a call as of a module, and a copy of what it reads.
        ({"cuda_graphs": True}, 2 * 3.7 * 40.0),
        # One layer of two is dense.
        ({"mixed": True, "layers": 1}, (MOE_LAYER + 16 + 8 * 1.7) * 40.0),
    ],
)
def test_time_of_the_host(fields, host):
    (forward,) = product.program(case_of("deepseek-v3", "ep 8"), **fields)["forward"][0]
    assert sum(float(word.split()[-1]) for word in forward if word.startswith("launch host")) == pytest.approx(host)


@pytest.mark.parametrize(
    ("modules", "again"),
    [
        # Launches of a layer that come again; all but attention and the block's norm and sum.
        (("core_attn",), 2.7),
        (("moe_act",), 1),
        (("mla_up_proj", "layernorm"), 7 + 2 * 1.7),
        (("moe",), MOE_LAYER - 11 - 6 * 1.7 - 2),
    ],
)
def test_time_of_the_host_for_modules_that_run_again(modules, again):
    case = case_of("deepseek-v3", "ep 8")
    (backward,) = product.program(case, recompute="selective", recompute_modules=modules)["backward"][0]
    before = backward[: backward.index("recompute")]
    found = [float(word.split()[-1]) for word in before if word.startswith("launch host")]
    assert found == pytest.approx([2 * 40.0 * again])


def test_stages_of_nanotron_hand_over():
    found = product.program(LLAMA, framework="nanotron-2024", gpus=2, pp=2, global_batch=2)
    assert found["before a message"] == ["host 300"]
    assert found["start"] == [["host 1.5e+04"]] * 2
    assert [[word for word in end if "launch host" not in word] for end in found["end"]] == [[END[0], *END[2:]]] * 2


def test_gradients_of_a_tied_table_are_summed_over_the_first_and_last_stage():
    gpt3 = case_of("gpt3-175b", "alone")
    found = product.program(gpt3, 6, gpus=3, pp=3, global_batch=3)["end"]
    assert [[word for word in stage if "emb" in word] for stage in found] == [
        ["emb all_reduce 1"],
        [],
        ["emb all_reduce 1"],
    ]
    # Further tokens are looked up in a copy on the last stage (finalize_model_grads.py).
    further = product.program(case_of("deepseek-v3", "alone"), further=1, gpus=2, pp=2, global_batch=2)["end"]
    assert [[word for word in stage if "emb" in word] for stage in further] == [["emb all_reduce 1"]] * 2
    whole = product.program(gpt3, 6)["end"] + product.program(LLAMA, 6, gpus=3, pp=3, global_batch=3)["end"]
    whole += product.program(gpt3, 6, gpus=3, pp=3, global_batch=3, task="lora")["end"]
    assert not [word for stage in whole for word in stage if "emb" in word]


def test_a_single_rank_has_no_norm_to_sum():
    assert product.program(LLAMA)["end"] == [END[1:]]
