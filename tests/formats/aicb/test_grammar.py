"""AICB text is read value by value, and what is wrong in it is named with its place."""

import time
from pathlib import Path

import pytest

from traincast.errors import FormatError
from traincast.formats.aicb.grammar import AicbFile, Cell, load, parse
from traincast.formats.aicb.header import POLICIES, Header
from traincast.workload.words import Group, Operation

EXAMPLES = Path(__file__).parents[3] / "examples"
FWD_IN_BCKWD = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
ROW = "attention_row\t-1\t5729721\tREDUCESCATTER\t134217728\t2864860\tALLGATHER\t134217728\t2864860\tNONE\t0\t100"


def text_of(header: str = FWD_IN_BCKWD, *rows: str) -> str:
    rows = rows or (ROW,)
    return "\n".join([header, str(len(rows)), *rows, ""])


def read(header: str = FWD_IN_BCKWD, *rows: str) -> AicbFile:
    return parse("w.txt", text_of(header, *rows))


def header_of(keys: str) -> Header:
    return read(f"{FWD_IN_BCKWD} {keys}", *[ROW] * 10).header


def row_with(column: int, value: str) -> str:
    fields = ROW.split()
    fields[column - 1] = value
    return " ".join(fields)


HEADERS = [
    pytest.param(
        "model_parallel_NPU_group: 8 checkpoints: 0 checkpoint_initiates: 0",
        {"tp": 8, "ep": None, "pp": None, "vpp": None, "ga": None, "all_gpus": None, "pp_message_bytes": None},
        id="v1.0",
    ),
    pytest.param(
        "model_parallel_NPU_group: 8 ep: 1 pp: 16 ga: 16 all_gpus: 1024 checkpoints: 0 checkpoint_initiates: 0",
        {"tp": 8, "ep": 1, "pp": 16, "vpp": None, "ga": 16, "all_gpus": 1024},
        id="v1.1",
    ),
    pytest.param(
        "model_parallel_NPU_group: 8 ep: 1 pp: 2 vpp: 4 ga: 16 all_gpus: 64 checkpoints: 0 checkpoint_initiates: 0",
        {"tp": 8, "pp": 2, "vpp": 4, "pp_message_bytes": None},
        id="vpp",
    ),
    pytest.param(
        "model_parallel_NPU_group: 8 ep: 1 pp: 2 vpp: 4 ga: 16 all_gpus: 64 checkpoints: 0 "
        "checkpoint_initiates: 0 pp_comm: 16777216.0",
        {"pp_message_bytes": 16777216, "checkpoints": (), "bare_keys": ()},
        id="pp_comm",
    ),
    pytest.param(
        "model_parallel_NPU_group: 2 ep: 16 pp: 12 vpp: 8 ga: 24 all_gpus: 9216 checkpoints: 0 "
        "checkpoint_initiates: 0 pp_comm 251658240",
        {"ep": 16, "pp_message_bytes": 251658240, "bare_keys": ("pp_comm",)},
        id="simai-example",
    ),
    pytest.param(
        "model_parallel_NPU_group: 4 ep: 8 pp: 1 all_gpus: 32 mode: 1 vpp: 1 ga: 1 checkpoints: 0 "
        "checkpoint_initiates: 0 pp_comm: 0",
        {"inference": True, "ga": 1, "pp_message_bytes": 0},
        id="inference",
    ),
    pytest.param("model_parallel_NPU_group: 4 mode: 0", {"inference": False}, id="mode-0"),
    pytest.param("expert_parallel_npu_group: 4", {"ep": 4, "keys": ("expert_parallel_npu_group",)}, id="micro-ep"),
    pytest.param(
        "ga:\t3 pp_comm : 1e6 vpp 2.0\tep :4 pp:5",
        {"ga": 3, "pp_message_bytes": 1000000, "vpp": 2, "ep": 4, "pp": 5, "bare_keys": ("vpp",)},
        id="free-order-and-colons",
    ),
    pytest.param(
        "checkpoints: 3 0 4 9 checkpoint_initiates: 2 1 5 ep: 2",
        {"checkpoints": (0, 4, 9), "checkpoint_initiates": (1, 5), "ep": 2},
        id="lists",
    ),
    pytest.param("", {"tp": None, "keys": (), "inference": False}, id="policy-alone"),
]


