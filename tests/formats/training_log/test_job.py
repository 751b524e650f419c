"""The job that a log's arguments describe is that of the flags which it was started with."""

import pytest

from traincast import api
from traincast.dialects import draft_like
from traincast.dialects.flags import flag_table
from traincast.errors import CalibrationError, FormatError
from traincast.formats.training_log.job import draft_of_log
from traincast.formats.training_log.reader import parse, read_log
from traincast.report.json import result_from_json, to_json
from training_logs import (
    maxtext_line,
    maxtext_settings,
    megatron_line,
    megatron_settings,
    torchtitan_line,
    torchtitan_settings,
    torchtitan_start,
)

GIVEN = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 "
    "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 "
    "--global-batch-size 128 --bf16 --use-distributed-optimizer --overlap-grad-reduce --world-size 64"
)
FLAGS = GIVEN.split()
ARGUMENTS = {
    **{"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32, "kv_channels": 128},
    **{"group_query_attention": True, "num_query_groups": 8, "seq_length": 4096, "max_position_embeddings": 4096},
    **{"swiglu": True, "normalization": "RMSNorm", "position_embedding_type": "rope", "add_bias_linear": False},
    **{"untie_embeddings_and_output_weights": True, "vocab_size": None, "padded_vocab_size": 128256},
    **{"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2, "sequence_parallel": True},
    **{"micro_batch_size": 1, "global_batch_size": 128, "bf16": True, "use_distributed_optimizer": True},
    **{"overlap_grad_reduce": True, "overlap_param_gather": False, "world_size": 64, "fp16": False, "fp8": None},
    # What has a value whether it counts or not, and what nothing reads.
    **{
        "data_parallel_sharding_strategy": "optim_grads_params",
        "use_megatron_fsdp": False,
        "exp_avg_dtype": "torch.fp8",
    },
    **{"num_experts": None, "moe_router_topk": 2, "kv_lora_rank": 32, "multi_latent_attention": False, "lr": 0.0003},
    **{
        "context_parallel_size": 1,
        "add_position_embedding": True,
        "rotary_base": 500000,
        "rank": 0,
        "moe_layer_freq": 1,
    },
    **{"virtual_pipeline_model_parallel_size": None, "overlap_p2p_comm": True, "train_iters": 100, "save": "/ckpt"},
}


@pytest.fixture
def log(tmp_path):
    """Write the log of a run with other arguments, and return its path."""

    def write(step_s=1.0, **other):
        path = tmp_path / "run.log"
        lines = [megatron_line(step, 1e3 * step_s) for step in range(1, 31)]
        path.write_text("\n".join([megatron_settings(**{**ARGUMENTS, **other}), *lines]) + "\n")
        return path

    return write


def test_it_is_the_job_of_the_flags(log):
    mine, pasted = draft_of_log(read_log(log())), draft_like("megatron", FLAGS)
    assert mine.model == pasted.model
    assert dict(mine.fields) == dict(pasted.fields)
    assert mine.warnings == pasted.warnings == ()
    assert mine.notes[0].code == "job-from-log"


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ({"virtual_pipeline_model_parallel_size": 4}, ["--num-virtual-stages-per-pipeline-rank", "4"]),
        ({"fp8": "hybrid", "fp8_recipe": "blockwise"}, ["--fp8-format", "hybrid", "--fp8-recipe", "blockwise"]),
        (
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
            ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"],
        ),
        (
            {"recompute_granularity": "selective", "recompute_modules": "['core_attn', 'mlp']"},
            ["--recompute-granularity", "selective", "--recompute-modules", "core_attn", "mlp"],
        ),
        (
            {"num_experts": 8, "moe_router_topk": 2, "expert_model_parallel_size": 4, "moe_grouped_gemm": True},
            ["--num-experts", "8", "--moe-router-topk", "2", "--expert-model-parallel-size", "4", "--moe-grouped-gemm"],
        ),
    ],
)
def test_further_arguments_are_further_flags(log, arguments, flags):
    mine, pasted = draft_of_log(read_log(log(**arguments))), draft_like("megatron", [*FLAGS, *flags])
    assert mine.model == pasted.model
    assert dict(mine.fields) == dict(pasted.fields)


