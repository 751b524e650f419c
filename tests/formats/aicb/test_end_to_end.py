"""Every variant of the format simulates, nothing is zero in silence, and damage ends in a message."""

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aicb_runs import TRANSFORMER, check_sums, codes, run, write_text
from support import row
from traincast import api
from traincast.errors import FormatError, TraincastError
from traincast.workload.words import Group

EXAMPLES = Path(__file__).parents[3] / "examples"
MS = 1_000_000
A = 1 << 22

SAID = {
    "zero-size",
    "group-of-one",
    "pp-comm-unknown",
    "policy-ignores",
    "forward-only",
    "embedding-norm-repeated",
}
"""Codes that own up to a communication without a price."""

DENSE = [
    row("attention_column", (MS, "ALLGATHER", A), (MS, "REDUCESCATTER", 0), MS, 100),
    row("attention_row", (MS, "REDUCESCATTER", A), (MS, "ALLGATHER", A), MS, 100),
    row("mlp_column", (MS, "ALLGATHER", A), (MS, "REDUCESCATTER", 0), MS, 100),
    row("mlp_row", (MS, "REDUCESCATTER", A), (MS, "ALLGATHER", A), MS, 100),
]
OLD = [
    row("attention_column_layer", (MS, "ALLGATHER", A), (MS, "REDUCESCATTER", A), MS, 100),
    row("attention_row_layer", (MS, "REDUCESCATTER", A), (MS, "ALLGATHER", A), MS, 100),
    row("mlp_column_layer", (MS, "ALLGATHER", A), (MS, "REDUCESCATTER", A), MS, 100),
    row("mlp_row_layer", (MS, "REDUCESCATTER", A), (MS, "ALLGATHER", A), MS, 100),
]
LATENT = [
    row("attention_linear_q_lora", MS, MS, MS, 100),
    row("attention_q_column", (MS, "ALLGATHER", A), (MS, "REDUCESCATTER", 0), MS, 100),
    row("attention_linear_kv_lora", MS, MS, MS, 100),
    row("attention_kv_column", (MS, "ALLGATHER", A), (MS, "REDUCESCATTER", 0), MS, 100),
    row("attention_o_row", (MS, "REDUCESCATTER", A), (MS, "ALLGATHER", A), MS, 100),
]


def moe(*cells):
    return [row("mlp_moelayer", (1, *forward), (1, *backward), 1, 100) for forward, backward in cells]


