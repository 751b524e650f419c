"""SimAI-Analytical's own numbers come out to the microsecond, with a word wherever it has none.

Expected values are those that SimAI 1.6 itself printed for these files and machines.
"""

import re
from pathlib import Path

import pytest

from aicb_runs import header_of, write_text
from support import QUIET, row
from traincast.errors import ConfigError, InfeasibleError
from traincast.estimate.simai.machine import SimaiGroup, SimaiMachine, bus_bandwidth, efficiency, simai_machine, spread
from traincast.estimate.simai.total import simai_sum
from traincast.formats.aicb.grammar import load
from traincast.job.options import LayoutOptions, SimaiOverlap, parse_overlap
from traincast.workload.words import Operation

EXAMPLES = Path(__file__).parents[3] / "examples"
GPT_405B = EXAMPLES / "aicb_gpt_405b_1024gpu.txt"
SCALED = EXAMPLES / "aicb_scaled_512gpu.txt"
README_FLAGS = SimaiMachine(name="flags", nvlink_bytes_per_s=360e9, nic_bytes_per_s=48.5e9)
MIB = 1 << 20
A = 50331648


def us(time_s):
    return f"{time_s * 1e6:.0f}"


def add_up(path, machine="h100", overlap=None, **options):
    chosen = simai_machine(machine) if isinstance(machine, str) else machine
    return simai_sum(load(path), chosen, LayoutOptions(**options), overlap)


def summary(report):
    names = ("dp", "tp", "ep", "dp_ep", "pp", "bubble", "compute", "exposed", "total")
    return [int(us(getattr(report, f"{name}_s"))) for name in names]


def codes(report):
    return [note.code for note in report.warnings]


# --- runs of SimAI


@pytest.mark.parametrize(
    ("vpp", "bubble", "total"), [(None, 6938663, 14756159), (1, 6938663, 14756159), (8, 867333, 8684828)]
)
def test_405b(vpp, bubble, total):
    report = add_up(GPT_405B, vpp=vpp)
    assert summary(report) == [322654, 281609, 0, 0, 0, bubble, 7213232, 604263, total]
    # Without vpp SimAI's bubble and total are NaN.
    assert codes(report) == (["simai-vpp"] if vpp is None else [])


@pytest.mark.parametrize(
    ("machine", "overlap", "expected"),
    [
        ("h100", None, [109168, 120685, 0, 0, 0, 937758, 951592, 229853, 2119203]),
        ("a100", None, [225304, 186401, 0, 0, 0, 994996, 951592, 411705, 2358293]),
        ("h100", SimaiOverlap(dp=1, tp=1), [0, 0, 0, 0, 0, 937758, 951592, 0, 1889351]),
        ("h100", SimaiOverlap(pp=0.5), [109168, 120685, 0, 0, 312500, 937758, 951592, 229853, 2431703]),
    ],
)
def test_scaled(machine, overlap, expected):
    report = add_up(SCALED, machine, overlap)
    assert summary(report) == expected
    assert codes(report) == ["simai-no-communication"]
    assert report.warnings[0].place == f"{SCALED}:3"


