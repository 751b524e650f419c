"""NeuSight's operator graphs and predictions: what their operators are, what they take, and how they are laid out."""

import csv
from math import prod
from pathlib import Path

import pytest

from support import ALONE
from traincast import api
from traincast.errors import ConfigError, FormatError
from traincast.estimate.operators import estimate_operator
from traincast.estimate.operators.families import work_of
from traincast.formats.neusight import opgraph, sniff
from traincast.formats.neusight.grammar import Form
from traincast.formats.neusight.kernels import ListedNode, forward_calls, input_gradient_calls, weight_gradient_calls
from traincast.hardware.gpu import find_gpu

SAMPLES = Path(__file__).parents[2] / "conformance" / "samples" / "neusight-graph"
GRAPH = SAMPLES / "gpt2_large-train-1024-4.csv"
DATA_PARALLEL = SAMPLES / "gpt2_large-train-1024-4-dp4.csv"
PIPELINE = SAMPLES / "gpt2_large-train-1024-4-pp4_1.csv"
TOTAL_MS = {DATA_PARALLEL: 214.11080825222507, PIPELINE: 650.2182906034193}
"""What NeuSight's own files beside them say of the 36 layers."""
HEADER = ",".join(sniff.GRAPH_COLUMNS)
MLP = (1024, 256, 1024)


def read(path):
    return opgraph.parse(str(path), path.read_text())


def graph_of(*rows, header=HEADER):
    """Return the text of a graph; a row is its name, and what differs from a node that does nothing."""
    lines = []
    for name, said in rows:
        values = {"Name": name, "OpName": "misc", "Prev": "set()", "Next": "set()"} | said
        empty = {"OutputShape": "()"}
        lines.append(",".join(f'"{values.get(column, empty.get(column, "[]"))}"' for column in header.split(",")))
    return "\n".join((header, *lines)) + "\n"


def linear(name, m=1024, k=256, n=1024):
    """Return the node of a linear layer with both gradients."""
    said = {
        "OpName": "Linear",
        "FwOps": [["Linear", (m, k, n)]],
        "BwOps": [["Linear", (m, n, k)], ["Linear", (n, m, k)]],
        "AccOps": [["VECadd", [1, n * k]]],
        "InputShapes": [(m, k)],
        "OutputShape": (m, n),
    }
    return name, said


def written(tmp_path, *rows):
    path = tmp_path / "graph.csv"
    path.write_text(graph_of(*rows))
    return path


@pytest.mark.parametrize(
    ("path", "form"), [(GRAPH, Form.GRAPH), (DATA_PARALLEL, Form.PREDICTION), (PIPELINE, Form.PREDICTION)]
)
def test_inspect_tells_graphs_from_predictions(path, form):
    found = api.inspect(path)
    assert (found.format, found.generation) == ("neusight-graph", f"NeuSight {form}")
    assert found.layout["layer_block"].endswith(":add_15")
    timed = [total.time_s for total in found.totals]
    assert all(time_s is None for time_s in timed) if form is Form.GRAPH else None not in timed


def test_gemms_of_a_graph_keep_their_flops_pass_by_pass():
    with GRAPH.open(newline="") as file:
        listed = {row["Name"]: row for row in csv.DictReader(file)}
    gemms = 0
    for row in read(GRAPH).rows:
        said = listed[row.name]
        for column, cells in (("FwOps", [row.forward]), ("BwOps", [row.backward, row.weight_grad])):
            sizes = [op.sizes for op in opgraph._operators(said[column], column) if op.name in ("Linear", "BMM")]
            calls = [call for cell in cells for call, _ in cell.calls if call.family == "gemm"]
            assert sum(work_of(call).flops for call in calls) == sum(2 * prod(each) for each in sizes), row.name
            assert len(calls) == len(sizes)
            gemms += len(sizes)
        if "Linear" in said["FwOps"]:
            assert [call.direction for call, _ in row.backward.calls] == ["dgrad"]
            assert row.weight_grad.calls[0][0].direction == "wgrad"
    assert gemms == 3 * 7