NOTHING = ("NONE", 0)
EP, TP_IN, TP_OUT = ("ALLTOALL_EP", A // 2), ("ALLGATHER", 2 * A), ("REDUCESCATTER", 2 * A)
MOE_5 = moe((("ALLGATHER", 512), NOTHING), (EP, EP), (TP_IN, TP_OUT), (TP_OUT, TP_IN), (EP, EP))
SWAP = ("ALLTOALL", A // 4)
MOE_7 = moe(
    (("ALLGATHER", 512), ("ALLGATHER", 512)),
    (SWAP, SWAP),
    (EP, EP),
    (TP_IN, TP_OUT),
    (TP_OUT, TP_IN),
    (EP, EP),
    (SWAP, SWAP),
)
LEADING = [
    row("grad_gather", 1, 1, (1, "ALLGATHER", 8 * A), 100),
    row("grad_param_comm", 1, 1, (1, "REDUCESCATTER", 16 * A), 100),
    row("grad_param_compute", 1, MS, 1, 100),
    row("embedding_grads", 1, (1, "ALLREDUCE", A), 1, 100),
    row("moe_grad_norm1", 1, 1, (1, "ALLGATHER_DP_EP", 2 * A), 100),
    row("moe_grad_norm2", 1, 1, (1, "REDUCESCATTER_DP_EP", 4 * A), 100),
]
TRAILING = [
    *(row(f"cross_entropy{n}", (0, "ALLREDUCE", 16384), 0, 0, 100) for n in (1, 2, 3)),
    *(row(f"optimizer{n}", (0, "ALLREDUCE", 4), 0, 0, 100) for n in (1, 2, 3, 4)),
]
EMBEDDING = row("embedding_layer", (MS, "ALLREDUCE", A), 1, MS, 100)
FINAL = row("final_column", (MS, "ALLGATHER", A), (MS, "REDUCESCATTER", 0), MS, 100)


def training(layers, blocks=2):
    return [*LEADING, *[EMBEDDING, *layers, FINAL] * blocks, *TRAILING]


def inference(*names):
    sizes = {"moe_route": ("ALLTOALL_EP", A), "moe_expert": ("ALLTOALL_EP", A)}
    return [row(name, (MS, *sizes.get(name, ("ALLREDUCE", A))), process_ns=100) for name in names]


OLD_ROWS = [
    row("norm", (0, "BROADCAST", 65536), 2, 4, 100),
    row("grad_norm", (MS, "ALLGATHER", 8 * A), MS, (4, "REDUCESCATTER", 16 * A), 100),
    row("layernorm", 2, (2, "ALLREDUCE", 4 * A), 4, 100),
    row("embedding_layer", (2, "ALLREDUCE", A), (2, "ALLREDUCE", A), 4, 100),
    *OLD * 4,
    row("embedding_norm", (2, "ALLREDUCE", A), 2, 4, 100),
    *TRAILING,
]
ZERO3 = [
    row(f"Llama_layer{n}", (MS, "ALLGATHER", A), (MS, "ALLGATHER", A), (MS, "REDUCESCATTER", A), 100) for n in range(12)
]
MICRO = [row("micro_test", 1, 1, (1, "ALLREDUCE", 4096 << n), 1) for n in range(19)]

TP = "model_parallel_NPU_group: "
END = "checkpoints: 0 checkpoint_initiates: 0"
V1_0 = f"{TRANSFORMER}\t{TP}8 {END}"
V1_1 = f"{TRANSFORMER} {TP}4 ep: 1 pp: 2 ga: 2 all_gpus: 32 {END}"
VPP = f"{TRANSFORMER} {TP}4 ep: 2 pp: 2 vpp: 2 ga: 2 all_gpus: 32 {END}"
NEW = f"{VPP} pp_comm: {A // 4}"
MOE = f"{TRANSFORMER} {TP}4 ep: 4 pp: 2 vpp: 2 ga: 2 all_gpus: 64 {END} pp_comm: {A // 4}.0"
INFERENCE = f"{TRANSFORMER} {TP}4 ep: 8 pp: 1 all_gpus: 32 mode: 1 vpp: 1 ga: 1 {END} pp_comm: 0"

FILES = [
    pytest.param(V1_0, OLD_ROWS, id="v1.0"),
    pytest.param(V1_0, ZERO3, id="v1.0-zero3-free-names"),
    pytest.param(V1_0, MICRO, id="v1.0-micro-rows"),
    pytest.param(V1_1, training(DENSE * 2), id="v1.1"),
    pytest.param(V1_1, [row("attention_layer", (MS, "ALLREDUCE", A), MS, MS), *LEADING[:4]], id="v1.1-no-sp"),
    pytest.param(VPP, training(DENSE * 3), id="vpp"),
    pytest.param(NEW, training(DENSE * 2), id="pp_comm"),
    pytest.param(NEW.replace("pp_comm:", "pp_comm"), training(DENSE * 2), id="pp_comm-without-colon"),
    pytest.param(NEW + ".0", training(DENSE * 2), id="pp_comm-float"),
    pytest.param(NEW.replace("pp_comm:", "pp_comm :").replace("pp:", "pp"), training(DENSE * 2), id="loose-colons"),
    pytest.param(
        f"{TRANSFORMER} pp_comm: {A} all_gpus: 32 vpp: 2 checkpoint_initiates: 0 pp: 2 checkpoints: 0 ep: 1 {TP}4",
        training(DENSE * 2),
        id="unordered",
    ),
    pytest.param(
        f"{TRANSFORMER} {TP}8 ep: 1 pp: 2 vpp: 4 ga: 1 all_gpus: 64 pp_comm: {A} {END}",
        OLD_ROWS,
        id="old-rows-new-header",
    ),
    pytest.param(MOE, training([*DENSE[:2], *MOE_5] * 2), id="moe-5"),
    pytest.param(MOE, training([*DENSE[:2], *MOE_7] * 2), id="moe-7"),
    pytest.param(MOE, training([*DENSE, *[*DENSE[:2], *MOE_5] * 3]), id="moe-dense-first"),
    pytest.param(MOE, training([*LATENT, *DENSE[2:], *[*LATENT, *MOE_5, *DENSE[2:]] * 3]), id="deepseek"),
    pytest.param(
        INFERENCE, inference("attention_norm", "attention_layer", "moe_norm", "moe_route", "moe_expert"), id="inference"
    ),
    pytest.param(
        INFERENCE.replace(" pp: 1 all_gpus: 32", " pp: 2 all_gpus: 64"),
        inference("attention_layer", "dense_mlp") * 2,
        id="inference-pp",
    ),
    pytest.param("MICRO", MICRO, id="micro"),
    pytest.param(
        f"{TRANSFORMER} {TP}8 ep: 1 pp: 1 ga: 1 all_gpus: 8 {END}",
        ["embedding_layer     -1 556000  ALLREDUCE   536870912      1       NONE 0        1      NONE   0      1 "] * 2,
        id="simai-micro-of-bare-embeddings",
    ),
    pytest.param(f"{TRANSFORMER} {TP}2 expert_parallel_npu_group: 2 pp: 1 all_gpus: 8", MICRO, id="micro-ep-key"),
    pytest.param("DATA", ZERO3, id="policy-alone"),
    pytest.param(NEW.replace("pp: 2 vpp: 2", "pp: 1 vpp: 2"), training(DENSE * 2), id="pp-1-with-vpp"),
    pytest.param(f"{TRANSFORMER} {TP}1 ep: 1 pp: 1 ga: 2 all_gpus: 1", training(DENSE), id="one-gpu"),
]


def free(result):
    """Return the written communications that no price stands for."""
    return [each for each in result.collectives if each.time_s <= 0]


@pytest.mark.parametrize(("header", "rows"), FILES)
def test_every_variant_simulates_and_owns_up_to_what_costs_nothing(tmp_path, header, rows):
    result = run(write_text(tmp_path / "w.txt", header, rows), "h100")
    assert result.iteration_time_s > 0
    assert not free(result)
    priced = {each.group for each in result.collectives}
    groups = {Group(int(group)).name.lower() for group in result.program.ops.group_T if group != Group.NONE}
    assert groups <= priced or {"group-of-one", "pp-comm-unknown"} & codes(result)
    written = [word for line in rows for word in line.split() if word.startswith(("ALL", "REDUCE", "BROAD"))]
    if not result.collectives and written:
        assert codes(result) & SAID


TOKENS = [
    f"{operation}{suffix}"
    for operation in ("ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "BROADCAST", "REDUCE")
    for suffix in ("", "_EP", "_DP_EP", "_EDP", "_TP", "_DP", "_CP", "_ETP")
]


@pytest.mark.slow
@pytest.mark.parametrize("token", [*TOKENS, "allreduce", "AllToAll_ep"])
def test_every_token_has_a_price_in_every_column(tmp_path, token):
    silent = run(write_text(tmp_path / "n.txt", MOE, training([row("attention_layer", MS, MS, MS)] * 2)), "h100", cp=2)
    layer = row("attention_layer", (MS, token, A), (MS, token, A), (MS, token, A))
    result = run(write_text(tmp_path / "w.txt", MOE, training([layer] * 2)), "h100", cp=2)
    assert not free(result)
    assert "group-of-one" not in codes(result)
    assert sum(each.count for each in result.collectives) >= sum(each.count for each in silent.collectives) + 3
    assert result.iteration_time_s > silent.iteration_time_s


def test_a_pipeline_collective_costs_in_a_step_row_and_cannot_run_inside_a_forward(tmp_path):
    rows = [row("optimizer1", (0, "ALLREDUCE_PP", A)), *[row("attention_layer", MS, MS)] * 2]
    header = f"{TRANSFORMER} {TP}1 pp: 2 ga: 2 all_gpus: 2"
    result = run(write_text(tmp_path / "w.txt", header, [*rows[1:], rows[0]]), "h100")
    assert ("pp", "all_reduce") in {(each.group, each.op) for each in result.collectives}
    inside = [row("attention_layer", (MS, "ALLREDUCE_PP", A), MS)] * 2
    with pytest.raises(TraincastError, match="attention_layer"):
        run(write_text(tmp_path / "w.txt", header, inside), "h100")


@pytest.mark.parametrize("token", ["ALLREDUCEALLTOALL", "SEND", "ALLREDUCE_XP", "0"])
def test_an_unknown_token_is_an_error_with_token_file_and_line(tmp_path, token):
    path = write_text(tmp_path / "w.txt", NEW, [*DENSE, row("mlp_row", (MS, token, A), MS)])
    with pytest.raises(FormatError) as caught:
        api.simulate(path)
    assert str(caught.value).startswith(f"{path}:7: ")
    assert repr(token) in str(caught.value)
    assert caught.value.line == 7


def test_each_silent_zero_has_its_code(tmp_path):
    def said(header, *rows):
        return codes(run(write_text(tmp_path / "w.txt", header, list(rows)), "h100"))

    layer = row("attention_layer", (MS, "ALLREDUCE", A), MS, MS)
    one = f"{TRANSFORMER} {TP}1 ep: 1 pp: 1 ga: 1 all_gpus: 1"
    assert "group-of-one" in said(one, layer)
    assert "zero-size" in said(V1_1, row("attention_layer", (MS, "ALLREDUCE", 0), MS))
    assert "pp-comm-unknown" in said(V1_1, row("attention_layer", MS, MS))
    assert "policy-ignores" in said(f"DATA {TP}2 all_gpus: 8", layer)
    assert "forward-only" in said(INFERENCE, row("attention_layer", (MS, "ALLREDUCE", A), (MS, "ALLREDUCE", A)))
    assert not said(NEW, *training(DENSE[1:2] * 2)) & (SAID - {"zero-size"})


# --- damage


def shortened(name, blocks):
    """Return an example with fewer blocks (000) or layers (001), its row count right."""
    lines = (EXAMPLES / name).read_bytes().split(b"\n")
    lines = lines[:2] + lines[2:8] + lines[8 : 8 + 34 * blocks] + lines[-8:] if blocks else lines[:30] + lines[-9:]
    lines = [line for line in lines if line.strip()]
    lines[1] = str(len(lines) - 2).encode()
    return b"\n".join(lines) + b"\n"


def as_bytes(header, rows):
    return "\n".join([header, str(len(rows)), *rows, ""]).encode()


SHORT = [
    shortened("aicb_gpt_405b_1024gpu.txt", 2).replace(b"ga: 16", b"ga: 2"),
    shortened("aicb_scaled_512gpu.txt", 0).replace(b"vpp: 8", b"vpp: 2"),
    as_bytes(MOE, training([*DENSE[:2], *MOE_5] * 2)),
    as_bytes(INFERENCE, inference("attention_layer", "moe_route", "moe_expert")),
    as_bytes("MICRO", MICRO[:4]),
    as_bytes(
        NEW.replace("checkpoints: 0 checkpoint_initiates: 0", "checkpoints: 1 3 checkpoint_initiates: 1 6"),
        training(DENSE * 2),
    ),
]
PLACE = st.one_of(st.floats(0, 1), st.floats(0, 0.03))
EDIT = st.one_of(
    st.tuples(st.just("put"), PLACE, st.integers(0, 8), st.binary(max_size=8)),
    st.tuples(
        st.just("put"), PLACE, st.integers(0, 2), st.sampled_from([b"9", b"0", b"99", b"\t", b"_EP", b"e5", b"-", b"."])
    ),
    st.tuples(st.just("cut"), PLACE, st.just(0), st.just(b"")),
    st.tuples(st.just("drop"), PLACE, st.integers(1, 4), st.just(b"")),
    st.tuples(st.just("double"), PLACE, st.integers(1, 4), st.just(b"")),
)


def damaged(data, edits):
    for kind, where, count, text in edits:
        if kind in ("put", "cut"):
            at = int(where * len(data))
            data = data[:at] if kind == "cut" else data[:at] + text + data[at + count :]
            continue
        lines = data.split(b"\n")
        at = int(where * (len(lines) - 1))
        some = lines[at : at + count]
        lines[at : at + count] = [] if kind == "drop" else some + some
        data = b"\n".join(lines)
    return data


def survive(path, data):
    path.write_bytes(data)
    begin = time.process_time()
    try:
        check_sums(api.simulate(path, cluster="h100", engine="reference"))
    except FormatError as error:
        assert str(error).startswith(str(path))
        assert error.line is None or 1 <= error.line <= data.count(b"\n") + data.count(b"\r") + 1
        assert error.line is not None or not data.strip()
    except TraincastError as error:
        assert str(error)
    assert time.process_time() - begin < 10


def test_the_shortened_samples_run(tmp_path):
    for data in SHORT:
        (tmp_path / "w.txt").write_bytes(data)
        assert run(tmp_path / "w.txt", "h100").iteration_time_s > 0


@pytest.mark.slow
@settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.sampled_from(SHORT), edits=st.lists(EDIT, min_size=1, max_size=4))
def test_a_damaged_file_simulates_or_says_what_is_wrong(tmp_path, data, edits):
    survive(tmp_path / "w.txt", damaged(data, edits))


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", ["model_parallel_NPU_group", "ep", "pp", "vpp", "ga", "all_gpus", "pp_comm", "checkpoints"]
)
@pytest.mark.parametrize(
    "value", ["0", "3", "100", "999999", "1000000000", "2147483647", "1e9", "99999999999999999999"]
)
def test_any_number_in_the_header_ends_fast(tmp_path, key, value):
    header = f"{TRANSFORMER} {TP}4 ep: 2 pp: 2 vpp: 2 ga: 2 all_gpus: 32 checkpoints: 0 pp_comm: 5"
    words = header.split()
    words[words.index(f"{key}:") + 1] = value
    survive(tmp_path / "w.txt", as_bytes(" ".join(words), training(DENSE * 2)))
    words = [word for word in words if word != "32" and not word.startswith("all_gpus")]
    survive(tmp_path / "w.txt", as_bytes(" ".join(words), training(DENSE * 2)))


def test_the_largest_times_and_sizes_stay_finite(tmp_path):
    huge = row("attention_layer", (10**18 - 1, "ALLREDUCE", 2**53 - 1), (10**18 - 1, "ALLTOALL", 2**53 - 1), 10**18 - 1)
    result = run(write_text(tmp_path / "w.txt", NEW, [*LEADING, *[huge] * 4]), "h100")
    assert result.iteration_time_s > 1e9
