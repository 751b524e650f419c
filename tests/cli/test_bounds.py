"""Commands that once printed inf, ran for minutes or ended in an internal error: each says what is wrong at once."""

import gzip
import json

import pytest

AICB = "examples/aicb_gpt_405b_1024gpu.txt"
MIXTRAL = (
    "predict --model mixtral-8x7b --gpus 16 --tp 2 --pp 2 --ep 4 --etp 1 --vpp 1 --global-batch 1048576 "
    "--seq-length 4096 --cluster h200 --allow-oom"
)
MOE = "simulate examples/megatron_moe_profile_rank7.txt --pp 4 --ep 4 --dp 4 --microbatches 16 --cluster h800"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("collective all_reduce --gpus 100000000", 3, "100,000,000 ranks are above the limit of 1,048,576"),
        (f"simulate {AICB} --overlap-slowdown 1e308", 2, "it must be a number from 0 to 1000"),
        (f"simulate {AICB} --pp-comm 1e308TiB", 2, "'1e308TiB' is out of range"),
        (f"simulate {AICB} --pp-comm 9223372036854775808", 2, "is out of range"),
        ("collective all_reduce --size 1e300TiB", 2, "'1e300TiB' is out of range"),
        (f"simulate {AICB} --slow 0=1e308", 2, "it must be a number from 1e-06 to 1,000,000"),
        (f"{MOE} --expert-imbalance 1e308", 2, "it must be a number from 1 to 1,000,000"),
        (f"simulate {AICB} --microbatches 20000", 3, "slots to schedule, above the limit of 262144"),
        (MIXTRAL, 3, "slots to schedule, above the limit of 262144"),
    ],
)
def test_options(call, words, code, said):
    found, out, err = call(*words.split())
    assert (found, out) == (code, "")
    assert said in " ".join(err.split())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "[inter]\nbandwidth_bytes_per_s = 1e-320",
            "inter.bandwidth_bytes_per_s: is 1e-320; it must be a number",
        ),
        ("[inter]\nhop_latency_s = 1e308", "inter.hop_latency_s: is 1e+308; it must be a number from 0 to 1000 s"),
        ("gpus_per_node = 9223372036854775808", "gpus_per_node: is 9223372036854775808; it must be a whole number"),
        ('gpus_per_node = 1000000000\n[fabric]\nkind = "rail-only"\nrails = 4', "whole number from 1 to 65,536 GPUs"),
        ('[fabric]\nkind = "rail-optimised"\nnodes_per_leaf = 2\nrouting = "ecmp"\nqueue_pairs = 1048576', "1 to 1024"),
        (".".join(["a"] * 20_000) + " = 1", "a dotted key has more than 32 parts"),
        ("gpus_per_node = " + "9" * 5000, "a number or date is out of range"),
    ],
)
def test_cluster_files(call, tmp_path, content, said):
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "h100"\n{content}\n')
    for words in (["simulate", AICB, "--cluster", path], ["collective", "all_to_all", "--gpus", 16, "--cluster", path]):
        code, out, err = call(*words)
        assert (code, out) == (1, "")
        assert said in err
        assert "internal" not in err


def test_an_exchange_on_a_large_torus(call, tmp_path):
    path = tmp_path / "torus.toml"
    path.write_text('base = "h100"\n[fabric]\nkind = "torus"\ndims = [64, 64]\n')
    code, out, err = call("collective", "all_to_all", "--gpus", 4096, "--nodes", 512, "--cluster", path)
    assert (code, out) == (3, "")
    assert "hops to solve, above the limit of 33,554,432" in err


def test_a_model_of_a_billion_layers(call, tmp_path):
    path = tmp_path / "config.json"
    config = {
        **{"model_type": "deepseek_v3", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8},
        **{"vocab_size": 1000, "intermediate_size": 1024, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "v_head_dim": 32},
        **{"qk_nope_head_dim": 32, "num_nextn_predict_layers": 1000000000},
        **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    }
    for change, said in (
        ({}, "num_nextn_predict_layers: is 1000000000"),
        ({"vocab_size": 1e308}, "vocab_size: is 1e+308"),
    ):
        path.write_text(json.dumps(config | change))
        code, out, err = call("models", path)
        assert (code, out) == (1, "")
        assert f"{said}; it must be a whole number from" in err


def test_pasted_flags(call):
    latent = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --multi-latent-attention --kv-lora-rank"
    code, out, err = call("predict", "--like", "megatron", "--", *latent.split(), 2**63 - 1)
    assert (code, out) == (1, "")
    assert "--kv-lora-rank: is 9223372036854775807; it must be a whole number from 1" in err
    words = "--model.name llama3 --model.flavor 8B --parallelism.tensor_parallel_degree 0 --nproc_per_node 8"
    code, out, err = call("predict", "--like", "torchtitan", "--", *words.split())
    assert (code, out) == (1, "")
    assert "parallelism.tensor_parallel_degree: is 0; it must be a whole number from 1" in err


def test_a_packed_file_that_expands_to_gigabytes(call, tmp_path):
    path = tmp_path / "bomb.csv"
    # Members of a gzip file follow each other: 16 MiB each, 640 MiB in all.
    path.write_bytes(gzip.compress(b"a" * 2**24) * 40)
    code, out, err = call("validate", path)
    assert (code, out) == (1, "")
    assert "expands to more than 100 times its size" in err


def test_a_large_file_in_one_microbatch(call, tmp_path):
    path = tmp_path / "w.txt"
    row = "mlp_row -1 5278888 REDUCESCATTER 134217728 5278888 ALLGATHER 134217728 5278888 NONE 0 100\n"
    rows = row * 140_000
    path.write_text(f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ga: 1 all_gpus: 8\n140000\n{rows}")
    code, out, err = call("simulate", path)
    assert (code, out) == (1, "")
    assert "has 140,002 lines, above the limit of 131,072" in err
