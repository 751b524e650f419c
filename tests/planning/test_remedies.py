"""What would do where no layout fits: each remedy is planned again, and the next smaller one fits not."""

import pytest
from msgspec.structs import replace

from traincast import api
from traincast.errors import InfeasibleError, TraincastError
from traincast.estimate.memory.fits import WARNED_ABOVE
from traincast.hardware.clusters import load_cluster

H100 = load_cluster("h100")
# As recipes set the program, without what a plan would switch on to make room.
PLAIN = {"tuned": "usual"}
LONG = {**PLAIN, "model": "llama3.2-1b", "gpus": 1, "global_batch": 2, "seq_length": 65536, "recompute": "none"}
LARGE = {**PLAIN, "model": "llama3-8b", "gpus": 1, "global_batch": 16, "seq_length": 2048}


def refused(job, cluster=H100, **options):
    with pytest.raises(InfeasibleError) as error:
        api.plan(cluster=cluster, **job, **options)
    return error.value


@pytest.fixture(scope="module")
def errors():
    return {"long": refused(LONG), "large": refused(LARGE)}


def by_field(error):
    return {each.field: each for each in error.remedies}


@pytest.mark.parametrize(("name", "job"), [("long", LONG), ("large", LARGE)])
def test_a_remedy_is_a_layout_that_a_plan_finds(errors, name, job):
    error = errors[name]
    assert error.remedies
    for each in error.remedies:
        found = api.plan(cluster=H100, top=1, **{**job, each.field: each.value})
        assert found.best[0].step_s == pytest.approx(each.step_s, rel=0.1)
        assert each.peak_bytes < error.limit_bytes < error.needed_bytes
        assert each.change in str(error)
        assert each.layout in str(error)


def test_the_sequence_is_the_longest_and_the_gpus_are_the_fewest(errors):
    length = by_field(errors["long"])["seq_length"].value
    assert length < LONG["seq_length"]
    half = 1 << (length.bit_length() - 1)
    refused({**LONG, "seq_length": length + half // 8})
    gpus = by_field(errors["large"])["gpus"].value
    assert gpus == 3
    refused({**LARGE, "gpus": 2})


def test_what_is_fixed_and_alone_in_the_way_is_named(errors):
    assert by_field(errors["long"])["recompute"].value == "full"
    assert "recompute" not in by_field(errors["large"])
    limited = refused({**LARGE, "gpus": 4, "seq_length": 8192, "tuned": "out-of-the-box"}, most={"tp": 1, "pp": 1})
    assert by_field(limited)["tp"].value > 1
    assert by_field(limited)["pp"].value > 1


def test_what_does_nothing_is_not_proposed(errors):
    """States alone are too large for one GPU: no sequence is short enough, and no batch small enough."""
    assert not {"seq_length", "global_batch"} & set(by_field(errors["large"]))
    assert "a shorter sequence or a smaller global batch alone would not" in str(errors["large"])


def test_the_host_must_hold_what_is_offloaded(errors):
    assert by_field(errors["large"])["offload_optimizer"].value == 1.0
    poor = replace(H100, gpu=replace(H100.gpu, host_memory_bytes=64 * 2**30))
    assert "offload_optimizer" not in by_field(refused(LARGE, poor))


def test_memory_that_stays_free_may_be_what_is_missing():
    job = {"model": "llama3.2-1b", "gpus": 1, "global_batch": 1, "seq_length": 2048, "tp": 1}
    found = by_field(refused(job, headroom=0.9))["headroom"]
    assert 0 < found.value < 0.9
    assert found.chance_of_oom < WARNED_ABOVE
    assert found.peak_bytes <= (1 - found.value) * api.plan(cluster=H100, top=1, **job).best[0].usable_bytes


def test_the_nearest_numbers_that_divide_are_named():
    job = {"model": "llama3.2-1b", "gpus": 9, "global_batch": 32, "seq_length": 1024, "tp": 2, "pp": 1}
    error = refused(job)
    assert [(each.field, each.value) for each in error.remedies] == [("gpus", 8), ("gpus", 16)]
    batch = refused({**job, "gpus": 24, "global_batch": 32})
    assert {("gpus", 16), ("gpus", 32), ("global_batch", 24), ("global_batch", 36)} == {
        (each.field, each.value) for each in batch.remedies
    }
    for each in (*error.remedies, *batch.remedies):
        assert each.change in f"{error} {batch}"


def test_points_of_a_sweep_are_not_told_what_would_do():
    """They are many, and each is a line."""
    with pytest.raises(
        TraincastError, match=r"1 infeasible; the first: none of .* plan it alone to be told what would do"
    ):
        api.sweep.sweep(work="plan", cluster="h100", micro_batch=[1], **LARGE)
