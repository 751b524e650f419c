"""What all formats share: numbers and lines as files write them, and what is decided alike of a layout."""

import pytest

from traincast.diagnostics import FileWarnings, Notebook
from traincast.errors import FormatError, InfeasibleError
from traincast.formats.contract import Counted, Total, totals_of
from traincast.formats.layout import (
    asked_dp,
    known_message_bytes,
    microbatches_of,
    replicas,
    warn_single_microbatch,
)
from traincast.formats.values import (
    COLLECTIVES,
    check_lines,
    check_width,
    filled_lines,
    number,
    read_cell,
    shown,
    time_s,
    whole,
)
from traincast.job.options import LayoutOptions
from traincast.units import RANGES
from traincast.workload.words import Group, Operation, Phase

DEGREES = {"tp": 2, "cp": 3, "pp": 4}


# --- numbers and lines


@pytest.mark.parametrize("text", ["8", "8.0", "8e0", "+8", "0.8e1"])
def test_a_whole_number_may_be_written_as_a_float(text):
    assert whole(text) == 8
    assert isinstance(whole(text), int)


@pytest.mark.parametrize(
    ("text", "limits", "words"),
    [
        ("0", {}, r"'0' is not a number from 1 to 2\^31 - 1"),
        ("-1", {"least": 0}, r"'-1' is not a number from 0 to 2\^31 - 1"),
        (str(2**31), {}, r"is not a number from 1 to 2\^31 - 1"),
        ("1.5", {}, "'1.5' is not a whole number"),
        (str(2**53), {"kind": "bytes"}, r"is not a number of bytes from 0 to 2\^53 - 1"),
        ("-0.4", {"kind": "bytes", "rounded": True}, "is not a number of bytes from 0"),
        ("11", {"most": 10}, "from 1 to 10$"),
        ("9", {"most": 8}, "from 1 to 8$"),
        ("9", {"most": 7}, r"from 1 to 2\^3 - 1$"),
        ("1_0", {}, "is not a number"),
        ("nan", {}, "is not a finite number"),
    ],
)
def test_a_number_out_of_range_is_refused_with_the_range(text, limits, words):
    with pytest.raises(ValueError, match=words):
        whole(text, **limits)


def test_the_ends_of_a_range_are_in_it_and_stay_exact():
    assert (whole("0", "bytes"), whole(str(2**53 - 1), "bytes")) == (0, 2**53 - 1)
    assert (whole("1"), whole(str(2**31 - 1))) == (1, 2**31 - 1)
    assert number(str(2**53 + 1)) == 2**53 + 1
    assert whole("2.5", "bytes", rounded=True) == round(2.5)


@pytest.mark.parametrize(("per_second", "unit"), [(1e9, "ns"), (1e6, "us"), (1e3, "ms"), (1.0, "s")])
def test_a_time_is_in_seconds_and_its_range_in_the_unit_of_the_file(per_second, unit):
    longest = RANGES["time"].highest
    assert time_s("1.5", per_second, unit) == 1.5 / per_second
    assert time_s(f"{longest * per_second:.0f}", per_second, unit) == longest
    assert (time_s("0", per_second, unit), time_s("0.25", per_second, unit)) == (0, 0.25 / per_second)
    for text in ("-1", f"{1.001 * longest * per_second:.0f}"):
        with pytest.raises(ValueError, match=rf"is not a time from 0 to \S+ {unit}$"):
            time_s(text, per_second, unit)


def test_a_long_text_is_cut_in_messages_and_a_long_number_is_none():
    assert shown("x" * 40) == f"'{'x' * 40}'"
    assert shown("x" * 41) == f"'{'x' * 37}...'"
    assert shown("\u00e9") == r"'\xe9'"
    assert number("0" * 39 + "7") == 7
    with pytest.raises(ValueError, match="is not a number"):
        number("0" * 40 + "7")


def test_lines_keep_their_numbers_whatever_ends_them():
    for end in ("\n", "\r\n", "\r"):
        text = "\ufeff" + end.join(["a", "", "  ", "\tb ", "c"]) + end + "\0\0"
        assert filled_lines(text) == [(1, "a"), (4, "\tb "), (5, "c")]
    assert filled_lines("\ufeff \n\0") == []


def test_too_many_lines_are_refused_however_they_end():
    for end in ("\n", "\r"):
        check_lines(end * 5, "f", 5)
        with pytest.raises(FormatError, match="f: has 6 lines, above the limit of 5"):
            check_lines(end * 6, "f", 5)


# --- layout


@pytest.mark.parametrize(
    ("options", "dp"), [({}, None), ({"dp": 5}, 5), ({"gpus": 48}, 2), ({"dp": 2, "gpus": 48}, 2), ({"gpus": 24}, 1)]
)
def test_the_user_asks_for_replicas_or_for_ranks(options, dp):
    assert asked_dp(LayoutOptions(**options), DEGREES, "f") == dp
    assert dp is None or replicas(dp * 24, DEGREES, "f") == dp


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dp": 3, "gpus": 48}, "f: gpus=48 contradicts dp 3 x tp 2 x cp 3 x pp 4 = 72; change"),
        ({"gpus": 25}, "f: 25 ranks do not divide into tp 2 x cp 3 x pp 4 = 24; 1 would be left over"),
        ({"gpus": 1}, "f: 1 rank does not divide into .* = 24; 1 would be left over"),
    ],
)
def test_ranks_that_are_no_whole_replicas_are_refused_with_the_arithmetic(options, words):
    with pytest.raises(InfeasibleError, match=words):
        asked_dp(LayoutOptions(**options), DEGREES, "f")


