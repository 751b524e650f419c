"""What is not a workload is named in one line with the command that takes it; nothing is taken for another thing."""

import gzip
import json
import re
from pathlib import Path

import pytest

from calibrate_logs import nccl_log, nccl_report, with_mpi_marks
from traincast import api
from traincast.calibration.kind import TELLERS
from traincast.cli.main import main
from traincast.errors import FormatError
from traincast.formats.contract import FORMATS
from traincast.formats.recognise import recognise

EXAMPLES = Path(__file__).parents[2] / "examples"
LOG = nccl_log([(2**20, 100.0, 101.0), (2**21, 180.0, 181.0)])
COLLECTIVES = "op,ranks,nodes,size_bytes,time_us\nall_reduce,8,1,1048576,100\nall_gather,8,1,1048576,60\n"
CALIBRATE = "traincast calibrate and traincast validate take it"

KNOWN = [
    pytest.param("run.log", LOG, "nccl-tests", "all_reduce over 8 ranks; 2 timings", CALIBRATE, id="nccl-tests"),
    pytest.param(
        "r.json",
        nccl_report([(2**20, 100.0, 101.0), (2**21, 180.0, 181.0)]),
        *("nccl-tests", "all_reduce over 8 ranks; 2 timings", CALIBRATE),
        id="nccl-tests-report",
    ),
    pytest.param("run.log", with_mpi_marks(LOG), "nccl-tests", "over 8 ranks", CALIBRATE, id="nccl-tests-marked"),
    pytest.param("c.csv", COLLECTIVES, "collectives", "measured collectives (2 rows)", CALIBRATE, id="collectives"),
    pytest.param(
        "b.yaml", "x\nTP:\nallreduce,: 300\nPP:\nbusbw: 40\n", "busbw", "bus bandwidths", "--busbw FILE", id="busbw"
    ),
    pytest.param(
        "r.csv", "Size,1 Node,2Node-16GPU\n16777216,0.4,0.3\n", "simai-ratio", "shares", "no command", id="ratio"
    ),
    pytest.param(
        "gpt2.csv",
        "op,target,_input_nodes,_args,_kwargs,users,type,_prev\nplaceholder,input_ids,{},(),{},{},int,\n",
        *("neusight-raw", "torch.fx", "opgraph"),
        id="neusight-raw",
    ),
    pytest.param(
        "gpt2.json",
        json.dumps({"num_layer": 24, "e2e_latency": 1.5, "fw_latency": 1.5, "bwall_latency": 0.0, "acc_latency": 0.0}),
        *("neusight-sums", "sums of a prediction", ".csv of the same name"),
        id="neusight-sums",
    ),
    pytest.param("S.conf", "ENABLE_QCN 1\n\nCC_MODE 1\nRATE_AI 50Mb/s\n", "simai-ns3", "NS3", "[fabric]", id="ns3"),
    pytest.param(
        "t.txt", "train_iter:10\nEmb:\n    time_gpu_max: 5\n", "aicb-times", "AICB measured", "--to aicb", id="aiob"
    ),
    pytest.param("j.toml", '[model]\nname = "llama3-8b"\n', "job", "job", "traincast predict", id="job"),
    pytest.param("m.toml", "layers = 2\nhidden = 64\n", "model", "model", "--model FILE", id="model"),
    pytest.param(
        "config.json", '{"model_type": "llama", "hidden_size": 64}', "hugging-face", "Hugging Face", "--model", id="hf"
    ),
    pytest.param(
        "result.json",
        json.dumps({"schema": "traincast.result/1"}),
        "traincast.result/1",
        "result",
        "traincast report",
        id="result",
    ),
    pytest.param("ops.csv", "rank,stage,virtual_stage,microbatch,phase,kind,name,layer\n", "ops", "ops", "", id="ops"),
    pytest.param("t.json", '{"otherData": {}, "traceEvents": []}', "trace", "timeline", "perfetto", id="trace"),
]


@pytest.mark.parametrize(("name", "content", "kind", "what", "taken_by"), KNOWN)
def test_inspect_says_what_it_is_and_what_takes_it_in_one_line(tmp_path, capsys, name, content, kind, what, taken_by):
    path = tmp_path / name
    path.write_text(content)
    found = api.inspect(path)
    assert found.format == kind
    assert what in found.generation
    assert taken_by in found.taken_by
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(path)])
    assert ended.value.code == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert f"{found.generation}; {found.taken_by}" in said
    if kind != "traincast.result/1":  # a result is run again
        with pytest.raises(FormatError, match="is not a workload: ") as caught:
            api.simulate(path)
        assert found.taken_by in str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_trace_that_ends_in_the_middle_is_refused(tmp_path, pack, share):
    events = [{"ph": "X", "name": "gemm", "ts": each, "dur": 5, "args": {"stream": 7}} for each in range(3000)]
    whole = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    path = tmp_path / "rank0.json"
    path.write_bytes(pack(whole[: int(share * len(whole))]))
    with pytest.raises(FormatError, match="ends in the middle of a trace"):
        recognise(path, TELLERS)
    path.write_bytes(pack(whole + b"\n\n"))
    assert recognise(path, TELLERS).name == "trace"