def moe_rows():
    """Rows of SimAI's own example: 24 microbatches of 8 MoE layers."""
    attention = [
        row("attention_column", (1750840, "ALLGATHER", A), (875420, "REDUCESCATTER", 0), 875420),
        row("attention_row", (1750840, "REDUCESCATTER", A), (875420, "ALLGATHER", A), 875420),
    ]
    route = row("mlp_moelayer", (7956367, "ALLGATHER", 1572864), (7956367, "ALLGATHER", 1572864), 1)
    experts = [
        row("mlp_moelayer", (1, forward, size), (1, backward, size), 1)
        for forward, backward, size in (
            ("ALLTOALL", "ALLTOALL", A // 2),
            ("ALLTOALL_EP", "ALLTOALL_EP", 2 * A),
            ("ALLGATHER", "REDUCESCATTER", 4 * A),
            ("REDUCESCATTER", "ALLGATHER", 4 * A),
            ("ALLTOALL_EP", "ALLTOALL_EP", 2 * A),
            ("ALLTOALL", "ALLTOALL", A // 2),
        )
    ]
    leading = [
        row("grad_gather", 1, 1, (1, "ALLGATHER", 2807758848)),
        row("grad_param_comm", 1, 1, (1, "REDUCESCATTER", 5615517696)),
        row("grad_param_compute", 1, 29700224, 1),
        row("embedding_grads", 1, (1, "ALLREDUCE", A), 1),
        row("moe_grad_norm1", 1, 1, (1, "ALLGATHER_DP_EP", 19327352832)),
        row("moe_grad_norm2", 1, 1, (1, "REDUCESCATTER_DP_EP", 38654705664)),
    ]
    final = row("final_column", (875420, "ALLGATHER", A), (875420, "REDUCESCATTER", 0), 875420)
    layers = [*attention, route, *experts] * 8
    blocks = [
        [row("embedding_layer", (622731, "ALLREDUCE", A), 1, 875420 if block else 15091072), *layers, final]
        for block in range(24)
    ]
    trailing = [row(f"cross_entropy{index}", (0, "ALLREDUCE", 8192), 0, 0) for index in (1, 2, 3)]
    trailing += [row(f"optimizer{index}", (0, "ALLREDUCE", 4), 0, 0) for index in (1, 2, 3, 4)]
    return [*leading, *(line for block in blocks for line in block), *trailing]


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (README_FLAGS, [40332, 326686, 1222811, 1067010, 0, 345984, 4542795, 2656839, 7545619]),
        ("h100", [40332, 317173, 1222811, 1067010, 0, 345444, 4542795, 2647326, 7535566]),
    ],
)
def test_the_moe_example_of_simai_on_9216_gpus(tmp_path, machine, expected):
    header = header_of(tp=2, ep=16, pp=12, vpp=8, ga=24, all_gpus=9216, more="pp_comm 251658240")
    report = add_up(write_text(tmp_path / "moe.txt", header, moe_rows()), machine)
    assert len(report.rows) == 1789
    assert summary(report) == expected


def test_micro_all_reduce(tmp_path):
    # 16 and 64 MiB over 8 GPUs, and 1,112 us of compute.
    rows = [row("layer", (556000, "ALLREDUCE", size * MIB), 0, 0) for size in (16, 64)]
    path = write_text(tmp_path / "micro.txt", header_of(tp=8, ep=1, pp=1, vpp=1, ga=1, all_gpus=8), rows)
    assert summary(add_up(path)) == [0, 369, 0, 0, 0, 0, 1112, 369, 1481]


@pytest.mark.parametrize(("token", "expected"), [("ALLGATHER", 7672), ("ALLREDUCE", 12784), ("ALLTOALL", 43175)])
def test_nineteen_sizes_over_128_gpus(tmp_path, token, expected):
    rows = [row("micro", 0, 0, (0, token, 4096 << step)) for step in range(19)]
    report = add_up(write_text(tmp_path / "micro.txt", "MICRO", rows), gpus=128, tp=1, pp=1)
    assert summary(report) == [expected, 0, 0, 0, 0, 0, 0, expected, expected]


SEEDS_405B = {
    "grad_gather": (0, 0, 0, 0, 0, 107551),
    "grad_param_comm": (0, 0, 0, 0, 0, 215103),
    "grad_param_compute": (0, 3755, 0, 0, 0, 0),
    "embedding_grads": (0, 0, 0, 0, 590, 0),
    "embedding_layer": (2457, 0, (1879, 2865), 590, 0, 0),
    "attention_column": (5730, 2865, 2865, 346, 0, 0),
    "attention_row": (5730, 2865, 2865, 346, 346, 0),
    "mlp_column": (5279, 5279, 5279, 346, 0, 0),
    "mlp_row": (5279, 5279, 5279, 346, 346, 0),
    "final_column": (2865, 2865, 2865, 346, 0, 0),
    "cross_entropy1": (0, 0, 0, 15, 0, 0),
    "optimizer4": (0, 0, 0, 15, 0, 0),
}
SEEDS_SCALED = {
    "norm": (0, 0, 0, 0, 0, 0),
    "grad_norm": (29130, 26782, 0, 28731, 0, 109168),
    "layernorm": (0, 0, 0, 0, 28558, 0),
    "embedding_layer": (0, 0, 0, 369, 184, 0),
    "attention_column_layer": (750, 750, 1500, 226, 130, 0),
    "attention_row_layer": (752, 752, 1504, 226, 130, 0),
    "mlp_column_layer": (1846, 1846, 3692, 226, 130, 0),
    "mlp_row_layer": (2250, 2250, 4500, 226, 130, 0),
    "embedding_norm": (0, 0, 0, 5761, 0, 0),
    "cross_entropy3": (0, 0, 0, 15, 0, 0),
    "optimizer1": (0, 0, 0, 15, 0, 0),
}