@pytest.mark.parametrize(
    ("asked", "held", "count", "codes"),
    [
        (None, 4, 4, []),
        (4, 4, 4, []),
        (3, 0, 3, []),
        (1, 4, 1, ["the file has 4 microbatches; only the first of them runs"]),
        (2, 4, 2, ["the file has 4 microbatches; only the first 2 of them run"]),
        (9, 4, 9, ["the file has 4 microbatches; the last one is repeated to make 9"]),
        (2, 1, 2, ["the file has 1 microbatch; the last one is repeated to make 2"]),
    ],
)
def test_microbatches_are_dropped_or_repeated_and_that_is_said(asked, held, count, codes):
    notes = Notebook("f")
    assert microbatches_of(LayoutOptions(microbatches=asked), held, "the file", notes) == count
    assert [note.text for note in notes.assumptions] == codes


@pytest.mark.parametrize(
    ("asked", "pp", "written", "size", "codes"),
    [
        (None, 2, 7, 7, []),
        (None, 2, None, None, []),
        (None, 2, 0, None, []),
        (None, 1, None, 0, []),
        (0, 2, 7, 0, []),
        (5, 2, 7, 5, []),
        (5, 1, 7, 5, ["pp-comm-unused"]),
    ],
)
def test_the_size_of_a_message_is_the_users_then_the_files(asked, pp, written, size, codes):
    notes = Notebook("f")
    assert known_message_bytes(LayoutOptions(pp_message_bytes=asked), pp, written, notes) == size
    assert [note.code for note in notes.assumptions] == codes


@pytest.mark.parametrize(("stages", "microbatches", "warned"), [(1, 1, 0), (2, 2, 0), (2, 1, 1), (8, 1, 1)])
def test_one_microbatch_in_a_pipeline_is_warned_of(stages, microbatches, warned):
    notes = Notebook("f")
    warn_single_microbatch(notes, stages, 2 * stages, microbatches)
    assert [note.place for note in notes.warnings] == ["f:1"] * warned
    said = f"walks all {2 * stages} virtual stages one after the other, so {stages - 1} of {stages} stages always wait"
    assert all(said in note.text for note in notes.warnings)


def test_a_warning_that_comes_again_is_one_note_at_its_first_line():
    warnings = FileWarnings("f")
    for line in (7, 3, 9):
        warnings.add("b", "odd", line)
    warnings.add("a", "odder", 5)
    warnings.add("c", "text of the first", 4, kind="k")
    warnings.add("c", "another text", 6, kind="k")
    assert [(note.code, note.text, note.place) for note in warnings.notes()] == [
        ("c", "text of the first; 2 times, the last in line 6", "f:4"),
        ("a", "odder", "f:5"),
        ("b", "odd; 3 times, the last in line 9", "f:7"),
    ]


# --- rows of tables, totals


def test_a_value_that_cannot_be_read_names_its_column_and_place():
    assert read_cell(int, "7", "size", "f.csv", 3) == 7
    with pytest.raises(FormatError, match=r"^f\.csv:3: column size: .*'x'"):
        read_cell(int, "x", "size", "f.csv", 3)


@pytest.mark.parametrize(("found", "listed"), [(["1"], "1: '1'"), (list("12345"), "5: '1', '2', '3', '4', ...")])
def test_a_row_of_another_width_lists_what_it_has(found, listed):
    check_width(["1", "2"], ["a", "b"], "fields", "f.csv", 3)
    with pytest.raises(FormatError) as caught:
        check_width(found, ["a", "b"], "fields", "f.csv", 3)
    assert str(caught.value) == f"f.csv:3: a row has 2 fields (a, b); found {listed}"


def test_collectives_are_those_of_the_workload_without_underscores():
    assert list(COLLECTIVES) == ["ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "BROADCAST", "REDUCE"]
    assert all(each.name.replace("_", "") == name for name, each in COLLECTIVES.items())


def test_totals_are_by_group_and_kind_and_a_time_is_known_where_all_parts_are():
    compute = [Counted(Group.NONE, Phase.FORWARD, int(time_s > 0), time_s=time_s) for time_s in (0.1, 0.0, 0.2)]
    sums = [Counted(Group.DP, Operation.ALL_REDUCE, 1, 8, time_s) for time_s in (0.5, None)]
    found = list(totals_of([*sums, *compute, Counted(Group.TP, "all_gather", 3, 12)]))
    assert found == [
        Total(group="compute", what="forward", count=2, size_bytes=0, time_s=pytest.approx(0.3)),
        Total(group="tp", what="all_gather", count=3, size_bytes=12, time_s=None),
        Total(group="dp", what="all_reduce", count=2, size_bytes=16, time_s=None),
    ]
