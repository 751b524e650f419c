"""What the names of rows say of their computation."""

import pytest

import traincast
from support import row, write_aicb
from traincast.formats.aicb.meaning import overlap_class_of
from traincast.workload.words import Kind, OverlapClass

NAMES = {
    "attention_column": OverlapClass.COMPUTE_BOUND,
    "mlp_moelayer": OverlapClass.COMPUTE_BOUND,
    "moe_expert": OverlapClass.COMPUTE_BOUND,
    "final_column": OverlapClass.COMPUTE_BOUND,
    "embedding_layer": OverlapClass.MEMORY_BOUND,
    "optimizer1": OverlapClass.MEMORY_BOUND,
    "grad_param_compute": OverlapClass.MEMORY_BOUND,
    "something": OverlapClass.UNKNOWN,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_what_its_computation_is_bound_by(name):
    assert overlap_class_of(name) is NAMES[name]


def test_every_computation_of_a_file_has_the_class_of_its_name(tmp_path):
    rows = [row("embedding_layer", 1000, 1000), row("attention_layer", 9000, 9000), row("optimizer1", 500)]
    ops = traincast.read(write_aicb(tmp_path / "w.txt", rows)).ops
    compute = [place for place, kind in enumerate(ops.kind_T) if kind == Kind.COMPUTE]
    found = {ops.name_T[place]: OverlapClass(int(ops.overlap_class_T[place])) for place in compute}
    assert found == {name: overlap_class_of(name) for name in ("embedding_layer", "attention_layer", "optimizer1")}
