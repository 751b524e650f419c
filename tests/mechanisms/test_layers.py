"""What recomputation and offloading leave of the activations of layers: closed forms, and arrays as numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from job_parts import TINY, TINY_EXPERTS
from traincast.job.request import JobRequest
from traincast.job.resolve import resolve_job
from traincast.mechanisms.activations import LayerModel
from traincast.mechanisms.all import kept
from traincast.mechanisms.layers import LayerBytes, StageLayers, kinds

INPUT, GATHERED, GRADIENTS = 10.0, 7.0, 20.0


def job_of(**given):
    job = resolve_job(JobRequest(model=TINY, gpus=8, seq_length=2048, global_batch=64))
    return job.with_values(**given)


def layer(saved, dropped=0.0, away=0.0, scale=1.0):
    return LayerBytes(
        tensors={"inputs": INPUT * scale, "others": saved * scale},
        dropped={"others": dropped * scale},
        away={"others": away * scale},
        recomputed=dropped * scale,
        input_bytes=INPUT * scale,
        forward=GATHERED * scale,
        backward=GRADIENTS * scale,
    )


def stage_of(job, *layers, extra=()):
    """Return what a virtual stage keeps on the GPU and the host, and the most that passes in each pass."""
    found = kept(
        job, StageLayers(layers=tuple(each.alone for each in layers), extra=tuple(each.alone for each in extra))
    )
    everything = (*found.layers, *found.extra)
    saved = sum(sum(each.saved.values()) for each in everything)
    away = sum(each.away for each in everything)
    forward, backward = (
        np.max(np.broadcast_arrays(*(getattr(each, name) for each in everything)), axis=0)
        for name in ("forward", "backward")
    )
    return saved, away, forward + found.moving, backward + found.moving


@pytest.mark.parametrize("count", [1, 4, 8])
def test_layers_that_are_recomputed_together_keep_the_first_input(count):
    """Chen et al. 2016, arXiv 1604.06174: of each segment its input, and while it runs again all that it saves."""
    one = layer(100.0)
    found = stage_of(job_of(recompute="full", recompute_group=count), *[one] * 8)
    assert found == (8 / count * INPUT, 0.0, GATHERED, GRADIENTS + count * (INPUT + 100.0) - INPUT)


def test_the_last_group_of_layers_may_be_shorter():
    small, large = layer(50.0), layer(100.0)
    found = stage_of(job_of(recompute="full", recompute_group=3), large, large, small, small)
    assert found == (2 * INPUT, 0.0, GATHERED, GRADIENTS + 2 * 100.0 + 50.0 + 2 * INPUT)


def test_some_layers_are_recomputed_and_the_others_keep_what_they_save():
    one = layer(100.0)
    found = stage_of(job_of(recompute="full", recompute_layers=3), *[one] * 8)
    assert found[0] == 3 * INPUT + 5 * (INPUT + 100.0)
    assert found[3] == GRADIENTS + 100.0


def test_an_mtp_layer_is_recomputed_by_itself_and_counts_as_no_layer():
    one, further = layer(100.0), layer(300.0)
    job = job_of(recompute="full", recompute_layers=2)
    assert stage_of(job, one, one, one, extra=(further,))[0] == 3 * INPUT + (INPUT + 100.0)
    assert stage_of(job, one, extra=(further,))[3] == GRADIENTS + 300.0


def test_modules_that_are_recomputed_drop_what_they_make_again():
    one = layer(100.0, dropped=60.0)
    assert stage_of(job_of(), *[one] * 4) == (4 * (INPUT + 40.0), 0.0, GATHERED, GRADIENTS + 60.0)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_offloaded_layers_wait_on_the_host_and_two_are_on_their_way(count):
    one, gone = layer(100.0), min(count, 6)
    moving = min(gone, 2) * (INPUT + 100.0)
    expected = (6 - gone) * (INPUT + 100.0), gone * (INPUT + 100.0), GATHERED + moving, GRADIENTS + moving
    assert stage_of(job_of(offload_activations=count), *[one] * 6) == expected


def test_offloaded_layers_that_are_recomputed_send_their_inputs():
    one = layer(100.0)
    job = job_of(recompute="full", recompute_layers=4, recompute_group=2, offload_activations=3)
    saved, away, forward, _ = stage_of(job, *[one] * 6)
    assert (saved, away) == (2 * (INPUT + 100.0), 2 * INPUT)
    assert forward == GATHERED
    further = job_of(recompute="full", recompute_layers=2, offload_activations=3)
    saved, away, forward, _ = stage_of(further, *[one] * 6)
    assert (saved, away) == (3 * (INPUT + 100.0), 2 * INPUT + INPUT + 100.0)
    assert forward == GATHERED + 2 * (INPUT + 100.0)


def test_offloaded_modules_of_two_layers_are_on_their_way():
    one = layer(100.0, away=30.0)
    found = stage_of(job_of(offload_modules=("core_attn",)), *[one] * 5)
    assert found == (5 * (INPUT + 70.0), 5 * 30.0, GATHERED + 60.0, GRADIENTS + 60.0)


def test_equal_layers_are_one_object_whatever_is_done_to_them():
    one, other = layer(100.0), layer(50.0)
    stages = [{}, {"offload_activations": 3}, {"recompute": "full", "recompute_group": 2}]
    for given_, groups in zip(stages, (2, 3, 2), strict=True):
        layers = tuple(each.alone for each in (one, one, one, one, other, other))
        assert len(kinds(kept(job_of(**given_), StageLayers(layers=layers)).layers)) == groups


def test_modules_take_away_the_inputs_of_their_own_blocks():
    """Attention's inputs are of attention, an expert's of experts; what is recomputed is not kept."""
    job = resolve_job(JobRequest(model=TINY_EXPERTS, gpus=8, seq_length=2048, global_batch=64))
    plain = LayerModel(job).layer(0)
    for module, name in (("core_attn", "queries, keys, values"), ("expert_fc1", "expert inputs")):
        found = LayerModel(job.with_values(offload_modules=(module,))).layer(0)
        assert found.away == {name: plain.tensors[name]}
        assert name not in found.saved
        assert found.tensors == plain.tensors
    both = job.with_values(recompute="selective", recompute_modules=("moe_act",), offload_modules=("moe_act",))
    assert LayerModel(both).layer(0).away.keys().isdisjoint(LayerModel(both).layer(0).dropped)


@pytest.mark.parametrize(("sequence", "copies"), [(True, 2), (False, 1)])
def test_a_layer_gathers_its_inputs_where_the_sequence_is_split(sequence, copies):
    """The gathered input of attention and of the MLP; without a split sequence the one that is there passes."""
    job = resolve_job(
        JobRequest(model=TINY, gpus=8, seq_length=2048, global_batch=64, tp=2, sequence_parallel=sequence)
    )
    model = LayerModel(job)
    parts = sum(part.passing_forward for block in model.blocks_at(0) for part in model.parts.of_blocks((block,)))
    assert model.layer(0).forward == copies * 2 * 2048 * TINY.hidden + parts


def test_layers_of_virtual_stages_follow_each_other():
    job = job_of(layers_Q=(3, 2, 3))
    assert LayerModel(job).layers_Q == (range(3), range(3, 5), range(5, 8))


def test_pieces_are_the_layers_that_leave():
    one = (layer(100.0, away=30.0).alone,) * 5
    for given_, pieces in (({}, 0), ({"offload_activations": 3}, 3), ({"offload_modules": ("core_attn",)}, 5)):
        assert kept(job_of(**given_), StageLayers(layers=one)).pieces == pieces


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    scales=st.lists(st.integers(1, 64), min_size=1, max_size=4),
    again=st.integers(0, 6),
    group=st.integers(1, 3),
    offloaded=st.integers(0, 6),
)
def test_arrays_stand_for_the_numbers_in_them(sizes, scales, again, group, offloaded):
    values = {"recompute": "full", "recompute_layers": again, "recompute_group": group} if again else {}
    job = job_of(**values, offload_activations=offloaded)
    together = stage_of(job, *(layer(float(each), scale=np.array(scales, float)) for each in sizes))
    for place, scale in enumerate(scales):
        alone = stage_of(job, *(layer(float(each), scale=float(scale)) for each in sizes))
        assert [float(np.broadcast_to(each, len(scales))[place]) for each in together] == pytest.approx(alone)
