"""Launch lines of every usual kind: the script, its flags, and how many ranks the launcher starts."""

import re
import shlex

import pytest

from traincast.dialects.launch import launch_fields, launch_notes, read_launch
from traincast.errors import ConfigError

FLAGS = ("--num-layers", "4", "--bf16")


def launch(line):
    return read_launch(shlex.split(line), "flags")


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("torchrun --nproc_per_node=8 --nnodes 64 pretrain_gpt.py", 512),
        ("torchrun --nproc-per-node 8 pretrain_gpt.py", 8),
        ("torchrun --nnodes=4:4 --nproc-per-node 8 pretrain_gpt.py", 32),
        ("/opt/bin/torchrun --standalone --nproc_per_node 2 -m torchtitan.train", 2),
        ("python -m torch.distributed.run --nproc_per_node 8 --nnodes 2 --rdzv_id 7 pretrain_gpt.py", 16),
        ("python3 -m torch.distributed.launch --nproc_per_node 8 --nnodes 2 pretrain_gpt.py", 16),
        ("python -m torchtitan.train", None),
        ("python3 -u pretrain_gpt.py", None),
        ("srun -N 4 --ntasks-per-node=8 --mpi=pmix -l python3 -u pretrain_gpt.py", 32),
        ("srun -N4 --ntasks-per-node 8 python pretrain_gpt.py", 32),
        ("srun -n 64 python pretrain_gpt.py", 64),
        ("srun --nodes 4 --gres=gpu:h100:8 python pretrain_gpt.py", 32),
        ("srun --nodes=16 torchrun --nproc_per_node 8 pretrain_gpt.py", 128),
        ("srun --nodes=16 torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py", 32),
        ("srun --ntasks 128 bash -c 'python pretrain_gpt.py {flags}'", 128),
        ("sbatch -N 2 --wrap='srun torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {flags}'", 16),
        ("mpirun -np 64 -H a:8,b:8 -x NCCL_DEBUG=INFO -x PATH --allow-run-as-root python pretrain_gpt.py", 64),
        ("mpiexec -n 16 --bind-to none python3 pretrain_gpt.py", 16),
        ("deepspeed --num_nodes 4 --num_gpus=8 pretrain_gpt.py", 32),
        ("deepspeed --num_gpus 8 pretrain_gpt.py", 8),
        ("accelerate launch --num_processes 16 --num_machines 2 pretrain_gpt.py", 16),
        ("bash pretrain.sh", None),
        ("CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_DEBUG=INFO torchrun --nproc_per_node 8 pretrain_gpt.py", 8),
        ("env CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node 8 pretrain_gpt.py", 8),
        ("numactl -m 0 nsys profile -o out.qdrep torchrun --nproc_per_node 8 /w/pretrain_gpt.py", 8),
        ("", None),
        ("torchrun --nproc_per_node 8", 8),
    ],
)
def test_the_launcher_is_passed_over_and_its_ranks_are_counted(line, gpus):
    line = line.format(flags=shlex.join(FLAGS)) if "{flags}" in line else f"{line} {shlex.join(FLAGS)}"
    found = launch(line)
    assert found.words[-3:] == FLAGS
    assert found.gpus == gpus
    if found.script is not None:
        assert found.words == FLAGS


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("torchrun --nproc_per_node gpu pretrain_gpt.py", "gpu stands for what a node has"),
        ("torchrun --nproc_per_node 8 --nnodes 1:4 pretrain_gpt.py", "1:4 is a range"),
        ("torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py", "\\$NNODES has no value here"),
        ("srun -N 2-4 --ntasks-per-node 8 python pretrain_gpt.py", "2-4 is a range"),
        ("srun -N 2 python pretrain_gpt.py", "-N 2, but not the number of ranks of a node"),
        ("srun --ntasks-per-node 8 python pretrain_gpt.py", "but not the number of nodes"),
    ],
)
def test_ranks_that_cannot_be_told_say_why(line, why):
    found = launch(line)
    assert found.gpus is None
    assert re.search(why, found.says)


SCRIPT = """#!/bin/bash
#SBATCH --nodes=16 --gpus-per-node=8
# Trains a model
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-4}
GPT_ARGS="
    --num-layers 4
    --hidden-size 8
"
MODEL_ARGS=(
    --seq-length ${SEQ:-4096}   # tokens
    --moe-layer-freq "([0]*3+[1]*1)"
)
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes "$NUM_NODES")

cd /workspace && torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    $GPT_ARGS \\
    ${MODEL_ARGS[@]} \\
    --bf16 "$@" 2>&1 | tee log.txt
"""


def test_a_pasted_script_is_read_with_its_variables_arrays_and_continued_lines():
    found = read_launch([SCRIPT], "flags")
    expected = "--num-layers 4 --hidden-size 8 --seq-length 4096 --moe-layer-freq ([0]*3+[1]*1) --bf16"
    assert found.words == tuple(expected.split())
    assert (found.gpus, found.script) == (32, "pretrain_gpt.py")
    assert launch_notes(found)[0].text.endswith(": CUDA_DEVICE_MAX_CONNECTIONS=1")


