"""Measured runs with experts: unequal all-to-alls, hosts with clocks of their own, and ranks that were not traced."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from echo_runs import ROUTED, MoeRun
from traincast import api
from traincast.cli.main import cli
from traincast.errors import ConfigError, FormatError, ProgramError
from traincast.estimate.collectives import estimate_collective
from traincast.fabric.placement import Placement
from traincast.hardware.clusters import load_cluster
from traincast.workload.words import Operation

SAMPLES = Path(__file__).parents[4] / "shared" / "samples"
ORIGINALS = [SAMPLES / name for name in ("moe_pp2_ep4", "moe_pp4_ep2")]
PROFILE = Path(__file__).parents[3] / "examples" / "megatron_moe_profile_rank7.txt"
RUNS = [
    MoeRun(),
    MoeRun(pp=1),
    MoeRun(pp=4, dp=4, ep=2, microbatches=6, tokens=lambda place, batch: (2924 - 90 * batch, 1172 + 90 * batch)[place]),
    MoeRun(pp=3, dp=2, ep=2, microbatches=2, tokens=lambda place, _: (4096, 0)[place], norm=True, ranks_per_host=2),
]


def simulate(files, **options):
    return api.simulate(files, **{"cluster": "h800", **options})


def codes(result):
    return {note.code for note in (*result.assumptions, *result.warnings)}


def exchanges(result):
    return [each for each in result.collectives if each.op == "all_to_all"]


@pytest.mark.parametrize("folder", ORIGINALS, ids=lambda path: path.name)
def test_the_measured_runs_are_replayed_within_a_percent(folder):
    if not folder.is_dir():
        pytest.skip("the measured runs have no licence, so that they are not in the project")
    result = simulate(folder)
    assert result.iteration_time_s == pytest.approx(result.measured_s, rel=0.01)
    assert len(result.ranks) == 16
    for rank in result.ranks:
        assert rank.end_s == pytest.approx(rank.measured_end_s, rel=0.01)
    assert result.stragglers == ()
    assert {each.count for each in exchanges(result)} == {128}
    assert simulate(folder, comm="model").iteration_time_s == pytest.approx(result.measured_s, rel=0.02)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"pp{run.pp}-ep{run.ep}")
def test_a_run_is_replayed_whatever_its_hosts_clocks_say(tmp_path, run):
    run.write(tmp_path / "run")
    result = simulate(tmp_path / "run")
    assert result.measured_s == pytest.approx(run.step_ms / 1e3, abs=2e-4)
    assert result.iteration_time_s == pytest.approx(result.measured_s, rel=2e-3)
    for rank in result.ranks:
        assert rank.end_s == pytest.approx(rank.measured_end_s, abs=2e-4), rank.rank
    assert result.stragglers == ()
    assert not result.warnings


def test_a_slow_rank_is_a_straggler_and_a_busy_one_is_none(tmp_path):
    run = MoeRun(ep=2, dp=4, tokens=lambda place, _: (3500, 596)[place], slow={2: 1.6})
    result = simulate(run.write(tmp_path / "run"))
    assert [each.rank for each in result.stragglers] == [2]


def test_the_busiest_member_sets_the_price_in_and_out(tmp_path):
    for tokens in ((2173, 3667, 2167, 185), (2048, 2048, 2048, 2048), (1000, 1100, 1200, 1300)):
        run = MoeRun(tokens=lambda place, _, tokens=tokens: tokens[place])
        result = simulate(run.write(tmp_path / str(tokens[0])), comm="model")
        (exchange,) = exchanges(result)
        assert exchange.size_bytes == run.busiest_bytes(0)
        price = estimate_collective(Operation.ALL_TO_ALL, run.busiest_bytes(0), Placement((4,)), load_cluster("h800"))
        assert exchange.time_s == pytest.approx(price.time_s)


def test_a_busier_expert_rank_never_makes_a_step_shorter(tmp_path):
    steps = []
    for more in (0, 500, 1000, 2000):
        run = MoeRun(ep=2, dp=2, tokens=lambda place, _, more=more: (ROUTED + more, ROUTED - more)[place])
        steps.append(simulate(run.write(tmp_path / str(more)), comm="model").iteration_time_s)
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]


def test_folded_and_unfolded_replays_are_one(tmp_path):
    files = RUNS[0].write(tmp_path / "run")
    for ranks in (files, files[:1], files[::3]):
        for comm in ("measured", "model"):
            folded, unfolded = (simulate(ranks, comm=comm, unfold=unfold) for unfold in (False, True))
            assert folded.iteration_time_s == unfolded.iteration_time_s
            assert folded.collectives == unfolded.collectives


@pytest.mark.parametrize("replicas", [2, 3])
def test_missing_replicas_are_mirrored_by_expert_rank(tmp_path, replicas):
    run = MoeRun(dp=4 * replicas, microbatches=3, ranks_per_host=8)
    whole = simulate(run.write(tmp_path / "whole"))
    some = [stage * run.dp + place + 4 for stage in range(2) for place in range(4)]
    result = simulate(run.write(tmp_path / "some", some))
    assert result.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=2e-3)
    assert "ranks-mirrored" in codes(result)
    assert "expert-ranks-untraced" not in codes(result)
    assert result.parallel == whole.parallel


@pytest.mark.parametrize("ranks", [[0], [3], [5], [0, 4], [1, 2, 6], [0, 1, 2, 3, 5]])
def test_a_run_without_some_expert_ranks_says_what_it_lacks(tmp_path, ranks):
    result = simulate(RUNS[0].write(tmp_path / "run", ranks))
    assert "expert-ranks-untraced" in codes(result)
    assert result.iteration_time_s > 0


@pytest.mark.slow
def test_other_loads_change_the_run_of_one_rank_or_all(tmp_path):
    files = RUNS[0].write(tmp_path / "run")
    for ranks in (files, files[3:4]):
        steps = [simulate(ranks, comm="model", expert_imbalance=each).iteration_time_s for each in (1, 1.5, 2, 3)]
        assert steps == sorted(set(steps))
        same = simulate(ranks, comm="model", expert_loads=(2, 2 / 3, 2 / 3, 2 / 3))
        assert same.iteration_time_s == pytest.approx(steps[2])
    whole = simulate(files, comm="model")
    again = simulate(files, comm="model", expert_loads=tmp_path / "run")
    assert again.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=2e-3)
    assert "expert-imbalance-unused" in codes(simulate(files, expert_imbalance=2))


def test_loads_are_taken_from_the_traces_of_a_run(tmp_path):
    files, tokens = RUNS[0].write(tmp_path / "run"), (2173, 3667, 2167, 185)
    options = {"pp": 4, "ep": 4, "dp": 4, "microbatches": 4}
    given = simulate(PROFILE, expert_loads=tokens, **options)
    for source in (tmp_path / "run", str(tmp_path / "run" / "*rank[0-3]_*"), files[0].parent):
        read = simulate(PROFILE, expert_loads=source, **options)
        assert read.iteration_time_s == pytest.approx(given.iteration_time_s, rel=1e-9)
        (note,) = [note for note in read.assumptions if note.code == "expert-loads-traced"]
        assert "expert rank 1 of 4 has 1.79 x the mean tokens" in note.text
        assert str(files[0]) in {each.path for each in read.inputs}
    with pytest.raises(FormatError, match="expert rank 1, 3 of 4"):
        simulate(PROFILE, expert_loads=tmp_path / "run" / "*rank[02]_*", **options)
    with pytest.raises(ConfigError, match="gives 4 loads, but there are 2 expert ranks"):
        simulate(PROFILE, expert_loads=tmp_path / "run", **{**options, "ep": 2})
    with pytest.raises(FormatError, match="no tokens of experts"):
        simulate(PROFILE, expert_loads=PROFILE.parent / "megatron_pp4_tp2", **options)
    with pytest.raises(FormatError, match="is not a rank trace"):
        simulate(PROFILE, expert_loads=PROFILE.parent / "aicb_gpt_405b_1024gpu.txt", **options)


def test_the_command_takes_numbers_or_traces_as_loads(tmp_path):
    RUNS[0].write(tmp_path / "run")
    command = ["simulate", str(PROFILE), "--pp", "4", "--ep", "4", "--dp", "4", "--cluster", "h800", "--expert-loads"]
    shown = [CliRunner().invoke(cli, [*command, loads]) for loads in (str(tmp_path / "run"), "2173,3667,2167,185")]
    assert [each.exit_code for each in shown] == [0, 0]
    assert shown[0].output.splitlines()[0] == shown[1].output.splitlines()[0]
    assert CliRunner().invoke(cli, [*command, "nothing"]).exit_code == 2


def test_two_runs_in_a_folder_are_told_apart_by_patterns(tmp_path):
    folder = tmp_path / "a [b]"
    for run, stamp in ((RUNS[0], 20250818085710), (RUNS[0], 20250818090210), (RUNS[2], 20250818085710)):
        run.write(folder, stamp=stamp)
    with pytest.raises(FormatError, match="are of 3 runs") as error:
        simulate(folder)
    patterns = re.findall(r"'([^']+)'", str(error.value))
    assert len(patterns) == 3
    steps = [simulate(pattern).measured_s for pattern in patterns]
    assert sorted(steps) == pytest.approx(sorted([RUNS[0].step_ms / 1e3] * 2 + [RUNS[2].step_ms / 1e3]), abs=2e-4)
    shown = CliRunner().invoke(cli, ["inspect", str(folder)])
    assert shown.output.startswith("32 files: traces of 16 ranks, of several runs: 8 ranks more than once\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("comm", "legal"),
    [
        ("allgather", False),
        ("reduce_scatter", False),
        ("allreduce", False),
        ("broadcast", False),
        ("all_gather_v", True),
        ("reduce_scatter_v", True),
        ("gather", True),
        ("scatter", True),
        ("all_to_all", True),
    ],
)
def test_sizes_may_differ_only_where_the_operation_allows_it(tmp_path, comm, legal):
    for path in RUNS[0].write(tmp_path / "run"):
        rank = int(re.search("rank([0-9]+)_", path.name)[1])
        text = re.sub(
            r"input__shape=\[8\](.*?)comm_func=allgather",
            rf"input__shape=[{8 + rank}]\1comm_func={comm}",
            path.read_text(),
        )
        path.write_text(text)
    if not legal:
        with pytest.raises(ProgramError, match="members of a collective disagree"):
            simulate(tmp_path / "run")
        return
    result = simulate(tmp_path / "run", comm="model")
    names = {"all_gather_v": "all_gather", "reduce_scatter_v": "reduce_scatter"}
    made = [each for each in result.collectives if each.op == names.get(comm, comm) and each.size_bytes < 1000]
    # Gathering counts what all give, were they as the busiest; of rank 3 and of rank 7 that is most.
    pieces = 4 if comm in ("all_gather_v", "gather") else 1
    assert {each.size_bytes for each in made} == {8 * pieces * (8 + most) for most in (3, 7)}
    assert all(each.time_s > 0 for each in made)


def test_members_that_run_different_operations_are_refused(tmp_path):
    files = RUNS[0].write(tmp_path / "run")
    files[1].write_text(files[1].read_text().replace("comm_func=all_to_all", "comm_func=allgather", 1))
    with pytest.raises(ProgramError, match="members of a collective disagree"):
        simulate(files)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["inspect"], ["simulate", "--cluster", "h800"], ["inspect", "--json"]])
@pytest.mark.parametrize("ranks", [range(8), [0], [1, 6], range(4, 8)])
def test_commands_take_all_or_some_of_the_files(tmp_path, command, ranks):
    RUNS[0].write(tmp_path / "run", ranks)
    shown = CliRunner().invoke(cli, [*command, str(tmp_path / "run")])
    assert shown.exit_code == 0, shown.output


def test_a_result_compares_with_the_run_it_replays(tmp_path):
    RUNS[0].write(tmp_path / "run")
    result = simulate(tmp_path / "run")
    comparison = api.compare(result, api.read(tmp_path / "run"))
    assert comparison.step.relative == pytest.approx(0, abs=2e-3)
    assert len(comparison.ends) == 8


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"pp{run.pp}-ep{run.ep}")
def test_parts_agree_without_the_waiting_and_with_it(tmp_path, run):
    result = simulate(run.write(tmp_path / "run"))
    for part in result.parts:
        assert part.measured_s is not None, part
        assert 0 <= part.wait_s <= part.time_s + 1e-12
        assert 0 <= part.measured_wait_s <= part.measured_s + 1e-12
        assert part.time_s - part.wait_s == pytest.approx(part.measured_s - part.measured_wait_s, abs=1e-4), part
        assert part.wait_s == pytest.approx(part.measured_wait_s, abs=1e-3), part


def test_the_slowest_stragglers_are_listed_where_there_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr("traincast.simulation.account.MOST_STRAGGLERS", 1)
    run = MoeRun(dp=8, ep=2, tokens=lambda *_: 2048, slow={2: 1.5, 3: 2.0})
    result = simulate(run.write(tmp_path / "run"))
    assert [each.rank for each in result.stragglers] == [3]
    assert "2 ranks compute much longer than their peers; the 1 slowest" in "".join(n.text for n in result.warnings)
