"""A full run is replayed from its split operations, and fewer ranks are rebuilt into a run."""

import re
from pathlib import Path
from statistics import median

import pytest

from traincast import api
from traincast.errors import ConfigError, FormatError, InfeasibleError
from traincast.workload.words import Kind, Operation

EXAMPLES = Path(__file__).parents[3] / "examples"
FULL_RUN = sorted((EXAMPLES / "megatron_pp4_tp2").glob("*.txt"))
ONE_RANK = EXAMPLES / "megatron_rank0_pp2.txt"
PROFILE = EXAMPLES / "megatron_moe_profile_rank7.txt"
MEASURED_MS = 3855.5


def _codes(result):
    return {note.code for note in (*result.assumptions, *result.warnings)}


def _shifted(line: str, after_ms: float, by_ms: float) -> str:
    """Move every timestamp of a line that is later than a moment."""

    def move(found: re.Match[str]) -> str:
        value = float(found[1])
        return f"timestamp={value + by_ms:.2f}" if value > after_ms else found[0]

    return re.sub(r"timestamp=([\d.]+)", move, line)


def _lengthen(line: str, by_ms: float) -> str:
    """Lengthen the operation of a line itself."""
    return re.sub(r"duration=([\d.]+)", lambda found: f"duration={float(found[1]) + by_ms:.2f}", line, count=1)


def test_the_full_run_is_replayed_within_a_percent_on_every_rank() -> None:
    result = api.simulate(FULL_RUN, cluster="h100")
    assert result.measured_s == pytest.approx(MEASURED_MS / 1e3, rel=1e-4)
    assert result.iteration_time_s == pytest.approx(MEASURED_MS / 1e3, rel=0.01)
    assert len(result.ranks) == 8
    for rank in result.ranks:
        assert rank.end_s == pytest.approx(rank.measured_end_s, rel=0.01)
    assert not any(note.code == "ranks-mirrored" for note in result.assumptions)


def test_the_parts_of_the_replay_are_those_that_were_measured() -> None:
    result = api.simulate(FULL_RUN, cluster="h100")
    for part in result.parts:
        if part.part not in ("host_gap", "get_batch"):
            assert part.measured_s is not None, part
            assert part.time_s == pytest.approx(part.measured_s, rel=0.02, abs=2e-3), part
        # What get_batch and others took beyond the measurement is waiting for ranks that came later.
        own_s, measured_own_s = part.time_s - part.wait_s, part.measured_s - part.measured_wait_s
        near = 0.03 if part.part == "backward_step" else 1e-3
        assert own_s == pytest.approx(measured_own_s, rel=near, abs=1e-4), part


def test_the_only_straggler_is_named_with_what_it_costs() -> None:
    result = api.simulate(FULL_RUN, cluster="h100")
    (straggler,) = result.stragglers
    assert (straggler.rank, straggler.stage) == (7, 3)
    assert straggler.slowdown > 1.5
    assert 0.8 < straggler.cost_s < 1.3


def test_waiting_for_the_straggler_is_not_its_twins_own_work() -> None:
    """Rank 6's backward holds 767 ms of asynchronous spans, of which about 80 ms are its own."""
    result = api.simulate(FULL_RUN, cluster="h100")
    program, duration_N = result.program, result.timeline.duration_s_N
    own_s = {}
    for index, rank in enumerate(program.rank_R.tolist()):
        mine = program.rank_slice(index)
        row_N = program.row_N[mine]
        backward = [program.ops.part_T[row] == "backward_step" for row in row_N]
        compute = (program.ops.kind_T[row_N] == Kind.COMPUTE) & backward
        own_s[rank] = float(duration_N[mine][compute].sum())
    assert 0.40 < own_s[6] < 0.60
    assert own_s[7] > 1.1


def test_the_run_with_a_healthy_rank_7_is_a_second_shorter() -> None:
    result = api.simulate(FULL_RUN, cluster="h100")
    own_s = {rank.rank: rank.compute_s for rank in result.ranks}
    usual_s = median(own_s[rank] for rank in range(6))
    healthy = api.simulate(FULL_RUN, cluster="h100", compute_slowdown={7: usual_s / own_s[7]})
    assert 2.60 < healthy.iteration_time_s < 2.90