def test_a_log_is_forecast_validated_and_calibrated_without_a_job_file(log, capsys):
    from traincast.cli.main import main

    path = log()
    found = api.predict(path, "h100")
    assert found.iteration_time_s == api.predict(draft_like("megatron", FLAGS), "h100").iteration_time_s
    assert [(each.path, each.format) for each in found.inputs] == [(str(path), "training-log")]
    assert to_json(api.run_again(result_from_json(to_json(found), "r.json"))) == to_json(found)
    validation = api.validate(path, "h100")
    assert validation.total.bias == pytest.approx(found.iteration_time_s / 1.0 - 1)
    assert [note.code for note in validation.notes] == ["job-from-log", "warm-up"]
    assert api.calibrate_runs(path, "h100").runs[0].before_s == found.iteration_time_s
    for words in (("predict", path), ("validate", path), ("calibrate", path), ("compare", path)):
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words), "--cluster", "h100"])
        assert ended.value.code == 0, capsys.readouterr()


def test_a_log_without_arguments_says_no_job(tmp_path):
    bare = tmp_path / "bare.log"
    bare.write_text(megatron_line(1, 1000.0) + "\n")
    assert draft_of_log(read_log(bare)) is None
    with pytest.raises(CalibrationError, match="give the job that it is of"):
        api.calibrate_runs(bare, "h100")
    with pytest.raises(FormatError, match="give a job file"):
        api.predict(bare, "h100")


def test_maxtext_lists_its_settings_with_the_defaults():
    given = {"model_name": "llama3-8b", "per_device_batch_size": 2, "max_target_length": 8192, "remat_policy": "full"}
    given["ici_fsdp_parallelism"] = 8
    defaults = {
        **flag_table("maxtext").further["defaults"],
        "quantization": "",
        "steps": 100,
        "dcn_data_parallelism": 1,
    }
    defaults |= {"base_emb_dim": 4096, "logical_axis_rules": "[['activation_batch', ['data', 'fsdp']]]"}
    lines = [maxtext_settings(**(defaults | given)), *(maxtext_line(step, 5.0) for step in range(20))]
    mine = draft_of_log(parse("run.log", "\n".join(lines) + "\n"))
    pasted = draft_like("maxtext", [f"{name}={value}" for name, value in given.items()])
    assert mine.model == pasted.model == "llama3-8b"
    assert dict(mine.fields) == dict(pasted.fields)
    assert mine.warnings == ()


def test_torchtitan_prints_its_settings_on_request():
    sections = {
        "model": {"name": "llama3", "flavor": "8B"},
        "training": {"seq_len": 8192, "local_batch_size": 1, "global_batch_size": -1, "steps": 10},
        "parallelism": {"tensor_parallel_degree": 2, "data_parallel_shard_degree": -1, "pipeline_parallel_degree": 1},
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"},
        "compile": {"enable": True, "components": ["model", "loss"]},
    }
    lines = [torchtitan_settings(**sections), torchtitan_start(dp_shard=32, tp=2)]
    lines += [torchtitan_line(step, 7000) for step in range(1, 20)]
    mine = draft_of_log(parse("run.log", "\n".join(lines) + "\n"))
    assert mine.model == "llama3-8b"
    assert {"tp": 2, "gpus": 64, "seq_length": 8192, "recompute": "selective"}.items() <= dict(mine.fields).items()
    garbled = torchtitan_settings(**sections).replace("}}", "}<object at 0x7f>}")
    assert draft_of_log(parse("run.log", "\n".join([garbled, *lines[1:]]) + "\n")) is None
