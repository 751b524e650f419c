"""Flags over a traced run extrapolate it; what nobody traced is made up from what the waits show."""

import re
import shutil
from pathlib import Path

import pytest

from traincast import api
from traincast.errors import ConfigError, FormatError, InfeasibleError

EXAMPLES = Path(__file__).parents[3] / "examples"
FULL_RUN = sorted((EXAMPLES / "megatron_pp4_tp2").glob("*.txt"))
ONE_RANK = EXAMPLES / "megatron_rank0_pp2.txt"
PROFILE = EXAMPLES / "megatron_moe_profile_rank7.txt"


def simulate(files, **options):
    return api.simulate(files, **{"cluster": "h100", **options})


def codes(result):
    return {note.code for note in (*result.assumptions, *result.warnings)}


@pytest.mark.parametrize("options", [{"dp": 4}, {"gpus": 16}])
def test_more_replicas_reduce_gradients_at_the_price_of_the_model(options):
    """The local scaling pass of dp 1 stays; the reduction of 6.6 GB over four ranks comes on top."""
    alone, four = simulate(ONE_RANK), simulate(ONE_RANK, **options)
    (reduction,) = [each for each in four.collectives if each.group == "dp"]
    assert (reduction.op, reduction.ranks, reduction.size_bytes) == ("all_reduce", 4, 2 * 3296778240)
    assert reduction.algorithm != "measured"
    assert four.iteration_time_s == pytest.approx(alone.iteration_time_s + reduction.time_s, rel=1e-3)
    assert "dp-extrapolated" in codes(four)
    assert four.measured_s is None, "another run is not compared with the measured one"


def test_a_full_run_is_extrapolated_too():
    result = simulate(FULL_RUN, dp=2)
    assert result.parallel.world_size == 16
    assert {each.ranks for each in result.collectives if each.group == "dp"} == {2}
    assert "measured-otherwise" in codes(result)


def test_other_degrees_keep_times_and_say_so():
    tp4 = simulate(FULL_RUN, tp=4)
    assert "tp-not-rescaled" in codes(tp4)
    assert {each.algorithm for each in tp4.collectives if each.group == "tp"} != {"measured"}
    pp8 = simulate(FULL_RUN, pp=8, microbatches=8)
    assert "pp-not-rescaled" in codes(pp8)
    assert {rank.stage for rank in pp8.ranks} == set(range(8))


def test_priced_communication_does_not_turn_waits_into_work():
    """The optimizer's wait for the last stage is none of the early stages' work, whoever prices the rest."""
    assert simulate(FULL_RUN, comm="model").iteration_time_s == pytest.approx(3.855, rel=0.03)


def test_files_may_have_any_name(tmp_path):
    for rank, path in enumerate(FULL_RUN):
        shutil.copy(path, tmp_path / f"rank{rank}.txt")
    result = simulate(tmp_path)
    assert (result.parallel.tp, result.parallel.pp, result.parallel.dp) == (2, 4, 1)
    assert result.iteration_time_s == simulate(FULL_RUN).iteration_time_s
    assert [each.rank for each in result.stragglers] == [7]


@pytest.mark.slow
@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("ranks", [[0, 7], [7], [6, 7], [1], [0, 2, 4, 6], [0, 2], [1, 3, 5, 7], range(6), range(2, 8)])
def test_any_ranks_at_hand_rebuild_the_run(tmp_path, ranks, renamed):
    files = [FULL_RUN[rank] for rank in ranks]
    if renamed:
        files = [Path(shutil.copy(path, tmp_path / f"rank{rank}.txt")) for rank, path in zip(ranks, files, strict=True)]
    result = simulate(files)
    assert result.iteration_time_s == pytest.approx(result.measured_s, rel=0.03)
    measured = {rank.rank for rank in result.ranks if rank.measured_end_s is not None}
    assert measured == set(ranks), "a measured rank stands for its like"
    assert {each.rank for each in result.stragglers} <= set(ranks)


def test_a_rebuild_that_misses_the_measured_step_says_so():
    result = simulate(FULL_RUN[2])
    assert abs(result.iteration_time_s / result.measured_s - 1) > 0.1
    assert "far-from-measured" in codes(result)


def test_ranks_elsewhere_than_their_lines_say_are_refused():
    with pytest.raises(InfeasibleError, match=r"rank 7 says it is of stage 1, .*give the degrees"):
        simulate(PROFILE, pp=1, dp=2, tp=1)


def test_experts_without_ep_get_one_from_the_experts():
    result = simulate(PROFILE, pp=4, dp=4)
    assert result.parallel.ep == 4
    assert "ep-from-experts" in codes(result)
    assert any(each.op == "all_to_all" for each in result.collectives)


