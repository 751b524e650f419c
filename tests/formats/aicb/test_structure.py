"""Rows become once-per-step rows, microbatches and layers, in every style of naming."""

from pathlib import Path

import pytest

from traincast.formats.aicb.grammar import Cell, Column, load, parse
from traincast.formats.aicb.inspection import structural_warnings
from traincast.formats.aicb.meaning import Structure, group_of, structure
from traincast.workload.words import Group, Operation

EXAMPLES = Path(__file__).parents[3] / "examples"
FIRST = ["grad_gather", "grad_param_comm", "grad_param_compute", "embedding_grads", "moe_grad_norm1", "moe_grad_norm2"]
LAST = [*(f"cross_entropy{n}" for n in (1, 2, 3)), *(f"optimizer{n}" for n in (1, 2, 3, 4))]
DENSE = ["attention_column", "attention_row", "mlp_column", "mlp_row"]
LATENT = [
    "attention_linear_q_lora",
    "attention_q_column",
    "attention_linear_kv_lora",
    "attention_kv_column",
    "attention_o_row",
]


def file_of(names, header="HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8"):
    rows = [f"{name} -1 10 ALLREDUCE 4 10 NONE 0 10 NONE 0 100" for name in names]
    return parse("w.txt", "\n".join([header, str(len(rows)), *rows]))


def split(names, ga=None):
    found = structure(file_of(names, "HYBRID_TRANSFORMER_FWD_IN_BCKWD" + (f" ga: {ga}" if ga else "")))
    everything = [*found.leading, *found.trailing, *found.embedding_norm]
    for block in found.blocks:
        everything += [*block.embedding, *block.final, *(row for layer in block.layers for row in layer)]
    assert sorted(everything) == list(range(len(names)))
    return found


def layer_names(names, found: Structure, block=0):
    return [[names[row] for row in layer] for layer in found.blocks[block].layers]


def test_the_405b_sample_has_sixteen_blocks_of_eight_layers():
    file = load(EXAMPLES / "aicb_gpt_405b_1024gpu.txt")
    found = structure(file)
    assert (len(found.leading), len(found.blocks), len(found.trailing)) == (6, 16, 7)
    for block in found.blocks:
        assert (len(block.embedding), len(block.layers), len(block.final)) == (1, 8, 1)
        assert {len(layer) for layer in block.layers} == {4}
    assert found.blocks[1].embedding == (6 + 34,)
    notes = structural_warnings(file, found)
    assert [(note.code, note.place.rpartition(":")[2]) for note in notes] == [("microbatches-differ", "9")]


def test_the_scaled_sample_has_one_block_of_forty_layers():
    file = load(EXAMPLES / "aicb_scaled_512gpu.txt")
    found = structure(file)
    assert found.leading == (0, 1, 2)
    assert found.trailing == tuple(range(165, 172))
    assert found.embedding_norm == (164,)
    assert [(block.embedding, len(block.layers), block.final) for block in found.blocks] == [((3,), 40, ())]
    assert {len(layer) for layer in found.blocks[0].layers} == {4}
    assert structural_warnings(file, found) == ()


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param([DENSE] * 3, id="dense"),
        pytest.param([["attention_layer", "mlp_layer"]] * 3, id="no-sequence-parallel"),
        pytest.param([["attn_layer", "mlp_layer"]] * 3, id="attn"),
        pytest.param([["attention_column", "attention_row", *["mlp_moelayer"] * 5]] * 3, id="moe-5"),
        pytest.param([["attention_column", "attention_row", *["mlp_moelayer"] * 7]] * 3, id="moe-7"),
        pytest.param(
            [[*LATENT, "mlp_column", "mlp_row"], *[[*LATENT, *["mlp_moelayer"] * 5, "mlp_column", "mlp_row"]] * 3],
            id="deepseek-first-layer-dense",
        ),
        pytest.param([["attention_norm", "mlp_norm"]] * 3, id="v1.0-llama"),
        pytest.param([["attention_norm", "attention_layer", "mlp_norm", "mlp_layer"]] * 3, id="norm-rows"),
        pytest.param([["input_norm", "attention_layer", "post_norm", "mlp_layer"]] * 3, id="plain-norms"),
        pytest.param(
            [["attention_norm", "attention_gdn", "moe_norm", "moe_route", "moe_expert"]] * 3
            + [["attention_norm", "attention_layer", "moe_norm", "moe_route", "moe_expert"]],
            id="qwen-inference",
        ),
        pytest.param(
            [["attention_layer", "dense_mlp"], *[["attention_layer", "moe_route", "moe_expert"]] * 2],
            id="deepseek-inference",
        ),
        pytest.param([["attention_layer"]] * 4, id="attention-alone"),
        pytest.param([["gate", "up", "down"]] * 4, id="period"),
        pytest.param([["a", "a", "b"]] * 2, id="period-with-repeats"),
        pytest.param([["micro_test"]] * 5, id="all-alike"),
        pytest.param([[f"Llama_layer{n}"] for n in range(12)], id="all-different"),
        pytest.param([["a"], ["b"], ["a"], ["b"], ["a"]], id="period-that-does-not-divide"),
    ],
)
@pytest.mark.parametrize("embedded", [True, False])
def test_layers_are_found(layers, embedded):
    flat = [name for layer in layers for name in layer]
    names = [*FIRST, "embedding_layer", *flat, "final_column", *LAST] if embedded else flat
    found = split(names)
    assert (len(found.leading), len(found.trailing)) == ((6, 7) if embedded else (0, 0))
    assert len(found.blocks) == 1
    assert layer_names(names, found) == layers
    assert (len(found.blocks[0].embedding), len(found.blocks[0].final)) == ((1, 1) if embedded else (0, 0))


