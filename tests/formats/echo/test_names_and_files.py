"""File names, folders, and which files are one run."""

import re
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from traincast.errors import FormatError
from traincast.formats.echo.files import parse_name, read_runs, read_trace
from traincast.progress import listening

EXAMPLES = Path(__file__).parents[3] / "examples"
PP4 = EXAMPLES / "megatron_pp4_tp2"


def write(folder, name, rank, ends_ms=(10.0, 20.0)):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(
        "".join(
            f"rank:{rank}:forward_step(stage_id=0,batch_id={index},mg_state=steady,duration=1.0,description=None,"
            f"group_kind=None,input__shape=None,input__dtype=None,timestamp={end},sub_operations=[])\n"
            for index, end in enumerate(ends_ms)
        )
    )
    return path


def said_by(name):
    found = parse_name(Path(name))
    return {key: getattr(found, key) for key in found.__struct_fields__ if getattr(found, key) is not None}


def test_a_name_of_a_dense_run():
    assert said_by("wd8_tp2_pp4_numl40_bs2_GPT2BPETokenizer_rank7_20240923205004.txt") == {
        "prefix": "wd8_tp2_pp4_numl40_bs2_GPT2BPETokenizer",
        "world": 8, "tp": 2, "pp": 4, "layers": 40, "micro_batch": 2, "rank": 7,
        "stamp": datetime(2024, 9, 23, 20, 50, 4),
    }  # fmt: skip


def test_a_name_of_an_expert_run_and_its_folder():
    name = "pp1_tp1_exp4_expn8_dp16_nl8_hs2048_sl1024/wd16_tp1_pp1_exp4_expNum8_l8_bs1_rank3_20250301101500.txt"
    assert said_by(name) == {
        "prefix": "wd16_tp1_pp1_exp4_expNum8_l8_bs1",
        "world": 16, "tp": 1, "pp": 1, "dp": 16, "ep": 4, "experts": 8, "layers": 8, "micro_batch": 1, "rank": 3,
        "hidden": 2048, "sequence": 1024, "stamp": datetime(2025, 3, 1, 10, 15),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("002_megatron_trace_pp2_rank0.txt", {"prefix": "002_megatron_trace_pp2", "pp": 2, "rank": 0}),
        ("0712mg_stage3_scheduling_plan.txt", {"prefix": "0712mg_scheduling_plan"}),
        ("0729mg_rank0_scheduling_plan.txt", {"prefix": "0729mg_scheduling_plan", "rank": 0}),
        ("wd4_tp0_pp1_expNumNone_20249999999999.txt", {"prefix": "wd4_tp0_pp1_expNumNone", "world": 4, "pp": 1}),
        ("trace.txt", {"prefix": "trace"}),
    ],
)
def test_a_name_says_what_it_says(name, expected):
    assert said_by(name) == expected


def test_the_example_folder_is_one_run():
    (run,) = read_runs([PP4])
    assert run.key == "wd8_tp2_pp4_numl40_bs2_GPT2BPETokenizer_20240923205004"
    assert list(run.traces) == list(range(8))
    start = min(trace.first_start_s for trace in run.traces.values())
    end = max(op.end_s for trace in run.traces.values() for op in trace.ops)
    assert end - start == pytest.approx(3.8555, abs=0.0001)


def test_runs_are_told_apart_by_prefix_and_time(tmp_path):
    stamps = {0: "20250320144246", 1: "20250320144249", 2: "20250320144315", 3: "20250320144318"}
    paths = [write(tmp_path, f"wd4_rank{rank}_{stamp}.txt", rank) for rank, stamp in stamps.items()]
    paths += [write(tmp_path, f"wd4_rank{rank}_2025032015035{rank}.txt", rank) for rank in (1, 0)]
    paths += [write(tmp_path, f"wd8_rank{rank}.txt", rank) for rank in (1, 0)]
    runs = read_runs(paths)
    assert {run.key: list(run.traces) for run in runs} == {
        "wd4_20250320144246": [0, 1, 2, 3],
        "wd4_20250320150350": [0, 1],
        "wd8": [0, 1],
    }
    assert runs == read_runs(paths[::-1])


def test_a_rank_twice_in_one_run_names_both_files(tmp_path):
    paths = [write(tmp_path, f"wd4_rank0_2025032014424{second}.txt", 0) for second in (6, 9)]
    with pytest.raises(FormatError, match="rank 0 is also in") as caught:
        read_runs(paths)
    assert all(str(path) in str(caught.value) for path in paths)


