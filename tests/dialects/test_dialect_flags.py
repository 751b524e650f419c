"""The tables of flags: whole, without contradictions, and what is said of each kind of flag."""

import ast
import re
import shlex
from pathlib import Path

import pytest

import traincast.dialects
from traincast.dialects import LIKES, draft_like, launch, likely_framework, maxtext_settings
from traincast.dialects.flags import NOT_MODELLED, READ, REFUSED, flag_table
from traincast.dialects.judge import judge
from traincast.errors import ConfigError, UnknownNameError
from traincast.job.draft import Draft
from traincast.shipped import shipped_text

SOURCE = Path(traincast.dialects.__file__).parent
SMALL = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --world-size 8"
TITAN = "--model.name llama3 --model.flavor 8B --training.seq_len 8192"
TRAINER = "train.py --model_name_or_path llama3-8b --max_seq_length 4096 --per_device_train_batch_size 1"
MEGATRON = tuple(path.stem for path in SOURCE.glob("megatron_*.py"))
MAXTEXT = "model_name=llama3-8b per_device_batch_size=1"
OTHERS = {
    "deepspeed": ("settings",),
    "accelerate": ("settings", "deepspeed_settings"),
    "bridge": MEGATRON,
    "nemo": MEGATRON,
}
"""Modules that read a dialect beside those that are named after it."""


def modules(like):
    named = [
        *([] if OTHERS.get(like) is MEGATRON else SOURCE.glob(f"{like}_*.py")),
        *(SOURCE / f"{name}.py" for name in OTHERS.get(like, ())),
    ]
    assert named
    return named


def draft(flags, like="megatron", **more):
    text = {"megatron": SMALL, "torchtitan": TITAN, "deepspeed": TRAINER, "maxtext": MAXTEXT, "accelerate": TRAINER}[
        like
    ]
    return draft_like(like, shlex.split(f"{text} {flags}"), **more)


def texts(notes, code):
    return [note.text for note in notes if note.code == code]


@pytest.mark.parametrize("like", LIKES)
def test_a_table_is_whole(like):
    table = flag_table(like)
    for name, flag in table.flags.items():
        assert name == flag.name.replace("_", "-")
        assert bool(flag.text) == (flag.effect in (NOT_MODELLED, REFUSED)), name
        assert flag.when is None or re.compile(flag.when)
    for other, (to, *_) in table.spellings.items():
        assert other not in table.flags
        assert table.find(to) is not None, to


@pytest.mark.parametrize("like", LIKES)
def test_every_flag_that_is_said_to_be_read_is_read_by_the_code(like):
    code = "\n".join(path.read_text() for path in modules(like))
    code += " ".join([*flag_table(like).fields, *(name for each in launch._BY_NAME.values() for name in each.per_node)])
    code += " ".join(name for each in launch._BY_NAME.values() for name in each.nodes)
    code += " ".join(f"{where}_{axis}_parallelism" for where in ("ici", "dcn") for axis in maxtext_settings._AXES)
    code += " ".join(name for each in ("defaults", "saved") for name in flag_table(like).further.get(each, ()))
    read = [flag.name for flag in flag_table(like).flags.values() if flag.effect == READ]
    assert len(read) > 20
    unread = [name for name in read if name.rpartition(".")[2] not in code]
    # They say what is so anyway, or what another flag decides.
    assert set(unread) <= {
        "use-flash-attn",
        "fp4-recipe",
        "overlap-p2p-communication",
        "module",
        "override_model_config",
    }


