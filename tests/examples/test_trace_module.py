"""A module of a user is traced by the example, and its graph simulated; skipped where PyTorch is not installed."""

import importlib.util
import sys
from pathlib import Path

import pytest

from traincast import api
from traincast.estimate.operators import estimate_operator
from traincast.estimate.operators.families import work_of
from traincast.formats.neusight import opgraph
from traincast.hardware.gpu import find_gpu

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "examples" / "trace_module.py"
MODULES = HERE / "traced_modules.py"
NAMES = ("gpt", "vision", "mixture")
# Collected in any case, so that a machine without PyTorch says what it skipped.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch: pip install torch"),
]


@pytest.fixture(scope="module")
def script():
    pytest.importorskip("torch.export", reason="this PyTorch has no torch.export")
    spec = importlib.util.spec_from_file_location("trace_module", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def traced(script, tmp_path, monkeypatch, capsys):
    def trace(name, *options):
        out = tmp_path / f"{name}.csv"
        monkeypatch.setattr(sys, "argv", ["trace_module.py", f"{MODULES}:{name}", str(out), *options])
        script.main()
        return out, capsys.readouterr().out

    return trace


def flops_of(path):
    """Return the FLOP of GEMMs and attention, forward and backward."""
    found = [0.0, 0.0]
    for row in opgraph.parse(str(path), path.read_text()).rows:
        for backward, cell in enumerate((row.forward, row.backward, row.weight_grad)):
            gemms = [(call, count) for call, count in cell.calls if call.family in ("gemm", "attention")]
            found[backward > 0] += sum(count * work_of(call).flops for call, count in gemms)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_has_the_flops_and_parameters_that_pytorch_counts(name, script, traced):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    path, said = traced(name, "--unfused")
    module, inputs = script.found(f"{MODULES}:{name}")()
    # Fused kernels make the scores a second time for their gradients.
    with FlopCounterMode(display=False) as forward, sdpa_kernel(SDPBackend.MATH):
        loss = module(*inputs)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    assert flops_of(path) == [forward.get_total_flops(), backward.get_total_flops()]
    assert f"{sum(each.numel() for each in module.parameters())} trained parameters" in said


@pytest.mark.parametrize("name", NAMES)
def test_a_traced_module_is_forecast_on_any_gpu(name, traced):
    path, _ = traced(name)
    rows = opgraph.parse(str(path), path.read_text()).rows
    for gpu in ("h100", "a100", "mi300x"):
        calls = [each for row in rows for cell in row.cells for each in cell.calls]
        expected_s = sum(count * estimate_operator(call, find_gpu(gpu)).time_s for call, count in calls)
        result = api.simulate(path, cluster=gpu)
        assert result.iteration_time_s == pytest.approx(expected_s, rel=1e-9)
        assert {note.code for note in result.warnings} <= {"cluster-assumed"}
    assert api.simulate(path, cluster="h100", dtype="bf16").iteration_time_s < 1


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_a_traced_module_are_reduced_once_each(name, script, traced):
    path, _ = traced(name, "--data-parallel", "--accumulate")
    module, _ = script.found(f"{MODULES}:{name}")()
    result = api.inspect(path)
    assert result.counts["dp_elements"] == sum(each.numel() for each in module.parameters())
    assert not {note.code for note in result.oddities} & {"gradient-without-node", "name-repeated"}
    wide = api.simulate(path, cluster="h100", dp=8)
    assert wide.parallel.dp == 8 and wide.collectives


def test_inference_has_no_backward_pass(traced):
    path, _ = traced("gpt", "--inference")
    (step,) = {note.code for note in api.simulate(path, cluster="h100").warnings}
    assert step == "traced-for-inference"


def test_layers_of_a_traced_module_are_told_by_its_names(traced):
    path, _ = traced("gpt")
    assert api.inspect(path).counts["layers"] == 2
    two, six = (api.simulate(path, cluster="h100", layers=layers).iteration_time_s for layers in (2, 6))
    assert six > 2 * two


def test_a_size_that_depends_on_data_is_refused_by_name(traced):
    with pytest.raises(SystemExit, match="has a size that depends on data"):
        traced("data_dependent", "--device", "cpu")
