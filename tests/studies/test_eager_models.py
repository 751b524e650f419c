"""Whole models as PyTorch runs them eagerly: their kernels, layouts over GPUs, and the labels they are held against."""

import pytest

import eager_models
from datafiles import table_path
from eager.graphs import MODELS, EagerLayer, backward_calls, by_megatron, forward_calls
from eager.layouts import layout_time_s
from eager.predict import KIND
from eager.switch import SWITCH_MODELS, switch_backward, switch_forward
from traincast.calibration.validate import validate
from traincast.estimate.operators import OperatorCall, estimate_calls, estimate_operator, shipped_constants, work_of
from traincast.hardware.gpu import load_gpu
from traincast.job.parallel import Parallel

H100 = load_gpu("h100")


def test_the_kernels_of_a_model_are_those_of_its_flops():
    model = MODELS["gpt2_large"]
    batch, seq = 2, 1024
    forward, backward = forward_calls(model, batch, seq), backward_calls(model, batch, seq)
    products = sum(work_of(call).flops for call in forward if call.family == "gemm")
    tokens = batch * seq
    weights = 12 * model.hidden**2 * model.layers + model.vocabulary * model.hidden
    assert products == 2 * tokens * weights + 4 * tokens * seq * model.hidden * model.layers
    assert sum(work_of(call).flops for call in backward if call.family == "gemm") == 2 * products
    assert len(forward_calls(model, batch, seq, fused=True)) < len(forward)
    assert len(forward_calls(model, batch, seq, training=True)) > len(forward)


def test_sample_003_is_reproduced_from_shapes():
    """The measured rows of GPT-2 Large on an A100-PCIe-40GB (sitar-lab/NeuSight, scripts/asplos/data/dataset/test)."""
    gpu = load_gpu("A100-PCIE-40GB")

    def ms(*shape):
        return 1e3 * estimate_operator(OperatorCall(family="gemm", shape=shape, dtype="fp32"), gpu).time_s

    measured = {
        (16384, 3840, 1280): 9.873,
        (16384, 1280, 1280): 3.264,
        (16384, 5120, 1280): 13.666,
        (16384, 1280, 5120): 13.259,
        (320, 1024, 1024, 64): 2.782,
        (320, 1024, 64, 1024): 4.570,
    }
    for shape, value in measured.items():
        assert ms(*shape) == pytest.approx(value, rel=0.10)
    for inputs, width, value in (("2", 1280, 0.2006), ("1", 5120, 0.498), ("2", 5120, 0.753)):
        call = OperatorCall(family="elementwise", shape=(16384, width), dtype="fp32", options=(("inputs", inputs),))
        # The measured value holds an event as well.
        event_s = shipped_constants().find(gpu, ("elementwise",), "fp32").event_s
        assert 1e3 * (estimate_operator(call, gpu).time_s + event_s) == pytest.approx(value, rel=0.05)
    total = 1e3 * estimate_calls(forward_calls(MODELS["gpt2_large"], 16, 1024), gpu).sum()
    assert total == pytest.approx(2169, rel=0.08)


LABELS = "model,mode,seq,batch,gpu,gpus,option,dtype,measured_ms\n"


def labels(tmp_path, *rows):
    path = tmp_path / "labels.csv"
    path.write_text(LABELS + "".join(f"{row}\n" for row in rows))
    return path


def test_labels_of_whole_models_are_predicted(tmp_path):
    path = labels(
        tmp_path,
        "gpt2_large,inf,1024,4,NVIDIA_A100-PCIE-40GB,1,,fp32,535.8",
        "gpt2_large,inf,1024,4,NVIDIA_A100-PCIE-40GB,1,fusion,fp32,477.6",
        "gpt2_large,train,1024,4,NVIDIA_H100_80GB_HBM3,1,,fp32,638.8",
        "switchxl4,train,512,2,NVIDIA_H100_80GB_HBM3,1,,fp32,511.2",
        "gpt2_large,inf,1024,4,abacus,1,,fp32,1",
        "switch4,inf,512,1,NVIDIA_L4,1,,fp32,50.6",
    )
    found = validate(path, kind=KIND)
    assert (found.kind, found.total.rows, found.total.evaluated) == ("eager_runs", 6, 4)
    assert found.total.mean_abs_error < 0.1
    predicted = found.predictions.predicted
    assert predicted[1] < predicted[0]
    assert len({row.reason for row in found.skipped}) == 2
    assert {group.name: group.figures.rows for group in found.groups if group.by == "set"} == {"one GPU, others": 4}


