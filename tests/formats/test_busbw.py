"""SimAI's file of bus bandwidths: what its lines stand for, and where it is wrong."""

import pytest

from aicb_runs import codes, run
from support import ALONE, rich_rows, write_aicb
from traincast import api
from traincast.errors import FormatError
from traincast.formats.busbw import looks_like_busbw
from traincast.job.options import OPERATIONS, make_options
from traincast.workload.words import Operation

FILE = """\
mine
TP:
  allreduce,: 310      # GB/s
  allgather,: 290.5
  reducescatter: 270
  alltoall,: null
DP:
allgather,: 40
# nothing between
EP:
allreduce,: ~
allgather,: 41

alltoall,: 82
PP:
busbw: 12.5
"""
RATES = {
    "tp.all_reduce": 310e9,
    "tp.all_gather": 290.5e9,
    "tp.reduce_scatter": 270e9,
    "dp.all_gather": 40e9,
    "edp.all_gather": 41e9,
    "ep.all_to_all": 82e9,
    "pp": 12.5e9,
}


def written(tmp_path, text):
    path = tmp_path / "busbw.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", [FILE, FILE.replace("\n", "\r\n"), "\ufeff" + FILE, FILE.removeprefix("mine\n")])
def test_sections_and_lines_are_groups_and_operations(tmp_path, text):
    assert api.bus_bandwidths(written(tmp_path, text)) == RATES
    assert looks_like_busbw(text)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("DP:", "XP:", 7, "unknown section 'XP'; known: TP, DP, EP, PP"),
        ("allgather,: 40", "allgathers,: 40", 8, "'allgathers' in section DP; known: allreduce"),
        ("busbw: 12.5", "allreduce: 12.5", 16, "'allreduce' in section PP; known: busbw"),
        ("reducescatter: 270", "allgather,: 2", 5, "allgather is given twice in section TP"),
        ("310 ", "fast", 3, "allreduce of TP: 'fast"),
        ("12.5", "-1", 16, "above 0"),
        ("12.5", "1e300", 16, "above 0"),
        ("12.5", "nan", 16, "not a finite number"),
        ("12.5", "", 16, "busbw of PP: '' is not a number"),
        ("mine\n", "mine\nallreduce,: 3\n", 2, "stands in no section"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, old, new, line, message):
    path = written(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(FormatError, match=message) as caught:
        api.bus_bandwidths(path)
    assert (caught.value.line, str(caught.value).startswith(f"{path}:{line}: ")) == (line, True)


@pytest.mark.parametrize("text", ["", "mine\n", "mine\nTP:\n", "mine\nTP:\nallreduce,: null\n"])
def test_a_file_without_rates_is_refused(tmp_path, text):
    with pytest.raises(FormatError, match="holds no bus bandwidth"):
        api.bus_bandwidths(written(tmp_path, text))
    assert not looks_like_busbw("just: a\nyaml: file\n")


def test_a_rate_of_an_operation_goes_before_that_of_its_group_and_leaves_the_others(tmp_path):
    path = write_aicb(tmp_path / "w.txt", rich_rows(), tp=2, ep=2, pp=2, ga=2, gpus=16)
    plain = run(path, "h100", **ALONE)
    rates = {"tp": 7e9, "tp.all_gather": 9e9, "dp.all_gather": 3e9}
    result = run(path, "h100", busbw_bytes_per_s=rates, **ALONE)
    before = {(each.group, each.op, each.size_bytes): each.time_s for each in plain.collectives}
    seen = set()
    for each in result.collectives:
        rate = rates.get(f"{each.group}.{each.op}", rates.get(each.group))
        if rate is None:
            assert each.time_s == before[each.group, each.op, each.size_bytes]
            continue
        if each.size_bytes < 1 << 20:
            continue
        seen.add(rate)
        factor = (2 if each.op == "all_reduce" else 1) * (each.ranks - 1) / each.ranks
        assert each.time_s == pytest.approx(factor * each.size_bytes / rate, rel=0.2)
    assert seen == set(rates.values())
    assert "busbw-unused" not in codes(result)


def test_rates_over_which_nothing_is_priced_are_one_warning(tmp_path):
    path = write_aicb(tmp_path / "w.txt", rich_rows(), tp=2, ep=2, pp=2, ga=2, gpus=16)
    result = run(path, "h100", busbw_bytes_per_s={"tp.broadcast": 1e9, "cp": 1e9, "tp.all_gather": 1e9})
    (note,) = [note for note in result.warnings if note.code == "busbw-unused"]
    assert note.text == "--busbw tp.broadcast, cp: no such communication was estimated, so they change nothing"


def test_the_names_of_operations_are_those_of_the_workload():
    assert {*OPERATIONS} == {each.name.lower() for each in Operation if each is not Operation.NONE}


def test_the_rates_of_a_simulated_step_are_written_and_read_again(tmp_path):
    path = write_aicb(tmp_path / "w.txt", rich_rows(size=1 << 24), tp=2, ep=2, pp=2, ga=2, gpus=16, pp_comm=1 << 24)
    said = {
        "tp": 100e9,
        "dp": 25e9,
        "dp.all_gather": 20e9,
        "dp.reduce_scatter": 10e9,
        "edp": 15e9,
        "ep": 50e9,
        "pp": 12e9,
    }
    options = make_options(cluster="h100", busbw_bytes_per_s=said, **ALONE)
    done = api.convert(path, tmp_path / "busbw.yaml", "busbw", options=options)
    found = api.bus_bandwidths(tmp_path / "busbw.yaml")
    assert {"tp.all_gather", "tp.all_reduce", "edp.reduce_scatter", "ep.all_to_all", "pp"} <= set(found)
    for name, rate in found.items():
        asked = said.get(name) or said[name.partition(".")[0]]
        # Whatever a transfer has beside its bytes lowers its rate.
        assert 0.9 * asked < rate <= asked * (1 + 1e-5), name
    assert looks_like_busbw((tmp_path / "busbw.yaml").read_text())
    again = api.simulate(path, make_options(cluster="h100", busbw_bytes_per_s=found, **ALONE))
    first = api.simulate(path, options)
    assert again.iteration_time_s == pytest.approx(first.iteration_time_s, rel=1e-3)
    assert all(note.code == "busbw-left-out" for note in done.lost)


def test_a_step_without_communication_has_no_rates(tmp_path):
    path = write_aicb(tmp_path / "w.txt", rich_rows(), gpus=1)
    with pytest.raises(FormatError, match="no bus bandwidth"):
        api.convert(path, tmp_path / "busbw.yaml", "busbw", options=make_options(cluster="h100"))
    assert not (tmp_path / "busbw.yaml").exists()