@pytest.mark.parametrize(("path", "seeds"), [(GPT_405B, SEEDS_405B), (SCALED, SEEDS_SCALED)])
def test_single_rows(path, seeds):
    parts = [
        f"{column}_{what}_s" for what in ("compute", "comm") for column in ("forward", "input_grad", "weight_grad")
    ]
    met = set()
    for each in add_up(path).rows:
        for part, expected in zip(parts, seeds.get(each.name, ()), strict=False):
            allowed = expected if isinstance(expected, tuple) else (expected,)
            assert int(us(getattr(each, part))) in allowed, (each.line, part)
            met.add(each.name)
    assert met == set(seeds)


# --- prices


def forward(tmp_path, token, size, tp=8, machine="h100", **keys):
    """Return the report of a file with one communication in its forward column."""
    degrees = {"tp": tp, "ep": 1, "pp": 1, "vpp": 1, "ga": 1, "all_gpus": 128, **keys}
    return add_up(write_text(tmp_path / "one.txt", header_of(**degrees), [row("x", (0, token, size), 0, 0)]), machine)


@pytest.mark.parametrize(("tp", "time_us"), [(1, 0), (2, 10), (4, 12), (8, 15), (16, 66), (32, 135), (64, 200)])
def test_below_one_mib_the_size_of_the_group_decides(tmp_path, tp, time_us):
    for token, size in (("ALLREDUCE", 4), ("ALLGATHER", MIB - 1)):
        assert us(forward(tmp_path, token, size, tp).tp_s) == str(time_us)
    assert us(forward(tmp_path, "ALLREDUCE", 1, tp).tp_s) == str(time_us)  # raised to 4096 bytes
    plain = forward(tmp_path, "ALLREDUCE", 1, tp, policy="HYBRID_TRANSFORMER")
    assert us(plain.tp_s) == "0"