def test_labels_of_four_gpus_are_simulated(tmp_path):
    gpu = "NVIDIA_H100_80GB_HBM3,4"
    path = labels(
        tmp_path,
        f"gpt2_large,train,1024,16,{gpu},dp4,fp32,642.1",
        f"gpt2_large,train,1024,4,{gpu},tp4,fp32,211.1",
        f"gpt2_large,train,1024,4,{gpu},pp4_1,fp32,637.5",
        f"gpt3_xl,train,2048,4,{gpu},tp4,fp32,1010.5",
    )
    found = validate(path, kind=KIND)
    assert found.total.evaluated == 4
    assert found.total.mean_abs_error < 0.12


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("gpt2_large,train,1024,4,L4,4,dp8,fp32,1", "the option 'dp8' is not a layout of 4 GPUs, such as dp4"),
        ("gpt2_large,train,1024,4,L4,4,,fp32,1", "the option '' is not a layout of 4 GPUs"),
        ("gpt2_large,train,1024,6,L4,4,dp4,fp32,1", "a batch of 6 does not divide by the layout"),
        ("gpt2_large,train,1024,4,L4,5,pp5_1,fp32,1", "36 layers do not divide by pp 5"),
        ("gpt2_large,train,1024,4,L4,3,tp3,fp32,1", "20 heads do not divide by tp 3"),
        ("bert_large,train,1024,4,L4,4,tp4,fp32,1", "only GPT runs on several GPUs"),
        ("gpt2_large,inf,1024,4,L4,4,tp4,fp32,1", "only training of GPT models"),
        ("switchxl4,inf,512,1,L4,1,fusion,fp32,1", "the option 'fusion' is not known for switchxl4"),
    ],
)
def test_a_layout_that_does_not_fit_says_why(tmp_path, row, reason):
    found = validate(labels(tmp_path, row, "gpt2_large,inf,1024,4,L4,1,,fp32,1300"), kind=KIND)
    assert [each.reason.startswith(reason) for each in found.skipped] == [True]


def test_layouts_keep_the_work_and_add_what_they_send():
    """Over one GPU each layout is the plain sum; over four the work is shared and something is sent."""
    model, gpu, known = MODELS["gpt2_large"], H100, shipped_constants()

    def step(batch, **degrees):
        return layout_time_s(model, batch, 1024, gpu, Parallel(**degrees), known)

    alone = step(4)
    own = by_megatron(model, 1)
    kernels = [*forward_calls(own, 4, 1024, training=True), *backward_calls(own, 4, 1024)]
    assert alone == pytest.approx(estimate_calls(kernels, gpu).sum(), rel=0.01)
    # One microbatch passes through the stages one after the other, and no stage works beside another.
    assert alone < step(4, pp=4) < 1.02 * alone
    assert alone / 4 < step(4, tp=4) < alone / 2
    # Four times the batch over four ranks: as long as one alone, and at most the reductions longer.
    assert alone < step(16, dp=4) < 1.1 * alone
    assert step(4, pp=4) > step(4, pp=4, microbatches=4)


def test_tensor_parallel_ranks_share_the_products():
    model = by_megatron(MODELS["gpt2_large"], 4)

    def flops(tp):
        layer = EagerLayer(model, 2, 1024, tp=tp)
        calls = [*layer.attention(), *layer.mlp(), *layer.attention_gradient(), *layer.mlp_gradient()]
        return sum(work_of(call).flops for call in calls if call.family == "gemm")

    assert flops(1) == 4 * flops(4)
    assert EagerLayer(model, 1, 8).parameters == 12 * 1280**2 + 13 * 1280
    assert model.vocabulary % (4 * 128) == 0


def test_a_switch_transformer_has_the_products_of_its_layers():
    model, batch, seq = SWITCH_MODELS["switchxl4"], 2, 512
    tokens, inner = batch * seq, 4096
    segments = switch_forward(model, batch, seq)
    products = sum(work_of(call).flops for part in segments for call in part if call.family == "gemm")
    attention = 72 * (4 * 2 * tokens * 1024 * inner + 4 * batch * seq * seq * inner)
    dense, expert = 24 * 4 * tokens * 1024 * 16384, 24 * 4 * batch * 64 * 1024 * 16384
    router, head = 24 * 2 * tokens * 1024 * 4, 2 * tokens * 1024 * 32128
    assert products == attention + dense + expert + router + head
    # With dropout every expert gets tokens up to its capacity.
    training = sum(
        work_of(call).flops
        for part in switch_forward(model, batch, seq, training=True)
        for call in part
        if call.family == "gemm"
    )
    assert training == products + 3 * expert
    backward = sum(work_of(call).flops for call in switch_backward(model, batch, seq) if call.family == "gemm")
    assert backward == 2 * training


def test_the_script_prints_the_errors_or_what_is_wrong(tmp_path, capsys, monkeypatch):
    path = labels(tmp_path, "gpt2_large,inf,1024,4,NVIDIA_A100-PCIE-40GB,1,,fp32,535.8")
    monkeypatch.setattr("sys.argv", ["eager_models.py", "--data", str(tmp_path), "--by", "model"])
    path.rename(tmp_path / "neusight_e2e_labels.csv")
    assert eager_models.main() == 0
    assert "gpt2_large" in capsys.readouterr().out
    (tmp_path / "neusight_e2e_labels.csv").unlink()
    assert eager_models.main() == 1
    assert "neusight_e2e_labels.csv is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_the_labels_are_met_as_the_page_says():
    """docs/operators.md, how good."""
    found = validate(table_path("neusight_e2e_labels.csv"), kind=KIND, by=["set"])
    means = {group.name: (group.figures.rows, group.figures.mean_abs_error) for group in found.groups}
    assert means["one GPU, in NeuSight's paper"] == (72, pytest.approx(0.073, abs=0.002))
    assert means["several GPUs"] == (11, pytest.approx(0.073, abs=0.002))