@pytest.mark.parametrize("like", LIKES)
def test_what_the_code_reads_is_not_called_without_effect_or_not_modelled(like):
    trees = [ast.parse(path.read_text()) for path in modules(like)]
    docs = {ast.get_docstring(each, clean=False) for tree in trees for each in ast.walk(tree) if _has_docstring(each)}
    strings = [each.value for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Constant)]
    read = {word for text in strings if isinstance(text, str) and text not in docs for word in text.split()}
    # With the values of `when` a flag is not what is modelled; with others it is.
    others = [flag for flag in flag_table(like).flags.values() if flag.effect != READ and flag.when is None]
    assert len(others) > 40
    # Read only to refuse what the framework refuses; they move nothing. Or read for attention, and not modelled else.
    refusing = {"moe-grouped-gemm", "overlap-moe-expert-parallel-comm", "moe-shared-expert-overlap"}
    # It chooses the attention's kernel, and more that is not modelled.
    partly = {"deterministic-mode"}
    assert {flag.name for flag in others if flag.name in read} <= refusing | partly


def _has_docstring(node):
    return isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))


def test_no_flag_is_in_two_classes():
    for like in LIKES:
        also = flag_table(like).further.get("also", ())
        text = "".join(shipped_text(f"dialects/{name}.toml") for name in (like, *also))
        words = re.findall(r'(?:switches|one|many) = (?:"""([^"]*)"""|"([^"]*)")', text)
        names = [name for pair in words for name in " ".join(pair).split()]
        assert len(names) == len(set(names))
        assert len(names) > 100


def test_flags_of_users_are_known_with_their_values():
    found = draft(
        "--auto-detect-ckpt-format --legacy-tokenizer --deterministic-mode --pipeline-model-parallel-comm-backend ucc "
        "--moe-flex-dispatcher-backend hybridep --moe-token-dispatcher-type alltoall --tensor-model-parallel-size 2"
    )
    assert not texts(found.warnings, "flag-unknown")
    modelled_not = texts(found.warnings, "flag-not-modelled")
    assert [text.split()[0] for text in modelled_not] == [
        "--deterministic-mode",
        "--pipeline-model-parallel-comm-backend",
    ]
    assert found.fields["tp"] == 2
    assert not texts(draft("--moe-token-dispatcher-type allgather").warnings, "flag-not-modelled")


@pytest.mark.parametrize(
    ("like", "flag"),
    [
        ("megatron", "--use-nccl-ub"),
        ("megatron", "--use-tp-pp-dp-mapping"),
        ("megatron", "--defer-embedding-wgrad-compute"),
        ("megatron", "--ep-overlap-early-attn-memory-release"),
        ("megatron", "--optimizer lion"),
        ("torchtitan", "--activation_checkpoint.selective_ac_option 4"),
        ("torchtitan", "--debug.deterministic"),
        ("torchtitan", "--parallelism.pipeline_parallel_schedule_csv order.csv"),
        ("torchtitan", "--training.enable_loss_parallel=true"),
    ],
)
def test_a_flag_with_an_effect_is_warned_of_by_itself_and_not_called_harmless(like, flag):
    name = flag.lstrip("-").split("=")[0].split()[0]
    found = draft(flag, like)
    assert [name in text for text in texts(found.warnings, "flag-not-modelled")] == [True]
    assert not any(name in text for text in texts(found.notes, "flags-without-effect"))


def test_a_switch_that_is_off_is_not_warned_of():
    for flag in ("--training.enable_cpu_offload=false", "--training.no-enable_cpu_offload", "--optimizer.name=AdamW"):
        assert not draft(flag, "torchtitan").warnings


def test_what_the_host_keeps():
    offload = "--optimizer-cpu-offload --use-precision-aware-optimizer --use-distributed-optimizer"
    assert "offload_optimizer" not in draft("--optimizer-offload-fraction 0.5").fields
    found = draft(offload).fields
    assert (found["offload_optimizer"], found["overlap_offload"]) == (1, False)
    found = draft(f"{offload} --optimizer-offload-fraction 0.25 --overlap-cpu-optimizer-d2h-h2d").fields
    assert (found["offload_optimizer"], found["overlap_offload"]) == (0.25, True)
    assert draft("--cpu-offloading-num-layers 3").fields["offload_activations"] == 3
    fine = draft("--fine-grained-activation-offloading --offload-modules core_attn attn_proj")
    assert fine.fields["offload_modules"] == ("core_attn", "attn_proj")
    assert not fine.warnings
    off = draft("--cpu-offloading-num-layers 3 --no-cpu-offloading-activations --cpu-offloading-weights")
    assert "offload_activations" not in off.fields
    assert [text.split()[0] for text in texts(off.warnings, "flag-not-modelled")] == ["--cpu-offloading-weights"]
    given = Draft(fields={"gpus": 8, "seq_length": 128})
    found = draft("--training.enable_cpu_offload", "torchtitan").under(given).request()
    assert found.offload_parameters