def test_blocks_start_at_embeddings_and_may_differ():
    names = [*FIRST, "embedding_layer", *DENSE, *DENSE, "embedding_layer2", *DENSE, "final_column", "final_norm"]
    found = split(names, ga=7)
    assert [len(block.layers) for block in found.blocks] == [2, 1]
    assert [len(block.final) for block in found.blocks] == [0, 2]


def test_embedding_norm_is_taken_out_wherever_it_stands():
    names = ["embedding_norm", *FIRST[:3], *["embedding_layer", *DENSE, "embedding_norm", "final_column"] * 2, *LAST]
    found = split(names, ga=2)
    assert found.embedding_norm == (0, 9, 16)
    assert (len(found.leading), len(found.blocks), len(found.trailing)) == (3, 2, 7)
    assert [layer_names(names, found, block) for block in (0, 1)] == [[DENSE]] * 2
    file = file_of(names)
    assert [(note.code, note.place) for note in structural_warnings(file, found)] == [
        ("embedding-norm-repeated", "w.txt:3")
    ]


def test_without_embeddings_ga_splits_equal_pieces_only():
    names = DENSE * 4
    assert [len(block.layers) for block in split(names, ga=2).blocks] == [2, 2]
    assert [len(block.layers) for block in split(names, ga=3).blocks] == [4]
    assert [len(block.layers) for block in split([*names, "a", "b", "c", "d"], ga=5).blocks] == [4]


def test_once_per_step_names_inside_a_block_stay_there():
    names = ["norm", "embedding_layer", "attention_layer", "layernorm", "mlp_layer", "optimizer1"]
    found = split(names)
    assert (found.leading, found.trailing) == ((0,), (5,))
    assert found.blocks[0].layers == ((2, 3, 4),)


def test_files_of_once_per_step_rows_alone_have_no_blocks():
    found = split([*FIRST, "layernorm", "norm", "grad_norm", "grad_param", *LAST])
    assert (len(found.leading), found.blocks, len(found.trailing)) == (10, (), 7)
    assert split(LAST).leading == ()
    assert split(["embedding_norm"]).embedding_norm == (0,)


def test_blocks_of_embeddings_alone():
    found = split(["embedding_layer"] * 3)
    assert [(len(block.embedding), block.layers, block.final) for block in found.blocks] == [(1, (), ())] * 3


@pytest.mark.parametrize(
    ("name", "forward", "input_grad", "weight_grad"),
    [
        ("attention_column", Group.TP, Group.TP, Group.DP),
        ("embedding_layer", Group.TP, Group.TP, Group.DP),
        ("layernorm", Group.TP, Group.TP, Group.DP),
        ("norm", Group.TP, Group.TP, Group.DP),
        ("optimizer1", Group.TP, Group.TP, Group.DP),
        ("grad_norm", Group.DP, Group.DP, Group.DP),
        ("grad_gather", Group.DP, Group.DP, Group.DP),
        ("grad_param_comm", Group.DP, Group.DP, Group.DP),
        ("embedding_grads", Group.EMB, Group.EMB, Group.EMB),
        ("embedding_norm", Group.EMB, Group.EMB, Group.EMB),
        ("moe_grad_norm2", Group.EDP, Group.EDP, Group.EDP),
    ],
)
def test_row_and_column_decide_the_group_without_a_suffix(name, forward, input_grad, weight_grad):
    cell = Cell(0.0, "ALLREDUCE", Operation.ALL_REDUCE, None, 4)
    assert [group_of(name, column, cell) for column in Column] == [forward, input_grad, weight_grad]
    suffixed = Cell(0.0, "ALLREDUCE_CP", Operation.ALL_REDUCE, Group.CP, 4)
    nothing = Cell(0.0, "NONE", Operation.NONE, None, 4)
    assert {group_of(name, column, suffixed) for column in Column} == {Group.CP}
    assert {group_of(name, column, nothing) for column in Column} == {Group.NONE}


def test_a_group_of_one_and_a_wrong_ga_are_odd():
    header = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 ga: 2"
    file = file_of(["Llama_layer1", "Llama_layer2"], header)
    notes = structural_warnings(file, structure(file))
    assert [(note.code, note.place) for note in notes] == [
        ("microbatches-mismatch", "w.txt:3"),
        ("group-of-one", "w.txt:3"),
    ]
    assert "2 communications are in the tp group" in notes[1].text