@pytest.mark.parametrize(("keys", "expected"), HEADERS)
def test_a_header_variant_is_read_with_exact_values(keys, expected):
    header = header_of(keys)
    assert {name: getattr(header, name) for name in expected} == expected


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "HYBRID_CUSTOMIZED"])
def test_every_policy_is_read(policy):
    header = read(policy).header
    assert header.policy == policy
    assert header.inference == (policy == "DISTRIBUTED_INFERENCE")


def test_unknown_keys_are_kept_and_remarked():
    file = read(f"{FWD_IN_BCKWD} pp_stage_boundaries: 3 7 cp 2 ep: 4")
    assert file.header.extra == {"pp_stage_boundaries": "3 7", "cp": "2"}
    assert (file.header.ep, file.header.bare_keys) == (4, ("cp",))
    assert [(note.code, note.place) for note in file.warnings] == [("unknown-key", "w.txt:1")] * 2


def test_the_dlrm_key_is_kept():
    file = read("HYBRID_DLRM DLRM_LAST_BOTTOM_LAYER: 3")
    assert file.header.extra == {"DLRM_LAST_BOTTOM_LAYER": "3"}
    assert file.warnings == ()


def test_a_key_repeated_with_one_value_is_a_warning():
    file = read(f"{FWD_IN_BCKWD} ep: 4 expert_parallel_npu_group: 4")
    assert file.header.ep == 4
    assert [note.code for note in file.warnings] == ["repeated-key"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("ep: 4 ep: 8", ["'ep'", "8", "4"]),
        ("ep: 4 expert_parallel_npu_group: 8", ["expert_parallel_npu_group", "'ep'"]),
        ("cp: 4 cp: 8", ["'cp'", "'8'"]),
        ("pp: sixteen ga: 1", ["'pp'", "'sixteen'"]),
        ("pp: ga: 1", ["'pp'", "no value"]),
        ("pp ga 1", ["'pp'", "no value"]),
        ("ga: 1 pp:", ["'pp'", "no value"]),
        ("pp: 1.5", ["'pp'", "'1.5'"]),
        ("pp: -2", ["'pp'", "'-2'"]),
        ("pp: nan", ["'pp'", "'nan'"]),
        ("pp: 1_0", ["'pp'", "'1_0'"]),
        ("pp: 2147483648", ["'pp'", "2^31"]),
        ("pp: 1e400", ["'pp'", "finite"]),
        ("pp_comm: 1e30", ["'pp_comm'", "2^53"]),
        ("mode: 2", ["'mode'", "'2'"]),
        ("pp: 4 7", ["'7'", "'pp'"]),
        ("7", ["'7'", "policy"]),
        ("checkpoints: 99999999", ["'checkpoints'", "99999999"]),
        ("checkpoints: 2 1 ep: 4", ["'checkpoints'", "no value"]),
        ("checkpoints: 1 10", ["'checkpoints'", "no row 10"]),
        ("checkpoint_initiates: 1 99", ["'checkpoint_initiates'", "no row 99"]),
        ("DLRM_LAST_BOTTOM_LAYER: x", ["DLRM_LAST_BOTTOM_LAYER", "'x'"]),
    ],
)
def test_a_wrong_header_names_line_and_key(keys, words):
    with pytest.raises(FormatError) as caught:
        header_of(keys)
    assert caught.value.line == 1
    assert str(caught.value).startswith("w.txt:1: ")
    assert all(word in str(caught.value) for word in words)


