"""What the names of operators mean."""

import pytest

from traincast.formats.neusight.read import overlap_class_of
from traincast.workload.words import OverlapClass


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("addmm", "addmm_12", "matmul_1", "bmm_3", "mm", "lm_head", "linear_7", "model_layers_0_self_attn_q_proj"), 1),
        (("softmax", "softmax_3", "transformer_h_0_ln_1", "transformer_ln_f", "add_10", "pow_2", "model_norm"), 2),
        (("getitem_3", "view", "foo", "", "12", "grad"), 0),
    ],
)
def test_the_last_telling_word_decides(names, expected):
    assert [overlap_class_of(name) for name in names] == [OverlapClass(expected)] * len(names)
    assert [overlap_class_of(f"{name}_grad") for name in names] == [OverlapClass(expected)] * len(names)
