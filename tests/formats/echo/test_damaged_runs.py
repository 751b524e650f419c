"""Damaged traces end in a simulated step or in one clear error, never in a traceback or a NaN."""

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo_runs import MoeRun
from traincast import api
from traincast.errors import FormatError, TraincastError

EXAMPLES = Path(__file__).parents[3] / "examples"
FILES = [
    EXAMPLES / "megatron_rank0_pp2.txt",
    EXAMPLES / "megatron_moe_profile_rank7.txt",
    next((EXAMPLES / "megatron_pp4_tp2").glob("*rank6_*")),
]
LAYOUTS = [{}, {"pp": 4, "dp": 4, "ep": 4, "tp": 1, "microbatches": 3}, {"comm": "model"}, {"tp": 2, "pp": 4, "dp": 1}]


@st.composite
def damages(draw):
    """Return a file's bytes with a few places changed, cut or filled, most of them where the numbers are."""
    path = draw(st.sampled_from(FILES))
    data = bytearray(path.read_bytes())
    for _ in range(draw(st.integers(1, 5))):
        limit = draw(st.sampled_from([300, len(data)]))
        at = draw(st.integers(0, max(0, min(limit, len(data)) - 1)))
        kind = draw(st.sampled_from(["set", "cut", "fill", "drop a line", "swap lines"]))
        if kind == "set":
            data[at : at + 1] = draw(
                st.sampled_from([b"0", b"9", b"-", b".", b"e", b",", b"=", b"[", b")", b"\xff", b"\n"])
            )
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 12))]
        elif kind == "fill":
            data[at:at] = draw(st.sampled_from([b"0000000", b"e300", b"-1", b"None", b"nan", b"'", b"inf"]))
        else:
            lines = data.split(b"\n")
            line = lines.pop(draw(st.integers(0, len(lines) - 1)))
            data = bytearray(b"\n".join([line, *lines] if kind == "swap lines" else lines)) or bytearray(b"\n")
    return path.name, bytes(data)


_WORDS = [b"allgather", b"all_to_all", b"reduce_scatter_v", b"gather", b"scatter", b"4096", b"2048", b"exp", b"185"]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_to_a_run_with_experts_ends_in_a_step_or_an_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    paths = MoeRun(microbatches=2, layers=1).write(
        folder, data.draw(st.sets(st.integers(0, 7), min_size=1).map(sorted))
    )
    for path in data.draw(st.lists(st.sampled_from(paths), max_size=3)):
        old, new = (data.draw(st.sampled_from(_WORDS)) for _ in range(2))
        parts = path.read_bytes().split(old)
        at = data.draw(st.integers(0, len(parts) - 1))
        path.write_bytes(old.join(parts[: at + 1]) + (new + old.join(parts[at + 1 :]) if parts[at + 1 :] else b""))
    options = [{}, {"comm": "model"}, {"comm": "model", "expert_imbalance": 2}, {"expert_loads": folder}, {"dp": 8}]
    try:
        result = api.simulate(folder, cluster="h800", **data.draw(st.sampled_from(options)))
    except TraincastError as error:
        assert str(error)
    else:
        assert math.isfinite(result.iteration_time_s) and result.iteration_time_s > 0
        for part in result.parts:
            assert 0 <= part.wait_s <= part.time_s + 1e-9
            assert part.measured_wait_s is None or 0 <= part.measured_wait_s <= part.measured_s + 1e-9


@pytest.mark.slow
@settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(damages(), st.sampled_from(LAYOUTS))
def test_damage_ends_in_a_step_or_an_error(tmp_path, damage, layout):
    name, data = damage
    path = tmp_path / name
    path.write_bytes(data)
    try:
        result = api.simulate(path, cluster="h100", **layout)
    except FormatError as error:
        assert str(path) in str(error)
    except TraincastError as error:
        assert str(error)
    else:
        assert math.isfinite(result.iteration_time_s) and result.iteration_time_s >= 0
        for rank in result.ranks:
            total = sum(rank.breakdown_s.values())
            assert total == pytest.approx(result.iteration_time_s, rel=1e-9, abs=1e-12)