def test_an_unknown_policy_lists_the_known_ones():
    with pytest.raises(FormatError, match="COLOCATED") as caught:
        read("COLOCATED model_parallel_NPU_group: 1")
    assert all(policy in str(caught.value) for policy in POLICIES)


def test_a_row_is_read_with_exact_values():
    row = read().rows[0]
    assert (row.line, row.name, row.dependency, row.process_s, row.policy) == (3, "attention_row", -1, 1e-7, None)
    assert row.forward == Cell(0.005729721, "REDUCESCATTER", Operation.REDUCE_SCATTER, None, 134217728)
    assert row.input_grad == Cell(0.00286486, "ALLGATHER", Operation.ALL_GATHER, None, 134217728)
    assert row.weight_grad == Cell(0.00286486, "NONE", Operation.NONE, None, 0)


def test_padding_blank_lines_marks_and_nuls_do_not_matter():
    padded = "\ufeff\r\n HYBRID_TRANSFORMER_FWD_IN_BCKWD  ep:\t1\r\n\r\n  1 \r\n\r\n  " + ROW.replace("\t", " \t  ")
    rows = parse("w.txt", padded + "\r\n \n\0\0\0").rows
    assert [row.line for row in rows] == [6]
    assert rows[0].forward == read().rows[0].forward


TOKENS = [
    ("NONE", Operation.NONE, None),
    ("ALLREDUCE", Operation.ALL_REDUCE, None),
    ("ALLGATHER", Operation.ALL_GATHER, None),
    ("REDUCESCATTER", Operation.REDUCE_SCATTER, None),
    ("ALLTOALL", Operation.ALL_TO_ALL, None),
    ("BROADCAST", Operation.BROADCAST, None),
    ("REDUCE", Operation.REDUCE, None),
    ("ALLTOALL_EP", Operation.ALL_TO_ALL, Group.EP),
    ("ALLGATHER_DP_EP", Operation.ALL_GATHER, Group.EDP),
    ("REDUCESCATTER_EDP", Operation.REDUCE_SCATTER, Group.EDP),
    ("ALLREDUCE_TP", Operation.ALL_REDUCE, Group.TP),
    ("ALLREDUCE_DP", Operation.ALL_REDUCE, Group.DP),
    ("ALLGATHER_CP", Operation.ALL_GATHER, Group.CP),
    ("BROADCAST_PP", Operation.BROADCAST, Group.PP),
    ("REDUCESCATTER_ETP", Operation.REDUCE_SCATTER, Group.ETP),
]


@pytest.mark.parametrize("column", ["forward", "input_grad", "weight_grad"])
@pytest.mark.parametrize(("token", "operation", "suffix"), TOKENS)
def test_a_token_is_read_in_every_column(token, operation, suffix, column):
    start = {"forward": 3, "input_grad": 6, "weight_grad": 9}[column]
    fields = ROW.split()
    fields[start - 1 : start + 2] = ["7", token, "4096"]
    cell = getattr(read(FWD_IN_BCKWD, " ".join(fields)).rows[0], column)
    assert cell == Cell(7e-9, token, operation, suffix, 4096)


@pytest.mark.parametrize("token", ["ALLREDUCEALLTOALL", "ALLREDUCE_", "ALLREDUCE_XP", "_EP", "none_EP", "0", "SEND"])
@pytest.mark.parametrize(("column", "name"), [(4, "forward"), (7, "input-gradient"), (10, "weight-gradient")])
def test_an_unknown_token_is_an_error_that_lists_the_known(token, column, name):
    with pytest.raises(FormatError) as caught:
        read(FWD_IN_BCKWD, ROW, row_with(column, token))
    message = str(caught.value)
    assert message.startswith(f"w.txt:4: column {column} ({name} communication)")
    assert repr(token) in message
    assert all(known in message for known in ("NONE", "ALLREDUCE", "BROADCAST", "_DP_EP"))


