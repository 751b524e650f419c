"""Documents that commands print are as their JSON Schemas say, key for key."""

import csv
import json

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from measured_tables import ROWS
from traincast.report import json as documents_written
from traincast.report.documents import DOCUMENTS, schema

JOB = ("--model", "llama3-8b", "--cluster", "h100", "--gpus", "8", "--global-batch", "8", "--seq-length", "1024")
TRACES = "examples/megatron_pp4_tp2"
MAY_BE_ABSENT = ["host", "usable", "chance_of_oom"]
"""Of the memory of a stage: where nothing is offloaded, and where an older version wrote the result."""
PLAN = (*JOB, "--fix", "tp=1,2", "--max-pp", "1", "--top", "2", "--max-micro-batch", "1")
SMALL = ("--max-pp", "1", "--max-cp", "1", "--max-micro-batch", "1", "--top", "1")
PRINTED = {
    "result": [
        ("predict", *JOB, "--goodput", "--tokens", "1T", "--what-if", "tp=2", "--jitter", "0.01", "--seeds", "2"),
        ("predict", *JOB, "--model", "qwen3-30b-a3b", "--ep", "8", "--allow-oom", "--no-suggest"),
        ("simulate", TRACES, "--what-if", "compute*0.9"),
        ("simulate", "examples/aicb_scaled_512gpu.txt", "--no-suggest", "--goodput"),
    ],
    "plan": [
        ("plan", *PLAN, "--explain", "tp=8", "--tokens", "1T"),
        ("plan", *PLAN, "--model", "llama3.2-1b"),
        ("plan", *PLAN, "--gpus", "8,9", "--days", "1", "--budget", "1K", "--gpu-hour-price", "2"),
        ("plan", "--from", "job.toml", "--max-tp", "2", *SMALL),
    ],
    "check": [
        ("check", "examples/check/today.log", "--cluster", "h100", "--baseline", "examples/check/last_good.log"),
        ("check", "examples/check/last_good.log", "--cluster", "h100"),
        ("check", "--between", "job.toml", "job.toml"),
    ],
    "comparison": [("compare", TRACES, "examples/megatron_pp4_tp2_job.toml", "--tokens", "1T")],
    "collective_comparison": [("compare", "examples/all_reduce_a100.csv", "examples/all_reduce_a100.csv")],
    "inspection": [("inspect", f"examples/{name}") for name in (
        "neusight_gpt2_large_dp.tsv", "aicb_scaled_512gpu.txt", "llama3_70b_512gpu.toml", "training_runs.csv",
    )] + [("inspect", "examples/megatron_rank0_pp2.txt")],
    "inspections": [("inspect", TRACES), ("inspect", "examples/training_runs.csv", "examples/training_runs.csv")],
    "conversion": [("convert", "job.toml", "job.txt", "--to", "aicb")],
    "simai": [("simulate", "examples/aicb_scaled_512gpu.txt", "--pricing", "simai")],
    "collective": [("collective", "all_reduce", "--gpus", "16", "--cluster", "h100")],
    "operator": [("operator", "gemm", "--m", "8", "--n", "8", "--k", "8")],
    "validation": [
        ("validate", "runs.csv", "--by", "gpu"),
        ("validate", "examples/all_reduce_a100.csv", "--cluster", "a100", "--cv", "gpu"),
    ],
    "alarm": [("watch", "examples/watch/slower.log", "--once")],
    "ranking": [("validate", "--ranking", "runs.csv")],
    "run_calibration": [("calibrate", "examples/training_runs.csv", "--cluster", "a100")],
    "clusters": [("clusters",)],
    "models": [("models",), ("models", "deepseek-v3")],
    "error": [("models", "no-such-model"), ("inspect", "no_such_file"), ("predict", *JOB, "--zero", "0", "--no-such")],
}  # fmt: skip


@pytest.fixture(scope="module")
def validators():
    return {name: Draft202012Validator(keys_first(schema(name))) for name in DOCUMENTS}


def keys_first(found):
    """Return a schema that asks for its keys before it looks into them: what has others is refused at once."""
    asked = {name: found[name] for name in ("required", "additionalProperties") if name in found}
    return {**asked, **found}


@pytest.fixture
def files(tmp_path):
    """Return the words of a command, with files that it reads in the place of their names."""
    rows = [{**ROWS[0], "id": f"run-{tp}", "tp": tp, "cp": 1, "num_gpus": 16, "global_batch": 64} for tp in (2, 4)]
    with (tmp_path / "runs.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "job.toml").write_text(
        '[model]\nname = "llama3-8b"\n[parallel]\ntp = 2\n[batch]\nseq_length = 1024\nglobal_batch = 8\n'
        '[cluster]\nname = "h100"\ngpus = 8\n'
    )
    ours = ("runs.csv", "job.toml", "job.txt")
    return lambda words: [str(tmp_path / word) if word in ours else word for word in words]


def test_every_document_that_is_written_has_a_schema_and_is_printed_here():
    written = [name for name in vars(documents_written) if name.endswith("_to_dict")]
    assert len(DOCUMENTS) == len(written)
    # What takes seconds to fit is held against its schema where it is fitted.
    assert set(PRINTED) | {"calibration", "operator_calibration"} == set(DOCUMENTS)


def is_slow(name, number):
    """Return whether a command is slow: of plans and validations the first is what every run of the tests asks for."""
    return number > 0 and name in ("plan", "validation")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param(name, words, marks=pytest.mark.slow if is_slow(name, number) else ())
        for name, all_ in PRINTED.items()
        for number, words in enumerate(all_)
    ],
)
def test_what_a_command_prints_is_as_its_schema_says(name, words, call, files, validators):
    document = json.loads(call(*files(words), "--json")[1])
    assert document["schema"] == f"traincast.{name}/1"
    validators[name].validate(document)
    for key in document:
        assert not validators[name].is_valid({other: value for other, value in document.items() if other != key})
    assert not validators[name].is_valid({**document, "further": 1})


def objects_in(node):
    """Yield every object of a schema whose keys are listed."""
    if isinstance(node, dict):
        if "properties" in node:
            yield node
        node = list(node.values())
    for each in node if isinstance(node, list) else ():
        yield from objects_in(each)


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_schemas_are_valid_and_let_no_key_in_or_out(name, call):
    found = json.loads(call("schema", f"traincast.{name}/1")[1])
    assert found == schema(name)
    validator_for(found).check_schema(found)
    for each in objects_in(found):
        assert [name for name in each["properties"] if name not in each["required"]] in ([], MAY_BE_ABSENT)
        assert each["additionalProperties"] is False


def test_schemas_are_listed_and_others_are_refused(call):
    lines = call("schema")[1].splitlines()
    assert [line.split()[0] for line in lines] == list(DOCUMENTS)
    code, out, err = call("schema", "results")
    assert (code, out) == (1, "")
    assert "did you mean result" in err
