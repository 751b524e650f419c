"""MaxText's settings in the notes of a row."""

import pytest

from published.maxtext import maxtext_cells

TPU = {"framework": "MaxText", "gpu": "TPU-v6e", "num_gpus": "512"}
IRONWOOD = {**TPU, "gpu": "TPU-v7x-Ironwood", "num_gpus": "256"}


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ({"recompute": "full"}, {"recompute": "full"}),
        (
            {"recompute": "custom", "notes": "decoder_layer_input=offload, query_proj=offload, out_proj=device"},
            {"recompute": "full", "recompute_keeps": "linear_qkv linear_proj", "offload_activations": "9999"},
        ),
        (
            {"notes": "remat_policy=minimal, ici_tensor_parallelism=4"},
            {"recompute_keeps": "linear_qkv linear_proj linear_fc1 expert_fc1 linear_fc2 expert_fc2", "tp": "4"},
        ),
        ({"notes": "2x v6e-256; sample log line"}, {"gpus_per_node": "256", "zero_or_fsdp": "fsdp-256"}),
        ({"notes": "2x v6e-256; dcn_fsdp_parallelism=2"}, {"gpus_per_node": "256"}),
        ({"notes": "ici_expert_parallelism=4, capacity_factor=1.25"}, {"ep": "4", "capacity_factor": "1.25"}),
        ({"precision": "fp8"}, {"fp8_recipe": "aqt_int8"}),
        ({"precision": "int8"}, {"precision": "fp8", "fp8_recipe": "aqt_int8"}),
        ({"notes": "weight_dtype=bfloat16, use_random_routing=True"}, {"param_gather_bytes": "2"}),
        ({"notes": "use_random_routing=True"}, {"moe_routing": "balanced"}),
    ],
)
def test_settings_become_columns(cells, found):
    assert found.items() <= maxtext_cells(TPU | cells).items()


def test_axes_of_ironwood_go_over_its_chiplets():
    assert maxtext_cells(IRONWOOD | {"notes": "ici_context_parallelism=8"})["cp"] == "4"
    assert maxtext_cells(IRONWOOD | {"notes": "ici_data_parallelism=2"})["zero_or_fsdp"] == "fsdp-128"
    assert "fp8_recipe" not in maxtext_cells(IRONWOOD | {"precision": "fp8"})


def test_what_a_row_says_counts_and_others_are_left_alone():
    assert "tp" not in maxtext_cells(TPU | {"tp": "2"})
    assert maxtext_cells({"framework": "MaxText", "gpu": "H100"}) == {}
    assert maxtext_cells({"framework": "torchtitan", "gpu": "TPU-v5p"}) == {}
