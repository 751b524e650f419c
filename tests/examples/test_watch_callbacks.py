# ruff: noqa: ARG001, ARG002
"""What the examples hook into frameworks writes, held against stand-ins with the frameworks' signatures."""

import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest

from traincast.formats.training_log.reader import read_log

EXAMPLES = Path(__file__).parents[2] / "examples" / "watch"


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"watch_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", ["megatron_lm", "torchtitan", "hugging_face"])
def test_a_callback_has_at_most_forty_lines(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40


@pytest.fixture
def megatron():
    """Megatron-LM's module with the signature of core_v0.13.0."""
    module, calls = types.ModuleType("training"), []

    def training_log(
        loss_dict,
        total_loss_dict,
        learning_rate,
        decoupled_learning_rate,
        iteration,
        loss_scale,
        report_memory_flag,
        skipped_iter,
        grad_norm,
        params_norm,
        num_zeros_in_grad,
    ):
        calls.append(iteration)
        return report_memory_flag

    module.training_log, module.calls = training_log, calls
    return module


def test_megatron_lm_logs_as_before_and_writes_each_step(megatron, tmp_path):
    loaded("megatron_lm").install(tmp_path / "steps.jsonl", megatron)
    for step in range(1, 6):
        flag = megatron.training_log({}, {}, 1e-4, None, step, 1.0, "flag", 0, 1.0, None, None)
        assert flag == "flag"
    assert megatron.calls == [1, 2, 3, 4, 5]
    assert [each["step"] for each in lines(tmp_path / "steps.jsonl")] == [2, 3, 4, 5]
    assert read_log(tmp_path / "steps.jsonl").steps.step.tolist() == [2, 3, 4, 5]


def test_other_ranks_of_megatron_lm_write_nothing(megatron, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "8")
    before = megatron.training_log
    loaded("megatron_lm").install(tmp_path / "steps.jsonl", megatron)
    assert megatron.training_log is before
    assert not (tmp_path / "steps.jsonl").exists()


def test_torchtitan_gets_what_it_logs_and_lines_are_written(tmp_path):
    got = []

    class Logger:
        def log(self, metrics, step):
            got.append(step)

        def close(self):
            got.append("closed")

    processor = types.SimpleNamespace(logger=Logger())
    loaded("torchtitan").install(processor, tmp_path / "steps.jsonl")
    for step in (1, 10, 20):
        processor.logger.log({"time_metrics/end_to_end(s)": 1.5, "memory/max_reserved(GiB)": 70.0}, step)
    processor.logger.close()
    assert got == [1, 10, 20, "closed"]
    steps = read_log(tmp_path / "steps.jsonl").steps
    assert steps.step_s.tolist() == [1.5] * 3
    assert steps.memory_bytes.tolist() == [70 * 2**30] * 3


def test_hugging_face_writes_steps_without_evaluations(tmp_path, monkeypatch):
    transformers = types.ModuleType("transformers")
    transformers.TrainerCallback = object
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    now = iter(range(100))
    module = loaded("hugging_face")
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(now)))
    callback = module.StepTimes(tmp_path / "steps.jsonl")
    state = types.SimpleNamespace(is_world_process_zero=True, global_step=0)
    callback.on_train_begin(None, state, None)
    for step in range(1, 7):
        state.global_step = step
        callback.on_step_end(None, state, None, model=None)
        if step == 3:
            next(now), next(now)
            callback.on_evaluate(None, state, None, metrics={})
    callback.on_train_end(None, state, None)
    assert lines(tmp_path / "steps.jsonl") == [{"step": step, "step_s": 1.0} for step in (2, 3, 4, 5, 6)]


def test_hugging_faces_own_trainer_writes_its_steps(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
        )
    )
    tokens = torch.arange(16) % 32
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(str(tmp_path / "out"), max_steps=6, report_to=[], use_cpu=True),
        train_dataset=[{"input_ids": tokens, "labels": tokens}] * 64,
        callbacks=[loaded("hugging_face").StepTimes(tmp_path / "steps.jsonl")],
    )
    trainer.train()
    assert [each["step"] for each in lines(tmp_path / "steps.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_the_board_asks_for_metrics_that_there_are():
    from traincast.checking.watching import Watch
    from traincast.report.openmetrics import open_metrics

    text = open_metrics(Watch("run.log").state(), "run.log")
    board = json.loads((EXAMPLES / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert asked
    for expression in asked:
        name = expression.removeprefix("increase(").partition("{")[0]
        assert f"{name}{{" in text, name
