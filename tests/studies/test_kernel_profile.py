"""Kernels of a profile: each belongs to the range around its launch, a backward one to that of its forward operator."""

import gzip
import json
from pathlib import Path

import pytest

from machine.kernel_profile import NOBODY, PREFIX, Owners, attributed, operators_as_kernels

EXAMPLE = Path(__file__).parents[2] / "examples" / "pytorch_ddp_2gpu_rank0.json.gz"


def event(cat, name, start, taken, thread=1, **said):
    return {"cat": cat, "name": name, "ts": start, "dur": taken, "pid": 1, "tid": thread, "args": said}


def operator(name, start, taken, number, sequence=None, forward_thread=0, thread=1):
    said = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": forward_thread}
    return event("cpu_op", name, start, taken, thread, **{"External id": number}, **said)


def part(name, start, taken):
    return event("user_annotation", PREFIX + name, start, taken)


def launch(start, correlation, thread=1):
    return event("cuda_runtime", "cudaLaunchKernel", start, 1, thread, correlation=correlation)


def kernel(name, start=1000, taken=10, **said):
    return event("kernel", name, start, taken, 7, **said)


FORWARD = [
    part("layer", 0, 100),
    part("router", 10, 30),
    operator("aten::linear", 12, 20, 1, sequence=5),
    operator("aten::mm", 14, 10, 2, sequence=5),
    launch(15, 11),
    part("experts", 50, 20),
    operator("Gemm", 52, 10, 3, sequence=6),
]
BACKWARD = [
    operator("GemmBackward", 200, 20, 4, sequence=6, forward_thread=1, thread=2),
    operator("aten::mm", 202, 10, 5, thread=2),
    launch(203, 12, thread=2),
    operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 230, 9, 6, thread=2),
    launch(231, 13, thread=2),
]


def owner(one):
    return Owners([*FORWARD, *BACKWARD, one]).of_kernel(one)


def test_a_kernel_belongs_to_the_innermost_range_around_its_launch():
    assert owner(kernel("gemm", correlation=11)) == ("router", "forward")


def test_without_a_launch_it_belongs_to_the_operator_that_it_names():
    assert owner(kernel("gemm", correlation=99, **{"External id": 3})) == ("experts", "forward")


def test_a_call_is_not_taken_for_an_operator_of_its_number():
    call = event("cuda_runtime", "cudaStreamGetPriority", 90, 1, correlation=3, **{"External id": 3})
    one = kernel("gemm", **{"External id": 3})
    assert Owners([*FORWARD, call, one]).of_kernel(one) == ("experts", "forward")


def test_a_backward_kernel_belongs_to_the_range_whose_node_launches_it():
    assert owner(kernel("gemm", correlation=12)) == ("experts", "backward")


def test_of_operators_with_one_number_the_last_to_begin_made_the_node():
    views = [part("permute", 40, 5), operator("aten::view", 41, 2, 8, sequence=6)]
    one = kernel("gemm", correlation=12)
    assert Owners([*FORWARD, *views, *BACKWARD, one]).of_kernel(one) == ("experts", "backward")


def test_gradients_that_are_added_up_are_a_part_of_their_own():
    assert owner(kernel("add", correlation=13)) == ("accumulate gradient", "backward")


def test_an_orphan_belongs_to_nobody():
    assert owner(kernel("gemm", correlation=99)) == NOBODY
    assert owner(kernel("gemm")) == NOBODY


def test_a_backward_node_without_a_forward_operator_is_still_backward():
    assert Owners(BACKWARD).of_kernel(kernel("gemm", correlation=12)) == (NOBODY[0], "backward")


def test_kernels_of_a_part_are_summed_by_name_and_busy_once_where_they_overlap():
    kernels = [kernel("gemm", 1000, 10, correlation=11), kernel("gemm", 1005, 10, correlation=11)]
    found = attributed([*FORWARD, *BACKWARD, *kernels])
    ((key, taken),) = found.kernels.items()
    assert key == ("router", "forward", "gemm")
    assert taken == (pytest.approx(20e-6), 2)
    assert found.busy_s == pytest.approx(15e-6)


def test_calls_that_wait_belong_to_a_part_and_launches_to_the_whole():
    wait = event("cuda_runtime", "cudaStreamSynchronize", 20, 5, correlation=14)
    found = attributed([*FORWARD, wait])
    assert found.calls == {
        ("router", "host", "cudaStreamSynchronize"): (pytest.approx(5e-6), 1),
        ("whole", "host", "cudaLaunchKernel"): (pytest.approx(1e-6), 1),
    }


def test_without_a_gpu_the_innermost_operators_are_kernels():
    events = [one for one in FORWARD + BACKWARD if one["cat"] != "cuda_runtime"]
    found = attributed(events + operators_as_kernels(events))
    assert set(found.kernels) == {
        ("router", "forward", "aten::mm"),
        ("experts", "forward", "Gemm"),
        ("experts", "backward", "aten::mm"),
        ("accumulate gradient", "backward", BACKWARD[3]["name"][:80]),
    }


def test_all_kernels_of_a_profile_of_pytorch_are_told_and_backward_ones_as_such():
    events = json.loads(gzip.decompress(EXAMPLE.read_bytes()))["traceEvents"]
    kernels = [one for one in events if one.get("cat") == "kernel"]
    owners = Owners(events)
    batch_norms = [one for one in kernels if "bn_bw" in one["name"]]
    assert {owners.of_kernel(one) for one in batch_norms} == {(NOBODY[0], "backward")}
    forward = [one for one in kernels if "bn_fw" in one["name"]]
    assert {owners.of_kernel(one) for one in forward} == {NOBODY}
    found = attributed(events)
    assert sum(taken.number for taken in found.kernels.values()) == len(kernels) + sum(
        one.get("cat") in ("gpu_memcpy", "gpu_memset") for one in events
    )
