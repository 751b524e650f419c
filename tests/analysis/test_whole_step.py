"""The breakdown of a whole step tells the story that what-ifs confirm."""

import random

import pytest

import traincast
from traincast.analysis.breakdown import EXPOSED
from traincast.analysis.whole_step import WholeStep, competing
from traincast.errors import TraincastError
from traincast.simulation.result import BREAKDOWN_KEYS

COMMUNICATION = ("tp", "cp", "ep", "pp", "dp")
WITHOUT = tuple(f"{name}_comm*0" for name in COMMUNICATION)


def jobs(count, seed):
    """Random jobs: dense models and experts, layouts, sharding, overlap or not."""
    rng, found = random.Random(seed), []  # noqa: S311
    while len(found) < count:
        experts = rng.random() < 0.4
        tp, pp, cp, dp, m = (rng.choice(each) for each in ([1, 2, 8], [1, 1, 2, 4], [1, 1, 2], [1, 2, 4, 8], [1, 2, 4]))
        job = {
            "model": rng.choice(["mixtral-8x7b", "deepseek-v2-lite"] if experts else ["llama3-8b", "gpt3-13b"]),
            "cluster": rng.choice(["h100", "a100", "b200"]),
            "gpus": tp * pp * cp * dp,
            **{"tp": tp, "pp": pp, "cp": cp, "micro_batch": 1, "global_batch": dp * m, "allow_oom": True},
            "seq_length": rng.choice([2048, 4096]),
            "zero": rng.choice([0, 1, 3] if pp == 1 else [0, 1]),
            **({"ep": rng.choice([1, 2, 8])} if experts else {}),
            **({"overlap_grad_reduce": False, "overlap_param_gather": False} if rng.random() < 0.3 else {}),
        }
        try:
            found.append(traincast.predict(**job, what_if=WITHOUT))
        except TraincastError:
            continue
    return found


@pytest.fixture(scope="module")
def results():
    return jobs(16, seed=5)


@pytest.mark.slow
def test_parts_sum_to_the_step(results):
    for result in results:
        assert tuple(result.breakdown_s) == BREAKDOWN_KEYS
        assert sum(result.breakdown_s.values()) == pytest.approx(result.iteration_time_s, rel=1e-12)
        assert min(result.breakdown_s.values()) >= 0


@pytest.mark.slow
def test_taking_a_part_away_saves_that_part(results):
    """Never more, but for what settles in further rounds; and at least half of each part that is worth a look."""
    large = 0
    for result in results:
        step_s = result.iteration_time_s
        saved_s = {each.change: each.saving_s for each in result.what_if}
        for name in COMMUNICATION:
            part_s, saving_s = result.breakdown_s[f"exposed_{name}"], saved_s.get(f"{name}_comm*0", 0.0)
            assert saving_s <= part_s + 0.006 * step_s
            if part_s > 0.03 * step_s:
                large += 1
                assert saving_s >= 0.5 * part_s
    assert large >= 10


def test_draining_is_bubble_whatever_is_reduced_meanwhile():
    """Equal stages of 1F1B: the last one reduces gradients while the others drain."""
    job = {"model": "llama3-70b", "cluster": "h100", "gpus": 512, "tp": 8, "pp": 4, "vpp": 1, "schedule": "1f1b"}
    job |= {"grad_reduce_bytes": 2}
    result = traincast.predict(**job, global_batch=64, seq_length=8192, what_if=("dp_comm*0",))
    (free,) = result.what_if
    assert result.breakdown_s["exposed_dp"] == pytest.approx(free.saving_s, rel=0.1)
    assert result.breakdown_s["bubble"] > 5 * result.breakdown_s["exposed_dp"]
    assert result.breakdown_s["compute"] == max(rank.compute_s for rank in result.ranks)


def test_what_competes_with_a_part_that_saves_little_is_named():
    parts = dict.fromkeys(EXPOSED, 0.0) | {"compute": 4.0, "exposed_tp": 3.0, "exposed_ep": 2.5, "exposed_dp": 0.5}
    saved = dict.fromkeys(EXPOSED, 0.0) | {"exposed_tp": 2.5, "exposed_ep": 0.5, "exposed_dp": 0.5}
    (note,) = competing(WholeStep({**parts, "bubble": 0.0, "other": 0.0}, saved), 10.0)
    assert note.text == "without its exposed ep the step is only 500 ms shorter: compute takes as long in parallel"