def test_a_cliff_at_one_mib(tmp_path):
    rows = [row("x", 0, 0, (0, "ALLREDUCE", size)) for size in (MIB // 2, MIB)]
    path = write_text(tmp_path / "x.txt", header_of(tp=1, pp=1, vpp=1, ga=1, all_gpus=128), rows)
    assert [us(each.weight_grad_comm_s) for each in add_up(path).rows] == ["320", "5"]


@pytest.mark.parametrize(
    ("token", "size", "keys", "code"),
    [
        ("ALLREDUCE", MIB // 2, {"tp": 6}, "simai-small-group"),
        ("BROADCAST", 8 * MIB, {}, "simai-no-communication"),
        ("allreduce", 8 * MIB, {}, "simai-no-communication"),
        ("ALLREDUCE_CP", 8 * MIB, {}, "simai-no-group"),
        ("ALLTOALL_EP", 8 * MIB, {"ep": 16, "machine": "few"}, "simai-no-bandwidth"),
    ],
)
def test_no_time_is_never_silent(tmp_path, token, size, keys, code):
    few = SimaiMachine(name="few", nvlink_bytes_per_s=1e11, nic_bytes_per_s=1e10, nics_per_server=4)
    if "machine" in keys:
        keys = {**keys, "machine": few}
    report = forward(tmp_path, token, size, **keys)
    assert report.exposed_s == 0
    assert code in codes(report)
    assert next(note for note in report.warnings if note.code == code).place.endswith("one.txt:3")


def test_nothing_to_communicate_is_no_warning(tmp_path):
    for token, size in (("NONE", 0), ("NONE", 5), ("BROADCAST", 0), ("ALLREDUCE_CP", 0), ("ALLGATHER", 0)):
        report = forward(tmp_path, token, size)
        assert (report.total_s, codes(report)) == (0, [])


def test_above_the_tables_simai_has_no_result(tmp_path):
    assert forward(tmp_path, "ALLGATHER", 16 << 30).tp_s > 0
    assert forward(tmp_path, "ALLREDUCE", 17 << 30).tp_s > 0
    with pytest.raises(InfeasibleError, match="16 GiB"):
        forward(tmp_path, "ALLGATHER", (16 << 30) + 1)


TP, EP, DP, DP_EP = SimaiGroup.TP, SimaiGroup.EP, SimaiGroup.DP, SimaiGroup.DP_EP


@pytest.mark.parametrize(
    ("group", "ranks", "tp", "ep", "expected"),
    [
        (TP, 4, 4, 1, (1, 4, 8)),
        (TP, 8, 8, 1, (1, 8, 8)),
        (TP, 32, 32, 1, (4, 8, 8)),
        (EP, 4, 2, 4, (1, 4, 8)),
        (EP, 16, 2, 16, (4, 4, 4)),
        (EP, 4, 16, 4, (8, 1, 1)),
        (DP, 2, 1, 1, (2, 8, 8)),
        (DP, 64, 8, 1, (64, 1, 1)),
        (DP, 4, 16, 1, (4, 1, 1)),
        (DP_EP, 8, 2, 2, (8, 2, 2)),
        (DP_EP, 8, 2, 16, (8, 1, 1)),
    ],
)
def test_how_groups_lie(group, ranks, tp, ep, expected):
    assert spread(group, ranks, tp, ep, simai_machine("h100")) == expected


def test_the_slower_of_nvlink_and_nics():
    h100, slow = simai_machine("h100"), SimaiMachine(name="x", nvlink_bytes_per_s=100e9, nic_bytes_per_s=50e9)
    gather = Operation.ALL_GATHER
    assert bus_bandwidth(gather, spread(TP, 8, 8, 1, h100), h100) == pytest.approx((370.8, False))
    # 8 x 48.5 is above 370.8, but not above 370.8 x 8 / 7.
    assert bus_bandwidth(gather, spread(TP, 16, 16, 1, h100), h100) == pytest.approx((388, False))
    assert bus_bandwidth(gather, spread(TP, 16, 16, 1, slow), slow) == pytest.approx((100 * 8 / 7, True))
    assert bus_bandwidth(gather, spread(DP, 4, 8, 1, h100), h100) == pytest.approx((48.5, False))
    exchange = bus_bandwidth(Operation.ALL_TO_ALL, spread(EP, 16, 2, 16, h100), h100)
    assert exchange == pytest.approx((48.5 * 15 / 12, False))


def test_efficiency_is_that_of_the_last_size():
    h100 = simai_machine("h100")

    def share(size, operation=Operation.ALL_GATHER, group=TP, ranks=8, tp=8, by_nvlink=False):
        return efficiency(operation, group, ranks, tp, size, by_nvlink, h100)

    assert share(16 << 30) == 1
    assert share(MIB) == share(16 * MIB) == pytest.approx(0.45 / 0.81)
    assert share(48 * MIB) == pytest.approx(0.60 / 0.81)
    assert share(16 * MIB, tp=16) == pytest.approx(0.32 / 0.96)
    assert share(16 * MIB, tp=16, by_nvlink=True) == pytest.approx(0.55 / 0.88)
    assert share(16 * MIB, tp=24) == pytest.approx(0.05 / 0.96)  # three nodes: as 16
    assert share(16 * MIB, tp=72) == pytest.approx(0.86 / 0.96)  # nine nodes: the column of "multi"
    exchange = {"operation": Operation.ALL_TO_ALL, "group": EP}
    assert share(16 * MIB, **exchange, tp=2, ranks=4) == pytest.approx(0.44 / 0.78)
    assert share(16 * MIB, **exchange, tp=2, ranks=8) == pytest.approx(0.52 / 0.80)
    assert share(16 * MIB, **exchange, tp=8, ranks=2) == pytest.approx(0.86 / 0.96)
    assert share(16 * MIB, **exchange, tp=2, ranks=256) == 1  # 64 nodes: empty cells
    assert share(16 * MIB, operation=Operation.ALL_REDUCE) == share(16 * MIB, group=DP) == 1


# --- headers that SimAI cannot run


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        ("MICRO", "tp=... and pp=..."),
        ("HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 checkpoints: 0", "pp=..."),
        ("HYBRID_DLRM model_parallel_NPU_group: 8 pp: 1 all_gpus: 8", "tp=... and pp=..."),
        ("HYBRID_TRANSFORMER model_parallel_NPU_group: 8 pp: 0 all_gpus: 8", "pp=..."),
    ],
)
def test_a_crash_of_simai_is_a_message(tmp_path, header, flags):
    path = write_text(tmp_path / "x.txt", header, [row("x", (0, "ALLREDUCE", 8 * MIB), QUIET, QUIET)])
    with pytest.raises(ConfigError, match=f"divides by zero.*give {re.escape(flags)}$"):
        add_up(path, gpus=8)
    assert add_up(path, gpus=8, tp=8, pp=1).tp_s > 0


def test_ep_is_needed_where_rows_name_it(tmp_path):
    path = write_text(
        tmp_path / "x.txt", header_of(tp=1, pp=1, all_gpus=8), [row("x", (0, "ALLTOALL_EP", 8 * MIB), QUIET, QUIET)]
    )
    with pytest.raises(ConfigError, match=r"give ep=\.\.\."):
        add_up(path)
    assert add_up(path, ep=8).ep_s > 0


def test_the_world_must_be_known(tmp_path):
    path = write_text(tmp_path / "x.txt", header_of(tp=8, pp=1), [row("x")])
    with pytest.raises(ConfigError, match=r"gpus=\.\.\."):
        add_up(path)


def test_what_simai_does_with_odd_files_is_said(tmp_path):
    rows = [row("x", 2**31, QUIET, QUIET), row("y", 5000, QUIET, QUIET)]
    path = write_text(tmp_path / "x.txt", header_of(tp=2, pp=2, all_gpus=7, pp_comm=2**31), rows, count=1)
    with pytest.raises(ConfigError, match="pp_comm="):
        add_up(path)
    report = add_up(path, pp_message_bytes=2**31 - 1)
    assert set(codes(report)) == {*("simai-dp", "simai-vpp", "simai-ga", "simai-rows", "simai-long-compute")}
    assert [each.name for each in report.rows] == ["x"]


# --- what the user says


@pytest.mark.parametrize("cluster", ["h200", "ideal", "nowhere"])
def test_simai_knows_few_machines(cluster):
    with pytest.raises(ConfigError, match="a100, a800, h100, h800"):
        simai_machine(cluster)


def test_overlap_is_read():
    assert parse_overlap("tp=0.5, dp=1") == SimaiOverlap(tp=0.5, dp=1)
    assert parse_overlap("pp=0.5,ep=0") == SimaiOverlap(pp=0.5)


@pytest.mark.parametrize(
    "words", ["", "tp", "cp=1", "tp=1,tp=1", "tp=half", "tp=1.5", "tp=-1", "tp=nan", "pp=0", "pp=1e-60"]
)
def test_wrong_overlap_is_refused(words):
    with pytest.raises(ConfigError):
        parse_overlap(words)


def test_overlap_by_group(tmp_path):
    header = header_of(tp=2, ep=16, pp=12, vpp=8, ga=24, all_gpus=9216)
    path = write_text(tmp_path / "moe.txt", header, moe_rows())
    none, half = add_up(path), add_up(path, overlap=SimaiOverlap(dp=0.5, tp=0.5, ep=0.5))
    for name in ("dp_s", "dp_ep_s", "tp_s", "ep_s", "exposed_s"):
        assert getattr(half, name) == pytest.approx(getattr(none, name) / 2, rel=1e-5)
    assert half.bubble_s == none.bubble_s