@pytest.mark.slow
@pytest.mark.parametrize("consistent", [True, False, None])
def test_a_longer_forward_of_a_stage_lengthens_the_step_by_as_much(tmp_path: Path, consistent: bool) -> None:
    """Later times move; receives that wait across the change may be written longer, or start later.

    None: only the files of the stage itself are changed.
    """
    by_ms = 100.0
    forward = next(line for line in FULL_RUN[2].read_text().splitlines() if ":forward_step" in line)
    head = forward.split("sub_operations")[0]
    after_ms = float(re.search(r"timestamp=([\d.]+)", head)[1]) - 1.0
    for path in FULL_RUN:
        lines = []
        for line in path.read_text().splitlines():
            op_head, sub_ops = line.split("sub_operations")
            if ":forward_step(stage_id=1" in line:
                lines.append(_shifted(_lengthen(op_head, by_ms), after_ms, by_ms) + "sub_operations" + sub_ops)
                continue
            if consistent is None and not re.search(r"rank[23]_", path.name):
                lines.append(line)
                continue
            end_ms = float(re.search(r"timestamp=([\d.]+)", op_head)[1])
            start_ms = end_ms - float(re.search(r"duration=([\d.]+)", op_head)[1])
            if consistent and start_ms < after_ms < end_ms:
                op_head = _lengthen(op_head, by_ms)
            lines.append(_shifted(op_head, after_ms, by_ms) + "sub_operations" + _shifted(sub_ops, after_ms, by_ms))
        (tmp_path / path.name).write_text("\n".join(lines) + "\n")
    before = api.simulate(FULL_RUN, cluster="h100").iteration_time_s
    after = api.simulate(sorted(tmp_path.glob("*.txt")), cluster="h100").iteration_time_s
    assert after - before == pytest.approx(by_ms / 1e3, abs=2e-3)


def test_one_rank_is_rebuilt_into_both_stages() -> None:
    result = api.simulate(ONE_RANK, cluster="h100")
    assert result.iteration_time_s == pytest.approx(0.907, rel=0.02)
    assert (result.parallel.tp, result.parallel.pp, result.parallel.dp) == (2, 2, 1)
    assert {rank.stage for rank in result.ranks} == {0, 1}
    assert {"tp-from-vocabulary", "dp-from-reduction", "stage-made-up", "head-from-wait"} <= _codes(result)


def test_the_layout_is_found_without_the_file_name(tmp_path: Path) -> None:
    copy = tmp_path / "trace.txt"
    copy.write_bytes(ONE_RANK.read_bytes())
    result = api.simulate(copy, cluster="h100")
    assert result.parallel.pp == 2
    assert "pp-from-wait" in _codes(result)
    assert result.iteration_time_s == pytest.approx(0.907, rel=0.02)


@pytest.mark.parametrize("how", ["dropped", "zero"])
def test_without_the_wait_the_stages_are_alike(tmp_path: Path, how: str) -> None:
    copy = tmp_path / "trace.txt"
    lines = ONE_RANK.read_text().splitlines()
    if how == "dropped":
        lines = [line for line in lines if ":recv_backward" not in line]
    else:
        lines = [
            line.replace("duration=435.42", "duration=0").replace("timestamp=11488701920.41", "timestamp=0")
            for line in lines
        ]
    copy.write_text("\n".join(lines) + "\n")
    result = api.simulate(copy, cluster="h100", pp=2)
    assert 0.862 < result.iteration_time_s < 0.953


def test_more_microbatches_follow_the_1f1b_form() -> None:
    one = api.simulate(ONE_RANK, cluster="h100")
    eight = api.simulate(ONE_RANK, cluster="h100", microbatches=8)
    work_s = {}
    for part in one.parts:
        if part.part in ("forward_step", "backward_step"):
            work_s[part.rank] = work_s.get(part.rank, 0.0) + part.time_s
    first_s, last_s = (work_s[rank] for rank in sorted(work_s))
    rest_s = one.iteration_time_s - first_s - last_s
    # The slower stage is never idle between its first and last microbatch.
    assert eight.iteration_time_s == pytest.approx(first_s + 8 * last_s + rest_s, rel=0.03)


def test_a_profile_stands_for_the_balanced_run() -> None:
    layout = {"pp": 4, "ep": 4, "dp": 4, "microbatches": 16, "cluster": "h800"}
    result = api.simulate(PROFILE, **layout)
    assert result.measured_s is None
    assert 0.38 < result.iteration_time_s < 0.60
    exchanges = [each for each in result.collectives if each.op == "all_to_all"]
    assert {each.size_bytes for each in exchanges} == {2048 * 4096 * 2}
    assert sum(each.count for each in exchanges) == 16 * (4 + 4)
    assert {"expert-tokens", "expert-balance"} <= _codes(result)


IN_PROFILE = {"pp": 4, "ep": 4, "dp": 4, "microbatches": 16, "cluster": "h800"}


def _exchange_s(result):
    return next(each.time_s for each in result.collectives if each.op == "all_to_all")


