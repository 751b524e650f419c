"""ASTRA-sim 1.0's training loops: over which ranks a column is, what overlaps, what the first layer leaves out.

Source: ASTRA-sim 1.0, astra-sim/workload/Workload.cc.
"""

import pytest

from aicb_runs import codes, run, work, write_text
from support import ALONE, row
from traincast import api
from traincast.formats.aicb.policies import POLICIES, Span
from traincast.workload.words import Group, Kind, Phase

MS = 1_000_000
SIZE = 1 << 22


def layers(forward="NONE", input_grad="NONE", weight_grad="NONE", count=3, size=SIZE):
    """Return layers of 1, 2, 4 ... ms in each column, with the given communications."""
    cells = [(word, 0 if word == "NONE" else size) for word in (forward, input_grad, weight_grad)]
    return [row(f"layer{each}", *((MS << each, *cell) for cell in cells)) for each in range(count)]


def written(folder, header, rows):
    return write_text(folder / "w.txt", header, rows)


def columns(result):
    """Return the groups of the collectives by phase."""
    found = {}
    for op in work(result):
        if op.kind is Kind.COLLECTIVE:
            found.setdefault(op.phase, set()).add(op.group)
    return found


F, B, W = Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT


@pytest.mark.parametrize(
    ("policy", "groups", "degrees"),
    [
        ("DATA", {W: {Group.DP}}, (1, 8)),
        ("MODEL", {F: {Group.TP}, B: {Group.TP}}, (8, 1)),
        ("HYBRID_DATA_MODEL", {F: {Group.TP}, B: {Group.TP}, W: {Group.DP}}, (8, 2)),
        ("HYBRID_MODEL_DATA", {F: {Group.DP}, B: {Group.DP}, W: {Group.TP}}, (8, 2)),
        ("MICRO", {W: {Group.DP}}, (1, 8)),
    ],
)
def test_a_file_of_astra_sims_own_has_a_world_and_its_columns_have_ranks(policy, groups, degrees, tmp_path):
    path = written(tmp_path, policy, layers("ALLGATHER", "ALLREDUCE", "ALLREDUCE"))
    result = run(path, "h100")
    assert columns(result) == groups
    assert (result.parallel.tp, result.parallel.dp) == degrees
    assert {"cycles", "world-absent"} <= codes(result)
    assert not codes(result) & {"tp-absent", "ga-absent", "gathers-over-dp", "gradients-over-tp"}
    assert ("data-inside" in codes(result)) == (POLICIES[policy].activation is Span.OUTER)


@pytest.mark.parametrize("policy", ["HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA"])
def test_the_inner_dimension_is_in_a_node_and_the_outer_is_not(policy, tmp_path):
    path = written(tmp_path, policy, layers("ALLGATHER", "NONE", "ALLREDUCE"))
    nodes = {each.op: each.nodes for each in run(path, "h100", gpus=32).collectives}
    inner, outer = ("all_gather", "all_reduce") if policy == "HYBRID_DATA_MODEL" else ("all_reduce", "all_gather")
    assert (nodes[inner], nodes[outer]) == (1, 4)


def test_the_first_layer_of_data_parallel_training_computes_no_input_gradient(tmp_path):
    path = written(tmp_path, "DATA", layers())
    # 3 x (1 + 2 + 4) ms without the 1 ms of the first layer's input gradient.
    assert run(path, "ideal").iteration_time_s == pytest.approx(20e-3)


def test_weight_gradients_come_first_and_overlap_with_input_gradients(tmp_path):
    rows = layers(weight_grad="ALLREDUCE", size=1 << 20)
    path = written(tmp_path, "DATA", rows)
    options = api.make_options(cluster="h100", **ALONE)
    last = max(api.simulate(path, options).collectives, key=lambda each: each.time_s).time_s
    # All but the first layer's reduction is over before the step ends.
    assert api.simulate(path, options).iteration_time_s == pytest.approx(20e-3 + last, rel=1e-6)


def test_input_gradients_overlap_with_weight_gradients_and_the_first_layer_sends_none(tmp_path):
    path = written(tmp_path, "HYBRID_DATA_MODEL", layers(input_grad="ALLREDUCE"))
    result = api.simulate(path, api.make_options(cluster="h100", **ALONE))
    assert result.iteration_time_s == pytest.approx(21e-3)
    (reduced,) = result.collectives
    assert reduced.count == 2
    transformer = written(
        tmp_path, "HYBRID_TRANSFORMER model_parallel_NPU_group: 8 all_gpus: 16", layers("NONE", "ALLREDUCE")
    )
    blocked = api.simulate(transformer, api.make_options(cluster="h100", **ALONE))
    assert blocked.iteration_time_s == pytest.approx(21e-3 + 3 * reduced.time_s)


def tables(last_bottom, size=SIZE):
    """Return a recommendation model: the tables, a bottom MLP of two layers, a top one of one."""
    exchanged = (MS, "ALLTOALL", size)
    mlp = [row(name, 2 * MS, 2 * MS, 2 * MS) for name in ("Bottom_0", "Bottom_1", "Top_0")]
    return f"HYBRID_DLRM{last_bottom}", [row("Tables", exchanged, exchanged, MS), *mlp]


@pytest.mark.parametrize("said", ["\t2", " DLRM_LAST_BOTTOM_LAYER: 2"])
def test_the_exchange_of_tables_overlaps_with_the_bottom_mlp(said, tmp_path):
    path = written(tmp_path, *tables(said))
    result = api.simulate(path, api.make_options(cluster="h100", **ALONE))
    (exchange,) = result.collectives
    assert (exchange.group, exchange.count) == ("world", 2)
    assert exchange.time_s < 4e-3
    # Tables 1 + 1 ms (their input gradient is the exchange alone), MLPs 3 x 6 ms; nothing of the exchanges is seen.
    assert result.iteration_time_s == pytest.approx(20e-3)


def test_an_exchange_of_tables_longer_than_the_bottom_mlp_is_waited_for(tmp_path):
    path = written(tmp_path, *tables("\t2", size=1 << 31))
    result = api.simulate(path, api.make_options(cluster="h100", **ALONE))
    (exchange,) = result.collectives
    # Forward beside the bottom MLP (4 ms); backward beside both of its gradients and the tables' own (9 ms).
    seen = (exchange.time_s - 4e-3) + max(0.0, exchange.time_s - 9e-3)
    assert result.iteration_time_s == pytest.approx(20e-3 + seen, rel=1e-6)


def test_rows_of_a_customized_file_have_dimensions_of_their_own(tmp_path):
    base = layers("ALLGATHER", "NONE", "ALLREDUCE", count=1)[0]
    rows = [f"{base}\t{policy}" for policy in ("HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "DATA", "MODEL")]
    assert columns(run(written(tmp_path, "HYBRID_CUSTOMIZED", rows), "h100")) == {
        F: {Group.TP, Group.DP, Group.WORLD},
        W: {Group.DP, Group.TP, Group.WORLD},
    }


def test_every_row_is_a_layer_whatever_its_name(tmp_path):
    names = ("norm", "embedding_layer", "layernorm", "embedding_layer", "optimizer")
    path = written(tmp_path, "DATA", [row(name, MS, MS, (MS, "ALLREDUCE", 64)) for name in names])
    counts = api.inspect(path).counts
    assert (counts["layers_per_microbatch"], counts["once_per_step_rows"], counts["microbatches"]) == (5, 0, 1)
    assert api.inspect(path).generation == "ASTRA-sim 1.0 workload"
