"""How PyTorch is asked to time an operator: against a torch of a few names and a clock of its own, and a real one."""

import sys
import types

import pytest

from traincast import api
from traincast.errors import MeasurementError
from traincast.estimate.operators import FAMILIES, work_of
from traincast.measuring import kernels
from traincast.measuring.kernels import BUILDERS, CACHE_BYTES, Call, Maker, TorchKernels, import_torch
from traincast.measuring.tasks import operator_cells
from traincast.measuring.timing import CannotTimeError, MeasureError
from traincast.workload.ops import OperatorCall

FLUSH_S, EVENT_S = 1e-4, 4e-6


class OutOfMemoryError(Exception):
    pass


class FakeTorch:
    """What `TorchKernels` calls of torch, on a GPU whose clock moves with what is launched."""

    OutOfMemoryError = OutOfMemoryError
    int8 = "int8"
    __version__ = "9.9"
    version = types.SimpleNamespace(cuda="13.0")

    def __init__(self):
        self.now_s, self.flushes, self.made = 0.0, 0, []
        self.cuda = self

    def launch(self, seconds):
        self.now_s += seconds

    def empty(self, size, dtype, device):
        self.made.append((size, dtype, device))
        return types.SimpleNamespace(zero_=self._flush)

    def _flush(self):
        self.flushes += 1
        self.launch(FLUSH_S)

    def Event(self, enable_timing):  # noqa: ARG002
        event = types.SimpleNamespace()

        def record():
            # A pair of events takes time of its own, which must not count.
            self.now_s += EVENT_S / 2
            event.at_s = self.now_s

        event.record = record
        event.elapsed_time = lambda end: (end.at_s - event.at_s) * 1e3
        return event

    def get_device_properties(self, _):
        return types.SimpleNamespace(L2_cache_size=50 << 20)

    def synchronize(self):
        pass

    def empty_cache(self):
        pass

    def current_device(self):
        return 0

    def get_device_name(self):
        return "NVIDIA H100 80GB HBM3"


def test_a_kernel_is_timed_alone_with_an_empty_cache_before_each_repetition():
    torch = FakeTorch()
    backend = TorchKernels(torch)
    times = backend.times_s(lambda: torch.launch(7e-6), 5)
    assert times == pytest.approx([7e-6] * 5), "neither the flush nor the events are in it"
    assert torch.made == [(CACHE_BYTES, "int8", "cuda")], "a buffer larger than the cache"
    before = torch.flushes
    backend.times_s(lambda: torch.launch(1e-3), 3)
    assert torch.flushes >= before + 3


def test_what_the_machine_is_stands_in_each_row(monkeypatch):
    monkeypatch.setenv("PATH", "")
    about = TorchKernels(FakeTorch()).about()
    assert (about["gpu"], about["torch"], about["cuda"], about["driver"]) == (
        "NVIDIA H100 80GB HBM3",
        "9.9",
        "13.0",
        "",
    )


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (OutOfMemoryError("tried to allocate 80 GiB\nmore"), "out of memory"),
        (RuntimeError("no kernel image\nsecond line"), "this PyTorch cannot run it: no kernel image"),
        (CannotTimeError("no such type"), "no such type"),
    ],
)
def test_an_operator_that_fails_is_a_reason_and_no_end(monkeypatch, raised, reason):
    def build(_, __):
        raise raised

    monkeypatch.setattr(kernels, "BUILDERS", {"gemm": build})
    cells = operator_cells(OperatorCall(family="gemm", shape=(1, 2, 3), dtype="bf16"))
    with pytest.raises(CannotTimeError, match=f"^{reason}$"):
        TorchKernels(FakeTorch()).prepare(cells)
    with pytest.raises(CannotTimeError, match="PyTorch has no kernel for norm"):
        TorchKernels(FakeTorch()).prepare(cells | {"family": "norm"})


def test_without_pytorch_or_a_gpu_one_message_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MeasureError, match=r"PyTorch is not installed here .*--script"):
        import_torch()
    with pytest.raises(MeasurementError, match="PyTorch is not installed here"):
        api.measure("examples/llama3_70b_512gpu.toml", tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())
    blind = types.SimpleNamespace(__version__="9.9", cuda=types.SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", blind)
    with pytest.raises(MeasureError, match=r"PyTorch 9\.9 sees no GPU here"):
        import_torch()


def test_every_family_that_pytorch_has_a_kernel_for_can_be_timed():
    made_of_parts, without_a_kernel = (
        {"unfused_attention"},
        {
            *("counted", "state_space", "delta_rule", "selective_scan", "index_scores"),
        },
    )
    assert set(BUILDERS) == set(FAMILIES.names()) - made_of_parts - without_a_kernel


def test_cells_say_the_whole_call():
    call = OperatorCall(
        family="attention",
        shape=(1, 8, 8, 2, 1, 64, 64),
        dtype="bf16",
        direction="backward",
        causal=True,
        window=4,
        options=(("kernel", "fa2"),),
    )
    found = Call.from_cells(operator_cells(call))
    assert found == ("attention", call.shape, "bf16", "backward", True, 4, {"kernel": "fa2"})
    assert found.backward


SMALL = {
    "gemm": (32, 16, 48),
    "grouped_gemm": (64, 32, 48, 4),
    "attention": (1, 32, 32, 4, 2, 16, 16),
    "norm": (32, 16),
    "softmax": (32, 16),
    "elementwise": (32, 16),
    "accumulate": (64,),
    "copy": (64,),
    "optimizer": (64,),
    "embedding": (32, 16, 50),
    "route": (32, 16, 8, 2),
    "permute": (32, 16, 2),
}
"""All but those that a compiler makes, which takes half a minute."""


@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
def test_experts_are_timed_as_the_job_launches_them(direction):
    torch = pytest.importorskip("torch")
    call = OperatorCall(
        family="grouped_gemm", shape=(64, 32, 48, 4), dtype="bf16", direction=direction, options=(("kernel", "each"),)
    )
    made = BUILDERS["grouped_gemm"](Maker(torch, "cpu"), Call.from_cells(operator_cells(call)))()
    rows, columns = {"forward": (16, 32), "dgrad": (16, 48), "wgrad": (32, 48)}[direction]
    assert [tuple(each.shape) for each in made] == [(rows, columns)] * 4


@pytest.mark.parametrize("family", SMALL)
def test_a_real_pytorch_runs_each_family_both_ways(family):
    torch = pytest.importorskip("torch")
    for direction in FAMILIES.get(family).directions:
        dtype = "fp32" if family == "optimizer" else "bf16"
        call = OperatorCall(family=family, shape=SMALL[family], dtype=dtype, direction=direction)
        work_of(call)
        launch = BUILDERS[family](Maker(torch, "cpu"), Call.from_cells(operator_cells(call)))
        launch()
        launch()