def test_unequal_experts_stretch_the_work_and_the_exchange_of_a_profile() -> None:
    plain, balanced, unequal = (
        api.simulate(PROFILE, **IN_PROFILE, **more) for more in ({}, {"expert_imbalance": 1}, {"expert_imbalance": 1.9})
    )
    assert balanced.iteration_time_s == plain.iteration_time_s == pytest.approx(0.466, abs=0.006)
    # With the exchange of the balanced run it would be 0.567 s.
    assert unequal.iteration_time_s == pytest.approx(0.580, abs=0.007)
    assert 1.5 < _exchange_s(unequal) / _exchange_s(balanced) <= 1.9
    assert "expert-balance" in _codes(plain)
    assert "expert-balance" not in _codes(unequal)
    ranks = {rank.rank: rank for rank in unequal.ranks}
    assert {rank.represents for rank in unequal.ranks} == {1, 3}
    assert (ranks[0].wait_s, ranks[0].represents) == (0, 1)
    assert ranks[1].compute_s < balanced.ranks[0].compute_s < ranks[0].compute_s
    # What the others do not compute they wait for, at the exchanges.
    assert ranks[1].wait_s == pytest.approx(ranks[0].compute_s - ranks[1].compute_s, rel=0.05)
    assert unequal.stragglers == ()


def test_all_ranks_of_a_profile_together_do_the_balanced_work() -> None:
    total_s = [
        sum(rank.represents * rank.compute_s for rank in api.simulate(PROFILE, **IN_PROFILE, **more).ranks)
        for more in ({}, {"expert_imbalance": 1.9}, {"expert_loads": (3, 4, 5, 6)})
    ]
    assert total_s == pytest.approx([total_s[0]] * 3, rel=1e-9)


def test_loads_of_a_profile_fold_exactly_and_never_make_it_faster() -> None:
    for more in ({"expert_imbalance": 1.9}, {"expert_loads": (1, 2, 2, 3)}):
        folded, flat = (api.simulate(PROFILE, **IN_PROFILE, **more, unfold=unfold) for unfold in (False, True))
        assert len(folded.ranks) < len(flat.ranks)
        assert folded.iteration_time_s == flat.iteration_time_s
        assert folded.collectives == flat.collectives
        every = {rank.rank: rank for rank in flat.ranks}
        assert all(every[rank.rank].breakdown_s == rank.breakdown_s for rank in folded.ranks)
    steps = [api.simulate(PROFILE, **IN_PROFILE, expert_imbalance=f).iteration_time_s for f in (1, 1.05, 1.5, 2, 3, 4)]
    assert steps == sorted(steps)


def test_loads_that_do_not_fit_a_profile_are_refused() -> None:
    with pytest.raises(ConfigError, match="gives 3 loads, but there are 4 expert ranks"):
        api.simulate(PROFILE, **IN_PROFILE, expert_loads=(1, 2, 3))
    with pytest.raises(ConfigError, match="one of ep 4 has at most all tokens"):
        api.simulate(PROFILE, **IN_PROFILE, expert_imbalance=5)


def test_communication_times_come_from_the_trace_or_the_model() -> None:
    measured = api.simulate(FULL_RUN, cluster="h100")
    assert {each.algorithm for each in measured.collectives} == {"measured"}
    assert {each.group for each in measured.collectives} >= {"tp", "pp", "emb"}
    model = api.simulate(FULL_RUN, cluster="h100", comm="model")
    priced = {each.group for each in model.collectives}
    assert {"tp", "pp", "emb"} <= priced
    assert all(each.algorithm != "measured" for each in model.collectives)
    sizes = {each.size_bytes for each in model.collectives if each.op == Operation.ALL_REDUCE.name.lower()}
    assert 4096 * 5120 * 4 in sizes


def test_a_subset_of_the_ranks_is_mirrored() -> None:
    half = [path for path in FULL_RUN if re.search(r"rank[0246]_", path.name)]
    result = api.simulate(half, cluster="h100")
    assert result.parallel.world_size == 8
    assert "ranks-mirrored" in _codes(result)
    assert sum(rank.represents for rank in result.ranks) == 8


def test_contradicting_degrees_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="rank 7 says it is of stage 1"):
        api.simulate(PROFILE, pp=1, dp=2, tp=1, cluster="h100")


def test_traces_of_two_runs_are_refused() -> None:
    with pytest.raises(FormatError, match="2 runs"):
        api.simulate([*FULL_RUN, ONE_RANK], cluster="h100")


@pytest.mark.parametrize(
    ("files", "options"),
    [
        (ONE_RANK, {"microbatches": 8}),
        (ONE_RANK, {"microbatches": 3, "dp": 3}),
        (FULL_RUN, {"dp": 4, "comm": "measured"}),
        (PROFILE, {"pp": 4, "ep": 4, "dp": 4, "microbatches": 3, "expert_imbalance": 1.7}),
    ],
)
def test_a_folded_and_an_unfolded_run_agree_to_the_last_bit(files, options) -> None:
    """The times of measured communications are means over ranks, however many of them are simulated."""
    folded, unfolded = (api.simulate(files, cluster="h100", unfold=unfold, **options) for unfold in (False, True))
    assert len(folded.ranks) < len(unfolded.ranks)
    for key in ("iteration_time_s", "breakdown_s", "collectives", "assumptions", "warnings", "measured_s"):
        assert getattr(folded, key) == getattr(unfolded, key), key