@pytest.mark.parametrize(
    "value", ["", "x", "-1", "nan", "inf", "-inf", "1e999", "1_0", "0x10", "\u0661", "9" * 41, "1.1e18"]
)
@pytest.mark.parametrize("column", [3, 6, 9, 12])
def test_a_wrong_time_names_place_and_column(column, value):
    with pytest.raises(FormatError) as caught:
        read(FWD_IN_BCKWD, ROW, row_with(column, value))
    assert caught.value.line == 4
    assert ("fields" if value == "" else f"column {column} (") in str(caught.value)
    assert str(caught.value).isascii()


@pytest.mark.parametrize("value", ["x", "-1", "nan", "4611686018427387904", "1e400", "-0.5"])
@pytest.mark.parametrize("column", [5, 8, 11])
def test_a_wrong_size_names_place_and_column(column, value):
    with pytest.raises(FormatError, match=rf"^w.txt:4: column {column} \(.*size\)"):
        read(FWD_IN_BCKWD, ROW, row_with(column, value))


def test_the_largest_numbers_and_floats_are_read():
    row = read(FWD_IN_BCKWD, "a -1 999999999999999999 ALLREDUCE 9007199254740991 1.5 NONE 0.0 1e3 NONE 0 2.5").rows[0]
    assert row.forward == Cell(1e9, "ALLREDUCE", Operation.ALL_REDUCE, None, 9007199254740991)
    assert (row.input_grad.compute_s, row.weight_grad.compute_s, row.process_s) == (1.5e-9, 1e-6, 2.5e-9)


@pytest.mark.parametrize("value", ["x", "1.5", "inf", "9999999999"])
def test_a_wrong_dependency_is_an_error(value):
    with pytest.raises(FormatError, match=r"^w.txt:3: column 2 \(dependency\)"):
        read(FWD_IN_BCKWD, row_with(2, value))


@pytest.mark.parametrize("row", [ROW + "\t1", ROW.rpartition("\t")[0], "attention_row"])
def test_a_row_with_other_fields_is_an_error_that_shows_them(row):
    with pytest.raises(FormatError, match=r"^w.txt:4: .*12 fields .*'attention_row'"):
        read(FWD_IN_BCKWD, ROW, row)


def test_customized_rows_carry_their_policy():
    assert read("HYBRID_CUSTOMIZED", ROW + " DATA").rows[0].policy == "DATA"
    with pytest.raises(FormatError, match="13 fields"):
        read("HYBRID_CUSTOMIZED", ROW)
    with pytest.raises(FormatError, match=r"column 13 \(policy\).*'SOME'"):
        read("HYBRID_CUSTOMIZED", ROW + " SOME")


@pytest.mark.parametrize(
    ("declared", "used", "said"),
    [
        (0, 2, "0 rows are declared and 2 are there; those that are there are used"),
        (1, 1, "1 row is declared and 2 are there; only the declared ones are used: line 5 is the first left out"),
        (839, 2, "839 rows are declared and 2 are there; those that are there are used"),
    ],
)
def test_a_wrong_row_count_is_a_warning(declared, used, said):
    file = parse("w.txt", f"MICRO\n{declared}\n{ROW}\n\n{ROW}\n")
    assert (file.declared_rows, len(file.rows)) == (declared, used)
    assert [(note.code, note.text, note.place) for note in file.warnings] == [("row-count", said, "w.txt:2")]
    assert file.left_out == (5 if used == 1 else None)


def test_what_follows_the_declared_rows_is_not_read():
    file = parse("w.txt", f"MICRO\n1\n{ROW}\nnotes of somebody\n")
    assert (len(file.rows), file.left_out) == (1, 4)
    with pytest.raises(FormatError, match=r"^w\.txt:4: a row has 12 fields"):
        parse("w.txt", f"MICRO\n0\n{ROW}\nnotes of somebody\n")