@pytest.mark.parametrize("sizes", [MLP, (1024, 1024, 256), (256, 256, 256), (256, 1024, 256), (1024, 256, 256)])
def test_each_gradient_of_a_linear_layer_is_told_by_what_it_reduces_over(sizes):
    name, said = linear("fc", *sizes)
    text = graph_of((name, said))
    (row,) = opgraph.parse("a.csv", text).rows
    m, k, n = sizes
    shape = (m, n, k)
    assert [(call.shape, call.direction) for call, _ in row.forward.calls] == [(shape, "forward")]
    assert [(call.shape, call.direction) for call, _ in row.backward.calls] == [(shape, "dgrad")]
    (gemm, _), (total, _) = row.weight_grad.calls
    assert (gemm.shape, gemm.direction) == (shape, "wgrad")
    assert work_of(total).bytes_moved == 3 * 4 * n * k


def test_operators_on_elements_move_the_tensors_of_their_node():
    rows = {row.name: row for row in read(GRAPH).rows}
    tokens, hidden, scores = 4096, 1280, 80 * 1024 * 1024
    moved = {
        "add_10": 3 * tokens * hidden,
        "tanh": 2 * tokens * 4 * hidden,
        "mul_3": 3 * tokens * 4 * hidden,
        "softmax": 2 * scores,
        "contiguous": 2 * tokens * hidden,
        "transformer_h_0_ln_1": 2 * tokens * hidden,
    }
    for name, elements in moved.items():
        ((call, count),) = rows[name].forward.calls
        assert count * work_of(call).bytes_moved == 4 * elements, name
    # What NeuSight lists as two kernels and more is one in PyTorch.
    for name in ("softmax", "tanh", "transformer_h_0_ln_1"):
        ((call, _),) = rows[name].backward.calls
        assert (call.direction, work_of(call).bytes_moved) == ("backward", 1.5 * 4 * moved[name]), name
    # Sizes are numbers on the host.
    assert not rows["getitem_4"].forward.calls


def test_fused_nodes_run_one_kernel_that_moves_the_outer_tensors():
    def node(*ops):
        return ListedNode("fused", ops, (), (), inputs=((64, 32), (64, 32)), output=(64, 32))

    vec = {name: opgraph.ListedOp(f"VEC{name}", (64, 32)) for name in ("add", "mul", "ln", "softmax")}
    for ops, family in (
        ((vec["add"], vec["mul"]), "elementwise"),
        ((vec["add"], vec["ln"]), "norm"),
        ((vec["mul"], vec["softmax"], vec["add"]), "softmax"),
    ):
        ((call, count),) = forward_calls(node(*ops))
        assert call.family == family
        assert count * work_of(call).bytes_moved == 3 * 64 * 32 * 4
    assert not input_gradient_calls(node(vec["add"])) and not weight_gradient_calls(node(vec["add"]))


@pytest.mark.parametrize("cluster", ["a100", "h100", "mi300x"])
def test_a_graph_takes_what_its_operators_take_alone(cluster):
    file, gpu = read(GRAPH), api.clusters([cluster])[0].gpu
    each = [
        sum(count * estimate_operator(call, gpu).time_s for cell in row.cells for call, count in cell.calls)
        for row in file.rows
    ]
    first, last = (next(i for i, row in enumerate(file.rows) if row.name == name) for name in LAYER)
    expected_s = sum(each) + 35 * sum(each[first : last + 1])
    result = api.simulate(GRAPH, cluster=cluster, layers=36)
    assert result.iteration_time_s == pytest.approx(expected_s, rel=1e-9)
    assert {"dtype-absent", "layers-repeated", "compute-priced"} <= {note.code for note in result.assumptions}


LAYER = ("transformer_h_0_ln_1", "add_15")


def test_a_graph_is_estimated_in_the_type_that_is_asked_for():
    wide = api.simulate(GRAPH, cluster="h100", layers=36)
    narrow = api.simulate(GRAPH, cluster="h100", layers=36, dtype="bf16")
    assert narrow.iteration_time_s < wide.iteration_time_s / 3
    assert "dtype-absent" not in {note.code for note in narrow.assumptions}


