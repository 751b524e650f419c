"""torchtitan's settings, on the command line or in its file, become the job they describe."""

import pytest

from traincast.dialects import draft_like
from traincast.errors import ConfigError, FormatError, InfeasibleError
from traincast.job.draft import Draft
from traincast.job.resolve import resolve_job

FILE = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 4
seq_len = 8192
steps = 1000
[parallelism]
tensor_parallel_degree = 8
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""


def job(*words):
    return resolve_job(draft_like("torchtitan", list(words)).request())


def test_a_file_and_flags_over_it(tmp_path):
    file = tmp_path / "70b.toml"
    file.write_text(FILE)
    words = ["--job.config_file", str(file), "--nproc_per_node", "8", "--nnodes", "16"]
    found = job(*words)
    assert (found.parallel.tp, found.parallel.dp, found.batch.micro_batch, found.batch.global_batch) == (8, 16, 4, 64)
    assert (found.sharding.zero, found.sharing) == (3, 16)
    assert (found.recompute.granularity, found.precision.dtype) == ("full", "bf16")
    assert found.model.layers == 80
    assert found.communication.sequence_parallel
    changed = job(*words, "--training.local_batch_size", "2", "--model.converters=float8", "--compile.enable=false")
    assert (changed.batch.global_batch, changed.precision.dtype) == (32, "fp8")
    assert changed.framework.name == "torchtitan-eager-2024"


def test_a_hybrid_group_and_a_global_batch():
    base = ("--model.name=llama3", "--model.flavor=8B", "--training.seq_len=8192", "--training.local_batch_size=1")
    found = job(*base, "--parallelism.data_parallel_shard_degree=8", "--parallelism.data_parallel_replicate_degree=4",
                "--training.global_batch_size=128")  # fmt: skip
    assert (found.parallel.world_size, found.sharing, found.parallel.microbatches) == (32, 8, 4)
    open_shard = job(*base, "--parallelism.data_parallel_replicate_degree=4", "--nproc_per_node=8", "--nnodes=2")
    assert open_shard.sharing == 4
    with pytest.raises(InfeasibleError, match="replicate_degree 3 does not divide dp 16"):
        job(*base, "--parallelism.data_parallel_replicate_degree=3", "--nproc_per_node=8", "--nnodes=2")


BASE = ("--model.name=llama3", "--model.flavor=8B", "--training.seq_len=8192", "--training.local_batch_size=1")


@pytest.mark.parametrize(
    ("degrees", "product"),
    [
        (("data_parallel_shard_degree=8", "tensor_parallel_degree=2"), 16),
        (("data_parallel_shard_degree=8", "data_parallel_replicate_degree=2", "tensor_parallel_degree=2"), 32),
        (("data_parallel_shard_degree=16", "pipeline_parallel_degree=2", "context_parallel_degree=4"), 128),
    ],
)
def test_degrees_that_are_not_the_gpus_are_refused(degrees, product):
    words = [*BASE, *(f"--parallelism.{degree}" for degree in degrees)]
    with pytest.raises(InfeasibleError, match=rf"shard_degree \d+ x .* = {product}, but there are 64 GPUs"):
        draft_like("torchtitan", words).under(Draft(fields={"gpus": 64})).request()
    found = resolve_job(draft_like("torchtitan", words).under(Draft(fields={"gpus": product})).request())
    assert found.parallel.world_size == product


def test_a_degree_of_minus_one_is_what_is_left():
    for degree in ("0", "-2"):
        with pytest.raises(ConfigError, match=r"shard_degree: is .*; it must be a whole number from 1 to .*, or -1"):
            draft_like("torchtitan", [*BASE, f"--parallelism.data_parallel_shard_degree={degree}"])
    found = job(*BASE, "--parallelism.data_parallel_shard_degree=-1", "--parallelism.tensor_parallel_degree=2",
                "--nproc_per_node=8", "--nnodes=8")  # fmt: skip
    assert (found.parallel.dp, found.sharing) == (32, 32)


def test_context_parallel_ranks_shard_even_without_data_parallel_ones():
    found = job(*BASE, "--parallelism.data_parallel_shard_degree=1", "--parallelism.data_parallel_replicate_degree=4",
                "--parallelism.context_parallel_degree=2")  # fmt: skip
    assert (found.sharding.zero, found.sharing) == (3, 2)


def test_types_of_parameters_and_gradients():
    words = (*BASE, "--nproc_per_node=8")
    assert (job(*words).precision.dtype, job(*words).framework.grad_reduce_bytes) == ("bf16", 4)
    other = job(*words, "--training.mixed_precision_param=float32", "--training.mixed_precision_reduce=bfloat16")
    assert (other.precision.dtype, other.framework.grad_reduce_bytes) == ("fp32", 2)