@pytest.mark.parametrize("content", [LOG, COLLECTIVES, '{"otherData": {}, "traceEvents": []}'])
def test_packed_logs_tables_and_timelines_are_known_too(tmp_path, content):
    plain, packed = tmp_path / "plain", tmp_path / "packed.gz"
    plain.write_text(content)
    packed.write_bytes(gzip.compress(content.encode()))
    assert recognise(packed, TELLERS) == recognise(plain, TELLERS) is not None


@pytest.mark.parametrize(("name", "content"), [each.values[:2] for each in KNOWN])
def test_no_format_takes_it_for_its_own(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    assert [form.name for form in FORMATS.entries() if form.looks_like(content).confidence > 0.2] == []


WORKLOADS = sorted(path for path in EXAMPLES.rglob("*") if path.suffix in (".txt", ".tsv"))


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.name[:40])
def test_no_workload_is_taken_for_something_else(path):
    assert recognise(path, TELLERS) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "a,b\n1,2\n",
        "{",
        "{}",
        "[1]",
        "TP:\n",
        "DP:\nhello: 3\n",
        "train_iter: x\n",
        "CC_MODE 1\n",
        "\0\1\2",
        "key: 1\n",
    ],
)
@pytest.mark.parametrize("ending", [".txt", ".csv", ".json", ".toml", ".yaml", ".gz"])
def test_other_files_stay_unknown(tmp_path, content, ending):
    path = tmp_path / f"file{ending}"
    path.write_text(content)
    if ending == ".toml" and content not in ("", "[1]"):
        with pytest.raises(FormatError, match="TOML"):
            recognise(path, TELLERS)
    else:
        assert recognise(path, TELLERS) is None


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (f"[inter]\nbandwidth_bytes_per_s = {'9' * 5000}\n", 2, "a number or date is out of range"),
        (f"[fabric]\n\n{'.'.join('a' * 60)} = 1\n", 3, "a dotted key has more than 32 parts"),
        ("[inter]\nbandwidth = = 3\n", 2, "is not TOML: Invalid value"),
    ],
)
def test_a_toml_file_that_cannot_be_read_says_where(tmp_path, content, line, what):
    path = tmp_path / "cluster.toml"
    path.write_text(content)
    for read in (api.inspect, api.simulate):
        with pytest.raises(FormatError, match=re.escape(what)) as caught:
            read(path)
        assert caught.value.line == line


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("run.log", LOG, "log of nccl-tests"),
        ("ata_ratio.csv", "size,1node,2node\n1,0.1,0.2\n", "SimAI's shares of the bus bandwidth"),
        ("job.toml", '[model]\nname = "x"\n', "description of a job"),
    ],
)
def test_a_file_that_holds_no_bus_bandwidths_is_named_for_what_it_is(tmp_path, name, content, what):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(FormatError, match=f"holds no bus bandwidths: {what}"):
        api.bus_bandwidths(path)


def test_a_workload_or_unknown_file_as_bus_bandwidths(tmp_path):
    workload = next(iter(EXAMPLES.glob("aicb*.txt")))
    with pytest.raises(FormatError, match=r"no bus bandwidths: AICB/SimAI workload; traincast simulate takes it"):
        api.bus_bandwidths(workload)
    (tmp_path / "x.yaml").write_text("title\nhello: 3\n")
    with pytest.raises(FormatError, match=r"x\.yaml:2: 'hello: 3' stands in no section"):
        api.bus_bandwidths(tmp_path / "x.yaml")


def test_timings_of_a_log_that_were_cut_short_are_counted_apart(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("\n".join(line[:40] if line.startswith(" " * 5 + "1") else line for line in LOG.splitlines()))
    assert "2 timings, 1 of them not to be trusted" in api.inspect(path).generation


def test_a_log_without_timings_is_refused(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("\n".join(line for line in LOG.splitlines() if not line.startswith(" " * 4)))
    with pytest.raises(FormatError, match="holds no timings"):
        api.inspect(path)