def test_a_prediction_of_data_parallel_ranks_takes_its_own_total():
    result = api.simulate(DATA_PARALLEL, cluster="ideal", layers=36)
    assert result.parallel.dp == 4
    assert 1e3 * result.iteration_time_s == pytest.approx(TOTAL_MS[DATA_PARALLEL], rel=1e-6)
    assert "communication-as-given" in {note.code for note in result.assumptions}
    # The prediction knows 4 ranks; others are estimated on the cluster.
    more = api.simulate(DATA_PARALLEL, cluster="h100", layers=36, dp=8, **ALONE)
    assert more.breakdown_s["exposed_dp"] != pytest.approx(result.breakdown_s["exposed_dp"], rel=0.01)
    assert "communication-estimated" in {note.code for note in more.assumptions}


def test_a_prediction_of_a_pipeline_is_spread_over_its_stages():
    result = api.simulate(PIPELINE, cluster="ideal", layers=36, pp=4)
    send_s = next(row.forward.comm_s for row in read(PIPELINE).rows if row.sends)
    # NeuSight counts 11 messages one after the other; 4 stages send 3 forward and 3 backward.
    assert 1e3 * (result.iteration_time_s + 5 * send_s) == pytest.approx(TOTAL_MS[PIPELINE], rel=1e-6)
    assert "layers-in-one-stage" not in {note.code for note in result.warnings}
    stages = {rank.stage: rank.compute_s for rank in result.ranks}
    assert stages[1] == pytest.approx(stages[2], rel=1e-12)
    assert sum(stages.values()) == pytest.approx(result.iteration_time_s - 6 * send_s)
    with pytest.raises(ConfigError, match="36 layers do not divide"):
        api.simulate(PIPELINE, cluster="ideal", layers=36, pp=5)


def test_a_graph_of_inference_runs_forward_alone(tmp_path):
    name, said = linear("fc")
    path = written(tmp_path, (name, said | {"BwOps": [], "AccOps": []}))
    result = api.simulate(path, cluster="h100")
    (call,) = [call for row in read(path).rows for call, _ in row.forward.calls]
    assert result.iteration_time_s == pytest.approx(estimate_operator(call, find_gpu("h100")).time_s)
    assert "traced-for-inference" in {note.code for note in result.warnings}
    assert not {"forward-only", "optimizer-absent"} & {note.code for note in result.assumptions}


DAMAGED = {
    "FwOps": {
        "[['Linear', (4096, 1280)]]": "Linear has 2 sizes; it needs 3",
        "[['Conv', (1, 2)]]": "unknown operator 'Conv'",
        "[['VECadd', (0, 2)]]": "a size of VECadd is 0",
        "[['MEM', (4, 4)]]": "not a shape",
        "[['Linear', (4, 4, 4)], ['ALLREDUCE', (4,)]]": "ALLREDUCE has company",
        "[['BMM', (9999999, 9999999, 9999999, 9)]]": "more than",
        "[(": "not a list or tuple",
        "7": "not a list of operators",
        "[7]": "not an operator with its sizes",
    },
    "AccOps": {"[['SENDRECV', (4,)]]": "SENDRECV carries activations"},
    "InputShapes": {"[4]": "not a shape", "(4.5,)": "not a shape"},
    "OutputShape": {"4": "not a shape", "(-1,)": "not a shape"},
    "Name": {" ": "is empty"},
}


@pytest.mark.parametrize(
    ("column", "value", "why"), [(column, *case) for column, cases in DAMAGED.items() for case in cases.items()]
)
def test_what_cannot_be_read_is_refused_with_line_and_column(column, value, why):
    name, said = linear("fc_2")
    text = graph_of(linear("fc_1"), (name, said | {column: value}))
    with pytest.raises(FormatError, match=r"g\.csv:3: ") as caught:
        opgraph.parse("g.csv", text)
    assert column in str(caught.value) and why in str(caught.value)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (HEADER.replace(",AccOps", ""), "lacks AccOps"),
        (f"{HEADER},Time", "unknown 'Time'"),
        (f"{HEADER},fw_latency", "some of the times"),
        (f"{HEADER},e2e_latency", "some of the times"),
        (f"{HEADER},Name", "twice"),
    ],
)
def test_a_header_that_is_not_one_is_refused(header, why):
    with pytest.raises(FormatError, match=r"g\.csv:1: the header ") as caught:
        opgraph.parse("g.csv", graph_of(linear("fc"), header=header))
    assert why in str(caught.value)


def test_predict_says_what_takes_a_workload():
    with pytest.raises(FormatError, match=r"NeuSight operator graph.*traincast simulate takes it"):
        api.predict(str(GRAPH))