def test_a_batch_script_gives_the_nodes():
    text = "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun python pretrain_gpt.py --num-layers 4 --bf16\n"
    found = read_launch([text], "flags")
    assert (found.words, found.gpus) == (FLAGS, 32)


def test_what_slurm_sets_is_known_by_its_options():
    text = """#SBATCH --nodes=16
    NNODES=$SLURM_JOB_NUM_NODES
    GPUS=8
    WORLD=$(($GPUS*$NNODES))
    srun torchrun --nproc_per_node $GPUS --nnodes $NNODES pretrain_gpt.py --num-layers $((WORLD/32)) --bf16
    """
    found = read_launch([text], "flags")
    assert (found.gpus, found.words) == (128, FLAGS)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("$((8*16))", "128"),
        ("$(($GPUS*$NODES))", "32"),
        ('"$((GPUS * NODES / 2))"', "16"),
        ("$(($GPUS*$NONE))", "$((8*$NONE))"),
        ("$((8+1))", "$((8+1))"),
        ("$((8/0))", "$((8/0))"),
        ("$((9999999999999999*9999999999999999))", "$((9999999999999999*9999999999999999))"),
        ("${NONE:-5}", "5"),
        ("${NONE-$GPUS}", "8"),
        ("${GPUS}0", "80"),
    ],
)
def test_variables_and_products_of_them_have_values(written, value):
    found = read_launch([f"GPUS=8 NODES=4; torchrun pretrain_gpt.py --global-batch-size {written}"], "flags")
    assert found.words == ("--global-batch-size", value)


def test_flags_one_a_line_need_no_backslash():
    assert read_launch(["--num-layers 4\n  --bf16\n"], "flags").words == FLAGS
    assert (
        read_launch(["torchrun --nproc_per_node 2 \\\n pretrain_gpt.py \\\n --num-layers 4 \\\n --bf16 &> x"], "f").gpus
        == 2
    )


def test_a_quotation_that_does_not_end_is_said():
    with pytest.raises(ConfigError, match="a quotation is opened and not closed"):
        read_launch(["torchrun 'pretrain_gpt.py --bf16"], "flags")


@pytest.mark.parametrize("count", ["²", "9" * 5000, "-1", "0", "1e3", "x"])
def test_what_is_no_number_of_ranks_is_said_briefly(count):
    found = read_launch(["torchrun", "--nproc_per_node", count, "pretrain_gpt.py", *FLAGS], "flags")
    assert found.gpus is None
    assert found.words == FLAGS
    assert len(found.says or "") < 250


@pytest.mark.parametrize("value", ["$A x", " ".join(["$A"] * 50), "$B $B $B", "$((A*A))"])
def test_a_variable_that_names_itself_says_nothing_of_itself(value):
    found = read_launch([f'A="{value}"; B="$A $A $A"; torchrun pretrain_gpt.py --num-layers $A --bf16 $B'], "flags")
    assert found.words[0] == "--num-layers"
    assert set(found.words) <= {"--num-layers", "--bf16", "x", "$((A*A))"}


def test_variables_in_variables_have_an_end():
    script = "".join(f'{name}="{" ".join([f"${after}"] * 50)}"; ' for name, after in zip("ABCDE", "BCDEF", strict=True))
    with pytest.raises(ConfigError, match="more than 262144 characters"):
        read_launch([f"{script} F=x; torchrun pretrain_gpt.py $A"], "flags")


def test_conditions_of_a_script_are_passed_over_and_all_branches_read():
    text = """
    SCRIPT=pretrain_gpt.py
    CHECKPOINT=${1:-"checkpoints/x"}
    ARGS=()
    if [ ! -f "$SCRIPT" ]; then
        echo "Error: no $SCRIPT"; exit 1
    fi
    ARGS+=("--num-layers 4" --save $CHECKPOINT)
    if [[ "$DTYPE" == "bf16" ]]; then
        ARGS+=(
            "--bf16"
        )
    fi
    if [ -n "$X" ]; then ARGS+=("--lr 1e-4"); fi
    python tools/preprocess_data.py --input x
    torchrun --nproc_per_node 8 "$SCRIPT" ${ARGS[@]}
    """
    found = read_launch([text], "flags")
    assert found.words == ("--num-layers", "4", "--save", "checkpoints/x", "--bf16", "--lr", "1e-4")
    assert (found.script, found.gpus) == ("pretrain_gpt.py", 8)
    assert [note.code for note in launch_notes(found)] == ["script-conditions"]


def test_a_variable_that_makes_launches_block_is_a_field_of_the_job():
    blocking = launch("CUDA_LAUNCH_BLOCKING=1 NCCL_DEBUG=INFO torchrun --nproc_per_node 8 pretrain_gpt.py --bf16")
    assert launch_fields(blocking) == {"launch_blocking": True}
    (note,) = launch_notes(blocking)
    assert "NCCL_DEBUG" in note.text and "BLOCKING" not in note.text
    assert launch_fields(launch("CUDA_LAUNCH_BLOCKING=0 torchrun pretrain_gpt.py")) == {}