def test_a_missing_row_count_is_a_warning():
    file = parse("w.txt", f"MICRO\n{ROW}\n{ROW}\n")
    assert (file.declared_rows, len(file.rows), file.rows[0].line) == (None, 2, 2)
    assert [note.code for note in file.warnings] == ["no-row-count"]


@pytest.mark.parametrize("count", ["many", "1 2", "-1", "nan", "9" * 5000, "a -1 1 NONE"])
def test_a_count_line_without_a_number_is_an_error(count):
    with pytest.raises(FormatError, match=r"^w\.txt:2: the number of rows"):
        parse("w.txt", f"MICRO\n{count}\n{ROW}\n")


@pytest.mark.parametrize("text", ["", "\n \n", "\ufeff", "\0\0", "MICRO", "MICRO\n", "MICRO\n0\n", "MICRO\n5\n\n"])
def test_a_file_without_rows_is_an_error(text):
    with pytest.raises(FormatError, match=r"^w\.txt"):
        parse("w.txt", text)


def test_repeated_warnings_are_one_note_with_count_and_last_line():
    zero = ROW.replace("ALLGATHER\t134217728", "ALLGATHER\t0")
    file = read(FWD_IN_BCKWD, ROW, zero, zero, zero, ROW.replace("NONE\t0", "NONE\t1"), ROW.replace("NONE", "none"))
    assert [(note.code, note.place) for note in file.warnings] == [
        ("zero-size", "w.txt:4"),
        ("size-beside-none", "w.txt:7"),
        ("token-case", "w.txt:8"),
    ]
    assert "3 times, the last in line 6" in file.warnings[0].text
    assert file.rows[4].weight_grad.size_bytes == 1
    assert file.rows[5].weight_grad.operation is Operation.NONE


def test_placeholder_compute_is_a_warning():
    file = read(FWD_IN_BCKWD, "attention_layer -1 1 ALLREDUCE 8 1 NONE 0 1 NONE 0 100")
    assert [note.code for note in file.warnings] == ["placeholder-compute"]


def test_the_samples_are_read_whole():
    first = load(EXAMPLES / "aicb_gpt_405b_1024gpu.txt")
    assert (first.declared_rows, len(first.rows)) == (557, 557)
    assert (first.header.tp, first.header.pp, first.header.ga, first.header.vpp) == (8, 16, 16, None)
    assert {note.code for note in first.warnings} == {"zero-size"}
    second = load(EXAMPLES / "aicb_scaled_512gpu.txt")
    assert (second.declared_rows, len(second.rows)) == (172, 172)
    assert (second.header.vpp, second.header.ga, second.header.pp_message_bytes) == (8, 1, 20971520)
    assert second.rows[0].forward == Cell(0.0, "BROADCAST", Operation.BROADCAST, None, 65536)
    assert second.warnings == ()


@pytest.mark.parametrize("name", ["absent.txt", ""])
def test_what_cannot_be_opened_is_a_format_error(tmp_path, name):
    with pytest.raises(FormatError, match="cannot be read"):
        load(tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "MICRO\n1\n" + "a 0 0 NONE 0 0 NONE 0 0 NONE 0 0\n" * 150_000,
        "MICRO\n1\n" + "9" * 5_000_000,
        "MICRO\n1\n" + "x " * 2_500_000,
        "MICRO " + "k: 1 " * 1_000_000,
        "MICRO " + "".join(f"k{n}: 1 " for n in range(100_000)) + "\n1\n",
        "9" * 5_000_000,
        "\n" * 5_000_000,
        "MICRO checkpoints: 99999999\n" + "\n" * 1000,
    ],
    ids=["many-rows", "long-field", "many-fields", "long-header", "many-keys", "one-word", "empty-lines", "announced"],
)
def test_large_files_take_little_time(text):
    start = time.process_time()
    try:
        parse("w.txt", text)
    except FormatError as problem:
        assert len(str(problem)) < 2000
    assert time.process_time() - start < 4.0  # about 1 s; a walk that is quadratic takes minutes