@pytest.mark.parametrize(
    ("flags", "pp", "reshards"),
    [
        ((), 1, True),
        (("--parallelism.fsdp_reshard_after_forward=default",), 1, True),
        (("--parallelism.fsdp_reshard_after_forward=never",), 1, False),
        ((), 2, False),
        (("--parallelism.fsdp_reshard_after_forward", "always"), 2, True),
        (("--training.fsdp_reshard_after_forward=never",), 2, False),
    ],
)
def test_parameters_stay_whole_after_the_forward_pass_of_a_stage(flags, pp, reshards):
    """Source: torchtitan, distributed/fsdp.py: by default they are freed unless there is a pipeline."""
    found = job(*BASE, "--nproc_per_node=8", f"--parallelism.pipeline_parallel_degree={pp}", *flags)
    assert found.sharding.reshard_after_forward is reshards
    assert found.reduces_once is (pp > 1)


def test_an_eight_bit_gather_needs_the_converter():
    flag = "--float8.enable_fsdp_float8_all_gather"
    assert job(*BASE, "--nproc_per_node=8", "--model.converters=float8", flag).sharding.param_gather_bytes == 1
    assert job(*BASE, "--nproc_per_node=8", "--model.converters=float8").sharding.param_gather_bytes == 2
    draft = draft_like("torchtitan", [*BASE, "--nproc_per_node=8", flag])
    assert any("no effect without the converter float8" in note.text for note in draft.notes)
    assert not draft.warnings
    with pytest.raises(ConfigError, match="fsdp_reshard_after_forward: is 'sometimes'; known: default, always, never"):
        draft_like("torchtitan", [*BASE, "--parallelism.fsdp_reshard_after_forward=sometimes"])


def test_the_framework_is_listed_unless_it_is_given():
    for words, name in ((BASE, "torchtitan-eager-2024"), ((*BASE, "--compile.enable=true"), "torchtitan-2025")):
        draft = draft_like("torchtitan", list(words))
        assert [name in note.text for note in draft.notes if note.code == "assumed-framework"] == [True]
        assert not draft.under(Draft(fields={"framework": "torchtitan-2025"})).notes


def test_a_pipeline_cuts_the_local_batch_into_microbatches():
    found = job("--model.name=llama3", "--model.flavor=8B", "--training.seq_len=8192", "--training.local_batch_size=8",
                "--parallelism.pipeline_parallel_degree=4", "--nproc_per_node=8",
                "--parallelism.pipeline_parallel_schedule=Interleaved1F1B")  # fmt: skip
    assert (found.batch.micro_batch, found.parallel.microbatches) == (1, 8)
    assert (found.parallel.vpp, found.pipeline.schedule) == (2, "interleaved")


def test_a_pipeline_runs_empty_after_each_local_batch():
    words = (*BASE, "--training.local_batch_size=8", "--training.global_batch_size=64", "--nproc_per_node=8",
             "--parallelism.pipeline_parallel_degree=4")  # fmt: skip
    found = job(*words).parallel
    assert (found.microbatches, found.drained_after) == (32, 8)
    assert job(*words, "--training.global_batch_size=16").parallel.drained_after is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--parallelism.pipeline_parallel_schedule=ZeroBubble"],
            "is 'ZeroBubble'; schedules .* 1F1B, GPipe, LoopedBFS",
        ),
        (["--training.seq_len=long"], "training.seq_len: 'long' is not a number of tokens"),
        (["--parallelism.context_parallel_rotate_method=no"], "rotate_method: is 'no'; known: allgather, alltoall"),
        (["--training.mixed_precision_reduce=int8"], "mixed_precision_reduce: is 'int8'; known: float32"),
        (["--activation_checkpoint.mode=some"], "activation_checkpoint.mode: is 'some'"),
    ],
)
def test_a_wrong_setting_is_named(words, message):
    with pytest.raises(ConfigError, match=message):
        draft_like("torchtitan", words)


def test_a_model_that_is_not_known_may_be_given_otherwise():
    words = ["--model.name=llama3", "--model.flavor=9B", "--training.seq_len=64", "--nproc_per_node=8"]
    draft = draft_like("torchtitan", words)
    with pytest.raises(ConfigError, match=r"is missing \('llama3-9B' is not a known model; near it: llama3"):
        draft.request()
    assert draft.under(Draft(model="llama3-8b")).request().model.name == "llama3-8b"