def test_the_rank_of_the_lines_counts(tmp_path):
    trace = read_trace(write(tmp_path, "any.txt", 5))
    assert (trace.rank, trace.warnings) == (5, ())
    (note,) = read_trace(write(tmp_path, "x_rank4.txt", 5)).warnings
    assert note.code == "rank-in-name"


def test_a_file_is_about_one_rank(tmp_path):
    path = tmp_path / "both.txt"
    path.write_text(
        write(tmp_path, "a.txt", 0).read_text() + (write(tmp_path, "b.txt", 1)).read_text(),
    )
    with pytest.raises(FormatError, match=r"both\.txt:3: rank 1 in a file of rank 0"):
        read_trace(path)


def test_a_clock_that_goes_back_is_a_warning(tmp_path):
    (note,) = read_trace(write(tmp_path, "a.txt", 0, (10.0, 9.0, 30.0, 5.5))).warnings
    assert (note.code, note.place) == ("clock-goes-back", f"{tmp_path / 'a.txt'}:4")
    assert "2 times, the most by 24.50 ms" in note.text
    assert read_trace(write(tmp_path, "b.txt", 0, (10.0, 9.9995, 30.0))).warnings == ()


HOUR_MS = 3_600_000.0


@pytest.mark.parametrize(
    ("ends_ms", "line", "what"),
    [
        ((10.0, 20.0 + 2 * HOUR_MS, 30.0 + 2 * HOUR_MS), 2, r"jumps by 7200 s before forward_step"),
        ((10.0, 20.0, 9.0e12), 3, r"jumps by 9000000000 s before"),
        ((3 * HOUR_MS, 10.0), 2, r"jumps by -10800 s at forward_step"),
    ],
)
def test_a_clock_that_jumps_by_more_than_a_step_is_refused(tmp_path, ends_ms, line, what):
    path = write(tmp_path, "a.txt", 0, ends_ms)
    with pytest.raises(FormatError, match=what) as caught:
        read_trace(path)
    assert (caught.value.path, caught.value.line) == (str(path), line)
    assert "is the time stamp damaged, or are two steps in one file?" in str(caught.value)


def test_pauses_that_a_long_step_can_hold_are_read(tmp_path):
    assert len(read_trace(write(tmp_path, "a.txt", 0, (10.0, 0.9 * HOUR_MS))).ops) == 2
    path = write(tmp_path, "b.txt", 0, (10.0, 2 * HOUR_MS))
    path.write_text(path.read_text().replace("duration=1.0", "duration=9000.0"))
    assert len(read_trace(path).ops) == 2


@pytest.mark.parametrize("number", [0, -1])
def test_one_damaged_time_stamp_is_refused_with_its_line(tmp_path, number):
    lines = (PP4.parent / "megatron_rank0_pp2.txt").read_text().splitlines()
    path = tmp_path / "megatron_rank0_pp2.txt"
    for index in range(len(lines)):
        places = [found.end() for found in re.finditer(r"\btimestamp=", lines[index])]
        damaged = f"{lines[index][: places[number]]}9{lines[index][places[number] :]}"
        path.write_text("\n".join([*lines[:index], damaged, *lines[index + 1 :]]))
        with pytest.raises(FormatError, match="the clock jumps by 900000000 s") as caught:
            read_trace(path)
        assert caught.value.line == index + 1


def test_a_time_stamp_of_zero_in_a_sub_operation_is_left_open(tmp_path):
    path = tmp_path / "a.txt"
    text = (PP4.parent / "megatron_rank0_pp2.txt").read_text()
    path.write_text(text.replace("duration=0.02,timestamp=11488701335.44", "duration=0,timestamp=0"))
    assert len(read_trace(path).ops) == 8


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        read_runs([tmp_path / "no.txt"])
    shutil.copy(PP4.parent / "aicb_scaled_512gpu.txt", tmp_path / "w.txt")
    with pytest.raises(FormatError, match=r"w\.txt:1: .*is not a line of a trace"):
        read_runs([tmp_path / "w.txt"])


def test_many_ranks_are_told_of(monkeypatch):
    told = []
    monkeypatch.setattr("traincast.formats.echo.files.MANY_RANKS", 8)
    with listening(lambda what, share: told.append((what, share))):
        read_runs([PP4])
    # Where one ends the next begins.
    assert list(dict.fromkeys(told)) == [("reading 8 rank traces", rank / 8) for rank in range(9)]