def test_a_wait_that_was_taken_out_is_not_a_fast_pipeline(tmp_path):
    """The receive is there, but shorter than any stage's work, and all that follows comes earlier."""
    text = ONE_RANK.read_text().replace("duration=435.42", "duration=0.35")
    path = tmp_path / "trace.txt"
    path.write_text(
        re.sub(
            r"timestamp=([\d.]+)",
            lambda found: f"timestamp={float(found[1]) - 435.07 * (float(found[1]) > 11488701900):.2f}",
            text,
        )
    )
    result = simulate(path, pp=2)
    assert 0.862 < result.iteration_time_s < 0.953
    assert "wait-untraced" in codes(result)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"ep": 2}, "ep-unused"),
        ({"etp": 2}, "etp-unused"),
        ({"expert_imbalance": 2.0}, "expert-imbalance-unused"),
        ({"expert_loads": (1.0, 2.0)}, "expert-loads-unused"),
        ({"pp_message_bytes": 1_000_000}, "pp-comm-unused"),
    ],
)
def test_flags_that_change_nothing_say_so(options, code):
    assert code in codes(simulate(FULL_RUN, **options))


def test_two_stages_of_one_rank_are_refused_with_their_line(tmp_path):
    path = tmp_path / "trace.txt"
    path.write_text(ONE_RANK.read_text().replace("backward_step(stage_id=0", "backward_step(stage_id=1"))
    with pytest.raises(FormatError, match=rf"{re.escape(str(path))}:5: rank 0 says stage 1 here and stage 0 before"):
        simulate(path)


def test_a_missing_pass_is_warned_of(tmp_path):
    path = tmp_path / "trace.txt"
    path.write_text("".join(line for line in ONE_RANK.read_text().splitlines(True) if ":backward_step" not in line))
    assert "passes-differ" in codes(simulate(path))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("duration=148.51", "duration=None"),
        ("duration=148.51,description=None,group_kind=None,input__shape=None,input__dtype=None,timestamp=11488701484.39",
         "duration=0,description=None,group_kind=None,input__shape=None,input__dtype=None,timestamp=0"),
    ],
)  # fmt: skip
def test_work_without_a_time_is_refused_with_its_line(tmp_path, old, new):
    path = tmp_path / "trace.txt"
    text = ONE_RANK.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(FormatError, match=rf"{re.escape(str(path))}:2: forward_step has no time"):
        simulate(path)


def test_a_scheduling_plan_is_refused(tmp_path):
    path = tmp_path / "plan.txt"
    fields = "batch_id=0, mg_state=warmup, duration=None, description=None, group_kind=None"
    path.write_text(f"stage:0:forward_step({fields}, input__shape=None, input__dtype=None)\n")
    with pytest.raises(FormatError, match="scheduling plan"):
        simulate(path)


def test_a_profile_has_no_measured_communication():
    with pytest.raises(ConfigError, match="single-GPU profile"):
        simulate(PROFILE, comm="measured", pp=4, dp=4)


def test_unknown_words_are_warned_of(tmp_path):
    path = tmp_path / "trace.txt"
    path.write_text(ONE_RANK.read_text().replace(":dp_allreduce(", ":quux("))
    (warning,) = [note for note in simulate(path).warnings if note.code == "unknown-operation"]
    assert "quux" in warning.text
    assert warning.place == f"{path}:6"


def trace_of(*lines):
    """Return the trace of stage 0 with one microbatch, of operations and their durations, one after the other."""
    now_ms, text = 1000.0, ""
    for op, duration_ms in lines:
        now_ms += duration_ms
        text += (
            f"rank:0:{op}(stage_id=0,batch_id=0,mg_state=steady,duration={duration_ms},description=None,"
            f"group_kind=None,input__shape=[8, 1, 4],input__dtype=torch.float16,timestamp={now_ms},sub_operations=[])\n"
        )
    return text


@pytest.mark.parametrize("send_ms", [0.0, 5.0, 20.0])
def test_head_and_loss_are_what_the_first_wait_leaves(tmp_path, send_ms):
    """The gradient comes after a message, the last stage's pass and a message; what is left is a third forward."""
    path = tmp_path / "trace_pp2.txt"
    work = [("forward_step", 100.0), ("send_forward", send_ms), ("recv_backward", 365.0), ("backward_step", 200.0)]
    path.write_text(trace_of(*work))
    ops = api.read(path).ops
    found = {time_s for name, time_s in zip(ops.name_T, ops.duration_s_T.tolist(), strict=True) if name[:4] == "head"}
    head_s = 0.365 - send_ms / 1e3 - (0.100 + 0.200)
    assert sorted(found) == pytest.approx([head_s / 3, head_s * 2 / 3])


def test_a_batch_that_is_loaded_last_is_part_of_the_step(tmp_path):
    path = tmp_path / "trace_pp1.txt"
    work = [("get_batch", 3.0), ("forward_step", 100.0), ("backward_step", 200.0), ("optimizer_step", 7.0)]
    path.write_text(trace_of(*work, ("get_batch", 11.0)))
    assert simulate(path).iteration_time_s == pytest.approx(0.321)


def test_a_profile_of_overlapped_collectives_is_read(tmp_path):
    """One GPU played the rank, so that nobody met: an asynchronous span is the rank's own work."""
    path = tmp_path / "trace_rank0.txt"
    path.write_text(re.sub(r"mg_state=\w+", "mg_state=None", ONE_RANK.read_text()))
    ops = simulate(path, tp=2, pp=2, dp=1).program.ops
    assert {ops.name_T[row] for row in range(len(ops)) if not ops.blocking_T[row]} >= {"normlinear_bwd"}