@pytest.mark.parametrize(
    ("name", "flavor", "model"),
    [
        ("llama3", "405B", "llama3.1-405b"),
        ("llama3", "8B_flex", "llama3-8b"),
        ("deepseek_v3", "16B", "deepseek-v2-lite"),
        ("deepseek_v3", "671B", "deepseek-v3"),
        ("llama4", "17bx128e_irope", "llama4-maverick"),
        ("qwen3", "235B-A22B", "qwen3-235b-a22b"),
        ("gpt_oss", "20b", "gpt-oss-20b"),
    ],
)
def test_flavors_are_built_in_models(name, flavor, model):
    draft = draft_like("torchtitan", [f"--model.name={name}", f"--model.flavor={flavor}", "--training.seq_len=64"])
    assert draft.model == model


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        draft_like("torchtitan", ["--job.config_file", str(tmp_path / "absent.toml")])


def test_newer_versions_count_their_batches_in_tokens():
    new = ("--module", "llama3", "--config", "llama3_8b", "--training.max_context_length", "8192", "--nproc_per_node=8",
           "--training.num_tokens_per_microbatch_per_dp_rank", "16384")  # fmt: skip
    found = job(*new)
    assert (found.batch.micro_batch, found.batch.global_batch) == (2, 16)
    assert (found.batch.seq_length, found.model.layers) == (8192, 32)
    staged = job(*new, "--parallelism.pipeline_parallel_degree=4", "--parallelism.num_pp_microbatches=8")
    assert (staged.batch.micro_batch, staged.parallel.microbatches, staged.batch.global_batch) == (2, 8, 32)
    assert job(*new, "--training.num_tokens_per_train_step", str(64 * 8192)).batch.global_batch == 64
    with pytest.raises(ConfigError, match="must be a multiple of the 8192 tokens"):
        job(*new, "--training.num_tokens_per_train_step", "9000")
    warnings = draft_like("torchtitan", list(new)).warnings
    assert [note.text.startswith("config llama3_8b is a function") for note in warnings] == [True]


@pytest.mark.parametrize(
    ("ep", "said", "etp"), [("8", None, 1), ("8", "2", 2), ("8", "1", 1), ("1", "1", 2), ("1", None, 2)]
)
def test_tensor_parallelism_splits_experts_where_they_are_not_spread(ep, said, etp):
    """The degree of experts is 1 unless said, and counts only beside expert parallelism."""
    words = ["--model.name", "deepseek_v3", "--model.flavor", "16B", "--nproc_per_node", "8", "--nnodes", "4"]
    words += ["--parallelism.tensor_parallel_degree", "2", "--parallelism.expert_parallel_degree", ep]
    words += [] if said is None else ["--parallelism.expert_tensor_parallel_degree", said]
    assert job(*words, "--training.seq_len", "4096").parallel.expert_tp == etp


GROUPS = ("--fault_tolerance.enable", "--fault_tolerance.group_size=4", "--parallelism.data_parallel_shard_degree=8")


def test_replica_groups_that_exchange_every_few_steps_are_islands():
    said = ("--fault_tolerance.semi_sync_method=diloco", "--fault_tolerance.sync_steps=40")
    found = job(*BASE, *GROUPS, *said, "--training.global_batch_size=128")
    local = found.optimizer.local
    assert (local.steps, local.bits, local.fragments, local.overlap) == (40, 32, 1, False)
    # The batch is that of all groups, ranks are those of one.
    assert (found.batch.global_batch, found.parallel.world_size) == (32, 8)
    more = ("num_fragments=2", "fragment_sync_delay=5", "should_quantize")
    streamed = job(*BASE, *GROUPS, *said, *(f"--fault_tolerance.{each}" for each in more)).optimizer.local
    assert (streamed.bits, streamed.fragments, streamed.overlap) == (8, 2, True)
    usual = job(*BASE, *GROUPS, said[0])
    assert (usual.optimizer.local.steps, usual.batch.global_batch) == (5, 8)


def test_settings_of_groups_have_no_effect_where_these_do_not_exchange_so():
    draft = draft_like("torchtitan", [*BASE, *GROUPS, "--fault_tolerance.sync_steps=40"])
    assert "local_steps" not in draft.fields
    assert any("one replica group alone" in note.text for note in draft.warnings)
    off = draft_like("torchtitan", [*BASE, "--fault_tolerance.semi_sync_method=diloco"])
    assert "local_steps" not in off.fields
    with pytest.raises(ConfigError, match="group_size: is 4, which does not divide a global batch of 30 sequences"):
        job(*BASE, *GROUPS, "--fault_tolerance.semi_sync_method=diloco", "--training.global_batch_size=30")
