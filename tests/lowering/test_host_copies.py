"""What goes to the host and comes back, in which pieces and what hides them, counted by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from job_parts import job_of
from told import Told
from traincast.lowering.offload import brought_in, gradients_out, parameters_in, sent_out, updated_rows
from traincast.workload.words import Phase

PASS = [("pass",)]
OUT, IN = "activations out", "activations in"


def offloading(**values):
    """A job whose host updates all parameters, unless told otherwise."""
    return job_of(**{"offload_optimizer": 1.0} | values)


@pytest.mark.parametrize(
    ("size_bytes", "layers", "early", "late"),
    [(100, 3, 66, 34), (100, 4, 75, 25), (100, 1, 0, 100), (100, 0, 0, 100), (1, 3, 0, 1), (7, 2, 3, 4)],
)
def test_all_but_the_last_layer_s_activations_leave_while_a_pass_runs(size_bytes, layers, early, late):
    before = [(OUT, early, "launched")] if early else []
    wanted = [*before, *PASS, ("wait", "OFFLOAD_OUT"), (OUT, late, "launched")]
    assert sent_out(Told(job_of()), size_bytes, layers, PASS) == wanted


@pytest.mark.parametrize(
    ("whole", "first", "others"),
    [(True, 34, 66), (False, 0, 100)],
)
def test_the_first_layer_s_activations_come_before_a_pass_over_all_layers(whole, first, others):
    ahead = [("wait", "OFFLOAD_OUT"), (IN, first, "blocks")] if whole else []
    wanted = [*ahead, (IN, others, "launched"), *PASS, ("joined",)]
    assert brought_in(Told(job_of()), 100, 3, PASS, whole=whole) == wanted


@pytest.mark.parametrize("layers", [0, 1])
def test_one_layer_hides_nothing_of_what_comes_in(layers):
    wanted = [("wait", "OFFLOAD_OUT"), (IN, 100, "blocks"), *PASS]
    assert brought_in(Told(job_of()), 100, layers, PASS, whole=True) == wanted


def test_nothing_kept_on_the_host_changes_no_pass():
    emit = Told(job_of())
    assert sent_out(emit, 0, 3, PASS) == brought_in(emit, 0, 3, PASS, whole=True) == PASS
    nothing = np.array([0, 0])
    assert sent_out(emit, nothing, 3, PASS) == brought_in(emit, nothing, 3, PASS, whole=True) == PASS


def test_passes_wait_only_in_layouts_that_keep_something_on_the_host():
    """Of arrays of layouts: the wait is where something leaves, be it one byte."""
    asked = []

    class Waits(Told):
        def wait(self, *streams, where=True):
            asked.append(where)
            return super().wait(*streams, where=where)

    size, layers = np.array([0, 1, 100]), np.array([3, 3, 3])
    early, _, _, late = sent_out(Waits(job_of()), size, layers, PASS)
    assert asked[0].tolist() == [False, True, True]
    assert early[1].tolist() == [0, 0, 66]
    assert late[1].tolist() == [0, 1, 34]
    whole = np.array([False, True, True])
    _, first, others, *_ = brought_in(Waits(job_of()), size, layers, PASS, whole=whole)
    assert asked[1].tolist() == whole.tolist()
    assert first[1].tolist() == [0, 1, 34]
    assert others[1].tolist() == [0, 0, 66]


def test_gradients_leave_in_fp32_and_parameters_come_in_16_bits():
    emit = Told(offloading(offload_optimizer=0.5))
    # A quarter of the gradients of 1000 parameters, half of which the host updates, 4 bytes each.
    assert gradients_out(emit, 1000, 0.25) == [("gradients out", 500, "launched")]
    assert gradients_out(emit, 0, 0.25) == []
    assert parameters_in(emit, 1000, Phase.FORWARD) == [("parameters in", 2000, "launched")]
    assert parameters_in(emit, 0, Phase.FORWARD) == []


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("overlap", [True, False])
def test_the_host_updates_in_pieces_of_which_the_first_and_the_last_move_alone(share, pieces, overlap):
    """Per parameter 4 bytes down, 30 through the memory of the host, 2 up; without overlap all of it in a row."""
    job = offloading(offload_optimizer=share, overlap_offload=overlap)
    count = 1000 * share
    first, last = (-(-width * count // (pieces if overlap else 1)) for width in (4, 2))
    moving = [
        ("gradients out", 4 * count - first, "launched"),
        ("optimizer on the host", 30 * count, "launched"),
        ("parameters in", 2 * count - last, "launched"),
    ]
    assert updated_rows(Told(job), 1000, pieces, [("on the GPU",)]) == [
        ("gradients out", first, "blocks"),
        *(each for each in moving if each[1]),
        ("on the GPU",),
        ("joined",),
        ("parameters in", last, "blocks"),
    ]


def test_gradients_that_left_with_their_passes_are_waited_for_and_parameters_that_stay_do_not_come_back():
    gone = offloading(gpus=8, zero=2, framework="deepspeed-2024")
    assert gone.offloads_gradients
    assert updated_rows(Told(gone), 1000, 4, []) == [
        ("wait", "OFFLOAD_OUT"),
        ("optimizer on the host", 30000, "launched"),
        ("parameters in", 1500, "launched"),
        ("joined",),
        ("parameters in", 500, "blocks"),
    ]
    stays = replace(gone, offload=replace(gone.offload, parameters=True))
    rows = updated_rows(Told(stays), 1000, 4, [])
    assert rows == [("wait", "OFFLOAD_OUT"), ("optimizer on the host", 30000, "launched"), ("joined",)]


def test_a_host_that_updates_nothing_leaves_the_update_as_it_is():
    assert updated_rows(Told(job_of()), 1000, 4, [("on the GPU",)]) == [("on the GPU",)]
    # Half of one parameter rounds to none.
    assert updated_rows(Told(offloading(offload_optimizer=0.5)), 1, 4, [("on the GPU",)]) == [("on the GPU",)]
