"""AICB files of placeholders are filled with the times of a job, or of a model trained as they imply."""

from pathlib import Path

import pytest

import traincast
from traincast.errors import ConfigError, FormatError

ROOT = Path(__file__).parents[3]
GPT = ROOT / "examples" / "aicb_gpt405b_1024gpu.toml"
DENSE = {"model": "llama3-8b", "gpus": 64, "tp": 4, "pp": 2, "vpp": 1, "seq_length": 4096, "micro_batch": 1}
DENSE |= {"global_batch": 32, "sequence_parallel": True}
EXPERTS = {**DENSE, "model": "mixtral-8x7b", "ep": 4, "etp": 4}
CASES = {"dense": DENSE, "no-sp": {**DENSE, "sequence_parallel": False}, "experts": EXPERTS, "tp1": {**DENSE, "tp": 1}}


SECTIONS = {
    "parallel": ("tp", "pp", "vpp", "ep", "etp", "sequence_parallel", "zero"),
    "batch": ("seq_length", "micro_batch", "global_batch"),
    "cluster": ("gpus",),
    "software": ("framework", "recompute"),
}


def job_file(path, fields):
    """Write a job file."""
    lines = ["[model]", f'name = "{fields["model"]}"']
    for section, names in SECTIONS.items():
        lines.append(f"[{section}]")
        for name in names:
            value = fields.get(name)
            if value is not None:
                lines.append(f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {str(value).lower()}")
    path.write_text("\n".join(lines) + "\n")
    return path


def emptied(source, path):
    """Write a file with AICB's placeholder wherever there is a compute time, as AICB does without a GPU."""
    head, count, *rows = source.read_text().splitlines()
    lines = []
    for row in rows:
        cells = row.split("\t")
        for at in (2, 5, 8):
            cells[at] = "1" if cells[at] != "0" else "0"
        lines.append("\t".join(cells))
    path.write_text("\n".join([head, count, *lines]) + "\n")
    return path


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """A job file, the AICB file that is written of it, and that file without its times."""
    job = job_file(tmp_path / "job.toml", CASES[request.param])
    full = tmp_path / "full.txt"
    traincast.convert(job, full, "aicb", cluster="h100")
    return job, full, emptied(full, tmp_path / "placeholders.txt")


def test_a_file_is_filled_with_the_times_of_its_job(case, tmp_path):
    job, full, empty = case
    out = tmp_path / "filled.txt"
    done = traincast.convert(empty, out, "aicb", model=str(job), cluster="h100")
    assert out.read_text() == full.read_text()
    assert "aicb-filled" in [note.code for note in done.lost]


@pytest.mark.slow
def test_with_a_model_alone_the_rest_follows_from_the_file(case, tmp_path):
    job, full, empty = case
    out = tmp_path / "filled.txt"
    name = traincast.api.read_job_file(str(job)).model
    traincast.convert(empty, out, "aicb", model=name, cluster="h100")
    was, now = (traincast.simulate(each, cluster="h100") for each in (full, out))
    assert now.iteration_time_s == pytest.approx(was.iteration_time_s, rel=0.01)


@pytest.mark.slow
def test_the_filled_file_takes_the_computation_of_the_forecast(case, tmp_path):
    """But for what overlaps with communication and is slowed down by that: a file runs one after the other."""
    job, _, empty = case
    out = tmp_path / "filled.txt"
    traincast.convert(empty, out, "aicb", model=str(job), cluster="h100")
    alone = dict.fromkeys(("compute", "memory", "small", "unknown", "communication"), 0.0)
    forecast = traincast.predict(traincast.api.read_job_file(str(job)), cluster="h100", overlap_slowdown=alone)
    replay = traincast.simulate(out, cluster="h100", overlap_slowdown=alone)
    assert replay.breakdown_s["compute"] == pytest.approx(forecast.breakdown_s["compute"], rel=0.01)


def test_measured_times_of_the_job_file_fill_it_too(tmp_path):
    full, out = tmp_path / "full.txt", tmp_path / "filled.txt"
    traincast.convert(GPT, full, "aicb")
    traincast.convert(emptied(full, tmp_path / "empty.txt"), out, "aicb", model=str(GPT))
    assert out.read_text() == full.read_text()


def test_degrees_that_are_said_otherwise_are_filled_and_said(case, tmp_path):
    job, _, empty = case
    out = tmp_path / "filled.txt"
    traincast.convert(empty, out, "aicb", model=str(job), cluster="h100", gpus=128)
    assert "all_gpus: 128" in out.read_text()


def test_what_cannot_be_filled_is_refused(case, tmp_path):
    job, full, empty = case
    with pytest.raises(FormatError, match="has compute times already"):
        traincast.convert(full, tmp_path / "o.txt", "aicb", model=str(job))
    with pytest.raises(ConfigError, match="a job has its own"):
        traincast.convert(job, tmp_path / "o.txt", "aicb", model="llama3-8b")
    with pytest.raises(ConfigError, match="fills a file that is an AICB"):
        traincast.convert(ROOT / "examples" / "megatron_rank0_pp2.txt", tmp_path / "o.txt", "aicb", model="llama3-8b")
    odd = tmp_path / "odd.txt"
    odd.write_text(empty.read_text().replace("mlp_", "mystery_"))
    with pytest.raises(FormatError, match="does not correspond to any part of") as caught:
        traincast.convert(odd, tmp_path / "o.txt", "aicb", model=str(job))
    assert caught.value.line