@pytest.mark.parametrize(
    ("like", "flags", "near"),
    [
        ("megatron", "--frobnicate 3 x --bf16", ""),
        ("megatron", "--tensor-model-parralel-size 3 --bf16", "did you mean --tensor-model-parallel-size?"),
        ("torchtitan", "--parallelism.tensor_parallel_degre 3", "did you mean parallelism.tensor_parallel_degree?"),
    ],
)
def test_an_unknown_flag_is_a_warning_with_its_values_and_an_error_where_that_is_asked_for(like, flags, near):
    found = draft(flags, like)
    unknown = texts(found.warnings, "flag-unknown")
    assert len(unknown) == 1
    written = "parallelism.tensor_parallel_degre = '3'" if like == "torchtitan" else flags.removesuffix(" --bf16")
    assert unknown[0].startswith(f"{written} is not a known")
    assert unknown[0].endswith(near)
    with pytest.raises(ConfigError, match="is not a known"):
        draft(flags, like, strict=True)
    assert draft("--bf16" if like == "megatron" else "", like, strict=True)


def test_all_unknown_flags_are_named_where_they_are_refused():
    with pytest.raises(ConfigError) as caught:
        draft("--frobnicate 3 --bf16 --use-distributed-optimiser", strict=True)
    assert str(caught.value) == (
        "--frobnicate 3: is not a known flag of Megatron-LM; --use-distributed-optimiser is not a known flag of "
        "Megatron-LM; did you mean --use-distributed-optimizer?; leave them out, or leave out --strict"
    )


@pytest.mark.parametrize(
    ("line", "like"),
    [
        ("torchrun --nproc_per_node=8 --nnodes 2 -m torchtitan.train", "torchtitan"),
        ("--job.config_file=llama.toml --training.seq_len 8192", "torchtitan"),
        ("--training.batch_size 4", "torchtitan"),
        ("torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 4", "megatron"),
        ("python Megatron-LM/pretrain_gpt.py --data-path torchtitan.bin", "megatron"),
        ("torchrun --nproc_per_node=8 train.py", "megatron"),
    ],
)
def test_a_line_tells_its_framework(line, like):
    assert likely_framework(shlex.split(line)) == like


def test_a_value_is_neither_swallowed_nor_lost():
    assert draft("--unknown-thing --tensor-model-parallel-size 2").fields["tp"] == 2
    assert draft("--unknown-thing a b --tensor-model-parallel-size=2").fields["tp"] == 2
    assert draft("--adam-eps -1e-8 --tensor-model-parallel-size 2").fields["tp"] == 2
    for flags in ("--swiglu 3", "--tensor-model-parallel-size 2 4", "--use-distributed-optimizer stray"):
        with pytest.raises(ConfigError, match="belongs to no flag"):
            draft(flags)


@pytest.mark.parametrize(
    "line",
    [
        "pretrain_t5.py",
        "--spec megatron.core.models.T5.t5_spec encoder",
        "--experimental-attention-variant gdn2",
        "--heterogeneous-layers-config-path x.json",
        "--decoder-num-layers 3 --decoder-seq-length 128 --pipeline-model-parallel-size 2",
    ],
)
def test_a_model_that_cannot_be_described_is_refused_and_not_forecast_as_another(line):
    words = [*shlex.split(line), *shlex.split(SMALL)] if ".py" in line else shlex.split(f"{SMALL} {line}")
    with pytest.raises(ConfigError, match=r"not described"):
        draft_like("megatron", words)


def test_values_that_leave_the_model_as_it_is_are_not_refused():
    for flags in ("--hybrid-attention-ratio 0.0", "--spec local", "--experimental-attention-variant none"):
        assert not draft(flags).warnings


def test_older_spellings_mean_the_same():
    old = draft("--checkpoint-activations --activations-checkpoint-method block --activations-checkpoint-num-layers 2")
    new = draft("--recompute-granularity full --recompute-method block --recompute-num-layers 2")
    assert old.fields == new.fields
    old = draft("--training.tensor_parallel_degree 2 --experimental.enable_async_tensor_parallel", "torchtitan")
    new = draft("--parallelism.tensor_parallel_degree 2 --parallelism.enable_async_tensor_parallel", "torchtitan")
    assert old.fields == new.fields


def test_variables_without_a_value_are_one_message_unless_they_do_not_matter():
    with pytest.raises(ConfigError, match=r"no value here: \$ARGS, --tensor-model-parallel-size \$\{TP\}; write"):
        draft("$ARGS --tensor-model-parallel-size ${TP} --save $SAVE")
    assert draft("--save $SAVE --tensorboard-dir ${DIR}/x --tokenizer-model ${TOKENIZER}").fields["gpus"] == 8
    assert texts(draft("--unheard-of ${X}").warnings, "flag-unknown")[0].startswith("--unheard-of ${X} is not")
    words = shlex.split(f"TP=2 torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL}")
    assert draft_like("megatron", [*words, "--tensor-model-parallel-size", "${TP}"]).fields["tp"] == 2


def test_gpus_that_the_launcher_contradicts_are_warned_of():
    launched = draft_like("megatron", shlex.split(f"torchrun --nproc_per_node 8 --nnodes 2 x.py {SMALL[:-15]}"))
    assert launched.fields["gpus"] == 16
    assert not launched.under(Draft(fields={"gpus": 16})).warnings
    more = launched.under(Draft(fields={"gpus": 32}))
    assert more.fields["gpus"] == 32
    assert texts(more.warnings, "gpus-of-launcher") == [
        "--gpus 32 is taken, but the launcher starts 16 ranks (torchrun --nproc-per-node 8 x --nnodes 2)"
    ]


def test_the_script_of_torchtitan_gives_its_file_and_gpus(tmp_path):
    file = tmp_path / "llama.toml"
    file.write_text('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 4096\nbatch_size = 2\n')
    found = draft_like("torchtitan", ["NGPU=4", f"CONFIG_FILE={file}", "./run_train.sh", "--training.steps", "10"])
    assert (found.fields["gpus"], found.fields["seq_length"], found.fields["micro_batch"]) == (4, 4096, 2)
    with pytest.raises(ConfigError, match="LLAMA"):
        draft_like("torchtitan", [*shlex.split(TITAN), "--parallelism.tensor_parallel_degree", "$LLAMA"])


def test_a_sequence_length_may_be_written_with_a_letter():
    assert draft_like("megatron", shlex.split(SMALL.replace("128", "8k"))).fields["seq_length"] == 8192
    assert draft_like("torchtitan", shlex.split(TITAN.replace("8192", "1M"))).fields["seq_length"] == 2**20
    with pytest.raises(ConfigError, match="write it like 8192, 8k"):
        draft_like("megatron", shlex.split(SMALL.replace("128", "8kB")))


def test_an_unknown_framework_lists_the_near_ones():
    assert draft_like("Megatron", shlex.split(SMALL)).fields["gpus"] == 8
    with pytest.raises(UnknownNameError, match="megatron"):
        draft_like("megatrom", [])


def test_judging_nothing_says_nothing():
    judged = judge({}, flag_table("megatron"))
    assert (judged.notes, judged.warnings) == ((), ())


def test_a_value_that_says_what_is_forecast_anyway_is_said_nothing_of():
    found = draft("--moe-token-dispatcher-type alltoall --optimizer adam --transformer-impl transformer_engine")
    assert not found.warnings
    assert not texts(found.notes, "flags-without-effect")
